"""Builds the programs with emulated CUDA kernels that the tests share. With TensorRT's headers they have the plugins
too, and with ONNX Runtime's header its adapter and a host that plays ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opgate.ops_build.adapters.onnxruntime.toolchain import HeadersNotFound, find_onnxruntime_headers
from opgate.ops_build.adapters.tensorrt.toolchain import find_headers
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.building.toolchain import LeftOut, toolchain_folder
from opgate.ops_build.cuda_emulation import build as emulated
from opgate.ops_build.op_folder import op_folders
from tests import PROJECT
from tests.conftest import ALL, FIXTURE_OPS, silent

#: The build of opgate's ops, and that of the fixture ops.
FOLDER = PROJECT / "build" / "cuda_emulation"
FIXTURES = PROJECT / "build" / "cuda_emulation_fixtures"
#: The ops whose kernels are emulated: in `make test` a few: rows, elements, sorted boxes and a hash table.
OPS = [folder.path.name for folder in op_folders(SOURCE / "ops") if folder.has_cuda_kernel]
if not ALL:
    OPS = ["layer_norm", "mish", "multi_class_nms", "my_add", "voxelize"]
HOST = Path(__file__).parent / "onnxruntime_host" / "host.cpp"
TVM_HOST = Path(__file__).parent / "tvm_host" / "host.cpp"


def onnxruntime_include() -> Path | None:
    """Returns the folder of ONNX Runtime's header, or None if there is none."""
    try:
        return find_onnxruntime_headers(toolchain_folder(), silent).include
    except HeadersNotFound:
        return None


def tensorrt_include() -> Path | None:
    """Returns the folder of TensorRT's headers, or None if there is none."""
    try:
        return find_headers(toolchain_folder())[0]
    except LeftOut:
        return None


def build(source: Path = SOURCE) -> Path:
    """Builds the program with the kernels of OPS from the sources in `source`, and returns its path."""
    return _build(FOLDER, source, None, OPS)


def build_fixtures() -> Path:
    """Builds the program with the fixture ops, and returns its path."""
    return _build(FIXTURES, SOURCE, FIXTURE_OPS)


def _build(folder: Path, source: Path, ops: Path | None, kernels: Sequence[str] = ()) -> Path:
    include = onnxruntime_include()
    onnxruntime = (include, HOST) if include else None
    return emulated.build(
        folder,
        source,
        ops=ops,
        tensorrt=tensorrt_include() or "",
        onnxruntime=onnxruntime,
        tvm=TVM_HOST,
        batch=1 if ALL else 14,
        kernels=kernels,
    )
