"""ONNX Runtime sessions: their options, devices and thread counts, and runs on NumPy arrays without copies."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnxruntime as ort

from opgate import folders
from opgate.service.core.datatypes import BY_ONNX, DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.op_times import OpTimes
from opgate.service.core.request import Array, OpCall, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import aligned
from opgate.service.execution import arena
from opgate.service.execution.engine_profile import MOST_BYTES, Operator, domains_of, read_profile
from opgate.service.execution.engine_strings import engine_strings
from opgate.service.execution.gpus import CUDA, LIBRARY, TENSORRT, provider_devices, tensorrt_library, why_not_loaded
from opgate.service.execution.timed_ops import TimedOps
from opgate.service.native import process
from opgate.service.native.engine_strings import first_bytes

logger = logging.getLogger("opgate.session")

_FLOATS = tuple(f"tensor({name})" for name in ("float16", "bfloat16", "float", "double"))
# What ONNX Runtime says if a node failed.
_IN_NODE = "while running"
# What an op says that can't work with what it got, whose library opgate has built. It names itself.
_OF_OP = re.compile(r"Status Message: (\w+::\w+: .+)", re.DOTALL)
_OTHER_SHAPE = "The output OrtValue provided for output"
# Why strings that aren't text are refused, if the gateway can't reach the engine's strings.
_TEXT_ONLY = f"and BYTES tensors can hold nothing else with ONNX Runtime {ort.__version__}"
_NO_CPU = "session.disable_cpu_ep_fallback"


class EngineError(ServingError):
    """A run failed in ONNX Runtime.

    The kind is INVALID if it refused an input of the graph, or if an op of an op library says that it can't work with
    what it got. Else it is INTERNAL: what a node of ONNX Runtime refuses may come from the client or from the model.
    """


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open a model file. A thread count of 0 leaves the number to ONNX Runtime.

    `gpu` is the number of a GPU, or None for the CPU. `cuda` and `tensorrt` are options of the providers for a GPU;
    without `tensorrt` the session doesn't use TensorRT. `tensorrt_plugins` are libraries of TensorRT plugins. With
    `profile`, a folder, the profiler watches each run and writes its file there. With `writes` the optimized graph is
    written to that file.

    On a GPU the CPU runs the nodes that no other provider takes, unless the entry session.disable_cpu_ep_fallback is 1,
    which has no meaning on the CPU.
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
    tensorrt_plugins: tuple[Path, ...] = ()
    profile: Path | None = None
    writes: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """An input or output as the model file declares it. An unknown size is the name of its dim, or None."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class _Opened(Protocol):
    """A model that is open, in this process or in one of its own."""

    gpu: int | None
    intra_op_threads: int  # 0 if the gateway doesn't say how many
    isolated: bool  # whether it runs in a process of its own
    down: str  # why it can't run now
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    defaulted: tuple[EngineTensor, ...]

    def run_options(self) -> Any: ...

    def nodes(self) -> dict[str, set[str]]: ...

    def op_times(self) -> OpTimes: ...

    def close(self) -> None: ...


class FileSession(_Opened, Protocol):
    """An opened model file. See `Session` for the methods."""

    takes_requests: Literal[False]

    def run(
        self,
        outputs: Sequence[str],
        feeds: dict[str, Array],
        options: Any = None,
        calls: list[OpCall] | None = None,
    ) -> list[Array]: ...

    def profiled(self, folder: Path) -> FileSession: ...

    def profile(self) -> list[Operator]: ...


class RequestSession(_Opened, Protocol):
    """A model in Python, which gets the requests of a batch one by one. See `PythonSession` for the methods."""

    takes_requests: Literal[True]

    def execute(self, spec: ModelSpec, requests: Sequence[Request], options: Any = None) -> None: ...

    def instance(self, spec: ModelSpec, finished: Any, closed: Any) -> Any: ...


ModelSession = FileSession | RequestSession


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
    if options.memory_arena:
        arena.use_shared(session_options)
    session_options.enable_mem_pattern = options.memory_pattern
    session_options.log_severity_level = 4  # fatal only: errors come as exceptions
    # Threads that spin would take the cores that the event loop and other models need.
    session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session_options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in options.entries.items():
        if key != _NO_CPU or options.gpu is not None:  # ONNX Runtime refuses it in a session on the CPU
            session_options.add_session_config_entry(key, value)
    if options.gpu is not None or options.profile is not None:
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if options.profile is not None:
        session_options.enable_profiling = True
        session_options.profile_file_prefix = str(options.profile / "run")
    if options.writes is not None:
        session_options.optimized_model_filepath = str(options.writes)
    for library in options.libraries:
        session_options.register_custom_ops_library(str(library))
        _tell_ops(library)
    return session_options


