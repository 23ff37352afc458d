"""Finds op libraries and decides which of them are trusted.

A library is native code. The gateway loads it only if a manifest.json lists its SHA-256 and lies in a folder that the
operator has named: one of OPGATE_OPS_PATH, the output of the build, or the wheel's own folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate import cpu
from opgate.engine_range import refusal
from opgate.ops_build.python_ops.embedded import embedded_ops
from opgate.service.repository.config import ConfigError
from opgate.service.repository.paths import file_name
from opgate.service.repository.repositories import stamp_of
from opgate.service.settings import Settings
from opgate.service.similar_names import Names
from opgate.signed_manifests import MANIFEST, SIGNATURE, SigningError, check, read_signers

#: What ONNX Runtime says of a file that is too new for it or is none, and what to do.
_UNREADABLE = (
    (
        re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"),
        "the file has IR version {0}, and this ONNX Runtime reads versions up to {1}: write it with "
        "helper.make_model(..., ir_version={1}), or install a newer onnxruntime",
    ),
    (
        re.compile(r"Opset (\d+) is under development.* domain (\S+) is till opset (\d+)", re.DOTALL),
        "the file asks for opset {0} of {1}, and this ONNX Runtime knows opsets up to {2}: export it with opset {2} or "
        "a lower one, or install a newer onnxruntime",
    ),
    (
        re.compile(r"Protobuf parsing failed|ModelProto does not have a graph"),
        "the file is no ONNX model, or a part of one: copy or export it again",
    ),
)
_MISSING_OP = re.compile(r"(?:(\S+?):)?(\w+)\((-?\d+)\) is not a registered function/op")


@dataclass(frozen=True, slots=True)
class Library:
    """A trusted library: its file, its SHA-256, where to load the very bytes that were hashed, and how many of its ops
    are functions in Python."""

    path: Path
    digest: str
    image: Path
    python_ops: int = 0


# The images of libraries by digest. A library is loaded into the process once and stays, so its image stays too.
_IMAGES: dict[str, Path] = {}
_MAKING = threading.Lock()  # models are loaded side by side


def _image(name: str, data: bytes, digest: str) -> Path:
    """Returns a file in memory that holds `data` and that nobody can change."""
    with _MAKING:
        image = _IMAGES.get(digest)
        if image is None:
            file = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with os.fdopen(os.dup(file), "wb") as out:
                out.write(data)
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            image = _IMAGES[digest] = Path(f"/proc/self/fd/{file}")
        return image


class EngineError(ConfigError):
    """A library works in other versions of its engine than the one that is there."""


# The manifests that must be signed, as they were when that was checked: this is read, whatever the files are by then.
# Nothing is read of one that was refused.
_SIGNED: dict[Path, bytes] = {}
_REFUSED = b'{"format": 1, "libraries": []}'


def refused_folders(settings: Settings) -> dict[Path, str]:
    """Returns the folders of OPGATE_OPS_PATH whose manifest none of the operator's signers has signed, and why. Without
    signers there are none. opgate's own libraries are a part of the gateway, and need no signature."""
    found: dict[Path, str] = {}
    for folder in settings.named_directories():
        if settings.trusted_signers is None:
            _SIGNED.pop(folder, None)
            continue
        try:
            _check_not_writable_by_all(settings.trusted_signers, "public keys")
            _SIGNED[folder] = check(folder, read_signers(settings.trusted_signers))
        except (ConfigError, SigningError) as error:
            found[folder] = str(error)
            _SIGNED[folder] = _REFUSED
    return found


def trusted_folders(settings: Settings) -> list[Path]:
    """Returns the folders whose manifests are trusted, in the order in which op libraries are looked for."""
    refused = refused_folders(settings)
    return [folder for folder in settings.trusted_directories() if folder not in refused]


def with_refusals(error: ConfigError, settings: Settings) -> ConfigError:
    """Returns an error that also says which folders are refused."""
    reasons = "; ".join(refused_folders(settings).values())
    return ConfigError(f"{error.message}. Not trusted: {reasons}") if reasons else error


def _check_not_writable_by_all(folder: Path, what: str = "op libraries") -> None:
    """Raises ConfigError if everybody may change what a trusted folder has."""
    for path in (folder / MANIFEST, folder, *folder.resolve().parents):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        # In a sticky folder, such as /tmp, others can't replace what is not theirs. They can add a manifest, though.
        if mode & stat.S_IWOTH and not (mode & stat.S_ISVTX and path != folder):
            raise ConfigError(
                f"the {what} of {folder} are not trusted: everybody may write {path}, so anybody could add "
                f"native code; run `chmod o-w {path}`"
            )


