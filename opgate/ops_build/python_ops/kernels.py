"""Runs the functions of ops in Python as kernels of a library, in the process that has loaded it.

The library asks for a function of C at the first call of such an op (op_call/python_kernels.cpp). It gets `_run`, which
ctypes calls with the interpreter's lock. A call is what op_call/c_kernel.h describes.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.op_table import Op, Output, parse_table
from opgate.ops_build.python_ops.embedded import ERRORS, EmbeddedOp, unpacked
from opgate.ops_build.python_ops.execution import OpFileError, executed, line_of
from opgate.ops_build.python_ops.numpy_gradient import numpy_gradient
from opgate.ops_build.python_ops.python_op import InvalidArgument, PythonOp, place_of
from opgate.ops_build.python_ops.trials import rounded

_log = logging.getLogger("opgate.ops")
_INVALID_ARGUMENT, _INTERNAL = 1, 2
_STRINGS = 255
_BACKWARD = "Backward"
#: The NumPy types of DLPack's codes and bits, as __array_interface__ names them. NumPy has no bf16.
_TYPES = {
    (2, 16): "<f2",
    (4, 16): "<u2",
    (2, 32): "<f4",
    (2, 64): "<f8",
    (0, 8): "|i1",
    (1, 8): "|u1",
    (0, 32): "<i4",
    (0, 64): "<i8",
    (6, 8): "|b1",
}
_BF16 = (4, 16)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Text(ctypes.Structure):
    _fields_ = (("characters", ctypes.c_void_p), ("size", ctypes.c_size_t))

    @classmethod
    def of(cls, content: bytes) -> _Text:
        return cls(ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), len(content))

    def read(self) -> str:
        """Returns the text. Bytes that are no UTF-8 become surrogates, as in the names of files."""
        return ctypes.string_at(self.characters, self.size).decode(errors="surrogateescape") if self.size else ""


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("is_list", ctypes.c_int32),
        ("count", ctypes.c_size_t),
        ("values", ctypes.c_void_p),
    )

    def read(self) -> Any:
        values = ctypes.cast(self.values, ctypes.POINTER(_VALUES[self.kind]))[: self.count]
        found = [_PYTHON[self.kind](value) for value in values]
        return found if self.is_list else found[0]


_VALUES: Sequence[Any] = (ctypes.c_int64, ctypes.c_double, ctypes.c_uint8, _Text)
_PYTHON: Sequence[Callable[[Any], Any]] = (int, float, bool, _Text.read)


class _Call(ctypes.Structure):
    pass


_Pointer = ctypes.POINTER(_Call)
_Call._fields_ = (
    ("version", ctypes.c_uint32),
    ("op", ctypes.c_char_p),
    ("stream", ctypes.c_void_p),
    ("input_count", ctypes.c_size_t),
    ("inputs", ctypes.POINTER(ctypes.POINTER(_Tensor))),
    ("attribute_count", ctypes.c_size_t),
    ("attributes", ctypes.POINTER(_Attribute)),
    ("output_count", ctypes.c_size_t),
    ("output", ctypes.PYFUNCTYPE(ctypes.POINTER(_Tensor), _Pointer, ctypes.c_size_t)),
    ("set_size", ctypes.PYFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_int64)),
    ("set_text", ctypes.PYFUNCTYPE(None, _Pointer, ctypes.c_size_t, ctypes.c_size_t, _Text)),
    ("parallel_for", ctypes.c_void_p),
    ("scratch", ctypes.c_void_p),
    ("fail", ctypes.PYFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int, ctypes.c_char_p)),
)
_Kernel = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer)

#: The functions that libraries have. A library is never unloaded.
_attached: list[Any] = []


def attach(address: int, size: int, described: str) -> int:
    """Returns the address of a function of C that runs the ops of a table in memory. `described` is the library's op
    table in JSON."""
    _, embedded = unpacked(ctypes.string_at(address, size))
    table = {op.name: op for op in parse_table(described, "the library")}
    by_signature = {" ".join(op.signature.split()): op for op in embedded}
    kernels = {
        name.encode(): PythonKernel(op, by_signature[op.signature], table.get(name.removesuffix(_BACKWARD)))
        for name, op in table.items()
        if op.signature in by_signature
    }

    def run(pointer: Any) -> int:
        try:
            call = pointer.contents
            return kernels[call.op].run(pointer, call)
        except BaseException as error:  # ctypes would go on as if the kernel had written its outputs
            _log.error("an op in Python: %s", _name(error), exc_info=error)
            return _INTERNAL

    _attached.append(_Kernel(run))
    return ctypes.cast(_attached[-1], ctypes.c_void_p).value or 0


class PythonKernel:
    """An op whose kernel is the function in its op.py. The file is executed at the first call."""

    def __init__(self, op: Op, embedded: EmbeddedOp, forward: Op | None) -> None:
        """`forward` is the op itself, or the one that it is the gradient of."""
        self._op, self._embedded = op, embedded
        self._forward = op if forward is None or forward.name == op.name else forward
        self._sizes = dict(_sizes_of(op.outputs))

    @functools.cached_property
    def _python(self) -> PythonOp:
        return executed(Path(self._embedded.file), self._embedded.source)

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        if self._forward is self._op:
            return rounded(self._op, self._python.function, wide=False)
        return rounded(self._op, numpy_gradient(self._forward, self._op, self._python), wide=False)

    def run(self, pointer: Any, call: Any) -> int:
        """Runs a call, and returns what a kernel must return. No exception leaves it."""
        memory: list[_Memory] = []
        status, failure = self._attempt(pointer, call, memory)
        if failure is None and _is_kept(memory):
            failure = _INTERNAL, f"{self._place()}: the function keeps an input after the call: keep a copy, x.copy()"
            _log.error("%s: %s", self._op.name, failure[1])
        if failure is None:
            return status
        code, text = failure
        if code == _INTERNAL and os.environ.get(ERRORS) == "log":
            text = "its function in Python failed, and the server's log says why"
        failed: int = call.fail(pointer, code, text.encode(errors="replace"))
        return failed

    def _attempt(self, pointer: Any, call: Any, memory: list[_Memory]) -> tuple[int, tuple[int, str] | None]:
        """Returns what the library says of the outputs, and a code and a message if the function failed."""
        try:
            return self._run(pointer, call, memory), None
        except InvalidArgument as error:
            return 0, (_INVALID_ARGUMENT, str(error))
        except BaseException as error:  # whatever the author's code raises
            text = str(error) if isinstance(error, OpFileError) else f"{self._place(error)}: {_name(error)}"
            traceback.clear_frames(error.__traceback__)  # who keeps the exception must not keep inputs
            _log.error("%s: %s", self._op.name, text, exc_info=error)
            return 0, (_INTERNAL, text)

    def _place(self, error: BaseException | None = None) -> str:
        line = None if error is None else line_of(error, self._embedded.file)
        return place_of(self._python.function) if line is None else f"{self._embedded.file}:{line}"

    def _run(self, pointer: Any, call: Any, memory: list[_Memory]) -> int:
        attributes = {a.name.decode(): a.read() for a in call.attributes[: call.attribute_count]}
        self._check(attributes)
        inputs = [_array(each.contents, memory) if each else None for each in call.inputs[: call.input_count]]
        return self._write(pointer, call, self._function(**self._named(inputs), **attributes))

    def _check(self, attributes: Mapping[str, Any]) -> None:
        """Raises InvalidArgument for an attribute that the author's check refuses."""
        function = self._python.check_function
        if function is None or self._forward is not self._op:
            return
        takes = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
        for name, (good, expected) in function(**{each: attributes[each] for each in takes}).items():
            if not good:
                raise InvalidArgument(f"attribute '{name}': expected {expected}, got {attributes[name]!r}")

    def _named(self, inputs: list[Any]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for index, tensor in enumerate(self._op.inputs):
            named[tensor.name] = inputs[index:] if tensor.variadic else inputs[index]
        return named

    def _write(self, pointer: Any, call: Any, results: Sequence[Array]) -> int:
        for name, (index, axis) in self._sizes.items():
            array = results[index]
            if array.ndim < -axis:
                raise ValueError(
                    f"output '{self._op.outputs[index].name}': a size '{name}' at axis {axis}, got a scalar"
                )
            if status := call.set_size(pointer, name.encode(), array.shape[axis]):
                return int(status)
        for index, array in enumerate(results):
            wanted = call.output(pointer, index)
            if wanted:
                self._write_output(pointer, call, index, wanted.contents, array)
        return 0

    def _write_output(self, pointer: Any, call: Any, index: int, tensor: Any, array: Array) -> None:
        shape = tuple(tensor.dims[: tensor.rank])
        if array.shape != shape:
            raise ValueError(
                f"output '{self._op.outputs[index].name}': expected the shape {list(shape)}, got {list(array.shape)}"
            )
        if tensor.code == _STRINGS:
            for element, text in enumerate(array.ravel().tolist()):
                content = text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape")
                call.set_text(pointer, index, element, _Text.of(content))
        elif array.size:
            np.copyto(_view(_Memory(tensor, writable=True)), array)


class _Memory:
    """The elements of a tensor, for NumPy."""

    def __init__(self, tensor: Any, *, writable: bool = False) -> None:
        self.bf16 = (tensor.code, tensor.bits) == _BF16
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data or 0, not writable),
            "shape": tuple(tensor.dims[: tensor.rank]),
            "typestr": _TYPES[tensor.code, tensor.bits],
        }


