"""What a new version of op libraries breaks for models and callers of the old one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate import cpu
from opgate.ops_build.building.manifest import MANIFEST
from opgate.ops_build.op_table import Attribute, Input, Op, Output, parse_signature


@dataclass(frozen=True, slots=True)
class Change:
    """A difference. It `breaks` if a model or a call that worked with the old version fails with the new one, or may
    give something else."""

    breaks: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Stated:
    """An op as a manifest states it."""

    domain: str
    since_version: int
    signature: str
    places: frozenset[tuple[str, str]]  # the engines and devices that it has a kernel for


def compare(old: Path, new: Path, parser: Path) -> list[Change]:
    """Returns what has changed between two versions of op libraries: folders of builds, manifests, or wheels.

    `parser` is a library of this machine: its core parses the signatures. Nothing of `old` and `new` is loaded. Raises
    OSError and ValueError if there is no manifest.
    """
    manifests = _manifest(old), _manifest(new)
    before, after = map(_ops, manifests)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            changes.append(Change(True, f"{name}: it is gone"))
        elif name not in before:
            changes.append(Change(False, f"{name}: it is new"))
        else:
            changes += _of_op(name, before[name], after[name], parser)
    return [*changes, *_of_processors(*manifests), *_of_c_libraries(*manifests)]


def _manifest(place: Path) -> dict[str, Any]:
    try:
        if place.suffix == ".whl":
            with zipfile.ZipFile(place) as wheel:
                (name,) = (name for name in wheel.namelist() if name.endswith(f"lib/{MANIFEST}"))
                content = wheel.read(name).decode()
        else:
            content = (place / MANIFEST if place.is_dir() else place).read_text()
        manifest = json.loads(content)
        libraries = [entry for entry in manifest["libraries"] if "domain" in entry]
        _ops({"libraries": libraries})  # it has all that is compared
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{place}: expected a folder or a wheel with a {MANIFEST} of opgate build, got {error}"
        ) from None
    return {"libraries": libraries}


def _ops(manifest: Mapping[str, Any]) -> dict[str, _Stated]:
    found: dict[str, _Stated] = {}
    for entry in manifest["libraries"]:
        for op in entry["ops"]:
            name = f"{entry['domain']}.{op['name']}"
            places = {(str(entry["engine"]), str(device)) for device in op["devices"]}
            known = found[name].places if name in found else frozenset()
            found[name] = _Stated(entry["domain"], op["since_version"], op["signature"], known | places)
    return found


def _of_op(name: str, old: _Stated, new: _Stated, parser: Path) -> Iterator[Change]:
    if old.since_version != new.since_version:
        text = f"version of the domain: models state {old.since_version}, the op is one of {new.since_version}"
        yield Change(old.since_version < new.since_version, f"{name}: {text}")
    for engine, device in sorted(old.places - new.places):
        yield Change(True, f"{name}: no kernel for {engine} on {device} any more")
    for engine, device in sorted(new.places - old.places):
        yield Change(False, f"{name}: a kernel for {engine} on {device}")
    if old.signature != new.signature:
        before, after = parse_signature(parser, old.signature), parse_signature(parser, new.signature)
        for change in (
            *_of_tensors("input", before.inputs, after.inputs),
            *_of_attributes(before.attributes, after.attributes),
            *_of_tensors("output", before.outputs, after.outputs),
            *_of_dtypes_and_sizes(before, after),
        ):
            yield Change(change.breaks, f"{name}: {change.text}")


def _of_tensors(kind: str, old: Sequence[Input | Output], new: Sequence[Input | Output]) -> Iterator[Change]:
    for tensor in old[len(new) :]:
        yield Change(True, f"{kind} '{tensor.name}' is gone")
    for tensor in new[len(old) :]:
        yield Change(not tensor.optional, f"{kind} '{tensor.name}' is new" + " and optional" * tensor.optional)
    for place, (before, after) in enumerate(zip(old, new, strict=False), 1):
        what = f"{kind} '{after.name}'"
        if before.name != after.name:
            yield Change(True, f"{kind} {place} is called '{after.name}', it was '{before.name}'")
        if before.optional != after.optional:
            now = "optional" if after.optional else "no longer optional"
            yield Change(kind == "output" or before.optional, f"{what} is {now}")
        for flag, text in (("variadic", "a list"), ("const", "a constant"), ("on_request", "given on request")):
            was, is_now = getattr(before, flag, False), getattr(after, flag, False)
            if was != is_now:
                looser = flag == "const" and was
                yield Change(not looser, f"{what} is {'' if is_now else 'no longer '}{text}")


def _sizes(op: Op, inputs: int, outputs: int) -> list[Any]:
    """Returns the sizes of so many inputs and outputs. Names of sizes count by their order alone."""
    attributes = {attribute.name for attribute in op.attributes}
    numbers: dict[str, str] = {}

    def numbered(part: Any) -> Any:
        if isinstance(part, str):
            return part if part in attributes else numbers.setdefault(part, f"#{len(numbers)}")
        if isinstance(part, list):
            return [part[0], *map(numbered, part[1:])]
        return part

    found: list[Any] = []
    for tensor in _tensors(op, inputs, outputs):
        dims = [{key: value if key == "kind" else numbered(value) for key, value in dim.items()} for dim in tensor.dims]
        found.append([repr(dim) for dim in dims])
    return found


def _of_attributes(old: Sequence[Attribute], new: Sequence[Attribute]) -> Iterator[Change]:
    before, after = ({attribute.name: attribute for attribute in some} for some in (old, new))
    for name in dict.fromkeys([*before, *after]):
        what, was, now = f"attribute '{name}'", before.get(name), after.get(name)
        if now is None:
            yield Change(True, f"{what} is gone")
        elif was is None:
            default = "" if now.required else f", with the default {now.default}"
            yield Change(now.required, f"{what} is new{default}")
        else:
            if (was.kind, was.list, was.length) != (now.kind, now.list, now.length):
                yield Change(True, f"{what} has another type")
            if gone := set(was.choices) - set(now.choices):
                yield Change(True, f"{what} can't be {', '.join(sorted(gone))} any more")
            if more := set(now.choices) - set(was.choices):
                yield Change(False, f"{what} may be {', '.join(sorted(more))}")
            if was.required != now.required:
                yield Change(now.required, f"{what} {'must be given' if now.required else 'has a default now'}")
            elif was.default != now.default:
                yield Change(True, f"{what} is {now.default} if it isn't given, it was {was.default}")


def _of_dtypes_and_sizes(old: Op, new: Op) -> Iterator[Change]:
    """Yields how the dtypes and the sizes differ of those tensors that both have."""
    counts = min(len(old.inputs), len(new.inputs)), min(len(old.outputs), len(new.outputs))
    before, after = _dtypes(old, *counts), _dtypes(new, *counts)
    if gone := sorted(before - after):
        yield Change(True, f"not for the dtypes {_listed(gone)} any more")
    if more := sorted(after - before):
        yield Change(False, f"for the dtypes {_listed(more)} too")
    if _sizes(old, *counts) != _sizes(new, *counts):
        yield Change(True, f"other sizes: {new.signature}, it was {old.signature}")


def _listed(choices: Sequence[Sequence[str]]) -> str:
    return "; ".join(" ".join(types) for types in choices)


def _tensors(op: Op, inputs: int, outputs: int) -> list[Input | Output]:
    return [*op.inputs[:inputs], *op.outputs[:outputs]]


def _dtypes(op: Op, inputs: int, outputs: int) -> set[tuple[str, ...]]:
    """Returns the dtypes of so many inputs and outputs, for each choice that the signature has."""
    types = [tensor.type for tensor in _tensors(op, inputs, outputs)]
    return {tuple(choice.get(type, type) for type in types) for choice in op.type_choices()}


def _of_processors(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the libraries that need another processor."""
    before, after = (
        {(e["domain"], e["file"]): str(e.get("flags", "")) for e in some["libraries"]} for some in (old, new)
    )
    levels = ["", *(level.flag for of_machine in cpu.LEVELS.values() for level in of_machine.values())]
    for place in sorted(before.keys() & after.keys()):
        if before[place] != after[place]:
            was, now = before[place], after[place]
            lower = not now or (was in levels and now in levels and levels.index(now) < levels.index(was))
            text = f"compiled for {now or 'every processor'}, it was for {was or 'every processor'}"
            yield Change(not lower, f"{place[1]}: {text}")


def _of_c_libraries(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the libraries that need another version of the C library."""
    before, after = ({e["file"]: str(e.get("glibc", "")) for e in some["libraries"]} for some in (old, new))
    for file in sorted(before.keys() & after.keys()):
        was, now = (
            f"for glibc {of[file]} and later" if of[file] else "for the glibc of its build" for of in (before, after)
        )
        if was != now:
            yield Change(bool(before[file]), f"{file}: {now}, it was {was}")