def _tell_ops(library: Path) -> None:
    """Lets the last words of the process name the op that crashed, if the library was built by `opgate build`."""
    try:
        running_op = ctypes.CDLL(str(library)).opgate_running_op
    except (OSError, AttributeError):
        return
    address = ctypes.cast(running_op, ctypes.c_void_p).value
    if address is not None:
        process.ask_for_op(address)


def _providers(options: SessionOptions) -> list[tuple[str, dict[str, str]]]:
    if options.gpu is None:
        return [("CPUExecutionProvider", {})]
    device = {"device_id": str(options.gpu)}
    cuda = (CUDA, {**options.cuda, **device})  # ONNX Runtime itself adds its provider for the CPU
    if options.tensorrt is None:
        return [cuda]
    paths = ";".join(map(str, options.tensorrt_plugins))
    plugins = {"trt_extra_plugin_lib_paths": paths} if paths else {}
    return [(TENSORRT, {**options.tensorrt, **plugins, **device}), cuda]


def _device(options: SessionOptions) -> Any:
    """Returns the device that a session runs on if its provider is a library beside ONNX Runtime, None if it isn't.
    Raises NoGpu."""
    return provider_devices()[options.gpu] if options.gpu is not None and provider_devices() else None


def _register(plugins: Path) -> None:
    """Loads a library of TensorRT plugins, which then registers them. Raises ServingError (UNAVAILABLE).

    ONNX Runtime itself loads only the library of the first session with TensorRT.
    """
    os.environ.setdefault("OPGATE_TENSORRT_REGISTRY", tensorrt_library())  # see adapters/tensorrt/registration.cpp
    left = ctypes.c_int()  # the number of plugins that the library leaves for others to register
    try:
        ctypes.CDLL(str(plugins)).getCreators(ctypes.byref(left))
    except (OSError, AttributeError) as error:
        raise ServingError(Kind.UNAVAILABLE, f"the TensorRT plugins in {plugins} can't be loaded: {error}") from error
    if left.value:
        text = (
            f"the TensorRT plugins in {plugins} can't register themselves in {os.environ['OPGATE_TENSORRT_REGISTRY']}"
        )
        raise ServingError(Kind.UNAVAILABLE, f"{text}: the message on stderr says why")


