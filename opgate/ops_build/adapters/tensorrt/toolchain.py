"""Finds the headers of TensorRT, which its Python packages don't contain.

Any version from 10.0 on works: it has the plugin interface IPluginV3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from opgate.folders import locked
from opgate.ops_build.building.toolchain import Cuda, LeftOut, Library, Log, Toolchain

HEADER = "NvInferRuntime.h"
#: A text that the header of an older TensorRT lacks.
NEEDED = "class IPluginV3OneRuntime"
REPOSITORY = "https://github.com/NVIDIA/TensorRT"


def find(cache: Path, cuda: Cuda | None, log: Log) -> Toolchain:
    """Returns what the build needs. Raises LeftOut if CUDA was left out or the headers are not found."""
    if cuda is None:
        raise LeftOut("its plugins are CUDA kernels, and CUDA was left out")
    include, origin = find_headers(cache)
    # The library may export only the two entry points of TensorRT.
    library = Library("tensorrt", ("cuda",), has_table=False)
    return Toolchain(f"{include} ({origin})", {"OPGATE_TENSORRT_INCLUDE": str(include)}, (library,))


def find_headers(cache: Path) -> tuple[Path, str]:
    """Returns the folder of the headers and a text that says where it comes from.

    It looks in the folder that OPGATE_TENSORRT_INCLUDE names, in the folders where Debian and NVIDIA's containers have
    the headers, and anywhere below `cache`, for example in a clone of NVIDIA/TensorRT. Raises LeftOut.
    """
    if named := os.environ.get("OPGATE_TENSORRT_INCLUDE"):
        for folder in (Path(named), Path(named) / "include"):
            if _has_headers(folder):
                return folder, "from OPGATE_TENSORRT_INCLUDE"
        raise LeftOut(f"OPGATE_TENSORRT_INCLUDE is {named}: no {HEADER} of TensorRT 10 or later there")
    clone = cache / "TensorRT"
    with locked(cache):  # another process may be downloading headers
        in_cache = [clone / "include", *(header.parent for header in sorted(cache.rglob(HEADER)))]
    for folder, origin in (*_system_folders(), *((folder, f"from {cache}") for folder in in_cache)):
        if _has_headers(folder):
            return folder, origin
    raise LeftOut(
        f"TensorRT's {HEADER}, of 10 or later, was not found. git clone --depth 1 {REPOSITORY} {clone}, install "
        "libnvinfer-headers-dev, or set OPGATE_TENSORRT_INCLUDE to the include folder of a TensorRT"
    )


def _has_headers(folder: Path) -> bool:
    header = folder / HEADER
    return header.is_file() and NEEDED in header.read_text(errors="replace")


def _system_folders() -> Iterator[tuple[Path, str]]:
    for folder in (
        "/usr/include/x86_64-linux-gnu",
        "/usr/include/aarch64-linux-gnu",
        "/usr/include",
        "/usr/local/include",
        "/usr/local/tensorrt/include",
        "/opt/tensorrt/include",
        "/usr/src/tensorrt/include",
    ):
        yield Path(folder), "from the system"