def _references() -> int:
    """Returns the references that a list's element has in the check of what is kept."""
    memory = [object()]
    return max(sys.getrefcount(each) for each in memory)


_UNKEPT = _references()


def _is_kept(memory: list[_Memory]) -> bool:
    """Returns whether an array outlives its call. The engine uses that memory for something else then."""
    if all(sys.getrefcount(each) <= _UNKEPT for each in memory):
        return False
    gc.collect()  # a cycle may have it, and nobody else
    return any(sys.getrefcount(each) > _UNKEPT for each in memory)


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _view(memory: _Memory) -> Array:
    array = np.asarray(memory)
    return array.view(ml_dtypes.bfloat16) if memory.bf16 else array


def _array(tensor: Any, memory: list[_Memory]) -> Array:
    """Returns the array of an input. What lies in the engine's memory is added to `memory`."""
    shape = tuple(tensor.dims[: tensor.rank])
    if tensor.code == _STRINGS:
        count = math.prod(shape)
        texts = ctypes.cast(tensor.data, ctypes.POINTER(_Text))[:count] if count else []
        array = np.empty(count, np.object_)
        array[:] = [text.read() for text in texts]
        return array.reshape(shape)
    if 0 in shape:
        empty = np.empty(shape, _TYPES[tensor.code, tensor.bits])
        return empty.view(ml_dtypes.bfloat16) if (tensor.code, tensor.bits) == _BF16 else empty
    memory.append(_Memory(tensor))
    return _view(memory[-1])


def _sizes_of(outputs: Sequence[Output]) -> Any:
    """Yields the sizes that only the kernel knows, each with an output that has it and the axis, from the end."""
    for index, output in enumerate(outputs):
        for place, dim in enumerate(output.dims):
            if dim["kind"] == "bounded":
                yield dim["name"], (index, place - len(output.dims))
