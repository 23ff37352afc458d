"""The module `triton_python_backend_utils` of models in Python, as https://github.com/triton-inference-server/python_backend
describes it. A worker gives it to the `model.py` that it loads.

Tensors are NumPy arrays in host memory. Strings are objects of type bytes.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import struct
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opgate.service.isolation.event_loop import EventLoop

if TYPE_CHECKING:
    from opgate.service.isolation.conversation import Answer, Conversation, Question

Array = np.ndarray[Any, np.dtype[Any]]

# The worker's connection with the gateway, while `execute` can be called. Not for models.
conversation: Conversation | None = None
# What `initialize` says, which the gateway hears afterwards.
unsaid: list[list[Any]] = []
event_loop = EventLoop()
model_file = Path()
tells_lines = True

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

_TYPES = {
    "TYPE_BOOL": np.bool_, "TYPE_UINT8": np.uint8, "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64, "TYPE_INT8": np.int8, "TYPE_INT16": np.int16, "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64, "TYPE_FP16": np.float16, "TYPE_FP32": np.float32, "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}  # fmt: skip
_BF16 = np.dtype("V2")  # the dtype of its bits here: NumPy has no type for it
_BF16_NUMBER = 14
_NUMERIC = {np.dtype(kind) for kind in _TYPES.values()} - {np.dtype(np.object_)} | {_BF16}
_NUMBERS = {"TYPE_BOOL": 1, **{name: number for number, name in enumerate(list(_TYPES)[1:], 2)}}


class TritonModelException(Exception):
    """What the functions of this module raise."""


class TritonError:
    """The error of one request."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message.decode() if isinstance(message, bytes) else str(message)
        self._code = code

    def message(self) -> str:
        """Returns the text."""
        return self._message

    def code(self) -> int:
        """Returns one of the constants of this class."""
        return self._code

    def __str__(self) -> str:
        return self._message


# The kinds of opgate.service.core.errors that stand for Triton's codes.
_KINDS = {
    TritonError.NOT_FOUND: "NOT_FOUND",
    TritonError.INVALID_ARG: "INVALID",
    TritonError.UNAVAILABLE: "UNAVAILABLE",
    TritonError.UNSUPPORTED: "UNSUPPORTED",
    TritonError.ALREADY_EXISTS: "ALREADY_EXISTS",
    TritonError.CANCELLED: "CANCELED",
}
_CODES = {kind: code for code, kind in _KINDS.items()}


class Tensor:
    """A named array. Strings may be given as text or bytes."""

    def __init__(self, name: str, tensor: Any) -> None:
        self._name = _text(name, "the name of a tensor")
        if not self._name:
            raise TritonModelException("the name of a tensor is empty")
        array = np.asarray(tensor)
        self._array = array if array.dtype in _NUMERIC else _of_a_type(name, array)

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Tensor:
        """Returns a tensor that shares the memory of a tensor of another library, or of its capsule."""
        source = _Source(tensor)
        array = np.from_dlpack(source)
        return cls(name, array.view(_BF16) if source.is_bf16 else array)

    def to_dlpack(self) -> Any:
        """Returns a capsule with the memory of the tensor."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        if self._array.dtype != _BF16:
            return self._array.__dlpack__(**options)
        capsule = self._array.view(np.uint16).__dlpack__(**options)
        _kind_of_capsule(capsule).value = _DL_BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def name(self) -> str:
        """Returns the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Returns the elements, without a copy. Raises TritonModelException for BF16, which NumPy has not."""
        if self._array.dtype == _BF16:
            raise TritonModelException(f"tensor '{self._name}' is of BF16, which NumPy has not: use to_dlpack()")
        return self._array

    def shape(self) -> list[int]:
        """Returns the sizes."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Returns the number of the type in Triton's DataType."""
        return _BF16_NUMBER if self._array.dtype == _BF16 else numpy_to_triton_type(self._array.dtype) or 0

    def is_cpu(self) -> bool:
        """Returns True: tensors lie in host memory."""
        return True


def _of_a_type(name: str, array: Array) -> Array:
    """Returns an array that is not of numbers as one of a type that Triton has. Raises TritonModelException."""
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes
        return array.view(_BF16)
    if array.dtype.kind in "SU":
        array = array.astype(np.object_)
    if array.dtype.kind != "O":
        raise TritonModelException(f"tensor '{name}': Triton has no type for {array.dtype}")
    return _of_strings(array)


