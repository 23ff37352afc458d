"""Finds the GPUs that ONNX Runtime can use."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnx import TensorProto, helper

from opgate.service.cuda_memory import driver

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
#: What a CUDA provider is called that is a library beside ONNX Runtime.
CUDA_NAMES = frozenset({CUDA, "CudaPluginExecutionProvider"})
#: Names such a library.
LIBRARY = "OPGATE_CUDA_PROVIDER"


class NoGpu(Exception):
    """There is no GPU here that ONNX Runtime can use. The text says why.

    `broken` says that there is a GPU, and that something else is missing.
    """

    def __init__(self, reason: str, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


@cache
def usable_gpus() -> int:
    """Returns the number of GPUs, as CUDA counts them: CUDA_VISIBLE_DEVICES limits it. Raises NoGpu."""
    count = _count()
    if devices := provider_devices():
        return len(devices)
    if CUDA in ort.get_available_providers():
        ort.preload_dlls()  # finds CUDA and cuDNN in the packages that opgate[gpu] installs
        if CUDA in ort.InferenceSession(_smallest_model(), providers=[CUDA]).get_providers():
            return count
    raise NoGpu(f"ONNX Runtime can't load its CUDA provider: {why_not_loaded(CUDA)}", broken=True)


@cache
def provider_devices() -> tuple[Any, ...]:
    """Returns the devices of the CUDA provider in the library that OPGATE_CUDA_PROVIDER names, in CUDA's order of GPUs.

    Without it there are none, and sessions name the provider that ONNX Runtime's own package has. Raises NoGpu.
    """
    library = os.environ.get(LIBRARY)
    if not library:
        return ()
    try:
        _register(library)
    except Exception as error:  # Exception is the only common base class of ONNX Runtime's exceptions
        raise NoGpu(f"{LIBRARY} is {library}: {error}", broken=True) from error
    found = [device for device in ort.get_ep_devices() if device.ep_name in CUDA_NAMES]
    if not found:
        raise NoGpu(f"{LIBRARY} is {library}: its provider has no device of CUDA here", broken=True)
    return tuple(sorted(found, key=lambda device: int(device.ep_options.get("device_id", 0))))


@cache
def _register(library: str) -> None:
    ort.preload_dlls()  # finds CUDA and cuDNN in the packages that opgate[gpu] installs
    ort.register_execution_provider_library(LIBRARY, library)


def _count() -> int:
    library = driver()
    if library is None:
        raise NoGpu("there is no GPU here: the NVIDIA driver's libcuda.so.1 was not found")
    count = ctypes.c_int()
    code = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if code == 100 or not (code or count.value):  # CUDA_ERROR_NO_DEVICE
        raise NoGpu("there is no GPU here that the NVIDIA driver shows: is CUDA_VISIBLE_DEVICES empty?")
    if code:
        raise NoGpu(f"the NVIDIA driver answered with error {code}", broken=True)
    return count.value


def why_not_loaded(provider: str) -> str:
    """Returns the reason why ONNX Runtime couldn't load a provider, after it has tried."""
    path = _library_of(provider)
    if not path.is_file():
        return "this ONNX Runtime doesn't have it: install opgate[gpu] in place of opgate[cpu]"
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return "its message on stderr says why"


def tensorrt_library() -> str:
    """Returns the name of the TensorRT that ONNX Runtime's provider loads, such as libnvinfer.so.10."""
    path = _library_of(TENSORRT)
    found = re.search(rb"libnvinfer\.so\.\d+", path.read_bytes()) if path.is_file() else None
    return found[0].decode() if found else "libnvinfer.so.10"


def _library_of(provider: str) -> Path:
    library = {CUDA: "cuda", TENSORRT: "tensorrt"}[provider]
    return Path(ort.__file__).parent / "capi" / f"libonnxruntime_providers_{library}.so"


def _smallest_model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "smallest", [x], [y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())
