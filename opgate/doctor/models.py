"""Looks at the models of repositories: their folders, and what the gateway says when it loads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opgate.doctor.findings import Finding
from opgate.doctor.libraries import try_library
from opgate.doctor.probe import run
from opgate.service.core.errors import ServingError
from opgate.service.repository.config import ConfigError
from opgate.service.repository.loader import cores_of, load_config
from opgate.service.repository.op_libraries import trusted_folders
from opgate.service.repository.paths import model_names, version_numbers
from opgate.service.repository.repositories import check_repository
from opgate.service.settings import Settings

_MEND = (
    "do what the message says; if it names only what is wrong, change config.pbtxt or the model's file, so that they "
    "agree: docs/gateway.md says what a config may state"
)
_MEND_PYTHON = (
    "if you trust the ops, serve with --allow-python-ops; with OPGATE_ALLOW_PYTHON_OPS=1 in the environment, "
    "`opgate doctor` tries the model too"
)


def check_repositories(folders: Sequence[Path]) -> Iterator[Finding]:
    """Says which repositories can't be served, and what lies in them that isn't."""
    owners: dict[str, Path] = {}
    for folder in folders:
        where = f"repository {folder}"
        try:
            check_repository(folder)
        except ConfigError as error:
            yield Finding(where, error.message, "name the folder that has the models' folders")
            continue
        names = model_names(folder)
        if not names:
            yield Finding(
                where, "it has no model", "put models into it as <model>/<version>/model.onnx", is_error=False
            )
        for file in sorted(folder.glob("*.onnx")):
            yield Finding(
                where,
                f"{file.name} lies beside the models' folders, so nobody serves it",
                f"move it to {file.stem}/1/model.onnx",
                is_error=False,
            )
        for name in names:
            if name in owners:
                yield Finding(f"model {name}", f"{owners[name]} and {folder} both have it", "rename one of the folders")
            owners.setdefault(name, folder)


def check_model(repository: Path, name: str, settings: Settings, seconds: float) -> Iterator[Finding]:
    """Reads a model's config, tries the libraries that it names, and loads it in a process of its own."""
    where = f"model {name}"
    folder = repository / name
    yield from _odd_versions(folder, where)
    try:
        config = load_config(repository, name, settings.backend == "triton")
    except ServingError as error:
        yield Finding(where, error.message, "mend config.pbtxt: docs/gateway.md lists what it may say")
        return
    yield from _threads(config, settings, where)
    trusted = trusted_folders(settings)
    for library in config.model_operations.op_library_filename:
        for path in (folder / library, *sorted(folder.glob(f"*/{library}"))):
            if path.is_file() and path.parent not in trusted:
                yield from try_library(path, trusted, seconds)
    stated: dict[str, Any] = {"model_repository": str(repository)}
    probed = run("model", name, stdin=json.dumps(stated), seconds=seconds)
    if probed.ended:
        yield Finding(
            where,
            f"the process that loads it {probed.ended}",
            "it would end the gateway too: look for the op in the message, and run `opgate verify` on its library",
        )
    yield from _reasons(probed.found, where)


def why_not_served(folder: Path, version: int, seconds: float = 120.0) -> str:
    """Loads a version of a model as the gateway does, in a process of its own. Returns why it can't be served, an empty
    text if it can."""
    settings = json.dumps({"model_repository": str(folder.resolve().parent)})
    probed = run("load", folder.resolve().name, stdin=settings, seconds=seconds)
    if probed.ended:
        return f"the process that loads it {probed.ended}"
    reasons: dict[str, str] = probed.found.get("reasons", {})
    return reasons.get(str(version)) or reasons.get("0", "")


def _reasons(found: Mapping[str, Any], where: str) -> Iterator[Finding]:
    for version, reason in found.get("reasons", {}).items():
        of = where if version == "0" else f"{where} version {version}"
        python = "--allow-python-ops" in reason
        yield Finding(of, reason, _MEND_PYTHON if python else _MEND)
    unknown = found.get("unknown", ())
    if len(unknown) > 1:
        yield Finding(
            where,
            f"no library has these ops: {', '.join(unknown)}",
            "build or trust a library that has them, or rewrite the model with `opgate import`",
        )
    if rows := found.get("rows", ""):
        yield Finding(
            where,
            f"requests run one by one, and could run together: {rows}",
            "add 'max_batch_size: 8 dynamic_batching {}' to config.pbtxt, with dims that lack the first, or leave it",
            is_error=False,
            is_note=True,
        )
    for name in found.get("ignored", ()):
        yield Finding(where, f"nothing here reads {name} of its config", "remove it, or leave it", is_error=False)


def _odd_versions(folder: Path, where: str) -> Iterator[Finding]:
    versions = version_numbers(folder)
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name.isdecimal() and int(path.name) not in versions:
            yield Finding(
                where,
                f"the folder {path.name} is no version, because it begins with 0",
                f"call it {int(path.name) or 1}",
                is_error=False,
            )
        elif path.suffix == ".onnx":
            yield Finding(
                where, f"{path.name} lies beside the versions' folders", f"move it to 1/{path.name}", is_error=False
            )


def _threads(config: Any, settings: Settings, where: str) -> Iterator[Finding]:
    """Compares the threads that run at once with the cores. The instances on the CPU share the threads of a session."""
    cores = cores_of(settings)
    instances = sum(group.count or 1 for group in config.instance_group) or 1
    text = config.parameters["intra_op_thread_count"].string_value if config.parameters else ""
    stated = int(text) if text.isdecimal() else 0
    threads = stated or settings.intra_op_threads or max(1, cores // instances)
    at_once = instances + threads - 1
    if at_once <= cores:
        return
    reason = "intra_op_thread_count" if stated else "OPGATE_INTRA_OP_THREADS" if settings.intra_op_threads else "count"
    place = "this machine" if settings.workers == 1 else "a gateway process"
    yield Finding(
        where,
        f"{instances} instance{'s' * (instances > 1)} and {threads} threads of their session are {at_once} threads at "
        f"once, and {place} has {cores} core{'s' * (cores > 1)}",
        f"lower {reason}: without it a session has as many threads as cores",
        is_error=False,
    )