def _of_strings(array: Array) -> Array:
    """Returns an array of objects with texts or bytes only: others become the text of their `str`."""
    elements = array.reshape(-1).tolist()
    if all(type(element) is bytes or type(element) is str for element in elements):
        return array
    found = np.empty(array.size, np.object_)
    found[:] = [element if isinstance(element, str) else _bytes_of(element) for element in elements]
    return found.reshape(array.shape)


# Of dlpack.h: the device of host memory, and two kinds of types.
_DL_CPU, _DL_UINT, _DL_BFLOAT = 1, 1, 4
# Where the kind of the type is, from the beginning of DLManagedTensor and of DLManagedTensorVersioned.
_KIND_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _kind_of_capsule(capsule: Any) -> ctypes.c_uint8:
    """Returns the kind of the type of the tensor in a capsule of DLPack, in its place."""
    name = _name_of(capsule) if type(capsule).__name__ == "PyCapsule" else None
    if name not in _KIND_AT:
        raise TritonModelException(f"expected a tensor or a capsule of DLPack that nobody has used, got {capsule!r}")
    return ctypes.c_uint8.from_address(_pointer_of(capsule, name) + _KIND_AT[name])


class _Source:
    """Lets NumPy take a tensor or a capsule of DLPack: BF16 as UINT16, because it knows no other type for the bits."""

    def __init__(self, given: Any) -> None:
        self.is_bf16 = False
        self._given = given

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._given.__dlpack__(**options) if hasattr(self._given, "__dlpack__") else self._given
        kind = _kind_of_capsule(capsule)
        if kind.value == _DL_BFLOAT:
            self.is_bf16, kind.value = True, _DL_UINT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._given.__dlpack_device__() if hasattr(self._given, "__dlpack_device__") else (_DL_CPU, 0)


class InferenceTrace:
    """The trace of a request."""

    def get_context(self) -> str | None:
        """Returns None: a trace has no context here."""
        return None


class PreferredMemory:
    """Where the outputs of a called model should lie. They lie in host memory."""

    def __init__(self, preferred_memory_type: int = TRITONSERVER_MEMORY_CPU, preferred_device_id: int = 0) -> None:
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


def _tensors(given: Sequence[Tensor], what: str) -> list[Tensor]:
    found = list(given)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(f"{what}: expected a list of pb_utils.Tensor")
    return found


class InferenceResponse:
    """Tensors or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = _tensors(output_tensors or (), "output_tensors")
        if error is None and len(self._tensors) > 1 and len({t.name() for t in self._tensors}) != len(self._tensors):
            raise TritonModelException("output_tensors: two have the same name")
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error = error
        self._parameters = _checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Returns the outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Returns whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Returns the error."""
        return self._error

    def parameters(self) -> str:
        """Returns the parameters as JSON."""
        return json.dumps(self._parameters)


