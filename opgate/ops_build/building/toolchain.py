"""Describes the toolchains that a build needs, and finds the CUDA compiler. The toolchain.py of each adapter uses
these classes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opgate import folders

#: The architectures on a machine without a GPU: Hopper, and PTX that the drivers of later GPUs compile.
DEFAULT_CUDA_ARCHITECTURES = "90"
#: Every architecture of CUDA 13 for data centres and desktops, and PTX for later GPUs.
ALL_CUDA_ARCHITECTURES = "80-real;86-real;89-real;90-real;100-real;120"

#: The reason in reports for skipping a case that needs a GPU.
NO_GPU = "there is no NVIDIA GPU here: nvidia-smi lists none"

Log = Callable[[str], None]


class LeftOut(LookupError):
    """A toolchain was not found, so the build leaves it out. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that an adapter builds, lib<prefix>_<name>.so.

    `devices` are the devices of its kernels. `has_table` says whether it exports opgate_table. `details` go into its
    entry in the manifest.
    """

    name: str
    devices: tuple[str, ...]
    has_table: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What the build of an adapter needs.

    `origin` is a text for the log that says where the headers are. `definitions` are CMake definitions. `libraries` are
    the libraries that the adapter builds.
    """

    origin: str
    definitions: Mapping[str, str]
    libraries: tuple[Library, ...]


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA compiler, its version ("12.8") and the architectures to compile for, in CMake's form."""

    nvcc: Path
    version: str
    architectures: str

    @property
    def definitions(self) -> dict[str, str]:
        """What CMake is told. NVIDIA's Python packages have the runtime's library under the name with its version only,
        which CMake doesn't look for."""
        found = {"CMAKE_CUDA_COMPILER": str(self.nvcc)}
        if str(self.nvcc) == _packaged():
            libraries = sorted((self.nvcc.parent.parent / "lib").glob("libcudart.so.*"))
            if libraries:
                found["CUDA_CUDART"] = str(libraries[0])
        return found


def compiler_environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a build in a folder. If ccache compiles, all folders share what it keeps: nothing then
    depends on the name of the folder."""
    return {"CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(folder), **os.environ}


def toolchain_folder() -> Path:
    """Returns the folder of headers and packages that the system lacks: the one that OPGATE_TOOLCHAIN names, or
    `toolchain` in the folder of builds. Headers lie anywhere in it, Python packages in its subfolder python."""
    named = os.environ.get("OPGATE_TOOLCHAIN")
    return Path(named).resolve() if named else folders.builds() / "toolchain"


def find_cuda(architectures: str) -> Cuda:
    """Finds the CUDA compiler: the one that CUDACXX or CUDA_HOME names, on PATH, in /usr/local/cuda, or of the package
    nvidia-cuda-nvcc.

    `architectures` is in CMake's form, "all" for ALL_CUDA_ARCHITECTURES, or "auto" for those of the machine's GPUs;
    without a GPU "auto" means DEFAULT_CUDA_ARCHITECTURES. Raises LeftOut.
    """
    if not architectures:
        raise LeftOut("it was not asked for")
    cuda_cxx, cuda_home = os.environ.get("CUDACXX"), os.environ.get("CUDA_HOME")
    if cuda_cxx and not shutil.which(cuda_cxx):
        raise LeftOut(f"CUDACXX is {cuda_cxx}: there is no such program")
    candidates = (cuda_cxx, cuda_home and f"{cuda_home}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc", _packaged())
    nvcc = next((path for candidate in candidates if candidate and (path := shutil.which(candidate))), None)
    if nvcc is None:
        raise LeftOut(
            "there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda: install the CUDA toolkit, 12.8 or later, or "
            "opgate[nvcc]"
        )
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"release (\d+)\.(\d+)", text)
    if version is None:
        raise LeftOut(f"{nvcc} --version names no release")
    if (int(version[1]), int(version[2])) < (12, 8):
        raise LeftOut(f"{nvcc} is CUDA {version[1]}.{version[2]}: 12.8 or later is needed")
    if architectures == "auto":
        architectures = _native_architectures() or DEFAULT_CUDA_ARCHITECTURES
    elif architectures == "all":
        architectures = ALL_CUDA_ARCHITECTURES
    return Cuda(Path(nvcc), f"{version[1]}.{version[2]}", architectures)


def _packaged() -> str:
    """Returns where NVIDIA's Python packages have the compiler, or "" if they are not installed."""
    for folder in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"), reverse=True):
        return str(folder)
    return ""


def gpus() -> list[tuple[str, str]]:
    """Returns the name and the compute capability ("9.0") of each NVIDIA GPU of this machine."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    finished = subprocess.run(query, capture_output=True, text=True)
    names_and_capabilities = re.findall(r"^(.+), (\d+\.\d+)$", finished.stdout, re.MULTILINE)
    return names_and_capabilities if finished.returncode == 0 else []


def _native_architectures() -> str:
    """Returns the architectures of the machine's GPUs in CMake's form, or "" if it has none."""
    return ";".join(sorted({capability.replace(".", "") for _, capability in gpus()}))
