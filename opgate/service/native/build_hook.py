"""Compiles the native modules of the gateway when its package is built or installed, see pyproject.toml.

A wheel also gets the op library and what it needs, see ops_build/packaging/wheel.py. An editable install doesn't.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVICE = Path(__file__).resolve().parent.parent
#: Python's limited API: a module works in Python 3.11 and every later one.
LIMITED_API, SUFFIX = "-DPy_LIMITED_API=0x030B0000", ".abi3.so"
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", LIMITED_API)


class Module(NamedTuple):
    """An extension module: its path without the suffix, its sources beside it, and the libraries that it needs."""

    path: str
    sources: tuple[str, ...]
    libraries: tuple[str, ...] = ()


MODULES = (
    Module("native/engine_strings", ("engine_strings_module.cpp",)),
    Module("native/json_tensors", ("json_tensors.cpp", "json_tensors_module.cpp")),
    Module("native/process", ("process_module.cpp",)),
    Module("native/protobuf", ("protobuf_fields.cpp", "protobuf_module.cpp")),
    # Debian's static nghttp2 is not compiled for shared objects, so the shared one is linked.
    Module("rpc/connection", ("connection.cpp", "header_filter.cpp", "connection_module.cpp"), ("-lnghttp2",)),
)


def compile_module(module: Module, flags: Sequence[str] = FLAGS, target: Path | None = None) -> Path:
    """Compiles an extension module, beside its sources unless `target` is another file. Returns the file. One beside
    its sources that the same command has made of the same files is left as it is.

    Raises RuntimeError with the compiler's output if that fails.
    """
    beside = SERVICE / (module.path + SUFFIX)
    target = target or beside
    new = target.with_name(f".{os.getpid()}-{target.name}")
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    options = [*flags, *shlex.split(os.environ.get("CXXFLAGS", "")), f"-I{sysconfig.get_path('include')}"]
    sources = [str((SERVICE / module.path).parent / source) for source in module.sources]
    command = [*compiler, *options, "-o", str(new), *sources, *module.libraries]
    stamp = beside.with_name(f".{beside.name}.made-of")
    made_of = _digest([*compiler, *options, *module.sources, *module.libraries], beside.parent)
    if target == beside and beside.exists() and stamp.exists() and stamp.read_text() == made_of:
        return target
    try:
        finished = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"the C++ compiler can't run ({shlex.join(compiler)}): {error}") from None
    if finished.returncode:
        text = f"the native module {module.path} doesn't compile:\n{shlex.join(command)}\n{finished.stderr}"
        if "nghttp2.h" in finished.stderr or "-lnghttp2" in finished.stderr:
            text += "nghttp2's headers and library are in Debian's libnghttp2-dev"
        raise RuntimeError(text)
    if target == beside:
        stamp.unlink(missing_ok=True)
    new.replace(target)  # a process that has the old one loaded keeps it
    if target == beside:
        stamp.write_text(made_of)
        for old in beside.parent.glob(f"{Path(module.path).name}.cpython-*.so"):
            old.unlink()  # of an earlier opgate: Python would take it in place of the new one
    return target


def _digest(command: Sequence[str], folder: Path) -> str:
    """Returns a hash of a command and of the C++ files in a folder."""
    digest = hashlib.sha256("\0".join(command).encode())
    for file in sorted(file for file in folder.iterdir() if file.suffix in (".cpp", ".h")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


class NativeModules(BuildHookInterface[Any]):  # type: ignore[misc]
    """hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the modules into the source tree, and tells hatchling to take them along."""
        wheel = None if version == "editable" else self._wheel()
        flags = FLAGS if wheel is None else (*FLAGS, *wheel.link_flags())
        for module in MODULES:
            compiled = compile_module(module, flags)
            build_data["artifacts"].append(f"opgate/service/{compiled.relative_to(SERVICE)}")
        build_data["pure_python"] = False
        if wheel is None:
            return
        build_data["tag"] = wheel.wheel_tag()
        build_data["force_include"] |= wheel.contents(Path(self.root) / "build" / "wheel", self._log)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Completes a wheel."""
        if version != "editable":
            self._wheel().repair(Path(artifact_path), self._log)

    def _wheel(self) -> ModuleType:
        """Returns the module that completes a wheel, from the sources that are built."""
        if self.root not in sys.path:
            sys.path.insert(0, self.root)
        return importlib.import_module("opgate.ops_build.packaging.wheel")

    def _log(self, line: str) -> None:
        self.app.display_info(line)
