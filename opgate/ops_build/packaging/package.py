"""Makes a wheel of a user's ops: their libraries with the manifest, their functions, references and pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

from opgate.ops_build.building.manifest import MANIFEST, listed_libraries, newer_sources, sha256
from opgate.ops_build.building.old_glibc import glibc
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.packaging.provenance import provenance
from opgate.ops_build.packaging.wheel import platform_tag
from opgate.ops_build.python_ops.op_file import FILE
from opgate.signed_manifests import SIGNATURE, sign

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates" / "package"
_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
#: What a wheel brings of an op's folder: what verification, inspection and readers need, and no source.
_PARTS = ("README.md", FILE, "reference.py", "cases.py", "decomposition.py")


def package(options: BuildOptions, version: str, output: Path, key: Path | None = None) -> Path:
    """Writes the wheel of ops that `opgate build` has built into the folder `output`, and returns its path. `key` is a
    file with the private key that signs its manifest.

    Raises BuildError if something isn't built or has changed since, SigningError if the key is none, and OSError.
    """
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", version):
        raise BuildError(f"expected a version such as 1.0 or 1.0rc1, got '{version}'")
    if not options.domain.isidentifier():
        raise BuildError(f"the domain '{options.domain}' is no name of a Python package: build with another --domain")
    files = dict(_files(options, version))
    if key is not None:
        files[f"{options.domain}/lib/{SIGNATURE}"] = sign(files[f"{options.domain}/lib/{MANIFEST}"], key)
    name, tag = options.domain, f"py3-none-{platform_tag(needed_glibc(options), options.machine)}"
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: Custom operators: "
        f"{', '.join(_ops(options))}\nRequires-Dist: opgate\n"
    ).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: opgate\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = f"{info}/RECORD"
    files[record] = ("".join(_recorded(files)) + f"{record},,\n").encode()
    output.mkdir(parents=True, exist_ok=True)
    wheel = output / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return wheel


def needed_glibc(options: BuildOptions) -> tuple[int, ...]:
    """Returns the version of the C library that what `opgate build` has built needs, as far as is known: that of this
    machine, or that of `opgate build --portable`. Raises BuildError."""
    stated = [str(entry.get("glibc", "")) for entry in listed_libraries(options)]
    return max(tuple(map(int, version.split("."))) for version in stated) if stated and all(stated) else glibc()


def _ops(options: BuildOptions) -> list[str]:
    return sorted({str(op["name"]) for entry in listed_libraries(options) for op in entry.get("ops", ())})


def _files(options: BuildOptions, version: str) -> Iterator[tuple[str, bytes]]:
    """Yields the files of the package with their paths in the wheel."""
    listed = listed_libraries(options)
    command = f"opgate build {options.ops[0]}" + f" --machine {options.machine}" * options.is_cross
    if not listed:
        raise BuildError(f"{options.output} has no library: run {command}")
    if older := newer_sources(options):
        raise BuildError(f"the sources are newer than {', '.join(older)}: run {command}")
    for entry in listed:
        path = options.output / entry["file"]
        if not path.is_file() or sha256(path) != entry["sha256"]:
            raise BuildError(f"{path} is not what the manifest lists: run {command}")
        yield f"{options.domain}/lib/{path.name}", path.read_bytes()
    manifest = json.loads((options.output / MANIFEST).read_text()) | {"provenance": provenance(options)}
    yield f"{options.domain}/lib/{MANIFEST}", (json.dumps(manifest, indent=2) + "\n").encode()
    engines = [entry["file"].removeprefix(f"lib{options.prefix}_").removesuffix(".so") for entry in listed]
    values = {
        "domain": options.domain,
        "prefix": options.prefix,
        "version": version,
        "ops": ", ".join(_ops(options)),
        "engines": ", ".join(engines),
    }
    yield f"{options.domain}/__init__.py", _filled("__init__.py", values)
    yield f"{options.domain}/__main__.py", _filled("__main__.py", values)
    for engine, title in _TITLES.items():
        if engine in engines:
            functions = _filled("functions.py", values | {"engine": engine, "title": title})
            yield f"{options.domain}/{engine}.py", functions
    for folder in (folder for ops in options.ops for folder in op_folders(ops)):
        for part in _PARTS:
            if (folder.path / part).is_file():
                yield f"{options.domain}/ops/{folder.path.name}/{part}", (folder.path / part).read_bytes()


def _filled(file: str, values: dict[str, str]) -> bytes:
    return Template((_TEMPLATES / f"{file}.template").read_text()).substitute(values).encode()


def _recorded(files: dict[str, bytes]) -> Iterator[str]:
    """Yields the lines of RECORD: path, hash and size."""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        yield f"{path},sha256={digest},{len(content)}\n"
