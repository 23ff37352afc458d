"""The module `triton_python_backend_utils` of models in Python, as https://github.com/triton-inference-server/python_backend
describes it. A worker gives it to the `model.py` that it loads.

Tensors are NumPy arrays in host memory. Strings are objects of type bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

_TYPES = {
    "TYPE_BOOL": np.bool_, "TYPE_UINT8": np.uint8, "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64, "TYPE_INT8": np.int8, "TYPE_INT16": np.int16, "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64, "TYPE_FP16": np.float16, "TYPE_FP32": np.float32, "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}  # fmt: skip
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
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        """Returns the text."""
        return self._message

    def code(self) -> int:
        """Returns one of the constants of this class."""
        return self._code

    def __str__(self) -> str:
        return self._message


class Tensor:
    """A named array. Strings may be given as text or bytes."""

    def __init__(self, name: str, tensor: Any) -> None:
        array = np.asarray(tensor)
        if array.dtype.kind in "SU":
            array = array.astype(np.object_)
        if array.dtype.kind != "O" and array.dtype not in _TYPES.values():
            raise TritonModelException(f"tensor '{name}': Triton has no type for {array.dtype}")
        self._name = name
        self._array = array

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Tensor:
        """Returns a tensor that shares the memory of a tensor of another library, or of its capsule."""
        if not hasattr(tensor, "__dlpack__"):
            tensor = _Capsule(tensor)
        return cls(name, np.from_dlpack(tensor))

    def to_dlpack(self) -> Any:
        """Returns a capsule with the memory of the tensor."""
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def name(self) -> str:
        """Returns the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Returns the elements, without a copy."""
        return self._array

    def shape(self) -> list[int]:
        """Returns the sizes."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Returns the number of the type in Triton's DataType."""
        return int(numpy_to_triton_type(self._array.dtype.type))

    def is_cpu(self) -> bool:
        """Returns True: tensors lie in host memory."""
        return True


class _Capsule:
    """Lets NumPy take a capsule of DLPack."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class PreferredMemory:
    """Where the outputs of a called model should lie. They lie in host memory."""

    def __init__(self, preferred_memory_type: int = TRITONSERVER_MEMORY_CPU, preferred_device_id: int = 0) -> None:
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceResponse:
    """Tensors or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = list(output_tensors or ())
        if not all(isinstance(tensor, Tensor) for tensor in self._tensors):
            raise TritonModelException("output_tensors: expected a list of pb_utils.Tensor")
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error = error
        self._parameters = dict(parameters or {})

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
    """Sends the responses to a request of a decoupled model, from any thread, until one is marked as the final one."""

    def __init__(self, send: Callable[[InferenceResponse | None, bool], None], cancelled: Callable[[], bool]) -> None:
        self._send = send
        self._cancelled = cancelled
        self._ended = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, or with the final flag alone the end."""
        if self._ended:
            raise TritonModelException("the final response has been sent")
        if response is None and not flags:
            raise TritonModelException("expected a response or flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        self._ended = bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self._send(response, self._ended)

    def is_cancelled(self) -> bool:
        """Returns whether nobody waits for the responses any more."""
        return self._cancelled()


class InferenceRequest:
    """A request to this model, or to another one."""

    #: Runs a request to another model. The worker sets it.
    call: Callable[[InferenceRequest], list[InferenceResponse]]

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
        if timeout < 0:
            raise ValueError(f"timeout: expected microseconds, got {timeout}")
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._outputs = list(requested_output_names)
        self.model_name = model_name
        self.model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = dict(parameters or {})
        self._sender: InferenceResponseSender | None = None
        self._cancelled: Callable[[], bool] = lambda: False

    def inputs(self) -> list[Tensor]:
        """Returns the inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Returns the id that the client gave."""
        return self._id

    def correlation_id(self) -> int | str:
        """Returns the id of its sequence, 0 for none."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """Returns the names of the outputs that the client wants."""
        return self._outputs

    def flags(self) -> int:
        """Returns whether it begins or ends a sequence, see the constants of this module."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags."""
        self._flags = flags

    def timeout(self) -> int:
        """Returns its timeout in microseconds, 0 for none."""
        return self._timeout

    def preferred_memory(self) -> PreferredMemory | None:
        """Returns where its outputs should lie."""
        return self._preferred_memory

    def trace(self) -> Any:
        """Returns what was given as its trace."""
        return self._trace

    def parameters(self) -> str:
        """Returns the parameters that the client gave as JSON."""
        return json.dumps(self._parameters)

    def get_response_sender(self) -> InferenceResponseSender:
        """Returns what sends the responses. Only a decoupled model has it."""
        if self._sender is None:
            raise TritonModelException("only a decoupled model has response senders: its execute returns the responses")
        return self._sender

    def is_cancelled(self) -> bool:
        """Returns whether nobody waits for the response any more."""
        return self._cancelled()

    def exec(self, decoupled: bool = False) -> Any:
        """Runs the request in another model. Returns its response, or with `decoupled` an iterator over them."""
        if not self.model_name:
            raise TritonModelException("expected a request with model_name")
        responses = InferenceRequest.call(self)
        if decoupled:
            return iter(responses)
        if len(responses) != 1:
            text = f"model '{self.model_name}' has sent {len(responses)} responses: use exec(decoupled=True)"
            raise TritonModelException(text)
        return responses[0]

    async def async_exec(self, decoupled: bool = False) -> Any:
        """Does the same without stopping the event loop. Calls of a worker run one after the other."""
        return await asyncio.to_thread(self.exec, decoupled)