class Session:
    """One loaded model file on one device. Several threads may run it at the same time.

    A session on a GPU has a CUDA stream of its own.
    """

    isolated = False
    takes_requests: Literal[False] = False
    down = ""

    def __init__(self, path: Path, options: SessionOptions) -> None:
        """Opens the file. Raises ServingError (UNAVAILABLE) with the message of ONNX Runtime, or if it left out a
        provider that the options ask for."""
        if options.libraries or options.tensorrt_plugins:
            folders.load_shipped_dependencies()  # one of them may be a copy of the wheel's
        for plugins in options.tensorrt_plugins:
            _register(plugins)
        self.ops = TimedOps(options.libraries)
        try:
            device = _device(options)
            if device is not None and options.tensorrt is not None:
                text = f"TensorRT runs beside ONNX Runtime's own CUDA provider, and {LIBRARY} names another"
                raise ServingError(Kind.UNAVAILABLE, text)
            providers = None if device is not None else _providers(options)
            with self.ops.owning():
                session_options = _ort_options(options)
                if device is not None:
                    session_options.add_provider_for_devices([device], dict(options.cuda))
                # Otherwise ONNX Runtime would use the CPU if a provider fails, now or in a run.
                self._session = ort.InferenceSession(
                    str(path), sess_options=session_options, providers=providers, enable_fallback=0
                )
        except ServingError:
            raise
        except Exception as error:  # Exception is the only common base class of ONNX Runtime's exceptions
            raise ServingError(Kind.UNAVAILABLE, str(error).strip()) from error
        # It still leaves out a provider that it can't load.
        if missing := [name for name, _ in providers or () if name not in self._session.get_providers()]:
            raise ServingError(Kind.UNAVAILABLE, f"ONNX Runtime can't load {missing[0]}: {why_not_loaded(missing[0])}")
        self.inputs = tuple(EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_inputs())
        self.outputs = tuple(EngineTensor(o.name, o.type, tuple(o.shape)) for o in self._session.get_outputs())
        self.defaulted = tuple(
            EngineTensor(i.name, i.type, tuple(i.shape)) for i in self._session.get_overridable_initializers()
        )
        self._path, self._asked = path, options
        self.gpu = options.gpu
        self.intra_op_threads = options.intra_op_threads
        # NumPy has no bfloat16. Such tensors travel as uint16 bits in OrtValues.
        inputs, bf16 = (*self.inputs, *self.defaulted), DATATYPES["BF16"].onnx
        self._bf16_inputs = frozenset(tensor.name for tensor in inputs if tensor.type == bf16)
        self._float_inputs = frozenset(tensor.name for tensor in inputs if tensor.type in _FLOATS)
        string = DATATYPES["BYTES"].onnx
        self._string_inputs = tuple(tensor.name for tensor in inputs if tensor.type == string)
        has_strings = any(tensor.type == string for tensor in (*inputs, *self.outputs))
        self._strings = engine_strings() if has_strings else None
        has_bf16 = any(tensor.type == bf16 for tensor in (*inputs, *self.outputs))
        if self._string_inputs and has_bf16 and self._strings is None:
            text = f"ONNX Runtime {ort.__version__} takes no strings as input of a model with BF16 tensors"
            raise ServingError(Kind.UNAVAILABLE, text)
        # A run on arrays is quicker for strings that are text. It can't take or give others.
        self._uses_values = has_bf16 or (options.gpu is not None and not self._string_inputs)
        # The inputs that a node on the GPU reads first.
        self._on_gpu: frozenset[str] = frozenset()
        if options.gpu is not None and device is None:  # the CPU's package can make no value on a GPU
            memories = zip(self.inputs, self._session.get_input_memory_infos(), strict=True)
            self._on_gpu = frozenset(tensor.name for tensor, memory in memories if memory.name == "Cuda")
        self._arena_shrinkage = options.arena_shrinkage
        self._last_op_times: OpTimes | None = None
        self._closing = threading.Lock()

    def run_options(self) -> Any:
        """Returns options for one run. If another thread sets their `terminate`, the run ends before its next node."""
        options = ort.RunOptions()
        # That is the default. A run on OrtValues looks for it, and takes 25 us to find that it is not stated.
        options.add_run_config_entry("gpu_graph_id", "0")
        if self._arena_shrinkage:
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._arena_shrinkage)
        return options

    def run(
        self,
        outputs: Sequence[str],
        feeds: dict[str, Array],
        options: Any = None,
        calls: list[OpCall] | None = None,
    ) -> list[Array]:
        """Runs the graph and returns the named outputs. `options` are those of `run_options`. The calls of ops are
        added to `calls`.

        Raises EngineError with the message of ONNX Runtime.
        """
        if calls is not None:
            with self.ops.recording(calls):
                return self.run(outputs, feeds, options)
        if options is None and self._arena_shrinkage:
            options = self.run_options()
        for name in self._float_inputs & feeds.keys():  # so that the same request gets the same bits
            feeds[name] = aligned(feeds[name])
        try:
            if self._uses_values or (self._string_inputs and self._has_bytes(feeds)):
                return self._run_values(outputs, feeds, options)
            try:
                arrays: list[Array] = self._session.run(outputs, feeds, options)
            except UnicodeDecodeError:
                # Only the conversion of an output failed. The graph runs once more, and a model that makes such strings
                # gives them as values from now on.
                if self._strings is None:
                    raise
                self._uses_values = True
                return self._run_values(outputs, feeds, options)
            return arrays
        except ServingError:
            raise
        except UnicodeDecodeError:
            raise EngineError(Kind.INTERNAL, f"an output has an element that is not UTF-8, {_TEXT_ONLY}") from None
        except Exception as error:
            raise _engine_error(error) from error

    def bind(self, feeds: dict[str, Array], outputs: dict[str, Array]) -> BoundRun | None:
        """Returns runs that read and write this memory each time, or None if ONNX Runtime may need other memory.

        The arrays are C-contiguous and in host memory, and must stay where they are.
        """
        inputs = (*self.inputs, *self.defaulted)
        # An output that is an input of the graph is the value of that input. An empty tensor has no memory.
        if (
            self._uses_values
            or self._string_inputs
            or self.gpu is not None
            or any(tensor.name in outputs for tensor in inputs)
            or not all(array.size for array in (*feeds.values(), *outputs.values()))
        ):
            return None
        # The other sizes may depend on the elements.
        known = {size for tensor in inputs for size in tensor.shape if size is not None}
        sizes = [size for tensor in self.outputs if tensor.name in outputs for size in tensor.shape]
        if not all(isinstance(size, int) or size in known for size in sizes):
            return None
        return BoundRun(self._session, feeds, outputs)

    def _has_bytes(self, feeds: dict[str, Array]) -> bool:
        """Returns whether an input has an element that is not UTF-8. Raises EngineError if the engine can't take it."""
        for name in self._string_inputs:
            index = first_bytes(np.asarray(feeds[name], order="C")) if name in feeds else -1
            if index >= 0:
                if self._strings is None:
                    raise EngineError(Kind.INVALID, f"input '{name}': element {index} is not UTF-8, {_TEXT_ONLY}")
                return True
        return False

    def profiled(self, folder: Path) -> Session:
        """Opens the file once more, with a profiler that writes to a folder. Raises ServingError as `Session` does."""
        return Session(self._path, replace(self._asked, profile=folder))

    def profile(self) -> list[Operator]:
        """Ends the profiler of a session that `profiled` has opened. Returns the operators of the last run."""
        runs = read_profile(Path(self._session.end_profiling()), domains_of(self._session), MOST_BYTES)
        return runs[-1] if runs else []

    def close(self) -> None:
        """Frees the memory of the model. Nothing may run the session any more."""
        with self._closing:
            if self._last_op_times is None:
                self._last_op_times = self.ops.read()
                self.ops.forget()
        self._session = None

    def op_times(self) -> OpTimes:
        """Returns how long the calls of the ops took, by op and node. Any thread may ask, also after the end."""
        with self._closing:
            return self.ops.read() if self._last_op_times is None else self._last_op_times

    def nodes(self) -> dict[str, set[str]]:
        """Returns the op types of the nodes by provider, in a session on a GPU."""
        found: dict[str, set[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            types = {f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in part.get_nodes()}
            found.setdefault(part.ep_name, set()).update(types)
        return found

    def _run_values(self, outputs: Sequence[str], feeds: dict[str, Array], options: Any) -> list[Array]:
        """Runs on OrtValues. An input that a node on the GPU reads is copied there once; outputs come in host memory.

        An IOBinding would do the same, but its runs raise a RuntimeError for a client's mistake too.
        """
        values = {name: self._value(name, np.asarray(array, order="C")) for name, array in feeds.items()}
        results = self._session.run_with_ort_values(outputs, values, options)
        # An output that is an input of the graph is the value of that input.
        return [self._array(value, values) for value in results]

    def _value(self, name: str, array: Array) -> Any:
        if self._strings is not None and name in self._string_inputs:
            return self._strings.make(array)
        if name in self._bf16_inputs:  # ONNX Runtime makes it only in host memory
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, DATATYPES["BF16"].onnx_code)
        if name in self._on_gpu:
            return ort.OrtValue.ortvalue_from_numpy(array, "cuda", self.gpu)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def _array(self, value: Any, inputs: Any) -> Array:
        """Returns the elements of an OrtValue in host memory; bfloat16 comes as uint16 bits.

        They are copied if they are strings or on the GPU. Otherwise the array keeps `value` and `inputs` alive.
        """
        datatype, shape = BY_ONNX[value.data_type()], tuple(value.shape())
        if self._strings is not None and not datatype.itemsize:
            return self._strings.read(value)
        if not datatype.itemsize or value.device_name() != "cpu":
            copied: Array = value.numpy()
            return copied
        count = math.prod(shape)
        if not count:
            return np.empty(shape, datatype.dtype)
        memory = (ctypes.c_byte * (count * datatype.itemsize)).from_address(value.data_ptr())
        memory.owners = (value, inputs)
        return np.frombuffer(memory, datatype.dtype).reshape(shape)


def open_prepared(path: Path, options: SessionOptions, prepared: tuple[Path, SessionOptions] | None) -> Session:
    """Opens the prepared form of a file, or the file itself if there is none or if it is gone. Raises ServingError as
    `Session` does."""
    if prepared is not None:
        try:
            return Session(*prepared)
        except ServingError as error:
            logger.warning("the prepared form of '%s' can't be opened: %s", path, error.message)
    return Session(path, options)


class BoundRun:
    """Runs on tensors that lie in the same memory each time. ONNX Runtime makes no values for them: a run on few
    elements takes half the time."""

    def __init__(self, session: Any, feeds: dict[str, Array], outputs: dict[str, Array]) -> None:
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._arrays = (feeds, outputs)
        self._binding = binding
        self._session = session

    def run(self, options: Any) -> bool:
        """Runs. `options` are those of `Session.run_options`.

        Returns False if an output has another shape this time: the model states wrong shapes. Raises EngineError.
        """
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:
            if _OTHER_SHAPE in str(error):
                return False
            raise _engine_error(error) from error
        return True


def _engine_error(error: Exception) -> EngineError:
    """Returns the error for what a run has raised. One on bound memory raises a RuntimeError for every mistake."""
    text = str(error).removeprefix("Error in execution: ").strip()
    if by_op := _OF_OP.search(text):
        return EngineError(Kind.INVALID, by_op[1])
    of_input = type(error).__name__ == "InvalidArgument" and _IN_NODE not in text
    return EngineError(Kind.INVALID if of_input else Kind.INTERNAL, text)