class InferenceResponseSender:
    """Sends the responses to a request, from any thread.

    A decoupled model sends as many as it wants, and marks the last one or sends the final flag alone. Another model
    sends one.
    """

    def __init__(self, talk: Conversation, number: int, decoupled: bool) -> None:
        self.number = number
        self._talk = talk
        self._decoupled = decoupled
        self._sent = 0
        self._closed = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, or with the final flag alone the end. It waits while the client has not taken those before.

        Raises TritonModelException after the final flag, and for more or less than one response of a model that is not
        decoupled.
        """
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"flags: expected 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL, got {flags}")
        if response is None and not flags:
            raise TritonModelException("expected a response or flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(f"expected an InferenceResponse, got {type(response).__name__}")
        final = bool(flags)
        self._count(response is not None, final)
        try:
            tensors, error, parameters = self._parts(response)
            self._talk.respond(self.number, response is not None, final, error, parameters, tensors)
        except BaseException as failed:  # nothing was sent, so something else may be
            with self._lock:
                self._sent -= response is not None
                self._closed = False
            if isinstance(failed, (ValueError, TypeError)):
                raise TritonModelException(str(failed)) from None
            raise
        if final:
            self._talk.forget(self.number)

    def is_cancelled(self) -> bool:
        """Returns whether nobody waits for the responses any more."""
        return self._talk.cancelled(self.number)

    def returned(self, response: InferenceResponse) -> tuple[list[tuple[str, Array]], list[str], dict[str, Any]]:
        """Takes the response that `execute` returns: its tensors, error and parameters. For the worker alone."""
        self._count(True, True)
        self._talk.forget(self.number)
        return self._parts(response)

    def close(self) -> None:
        """Lets nothing be sent any more. For the worker alone."""
        with self._lock:
            self._closed = True
        self._talk.forget(self.number)

    def fail(self, text: str) -> None:
        """Ends the request with an error, unless it has ended. For the worker alone."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._talk.respond(self.number, True, True, ["BACKEND", text], {}, [])
            self._talk.forget(self.number)

    def _count(self, present: bool, final: bool) -> None:
        with self._lock:
            if self._closed:
                raise TritonModelException("the sender is closed: the final response has been sent, or execute failed")
            if not self._decoupled and present and self._sent:
                raise TritonModelException("a model that is not decoupled sends one response to a request")
            if not self._decoupled and not present and not self._sent:
                raise TritonModelException("a model that is not decoupled sends a response before the final flag")
            self._sent += present
            self._closed = final

    def _parts(self, response: InferenceResponse | None) -> tuple[list[tuple[str, Array]], list[str], dict[str, Any]]:
        if response is None:
            return [], [], {}
        error = response.error()
        if error is not None:
            return [], [_KINDS.get(error.code(), "BACKEND"), error.message()[:4096]], {}
        return [(tensor.name(), tensor._array) for tensor in response.output_tensors()], [], response._parameters


class InferenceRequest:
    """A request to this model, or to another one."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        for name, number in {"model_version": model_version, "flags": flags, "timeout": timeout}.items():
            if not isinstance(number, int):
                raise TypeError(f"{name}: expected an integer, got {number!r}")
            if abs(number) >= 1 << 63:
                raise ValueError(f"{name}: expected an integer of 64 bits, got {number}")
        if timeout < 0:
            raise ValueError(f"timeout: expected microseconds, got {timeout}")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException(f"correlation_id: expected an integer or a text, got {correlation_id!r}")
        if not isinstance(correlation_id, str) and not 0 <= correlation_id < 1 << 64:
            raise TritonModelException(f"correlation_id: expected 0 or more, within 64 bits, got {correlation_id}")
        self._id = _text(request_id, "request_id")
        self._correlation_id = correlation_id
        self._inputs = _tensors(inputs, "inputs")
        self._outputs = [_text(name, "requested_output_names") for name in requested_output_names]
        if "" in self._outputs:
            raise TritonModelException("requested_output_names: a name is empty")
        self.model_name = _text(model_name, "model_name")
        self.model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = InferenceTrace() if trace is None else trace
        self._parameters = _checked_parameters(parameters)
        self._sender: InferenceResponseSender | None = None
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    def inputs(self) -> list[Tensor]:
        """Returns the inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Returns the id that the client gave."""
        return self._id

    def correlation_id(self) -> int | str:
        """Returns the id of its sequence, 0 for none."""
        return self._correlation_id

    def requested_output_names(self) -> set[str]:
        """Returns the names of the outputs that the client wants."""
        return set(self._outputs)

    def flags(self) -> int:
        """Returns whether it begins or ends a sequence, see the constants of this module."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags."""
        self._flags = flags

    def set_release_flags(self, flags: int) -> None:
        """Says whether the request is over when `execute` returns, or comes again (RESCHEDULE): constants of this
        module."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"expected TRITONSERVER_REQUEST_RELEASE_ALL or _RESCHEDULE, got {flags}")
        self._release_flags = flags

    def timeout(self) -> int:
        """Returns its timeout in microseconds, 0 for none."""
        return self._timeout

    def preferred_memory(self) -> PreferredMemory | None:
        """Returns where its outputs should lie."""
        return self._preferred_memory

    def trace(self) -> Any:
        """Returns its trace, which has no context: spans of a model in Python don't join those of the request."""
        return self._trace

    def parameters(self) -> str:
        """Returns the parameters that the client gave as JSON."""
        return json.dumps(self._parameters)

    def get_response_sender(self) -> InferenceResponseSender:
        """Returns what sends the responses. Only a request that came to this model has it."""
        if self._sender is None:
            raise TritonModelException("only a request that `execute` got has a response sender")
        return self._sender

    def is_cancelled(self) -> bool:
        """Returns whether nobody waits for the response any more."""
        return self._sender is not None and self._sender.is_cancelled()

    def exec(self, decoupled: bool = False) -> Any:
        """Runs the request in another model. Returns its response, or with `decoupled` an iterator over them.

        A request that fails gives a response with an error.
        """
        asked = self._asked(decoupled)
        if isinstance(asked, InferenceResponse):
            return ResponseIterator(None, asked) if decoupled else asked
        return ResponseIterator(asked) if decoupled else _response(asked.next())

    async def async_exec(self, decoupled: bool = False) -> Any:
        """Does the same without holding up the event loop. Calls run side by side."""
        asked = self._asked(decoupled)
        if isinstance(asked, InferenceResponse):
            return ResponseIterator(None, asked) if decoupled else asked
        return ResponseIterator(asked) if decoupled else _response(await asked.next_on_loop())

    def _asked(self, decoupled: bool) -> Question | InferenceResponse:
        if not self.model_name:
            raise TritonModelException("expected a request with model_name")
        if conversation is None:
            return _failed("models can be called when `initialize` has returned, and until `finalize`")
        envelope = [self.model_name, self.model_version, self._id, self._outputs, self._timeout, self._parameters]
        try:
            tensors = [(tensor.name(), tensor._array) for tensor in self._inputs]
            return conversation.ask("call", [*envelope, self._correlation_id, self._flags, decoupled], tensors)
        except (ValueError, TypeError) as error:
            return _failed(str(error))


