"""Finds the C header of ONNX Runtime, which its wheels don't contain.

The search goes in this order: the folder that OPGATE_ONNXRUNTIME_INCLUDE names, opgate's wheel, the usual folders of
the system, the cache, Debian's package libonnxruntime-dev (downloaded and unpacked into the cache; nothing is
installed), and the release archive. Any version from 1.17 on works; with CUDA, from 1.18 on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from subprocess import SubprocessError
from tarfile import TarError
from typing import Any

from opgate import folders
from opgate.folders import locked
from opgate.ops_build.building.toolchain import Cuda, LeftOut, Library, Log, Toolchain

HEADER = "onnxruntime_c_api.h"
RELEASE = "1.22.0"
ARCHIVE = f"https://github.com/microsoft/onnxruntime/releases/download/v{RELEASE}/onnxruntime-linux-x64-{RELEASE}.tgz"
#: The first Debian release with libonnxruntime-dev. On an older release, the package is downloaded from this one.
DEBIAN_SUITE = "trixie"
#: The version of the ONNX Runtime API that the adapter asks for (api.h), without and with CUDA.
API_VERSION = 17
CUDA_API_VERSION = 18


class HeadersNotFound(LeftOut):
    """The header was not found. The message says what was tried, and what to do."""


@dataclass(frozen=True, slots=True)
class Headers:
    """`include` is the folder that holds the header; `origin` says where it came from."""

    include: Path
    origin: str


def find(cache: Path, cuda: Cuda | None, log: Log) -> Toolchain:
    """Returns what the build needs. With a CUDA compiler there is a second library, for the CUDA provider. Raises
    LeftOut."""
    headers = find_onnxruntime_headers(cache, log)
    libraries = [Library("onnxruntime", ("cpu",), details=_details(API_VERSION))]
    if cuda:
        libraries.append(Library("onnxruntime_cuda", ("cpu", "cuda"), details=_details(CUDA_API_VERSION)))
    definitions = {"OPGATE_ONNXRUNTIME_INCLUDE": str(headers.include)}
    return Toolchain(f"{headers.include} (from {headers.origin})", definitions, tuple(libraries))


def _details(api_version: int) -> dict[str, Any]:
    """Returns what the manifest says of a library: each ONNX Runtime 1.x has the API x, and those before it."""
    return {"api_version": api_version, "engine_versions": f">=1.{api_version}"}


def find_onnxruntime_headers(cache: Path, log: Log) -> Headers:
    """Finds the headers, or downloads them into `cache`. Raises HeadersNotFound."""
    if named := os.environ.get("OPGATE_ONNXRUNTIME_INCLUDE"):
        for folder in (Path(named), Path(named) / "onnxruntime"):
            if (folder / HEADER).is_file():
                return Headers(folder, "OPGATE_ONNXRUNTIME_INCLUDE")
        raise HeadersNotFound(f"OPGATE_ONNXRUNTIME_INCLUDE is {named}: no {HEADER} there")
    if include := _include_folder(folders.SHIPPED_HEADERS):
        return Headers(include, "opgate's wheel")
    for folder in _system_folders():
        if (folder / HEADER).is_file():
            return Headers(folder, "the system")
    with locked(cache):  # another process may be downloading them
        if include := _include_folder(cache):
            return Headers(include, "the cache")
        return _download(cache, log)


def _download(cache: Path, log: Log) -> Headers:
    failures = []
    for name, fetch in (("Debian's package", _fetch_debian_package), ("the release archive", _fetch_archive)):
        log(f"ONNX Runtime headers: trying {name}")
        try:
            fetch(cache)
        except (OSError, EOFError, HTTPException, StopIteration, SubprocessError, TarError, zlib.error) as error:
            failures.append(f"{name}: {_reason(error)}")
            continue
        if include := _include_folder(cache):
            return Headers(include, name)
        failures.append(f"{name}: it has no {HEADER}")
    raise HeadersNotFound(
        f"ONNX Runtime's {HEADER} was not found ({'; '.join(failures)}). Install libonnxruntime-dev (Debian 13), "
        "or unpack a release archive of microsoft/onnxruntime and set OPGATE_ONNXRUNTIME_INCLUDE to its include folder."
    )


def _system_folders() -> Iterator[Path]:
    for base in (Path("/usr/local/include"), Path("/usr/include"), Path("/opt/onnxruntime/include")):
        yield base
        yield base / "onnxruntime"
        yield base / "onnxruntime/core/session"


def _include_folder(folder: Path) -> Path | None:
    """Returns the folder below `folder` that has the header, or None."""
    return next((header.parent for header in sorted(folder.rglob(HEADER))), None)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"{error.cmd[0]} ended with {error.returncode}"
    return str(error)


def _fetch_debian_package(cache: Path) -> None:
    """Downloads libonnxruntime-dev with the apt sources of the system and unpacks it into `cache`."""
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            raise OSError(f"there is no {tool}")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for folder in ("lists/partial", "archives/partial", "sources"):
            (root / folder).mkdir(parents=True)
        _copy_sources(root / "sources")
        apt = [
            "apt-get",
            "-qq",
            "-o", "Dir::Etc::SourceList=/dev/null",
            "-o", f"Dir::Etc::SourceParts={root / 'sources'}",
            "-o", f"Dir::State::Lists={root / 'lists'}",
            "-o", f"Dir::Cache={root}",
            "-o", "APT::Sandbox::User=",
        ]  # fmt: skip
        for command in (["update"], ["download", "libonnxruntime-dev"]):
            subprocess.run([*apt, *command], cwd=root, check=True, capture_output=True, text=True, timeout=300)
        package = next(root.glob("libonnxruntime-dev*.deb"))
        with _complete(cache / "debian") as target:
            subprocess.run(["dpkg", "-x", str(package), str(target)], check=True, capture_output=True, text=True)


@contextmanager
def _complete(folder: Path) -> Iterator[Path]:
    """Yields an empty folder and renames it to `folder` at the end. An exception leaves nothing behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as temporary:
        partial = Path(temporary) / folder.name
        partial.mkdir()
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def _copy_sources(target: Path) -> None:
    """Copies the apt sources of a Debian system into `target`, with DEBIAN_SUITE in place of an older suite."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename = release.get("VERSION_CODENAME", "").strip('"')
    if release.get("ID", "").strip('"') != "debian" or not codename:
        raise OSError("this is not a Debian release")
    known_newer = codename not in ("bullseye", "bookworm")
    for source in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.*"))):
        if source.suffix in (".list", ".sources") and source.is_file():
            text = source.read_text()
            # Skip the sources of other archives: they may not have the newer suite.
            if codename in text:
                (target / source.name).write_text(text if known_newer else text.replace(codename, DEBIAN_SUITE))
    if not any(target.iterdir()):
        raise OSError(f"no apt source names {codename}")


def _fetch_archive(cache: Path) -> None:
    """Downloads a release archive and unpacks its headers. OPGATE_ONNXRUNTIME_ARCHIVE can name another URL."""
    address = os.environ.get("OPGATE_ONNXRUNTIME_ARCHIVE", ARCHIVE)
    with tempfile.TemporaryFile() as archive, _complete(cache / "release") as target:
        with urllib.request.urlopen(address, timeout=60) as response:
            shutil.copyfileobj(response, archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as members:
            for member in members:
                if member.isfile() and member.name.endswith((".h", "/LICENSE")):
                    content = members.extractfile(member)
                    assert content is not None
                    (target / Path(member.name).name).write_bytes(content.read())
