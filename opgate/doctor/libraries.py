"""Looks at the op libraries: those that manifests list, and those that lie beside models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opgate.doctor.findings import Finding, mend_of
from opgate.doctor.probe import run
from opgate.service.repository.config import ConfigError
from opgate.service.repository.op_libraries import (
    EngineError,
    check_processor,
    entries,
    refused_folders,
    sha256,
    trusted_folders,
    trusted_library,
)
from opgate.service.settings import Settings
from opgate.signed_manifests import MANIFEST


def check_trusted(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Tries every library that the manifests of the trusted folders list. The build's own folder needn't be there."""
    for folder, reason in refused_folders(settings).items():
        remedy = "get the package again from who signs it, or run `opgate sign` on what you built"
        yield Finding(f"folder {folder}", reason, remedy)
    domains: dict[tuple[str, str, str], Path] = {}
    for folder in trusted_folders(settings):
        if not (folder / MANIFEST).is_file():
            if folder != settings.build_ops:
                yield Finding(
                    f"folder {folder}",
                    f"OPGATE_OPS_PATH names it, and it has no {MANIFEST}",
                    "run `opgate build FOLDER` and name FOLDER/build, or `opgate trust LIBRARY`",
                )
            continue
        try:
            listed = list(entries([folder]))
        except ConfigError as error:
            yield Finding(f"folder {folder}", error.message, f"see the message, or remove {folder / MANIFEST}")
            continue
        for entry in listed:
            yield from _check_entry(folder, entry, domains, seconds)
        yield from _unlisted(folder, listed)


def _check_entry(
    folder: Path,
    entry: Mapping[str, Any],
    domains: dict[tuple[str, str, str], Path],
    seconds: float,
) -> Iterator[Finding]:
    path = folder / str(entry.get("file"))
    where = f"library {path}"
    # `opgate trust` may list a library that lies elsewhere, by its hash.
    if not path.is_file():
        if entry.get("domain"):
            yield Finding(where, f"{folder / MANIFEST} lists it, and it is not there", "run `opgate build` again")
        return
    if sha256(path) != entry.get("sha256"):
        yield Finding(
            where,
            f"its SHA-256 is not the one that {folder / MANIFEST} lists: it has changed since",
            f"run `opgate build` again if you changed it, or `opgate trust {path}` if you know who did",
        )
        return
    if entry.get("engine", "onnxruntime") != "onnxruntime":
        return
    try:
        check_processor(path, str(entry.get("flags", "")))
    except ConfigError as error:
        yield Finding(where, error.message, "build it again on this machine")
        return
    found = list(_load(path, seconds))
    yield from found
    domain = entry.get("domain")
    if found or not domain:
        return
    key = (str(domain), str(entry.get("engine")), ",".join(entry.get("devices", ())))
    if key in domains:
        yield Finding(
            where,
            f"its domain '{domain}' is also that of {domains[key]}: no session can load both",
            "build one of them with another --domain, or take one folder off OPGATE_OPS_PATH",
        )
    domains.setdefault(key, path)


def _unlisted(folder: Path, listed: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    hashes = {entry.get("sha256") for entry in listed}
    names = {entry.get("file") for entry in listed}
    for path in sorted(folder.glob("*.so")):
        if path.name not in names and sha256(path) not in hashes:
            yield Finding(
                f"library {path}",
                f"{MANIFEST} doesn't list it: the gateway never loads it",
                f"run `opgate trust {path}` if you know who built it, or remove it",
                is_error=False,
            )


def try_library(path: Path, trusted: Sequence[Path], seconds: float) -> Iterator[Finding]:
    """Loads a library if it is trusted: the doctor runs no code that the gateway wouldn't."""
    try:
        trusted_library(path.name, [path.parent], trusted)
    except EngineError as error:
        yield Finding(
            f"library {path}", error.message, "install such a version of the engine, or build the library again"
        )
        return
    except ConfigError as error:
        yield Finding(f"library {path}", error.message, f"run `opgate trust {path}` if you know who built it")
        return
    yield from _load(path, seconds)


def _load(path: Path, seconds: float) -> Iterator[Finding]:
    """Loads a library in a process of its own."""
    where = f"library {path}"
    probed = run("library", str(path), seconds=seconds)
    if probed.ended:
        yield Finding(
            where,
            f"the process that loads it {probed.ended}",
            mend_of(probed.ended, "debug its RegisterCustomOps and its static objects: they run when it is loaded"),
        )
    elif refusal := probed.found.get("error"):
        yield Finding(where, refusal, mend_of(refusal, "build it again on this machine"))
    for wrong_op in probed.found.get("errors", ()):
        yield Finding(where, wrong_op, "mend the op's source, and run `opgate build` again")
