"""ONNX Runtime sessions: their options, devices and thread counts, and runs on NumPy arrays without copies."""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from service.errors import Kind, ServingError
from service.execution.datatypes import BY_ONNX, DATATYPES
from service.execution.gpus import CUDA, TENSORRT
from service.execution.request import Array

logger = logging.getLogger("opgate.session")


class EngineError(ServingError):
    """A run failed in ONNX Runtime. The kind is INVALID if it says that an argument was wrong, else INTERNAL."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open a model file. A thread count of 0 leaves the number to ONNX Runtime.

    `gpu` is the number of a GPU, or None for the CPU. `cuda` and `tensorrt` are options of the providers for a GPU;
    without `tensorrt` the session doesn't use TensorRT. `tensorrt_plugins` is a library of TensorRT plugins.

    On a GPU the CPU runs the nodes that no other provider takes, unless the entry session.disable_cpu_ep_fallback is 1.
    """

    intra_op_threads: int = 1
    inter_op_threads: int = 0
    parallel: bool = False
    graph_level: str = "all"  # "basic", "extended", "disabled", "all"
    memory_arena: bool = True
    memory_pattern: bool = True
    arena_shrinkage: str = ""
    libraries: tuple[Path, ...] = ()
    entries: Mapping[str, str] = field(default_factory=dict)
    gpu: int | None = None
    cuda: Mapping[str, str] = field(default_factory=dict)
    tensorrt: Mapping[str, str] | None = None
    tensorrt_plugins: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """An input or output as the model file declares it. An unknown size is the name of its dim, or None."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


def usable_cores() -> int:
    """Returns the number of cores that this process may use: its CPU affinity, capped by the CPU quota of its control
    group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        if quota != "max":
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # without a version 2 control group only the affinity is known
    return max(1, cores)


def _ort_options(options: SessionOptions) -> Any:
    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = options.intra_op_threads
    session_options.inter_op_num_threads = options.inter_op_threads
    session_options.execution_mode = (
        ort.ExecutionMode.ORT_PARALLEL if options.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    )
    session_options.graph_optimization_level = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }[options.graph_level]
    session_options.enable_cpu_mem_arena = options.memory_arena
    session_options.enable_mem_pattern = options.memory_pattern
    session_options.log_severity_level = 4  # fatal only: errors come as exceptions
    # Threads that spin would take the cores that the event loop and other models need.
    session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session_options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if options.gpu is not None:
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in options.entries.items():
        session_options.add_session_config_entry(key, value)
    for library in options.libraries:
        session_options.register_custom_ops_library(str(library))
    return session_options


def _providers(options: SessionOptions) -> list[tuple[str, dict[str, str]]]:
    if options.gpu is None:
        return [("CPUExecutionProvider", {})]
    device = {"device_id": str(options.gpu)}
    cuda = (CUDA, {**options.cuda, **device})  # ONNX Runtime itself adds its provider for the CPU
    if options.tensorrt is None:
        return [cuda]
    plugins = {}
    if options.tensorrt_plugins:
        plugins["trt_extra_plugin_lib_paths"] = str(options.tensorrt_plugins)
        os.environ.setdefault("OPGATE_TENSORRT_REGISTRY", "libnvinfer.so.10")  # see adapters/tensorrt/registration.cpp
    return [(TENSORRT, {**options.tensorrt, **plugins, **device}), cuda]


class Session:
    """One loaded model file on one device. Several threads may run it at the same time.

    A session on a GPU has a CUDA stream of its own.
    """

    def __init__(self, path: Path, options: SessionOptions) -> None:
        """Opens the file. Raises ServingError (UNAVAILABLE) with the message of ONNX Runtime, or if it left out a
        provider that the options ask for."""
        providers = _providers(options)
        try:
            # Otherwise ONNX Runtime would use the CPU if a provider fails, now or in a run.
            self._session = ort.InferenceSession(
                str(path), sess_options=_ort_options(options), providers=providers, enable_fallback=0
            )
        except Exception as error:  # Exception is the only common base class of ONNX Runtime's exceptions
            raise ServingError(Kind.UNAVAILABLE, str(error).strip()) from error
        # It still leaves out a provider that it can't load.
        if missing := [name for name, _ in providers if name not in self._session.get_providers()]:
            raise ServingError(
                Kind.UNAVAILABLE, f"ONNX Runtime can't load {missing[0]}: its message on stderr says why"
            )
        self.inputs = tuple(EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_inputs())
        self.outputs = tuple(EngineTensor(o.name, o.type, tuple(o.shape)) for o in self._session.get_outputs())
        self.defaulted = tuple(
            EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_overridable_initializers()
        )
        self.gpu = options.gpu
        # NumPy has no bfloat16. Such tensors travel as uint16 bits in OrtValues.
        inputs, bf16 = (*self.inputs, *self.defaulted), DATATYPES["BF16"].onnx
        self._bf16_inputs = frozenset(tensor.name for tensor in inputs if tensor.type == bf16)
        # Binding takes some microseconds, but only a bound input is copied to a GPU at once. Strings can't be bound.
        strings = any(tensor.type == DATATYPES["BYTES"].onnx for tensor in inputs)
        has_bf16 = any(tensor.type == bf16 for tensor in (*inputs, *self.outputs))
        if strings and has_bf16:
            raise ServingError(Kind.UNAVAILABLE, "ONNX Runtime takes no strings as input of a model with BF16 tensors")
        self._binds = has_bf16 or (options.gpu is not None and not strings)
        self._run_options: Any = None
        if options.arena_shrinkage:
            self._run_options = ort.RunOptions()
            self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", options.arena_shrinkage)

    def run(self, outputs: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        """Runs the graph and returns the named outputs. Raises EngineError with the message of ONNX Runtime."""
        try:
            if self._binds:
                return self._run_bound(outputs, feeds)
            arrays: list[Array] = self._session.run(outputs, feeds, self._run_options)
            return arrays
        except ServingError:
            raise
        except Exception as error:
            name = type(error).__name__
            kind = Kind.INVALID if name == "InvalidArgument" else Kind.INTERNAL
            raise EngineError(kind, str(error).strip()) from error

    def nodes_on_cpu(self) -> list[str]:
        """Returns the op types of the nodes that the CPU runs, in a session on a GPU."""
        return [
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            for part in self._session.get_provider_graph_assignment_info()
            if part.ep_name == "CPUExecutionProvider"
            for node in part.get_nodes()
        ]

    def _run_bound(self, outputs: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        """Binds the inputs, which copies them to the device of the session once, and the outputs to host memory."""
        code = DATATYPES["BF16"].onnx_code
        make, make_bits = ort.OrtValue.ortvalue_from_numpy, ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        binding = self._session.io_binding()
        for name, feed in feeds.items():
            array = np.asarray(feed, order="C")
            binding.bind_ortvalue_input(name, make_bits(array, code) if name in self._bf16_inputs else make(array))
        for name in outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding, self._run_options)
        return [_array(value) for value in binding.get_outputs()]


def _array(value: Any) -> Array:
    """Returns the elements of an OrtValue in host memory without a copy; bfloat16 comes as uint16 bits."""
    datatype, shape = BY_ONNX[value.data_type()], tuple(value.shape())
    if not datatype.itemsize:
        strings: Array = value.numpy()
        return strings
    count = math.prod(shape)
    if not count:
        return np.empty(shape, datatype.dtype)
    memory = (ctypes.c_byte * (count * datatype.itemsize)).from_address(value.data_ptr())
    memory.owner = value  # the array keeps `memory` alive, and `memory` the OrtValue
    return np.frombuffer(memory, datatype.dtype).reshape(shape)
