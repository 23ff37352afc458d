"""Op libraries: where they are looked for, and which of them are trusted.

A library is native code. It is loaded only where a manifest.json in a place that the operator named (OPGATE_OPS_PATH or
the build's output) lists its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from service.repository.config import ConfigError
from service.repository.paths import file_name
from service.settings import Settings

MANIFEST = "manifest.json"
_MISSING_OP = re.compile(r"(?:(\S+?):)?(\w+)\((-?\d+)\) is not a registered function/op")


def sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory, an empty one where there is none. Raises ConfigError where it is broken."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"format": 1, "libraries": []}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1 or not isinstance(manifest.get("libraries"), list):
        raise ConfigError(f"{path}: expected format 1 with a list of libraries; run `opgate build` to write it anew")
    return manifest


def entries(directories: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every library that the manifests list."""
    for directory in directories:
        yield from (entry for entry in read_manifest(directory)["libraries"] if isinstance(entry, dict))


def find_library(name: str, folders: Sequence[Path]) -> Path:
    """The first folder's file of that name. Raises ConfigError that says what to do."""
    file_name(name, "model_operations.op_library_filename")
    for folder in folders:
        path = folder / name
        if path.is_file():
            return path.resolve()
    searched = ", ".join(str(folder) for folder in folders)
    raise ConfigError(
        f"op library '{name}' was not found in {searched}. Run `opgate build` to build it, "
        "or put its directory on OPGATE_OPS_PATH"
    )


def trusted_library(name: str, folders: Sequence[Path], trusted: Sequence[Path]) -> Path:
    """Finds a library and checks its hash. `folders` are the model's own, searched before the trusted directories.

    Raises ConfigError where it is missing or no manifest of a trusted directory lists its hash.
    """
    path = find_library(name, [*folders, *trusted])
    digest = sha256(path)
    if any(entry.get("sha256") == digest for entry in entries(trusted)):
        return path
    raise ConfigError(
        f"op library {path} is not trusted: no {MANIFEST} in {', '.join(map(str, trusted))} lists its SHA-256 "
        f"{digest}. If you built it or know who did, run `opgate trust {path}`; opgate's own is made by `opgate build`"
    )


def explain_missing_op(message: str, library: str, trusted: Sequence[Path]) -> str:
    """ONNX Runtime's "is not a registered function/op", with the op's name and the remedy."""
    found = _MISSING_OP.search(message)
    if found is None:
        return message
    domain, op, version = found.groups()
    where = f"{domain}::{op}" if domain else op
    known = [
        str(entry.get("file"))
        for entry in entries(trusted)
        if entry.get("engine") == "onnxruntime" and any(o.get("name") == op for o in entry.get("ops", []))
    ]
    if known and library in known:
        remedy = f"{library} has an op of that name: its domain or types differ; compare with `opgate ops`"
    elif known:
        remedy = f'add model_operations {{ op_library_filename: "{known[0]}" }} to config.pbtxt'
    else:
        remedy = "no trusted op library has it: run `opgate build` on its source, or `opgate trust` its library"
    return f"op '{where}' (version {version}) is not known to ONNX Runtime: {remedy}. The engine said: {message}"


def trust(library: Path, directory: Path | None = None) -> Path:
    """Lists a library's hash in a manifest and returns the manifest's path.

    Without `directory` it is the library's own folder where the settings trust that one, else the first that they
    trust. What the library holds can't be known without running it, so the entry has no ops. Raises OSError where a
    file can't be read or written, ValueError where the manifest is broken.
    """
    digest = sha256(library)
    place = directory or _place_for(library)
    try:
        manifest = read_manifest(place)
    except ConfigError as error:
        raise ValueError(error.message) from error
    path = place / MANIFEST
    if any(entry.get("sha256") == digest for entry in manifest["libraries"]):
        return path
    manifest["libraries"].append({"file": library.name, "sha256": digest, "engine": "onnxruntime", "ops": []})
    place.mkdir(parents=True, exist_ok=True)
    # By replacement, so that a server that starts meanwhile never reads half a manifest.
    temporary = place / f".{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _place_for(library: Path) -> Path:
    trusted = [place.resolve() for place in Settings().trusted_directories()]
    own = library.resolve().parent
    return own if own in trusted else trusted[0]