class ResponseIterator:
    """The responses of a called model, as they come. A response is freed when nobody refers to it any more.

    A decoupled model that ends with the final flag alone gives an empty response at the end, as in Triton. `async for`
    waits without holding up the event loop.
    """

    def __init__(self, asked: Question | None, failed: InferenceResponse | None = None) -> None:
        self._asked = asked
        self._failed = failed

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        if (failed := self._failed) is not None:
            self._failed = None
            return failed
        if self._asked is None or self._asked.ended:
            raise StopIteration
        return _response(self._asked.next())

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        return self

    async def __anext__(self) -> InferenceResponse:
        if (failed := self._failed) is not None:
            self._failed = None
            return failed
        if self._asked is None or self._asked.ended:
            raise StopAsyncIteration
        return _response(await self._asked.next_on_loop())

    def cancel(self) -> None:
        """Tells the called model that nobody wants more responses."""
        if self._asked is not None:
            self._asked.cancel()

    def __del__(self) -> None:
        if self._asked is not None:
            self._asked.drop()


def _failed(text: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(text))


def _response(answer: Answer) -> InferenceResponse:
    if answer.error:
        kind, text = answer.error
        return InferenceResponse(error=TritonError(text, _CODES.get(kind, TritonError.INTERNAL)))
    tensors = [Tensor(name, as_bytes(array)) for name, array in answer.tensors]
    return InferenceResponse(tensors, parameters=answer.parameters)


def as_bytes(array: Array) -> Array:
    """Returns strings as bytes, which is what Triton gives to a model. For the worker alone."""
    if array.dtype.kind != "O":
        return array
    found = np.empty(array.size, np.object_)
    found[:] = [element.encode() if isinstance(element, str) else element for element in array.reshape(-1)]
    return found.reshape(array.shape)


