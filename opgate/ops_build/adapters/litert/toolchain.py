"""Finds the C headers of LiteRT, which its wheels don't contain."""

from __future__ import annotations

import os
from pathlib import Path

from opgate.ops_build.building.toolchain import Cuda, LeftOut, Library, Log, Toolchain
from opgate.tried_versions import TRIED

HEADER = "tflite/core/c/common.h"
REPOSITORY = "https://github.com/google-ai-edge/LiteRT"


def find(cache: Path, cuda: Cuda | None, log: Log) -> Toolchain:
    """Returns what the build needs. Raises LeftOut."""
    include = find_litert_headers(cache)
    definitions = {"OPGATE_LITERT_INCLUDE": str(include), "OPGATE_LITERT_FITS": " to ".join(TRIED["ai-edge-litert"])}
    library = Library("litert", ("cpu",), details={"engine_versions": f">={TRIED['ai-edge-litert'][0]}"})
    return Toolchain(str(include), definitions, (library,))


def find_litert_headers(cache: Path) -> Path:
    """Returns the folder that holds the header: the one that OPGATE_LITERT_INCLUDE names, a usual folder of the system,
    or one in the cache. Raises LeftOut."""
    if named := os.environ.get("OPGATE_LITERT_INCLUDE"):
        if not (Path(named) / HEADER).is_file():
            raise LeftOut(f"OPGATE_LITERT_INCLUDE is {named}: no {HEADER} there")
        return Path(named)
    levels = len(Path(HEADER).parts)
    in_cache = [file.parents[levels - 1] for file in sorted(cache.rglob("common.h")) if file.match(f"*/{HEADER}")]
    for folder in (Path("/usr/local/include"), Path("/usr/include"), *in_cache):
        if (folder / HEADER).is_file():
            return folder
    raise LeftOut(
        f"LiteRT's {HEADER} was not found. git clone --depth 1 {REPOSITORY} {cache / 'LiteRT'}, or set "
        "OPGATE_LITERT_INCLUDE to the top folder of its sources"
    )
