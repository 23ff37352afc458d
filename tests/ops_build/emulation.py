"""Builds the programs with emulated CUDA kernels that the tests share. With ONNX Runtime's header they have its adapter
too, and a host that plays ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from opgate.ops_build.adapters.onnxruntime.toolchain import HeadersNotFound, find_onnxruntime_headers
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.building.toolchain import toolchain_folder
from opgate.ops_build.cuda_emulation import build as emulated
from tests import PROJECT
from tests.conftest import silent

#: The build of opgate's ops.
FOLDER = PROJECT / "build" / "cuda_emulation"
HOST = Path(__file__).parent / "onnxruntime_host" / "host.cpp"


def onnxruntime_include() -> Path | None:
    """Returns the folder of ONNX Runtime's header, or None if there is none."""
    try:
        return find_onnxruntime_headers(toolchain_folder(), silent).include
    except HeadersNotFound:
        return None


def build(folder: Path = FOLDER, source: Path = SOURCE, *, ops: Path | None = None, tensorrt: Path | str = "") -> Path:
    """Builds a program in `folder` and returns its path."""
    include = onnxruntime_include()
    return emulated.build(folder, source, ops=ops, tensorrt=tensorrt, onnxruntime=(include, HOST) if include else None)