class ModelConfig:
    """What `auto_complete_config` gets: a config as JSON has it, and methods that add to it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {"max_batch_size": 0, "input": [], "output": [], **config}

    def as_dict(self) -> dict[str, Any]:
        """Returns the config."""
        return self._config

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        """Adds an input with name, data_type and dims. One that the config has must agree."""
        self._add("input", tensor, {"name", "data_type", "dims", "optional"})

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        """Adds an output in the same way."""
        self._add("output", tensor, {"name", "data_type", "dims"})

    def set_max_batch_size(self, size: int) -> None:
        """Sets the largest batch, unless the config states another one."""
        if self._config["max_batch_size"] not in (0, size):
            raise ValueError(f"max_batch_size: the config has {self._config['max_batch_size']}, got {size}")
        self._config["max_batch_size"] = size

    def set_dynamic_batching(self) -> None:
        """Lets requests share a batch."""
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        """Sets whether the model is decoupled."""
        if set(policy) != {"decoupled"}:
            raise ValueError(f"model_transaction_policy: expected the property decoupled, got {sorted(policy)}")
        self._config["model_transaction_policy"] = dict(policy)

    def _add(self, kind: str, tensor: Mapping[str, Any], allowed: set[str]) -> None:
        missing = {"name", "data_type", "dims"} - tensor.keys()
        if missing or tensor.keys() - allowed:
            raise ValueError(f"{kind} {dict(tensor)}: expected name, data_type and dims")
        for known in self._config[kind]:
            if known["name"] == tensor["name"]:
                for key in ("data_type", "dims"):
                    if known.get(key) and known[key] != tensor[key]:
                        raise ValueError(f"{kind} '{tensor['name']}': the config has {known[key]}, got {tensor[key]}")
                known.update(tensor)
                return
        self._config[kind].append(dict(tensor))


class Logger:
    """Writes to the log of the gateway."""

    INFO, WARNING, ERROR, VERBOSE = range(4)
    _logger = logging.getLogger("opgate.python")

    @classmethod
    def log(cls, message: str, level: int = INFO) -> None:
        """Writes a line of one of the levels above."""
        levels = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
        cls._logger.log(levels[level], "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Writes an information."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Writes a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Writes an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Writes what only the log level debug shows."""
        cls.log(message, cls.VERBOSE)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Returns an input of a request, None if it has no such input."""
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Returns an output of a response, None if it has no such output. Raises TritonModelException for an error."""
    if inference_response.has_error():
        raise TritonModelException(str(inference_response.error()))
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
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Returns the NumPy type of a type in a config, such as TYPE_FP32."""
    if triton_type_string not in _TYPES:
        raise TritonModelException(f"NumPy has no type for {triton_type_string}")
    return _TYPES[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Returns the NumPy type of a number in Triton's DataType."""
    return _TYPES[next(name for name, number in _NUMBERS.items() if number == data_type)]


def numpy_to_triton_type(data_type: Any) -> int:
    """Returns the number in Triton's DataType of a NumPy type."""
    return _NUMBERS[next(name for name, kind in _TYPES.items() if np.dtype(kind) == np.dtype(data_type))]


def get_model_dir() -> str:
    """Returns the folder of the model's version."""
    return str(Path(sys.modules["model"].__file__ or "").parent)