def sha256(path: Path) -> str:
    """Returns the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a folder, an empty one if the folder has none. Raises ConfigError if it is broken."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(_SIGNED.get(directory) or path.read_bytes())
    except FileNotFoundError:
        return {"format": 1, "libraries": []}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1 or not isinstance(manifest.get("libraries"), list):
        raise ConfigError(f"{path}: expected format 1 with a list of libraries; run `opgate build` to write it anew")
    return manifest


def entries(directories: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yields the entry of every library that the manifests of these folders list.

    Raises ConfigError if everybody may write one of the folders, or a manifest is broken.
    """
    for directory in directories:
        _check_not_writable_by_all(directory)
        yield from (entry for entry in read_manifest(directory)["libraries"] if isinstance(entry, dict))


def stamp_of_libraries(settings: Settings) -> Hashable:
    """Returns a value that differs when a library, a manifest or a signer's key has changed."""
    paths = [] if settings.trusted_signers is None else sorted(settings.trusted_signers.glob("*.pem"))
    for folder in settings.trusted_directories():
        paths += [folder / MANIFEST, folder / SIGNATURE, *sorted(folder.glob("*.so"))]
    return tuple((str(path), stamp_of(path)) for path in paths)


def find_library(name: str, places: Sequence[Path]) -> Path:
    """Returns the file of that name in the first folder that has it. Raises ConfigError that says what to do."""
    file_name(name, "model_operations.op_library_filename")
    for folder in places:
        path = folder / name
        if path.is_file():
            return path.resolve()
    searched = ", ".join(str(folder) for folder in places)
    raise ConfigError(
        f"op library '{name}' was not found in {searched}. Run `opgate build` for opgate's own ops. For yours run "
        "`opgate build FOLDER`, and put FOLDER/build on OPGATE_OPS_PATH"
    )


def trusted_library(name: str, places: Sequence[Path], trusted: Sequence[Path]) -> Library:
    """Finds a library and checks its hash. `places`, the model's folders, are searched before the trusted folders.

    Raises ConfigError if the library is missing, no manifest of a trusted folder lists its hash, everybody may write
    such a folder, or the library needs instructions that this processor lacks, or another version of its engine.
    """
    path = find_library(name, [*places, *trusted])
    library = _listed(path, list(entries(trusted)))
    if library is not None:
        return library
    raise ConfigError(
        f"op library {path} is not trusted: no {MANIFEST} in {', '.join(map(str, trusted))} lists its SHA-256 "
        f"{sha256(path)}. If you built it or know who did, run `opgate trust {path}`; "
        "`opgate build` makes opgate's library"
    )


def _listed(path: Path, listed: Iterable[Mapping[str, Any]]) -> Library | None:
    """Returns a library if one of the entries has its hash. The file is read once, so that it can't change in between.

    Raises ConfigError if the library needs instructions that this processor lacks, or another version of its engine.
    """
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    entry = next((entry for entry in listed if entry.get("sha256") == digest), None)
    if entry is None:
        return None
    check_processor(path, str(entry.get("flags", "")))
    if reason := refusal(entry):
        raise EngineError(f"op library {path}: {reason}")
    return Library(path.resolve(), digest, _image(path.name, data, digest), len(embedded_ops(data)))


def check_processor(path: Path, flags: str) -> None:
    """Raises ConfigError if a library was compiled for a later processor: its first call would end the process."""
    for flag in flags.split():
        level = next((level for level in cpu.levels().values() if level.flag == flag), None)
        if level is not None and (lacks := cpu.missing(level)):
            raise ConfigError(
                f"op library {path} was compiled with {flag}, and this processor lacks {', '.join(sorted(lacks))}: "
                "build it without --arch, and it runs on every processor"
            )


def counterpart(library: Library, engine: str, device: str, trusted: Sequence[Path]) -> Library | None:
    """Returns the library of the same build for an engine and a device, None if there is none.

    `opgate build` writes several libraries of the same ops. A config names the one for ONNX Runtime on the CPU.
    """
    for folder in trusted:
        listed = list(entries([folder]))
        domains = {entry.get("domain") for entry in listed if entry.get("sha256") == library.digest} - {None}
        for entry in listed:
            path = folder / str(entry.get("file"))
            fits = entry.get("engine") == engine and device in entry.get("devices", ())
            if fits and entry.get("domain") in domains and path.is_file():
                found = _listed(path, [entry])
                if found is not None:
                    return found
    return None