def _is_parameter(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() or value.encode("utf-8", "replace").decode() == value
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def _checked_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    if not parameters:
        return {}
    found = dict(parameters)
    for name, value in found.items():
        if not isinstance(name, str) or not _is_parameter(value):
            raise TritonModelException(
                f"parameters: expected names with booleans, finite numbers and texts, got {value!r} for {name!r}"
            )
    return found


class ModelConfig:
    """What `auto_complete_config` gets: a config as JSON has it, and methods that add to it. They raise ValueError."""

    def __init__(self, model_config: str) -> None:
        self._model_config = {"max_batch_size": 0, "input": [], "output": [], **json.loads(model_config)}

    def as_dict(self) -> dict[str, Any]:
        """Returns the config. What is changed in it counts."""
        return self._model_config

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Adds an input with name, data_type, dims and maybe optional. One that the config has must agree."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Adds an output with name, data_type and dims in the same way."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch. The config must not have a larger one."""
        stated = self._model_config["max_batch_size"]
        if stated > max_batch_size:
            raise ValueError(f"max_batch_size: the config has {stated}, which is more than {max_batch_size}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Lets requests share a batch. The config must have no other scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(f"dynamic_batching: the config has {other}")
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Sets whether the model is decoupled: {"decoupled": True}. The config must not say otherwise."""
        if others := set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(f"model_transaction_policy: expected the property decoupled, got {sorted(others)}")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if policy.get(key, value) != value:
                raise ValueError(f"model_transaction_policy: the config has {key} {policy[key]}, got {value}")
            policy[key] = value

    def _add(self, kind: str, tensor: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
        if others := [key for key in tensor if key not in allowed]:
            raise ValueError(f"{kind} '{tensor.get('name', '')}': expected {', '.join(allowed)}, got {others[0]}")
        if missing := [key for key in ("name", "data_type", "dims") if key not in tensor]:
            raise ValueError(f"{kind} '{tensor.get('name', '')}': {missing[0]} is missing")
        for known in self._model_config[kind]:
            if known["name"] == tensor["name"]:
                for key, given in tensor.items():
                    stated = known.get(key)
                    is_stated = stated not in (None, "TYPE_INVALID", []) if key != "optional" else stated is not None
                    if is_stated and stated != given:
                        raise ValueError(f"{kind} '{tensor['name']}': the config has {key} {stated}, got {given}")
                known.update(tensor)
                return
        self._model_config[kind].append(dict(tensor))


class Logger:
    """Writes to the log of the gateway."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    class LogLevel:
        """The levels."""

        INFO, WARNING, ERROR, VERBOSE = range(4)

    _logger = logging.getLogger("opgate.python")

    @classmethod
    def log(cls, message: str, level: int = INFO) -> None:
        """Writes a line of one of the levels above."""
        cls._write(message, level)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Writes an information."""
        cls._write(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Writes a warning."""
        cls._write(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Writes an error."""
        cls._write(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Writes what only the log level debug shows."""
        cls._write(message, cls.VERBOSE)

    @classmethod
    def _write(cls, message: str, level: int) -> None:
        levels = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
        cls._logger.log(levels[level], "%s", message, stacklevel=3)  # the line is that of the model


class MetricFamily:
    """Metrics of one name in the gateway's /metrics. Instances and models that use the same name share them."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self, name: str, description: str, kind: str) -> None:
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException(f"kind: expected COUNTER, GAUGE or HISTOGRAM of MetricFamily, got {kind!r}")
        self._family = [_text(name, "name"), kind, _text(description, "description")]

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """Returns the metric with these labels. A histogram has buckets: their upper bounds, in rising order."""
        if labels is not None and not isinstance(labels, Mapping):
            raise TritonModelException(f"labels: expected a dictionary, got {type(labels).__name__}")
        is_histogram = self._family[1] == self.HISTOGRAM
        if (buckets is not None) != is_histogram:
            raise TritonModelException("buckets: expected them for a histogram, and for nothing else")
        ends = [float(end) for end in buckets or ()]
        if ends != sorted(set(ends)) or not all(map(math.isfinite, ends)):
            raise TritonModelException(f"buckets: expected finite numbers that rise, got {ends}")
        own = {str(key): str(value) for key, value in (labels or {}).items()}
        return Metric([*self._family, own, ends])


class Metric:
    """A number with labels. `MetricFamily.Metric` makes it."""

    def __init__(self, family: list[Any]) -> None:
        self._family = family
        self._change("make", 0.0)

    def increment(self, value: float) -> None:
        """Adds to a counter, which only grows, or to a gauge."""
        if self._family[1] == MetricFamily.COUNTER and value < 0:
            raise TritonModelException(f"a counter only grows, got {value}")
        self._check("increment", MetricFamily.COUNTER, MetricFamily.GAUGE)
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._check("set", MetricFamily.GAUGE)
        self._change("set", value)

    def observe(self, value: float) -> None:
        """Adds a value to a histogram."""
        self._check("observe", MetricFamily.HISTOGRAM)
        self._change("observe", value)

    def value(self) -> float:
        """Returns the number of a counter or a gauge."""
        self._check("value", MetricFamily.COUNTER, MetricFamily.GAUGE)
        return float(_control("metric", self._family[0], self._family[3])["value"])

    def _check(self, what: str, *kinds: str) -> None:
        if self._family[1] not in kinds:
            raise TritonModelException(f"{what}: expected a {' or a '.join(kinds)}, this is a {self._family[1]}")

    def _change(self, how: str, value: float) -> None:
        # As text, because messages have no numbers for NaN and infinities.
        message = ["metric", *self._family, how, repr(float(value))]
        if conversation is None:
            unsaid.append(message)
        else:
            conversation.say(message)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Returns an input of a request, None if it has no such input."""
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Returns an output of a response, None if it has no such output. A response with an error has none."""
    return _by_name(inference_response.output_tensors(), name)


def _by_name(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Returns what a config says of an input, None if it has no such input."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """Returns what a config says of an output, None if it has no such output."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Returns whether a config is that of a decoupled model."""
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Returns the NumPy type of a type in a config, such as TYPE_FP32. Raises KeyError for one that NumPy has not."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Returns the NumPy type of a number in Triton's DataType, None if it has none."""
    return next((_TYPES[name] for name, number in _NUMBERS.items() if number == data_type), None)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Returns the number in Triton's DataType of a NumPy type, None if it has none."""
    dtype = np.dtype(data_type)
    if dtype.kind == "S":
        return _NUMBERS["TYPE_STRING"]
    return next((_NUMBERS[name] for name, kind in _TYPES.items() if np.dtype(kind) == dtype), None)


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """Returns the bytes of a tensor of strings: each element in C order, behind its length in 4 little-endian bytes.
    Returns () for a tensor without elements, and None for one of another type, as Triton does."""
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    elements = [_bytes_of(element) for element in input_tensor.reshape(-1).tolist()]
    return b"".join([part for data in elements for part in (struct.pack("<I", len(data)), data)])


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Returns the strings in the bytes of a serialized tensor, as bytes in an array of objects with one dim."""
    strings = []
    at = 0
    while at < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, at)
        at += 4
        strings.append(bytes(encoded_tensor[at : at + length]))
        at += length
    found = np.empty(len(strings), np.object_)
    found[:] = strings
    return found


def _bytes_of(element: Any) -> bytes:
    return bytes(element) if isinstance(element, (bytes, bytearray)) else str(element).encode()


def _text(given: Any, what: str) -> str:
    """Returns a text that may be given as bytes. Raises TypeError."""
    if isinstance(given, (bytes, bytearray, np.bytes_)):
        return bytes(given).decode()
    if not isinstance(given, str):
        raise TypeError(f"{what}: expected a text, got {type(given).__name__}")
    return str(given)


#: The NumPy types of the types in a config.
TRITON_STRING_TO_NUMPY = dict(_TYPES)


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Loads a model, and waits until it is loaded. `config` is JSON, and `files` maps "file:1/model.onnx" to contents.

    Raises TritonModelException if it can't be loaded, or if the gateway doesn't run with --model-control-mode explicit.
    """
    if files is not None and not isinstance(files, Mapping):
        raise TritonModelException(f"files: expected names with contents, got {type(files).__name__}")
    contents = {path: np.frombuffer(bytes(content), np.uint8) for path, content in (files or {}).items()}
    _control("load", _text(model_name, "model_name"), {"config": config} if config else {}, files=contents)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model, with `unload_dependents` those of its steps too. It ends when its requests have their answers.

    Raises TritonModelException as `load_model` does.
    """
    _control("unload", _text(model_name, "model_name"), bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns whether a model, or a version of it, can serve."""
    version = str(model_version)
    if version and not (version.isascii() and version.isdecimal()):
        raise TritonModelException(f"model_version: expected a number, got {version!r}")
    return bool(_control("is_ready", _text(model_name, "model_name"), version).get("ready"))


def _control(what: str, *arguments: Any, files: Mapping[str, Array] | None = None) -> Mapping[str, Any]:
    if conversation is None:
        raise TritonModelException("that can be asked when `initialize` has returned, and until `finalize`")
    try:
        answer = conversation.ask("control", [what, *arguments], list((files or {}).items())).next()
    except ValueError as error:
        raise TritonModelException(str(error)) from None
    if answer.error:
        raise TritonModelException(answer.error[1])
    return answer.parameters


def get_model_dir() -> str:
    """Returns the folder of the model's version."""
    return str(model_file.parent)
