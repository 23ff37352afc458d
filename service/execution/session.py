"""ONNX Runtime sessions: their options and thread counts, and runs on NumPy arrays without copies."""

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
from service.execution.datatypes import DATATYPES
from service.execution.request import Array

logger = logging.getLogger("opgate.session")


class EngineError(ServingError):
    """A run failed in ONNX Runtime. The kind is INVALID if it says that an argument was wrong, else INTERNAL."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open a model file. A thread count of 0 leaves the number to ONNX Runtime."""

    intra_op_threads: int = 1
    inter_op_threads: int = 0
    parallel: bool = False
    graph_level: str = "all"  # "basic", "extended", "disabled", "all"
    memory_arena: bool = True
    memory_pattern: bool = True
    arena_shrinkage: str = ""
    libraries: tuple[Path, ...] = ()
    entries: Mapping[str, str] = field(default_factory=dict)


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
    for key, value in options.entries.items():
        session_options.add_session_config_entry(key, value)
    for library in options.libraries:
        session_options.register_custom_ops_library(str(library))
    return session_options


class Session:
    """One loaded model file. Several threads may run it at the same time."""

    def __init__(self, path: Path, options: SessionOptions) -> None:
        """Opens the file. Raises ServingError (UNAVAILABLE) with the message of ONNX Runtime."""
        try:
            self._session = ort.InferenceSession(
                str(path), sess_options=_ort_options(options), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # Exception is the only common base class of ONNX Runtime's exceptions
            raise ServingError(Kind.UNAVAILABLE, str(error).strip()) from error
        self.inputs = tuple(EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_inputs())
        self.outputs = tuple(EngineTensor(o.name, o.type, tuple(o.shape)) for o in self._session.get_outputs())
        self.defaulted = tuple(
            EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_overridable_initializers()
        )
        # NumPy has no bfloat16. Such tensors travel as uint16 bits in OrtValues, which makes a run slower.
        bf16 = DATATYPES["BF16"]
        self._bf16_inputs = frozenset(i.name for i in (*self.inputs, *self.defaulted) if i.type == bf16.onnx)
        self._needs_values = any(t.type == bf16.onnx for t in (*self.inputs, *self.outputs))
        self._run_options: Any = None
        if options.arena_shrinkage:
            self._run_options = ort.RunOptions()
            self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", options.arena_shrinkage)

    def run(self, outputs: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        """Runs the graph and returns the named outputs. Raises EngineError with the message of ONNX Runtime."""
        try:
            if self._needs_values:
                return self._run_values(outputs, feeds)
            arrays: list[Array] = self._session.run(outputs, feeds, self._run_options)
            return arrays
        except ServingError:
            raise
        except Exception as error:
            name = type(error).__name__
            kind = Kind.INVALID if name == "InvalidArgument" else Kind.INTERNAL
            raise EngineError(kind, str(error).strip()) from error

    def _run_values(self, outputs: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        code = DATATYPES["BF16"].onnx_code
        make, make_bits = ort.OrtValue.ortvalue_from_numpy, ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        values = {
            name: make_bits(np.ascontiguousarray(array), code) if name in self._bf16_inputs else make(array)
            for name, array in feeds.items()
        }
        results = self._session.run_with_ort_values(outputs, values, self._run_options)
        return [_bits(value) if value.data_type() == DATATYPES["BF16"].onnx else value.numpy() for value in results]


def _bits(value: Any) -> Array:
    """Returns a bfloat16 OrtValue as uint16 bits. Copies them, because a view would not keep the OrtValue alive."""
    shape = tuple(value.shape())
    count = math.prod(shape)
    if not count:
        return np.empty(shape, np.uint16)
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint16).reshape(shape).copy()