def library_of_missing_op(message: str, libraries: Sequence[Library], trusted: Sequence[Path]) -> Library | None:
    """Returns the trusted library that has the op of the engine's message "is not a registered function/op".

    Returns None for another message, and if no library has the op but those that the model already has. Raises
    ConfigError if the library needs instructions that this processor lacks.
    """
    match = _MISSING_OP.search(message)
    if match is None:
        return None
    domain, op, _ = match.groups()
    have = {library.digest for library in libraries}
    for folder in trusted:
        for entry in entries([folder]):
            path = folder / str(entry.get("file"))
            fits = entry.get("domain") == domain and "cpu" in entry.get("devices", ()) and op in _ops(entry)
            if fits and entry.get("sha256") not in have and path.is_file():
                found = _listed(path, [entry])
                if found is not None:
                    return found
    return None


def _ops(entry: Mapping[str, Any]) -> list[str]:
    """Returns the names of the ops of a library for ONNX Runtime."""
    return [str(op.get("name")) for op in entry.get("ops", [])] if entry.get("engine") == "onnxruntime" else []


def explain(message: str, libraries: Sequence[Library], trusted: Sequence[Path]) -> str:
    """Returns what the engine says of a model with these libraries that it can't open, with the remedy if it is known:
    for an op that it doesn't know, for two libraries of one domain, and for a file that it can't read."""
    for pattern, remedy in _UNREADABLE:
        if found := pattern.search(message):
            return f"{remedy.format(*found.groups())}. The engine said: {message}"
    names = [library.path.name for library in libraries]
    if "Domain already set in registry" in message:
        return f"two of the op libraries {', '.join(names)} have ops of one domain, which ONNX Runtime doesn't take"
    match = _MISSING_OP.search(message)
    if match is None:
        return message
    domain, op, version = match.groups()
    where = f"{domain}::{op}" if domain else op
    files: dict[str, list[str]] = {}
    for entry in entries(trusted):
        for name in _ops(entry):
            files.setdefault(name, []).append(str(entry.get("file")))
    near = Names(files).nearest(op)
    if any(file in names for file in files.get(op, ())):
        remedy = f"{', '.join(names)} has an op of that name: its domain or types differ; compare with `opgate ops`"
    elif op in files:
        remedy = f"{files[op][0]} has an op of that name in another domain; compare with `opgate ops`"
    else:
        remedy = "no trusted op library has it: run `opgate build` on its source, or `opgate trust` its library"
        silent = [str(entry.get("file")) for entry in entries(trusted) if not entry.get("ops")]
        if unnamed := [file for file in silent if file not in names]:
            remedy += (
                f". The manifest doesn't say which ops {', '.join(unnamed)} has: if it has this one, write "
                f'model_operations {{ op_library_filename: "{unnamed[0]}" }} into config.pbtxt'
            )
        if near:
            remedy += f". Did you mean '{near}' of {files[near][0]}?"
    end = "" if remedy.endswith("?") else "."
    return f"op '{where}' (version {version}) is not known to ONNX Runtime: {remedy}{end} The engine said: {message}"


def trust(library: Path, directory: Path | None = None) -> Path:
    """Lists the hash of a library in the manifest of a folder and returns the path of the manifest.

    The folder is `directory` if the caller passes one. Otherwise it is the library's folder if the settings trust that
    folder, else the first folder that they trust. The entry lists no ops, because finding them would run the library.

    Raises OSError if a file can't be read or written, ValueError if the manifest is broken.
    """
    digest = sha256(library)
    folder = directory or _manifest_folder(library)
    if (folder / SIGNATURE).exists():
        raise ValueError(f"{folder / MANIFEST} is signed, and would no longer be what was signed: list it elsewhere")
    try:
        manifest = read_manifest(folder)
    except ConfigError as error:
        raise ValueError(error.message) from error
    path = folder / MANIFEST
    if any(entry.get("sha256") == digest for entry in manifest["libraries"]):
        return path
    manifest["libraries"].append({"file": library.name, "sha256": digest, "engine": "onnxruntime", "ops": []})
    folder.mkdir(parents=True, exist_ok=True)
    # The new file replaces the old one, so that a server that starts meanwhile never reads half a manifest.
    temporary = folder / f".{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _manifest_folder(library: Path) -> Path:
    trusted = [folder.resolve() for folder in Settings().trusted_directories()]
    own = library.resolve().parent
    return own if own in trusted else trusted[0]
