"""Compiles the native modules of the gateway when its package is built or installed, see pyproject.toml."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).resolve().parent
MODULES = {
    "json_tensors": ["json_tensors.cpp", "json_tensors_module.cpp"],
    "process": ["process_module.cpp"],
}
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


def compile_module(name: str, sources: list[str]) -> Path:
    """Compiles an extension module into this folder. Raises RuntimeError with the compiler's output if that fails."""
    target = FOLDER / (name + str(sysconfig.get_config_var("EXT_SUFFIX")))
    new = target.with_name(f".{os.getpid()}-{target.name}")
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    options = [*shlex.split(os.environ.get("CXXFLAGS", "")), f"-I{sysconfig.get_path('include')}", "-o", str(new)]
    command = [*compiler, *FLAGS, *options, *(str(FOLDER / source) for source in sources)]
    try:
        finished = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"the C++ compiler can't run ({shlex.join(compiler)}): {error}") from None
    if finished.returncode:
        raise RuntimeError(f"the native module {name} doesn't compile:\n{shlex.join(command)}\n{finished.stderr}")
    new.replace(target)  # a process that has the old one loaded keeps it
    return target


class NativeModules(BuildHookInterface[Any]):  # type: ignore[misc]
    """hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the modules into the source tree, and tells hatchling to take them along."""
        for name, sources in MODULES.items():
            module = compile_module(name, sources)
            build_data["artifacts"].append(f"service/native/{module.name}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
