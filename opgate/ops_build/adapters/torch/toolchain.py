"""Finds the headers of torch, which its wheel contains."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from opgate.ops_build.building.toolchain import Cuda, LeftOut, Library, Log, Toolchain

HEADER = "torch/csrc/stable/c/shim.h"
#: The first torch whose stable C ABI has all functions that the adapter calls (libtorch.h).
OLDEST = (2, 10)


def find(cache: Path, cuda: Cuda | None, log: Log) -> Toolchain:
    """Returns what the build needs. With a CUDA compiler, the library has the CUDA kernels too. Raises LeftOut."""
    folders = find_torch_headers()
    details = {"engine_versions": ">=" + _text(OLDEST)}
    library = Library("torch", ("cpu", "cuda") if cuda else ("cpu",), details=details)
    definitions = {"OPGATE_TORCH_INCLUDE": ";".join(map(str, folders))}
    return Toolchain(str(folders[0]), definitions, (library,))


def find_torch_headers() -> list[Path]:
    """Returns the folder that OPGATE_TORCH_INCLUDE names, or else the include folder of the torch that this Python
    would import. Raises LeftOut."""
    if named := os.environ.get("OPGATE_TORCH_INCLUDE"):
        if not (Path(named) / HEADER).is_file():
            raise LeftOut(f"OPGATE_TORCH_INCLUDE is {named}: no {HEADER} there")
        return [Path(named)]
    spec = importlib.util.find_spec("torch")  # importing it would take seconds
    if spec is None or not spec.submodule_search_locations:
        raise LeftOut("torch is not installed: pip install 'opgate[torch]'")
    root = Path(spec.submodule_search_locations[0])
    version = _version(root)
    if version is not None and version < OLDEST:
        raise LeftOut(f"torch is {_text(version)}, {_text(OLDEST)} or later is needed: pip install 'opgate[torch]'")
    include = root / "include"
    if not (include / HEADER).is_file():
        raise LeftOut(f"torch in {root} has no {HEADER}: a build of torch without its headers")
    return [include]


def _version(root: Path) -> tuple[int, int] | None:
    """Returns the major and minor version of a torch, or None if its version.py doesn't say."""
    try:
        found = re.search(r"^__version__ = '(\d+)\.(\d+)", (root / "version.py").read_text(), re.MULTILINE)
    except OSError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
