"""What a build needs and where it is: the vocabulary of the adapters' toolchain.py, and the CUDA compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What is built for where there is no GPU to ask: Hopper, and what later GPUs compile for themselves.
DEFAULT_CUDA_ARCHITECTURES = "90"
#: Every architecture that CUDA 13 knows in a data centre or a desktop, and PTX for those to come.
ALL_CUDA_ARCHITECTURES = "80-real;86-real;89-real;90-real;100-real;120"

#: Why a cell that needs a GPU is not run.
NO_GPU = "there is no NVIDIA GPU here: nvidia-smi lists none"

Log = Callable[[str], None]


class LeftOut(LookupError):
    """A toolchain that is not there; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that an adapter makes, lib<prefix>_<name>.so. `has_table`: it exports opgate_table. `details` go into
    the manifest."""

    name: str
    devices: tuple[str, ...]
    has_table: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What an adapter needs: CMake definitions; `origin` says where it was found."""

    origin: str
    definitions: Mapping[str, str]
    libraries: tuple[Library, ...]


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA compiler and what it compiles for, as CMake writes it."""

    nvcc: Path
    version: str
    architectures: str


def find_cuda(architectures: str) -> Cuda:
    """The CUDA compiler: where CUDACXX or CUDA_HOME say, on PATH, in /usr/local/cuda. "auto" are the architectures of
    the machine's GPUs, else Hopper. Raises LeftOut."""
    if not architectures:
        raise LeftOut("it was not asked for")
    said = os.environ.get("CUDACXX"), os.environ.get("CUDA_HOME")
    if said[0] and not shutil.which(said[0]):
        raise LeftOut(f"CUDACXX is {said[0]}: there is no such program")
    places = (said[0], said[1] and f"{said[1]}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc")
    nvcc = next((found for place in places if place and (found := shutil.which(place))), None)
    if nvcc is None:
        raise LeftOut(
            "there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda: install the CUDA toolkit, 12.8 or later"
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


def gpus() -> list[tuple[str, str]]:
    """Name and compute capability ("9.0") of each NVIDIA GPU of this machine."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True)
    found = re.findall(r"^(.+), (\d+\.\d+)$", asked.stdout, re.MULTILINE)
    return found if asked.returncode == 0 else []


def _native_architectures() -> str:
    """The architectures of the machine's GPUs; "" where it has none."""
    return ";".join(sorted({capability.replace(".", "") for _, capability in gpus()}))
