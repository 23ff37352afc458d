"""Creates a documented function of NumPy arrays for each op of a library.

A call goes straight to the kernel: there is no graph, no session and no engine. run.cpp is the other half.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from opgate.ops_build.adapters.numpy.library import ALLOCATE, THREADS, OpLibrary
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_functions import check_arguments, documentation, functions_of, signature_of
from opgate.ops_build.op_table import Input, Op
from opgate.ops_build.packed_attributes import attribute_bytes

_DTYPES = [dtype.numpy for dtype in DTYPES.values()]
_NAMES = list(DTYPES)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_STRINGS = _NAMES.index("str")
_ABSENT = (-1, 0, 0)
_NO_ATTRIBUTES = attribute_bytes({}, {})
#: Values without a dtype of their own. They take that of the input.
_LITERALS = (bool, int, float, str, bytes, list, tuple, range)
#: The kinds of NumPy dtypes that literals of an input's kind may have.
_LITERAL_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "O": "US"}

#: The address of the C struct in the capsule that an array gives as __array_struct__.
_interface = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def public_names(library: OpLibrary) -> dict[str, Callable[..., Any]]:
    """Returns the functions of a library by name.

    A function has the op's name in snake_case. One that returns only the required outputs ends with _required, and one
    that returns those on request too with _all."""
    return {name: function(library, op, name, returned) for op in library.ops for name, returned in functions_of(op)}


def function(library: OpLibrary, op: Op, name: str, returned: Op) -> Callable[..., Any]:
    """Returns what calls an op, with a signature and a docstring. `returned` is the op with the outputs that the
    function returns."""
    run = _Call(library, op, returned)

    def call(*tensors: Any, **arguments: Any) -> Any:
        return run(tensors, arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "opgate.numpy"
    call.__doc__ = documentation(returned, _NOTES)
    call.__signature__ = signature_of(returned, np.ndarray)  # type: ignore[attr-defined]
    return call


_NOTES = (
    "Raises TypeError for a wrong dtype or argument, ValueError for a wrong shape, or a value that the op can't work",
    "with, and RuntimeError if the kernel fails.",
)


class _Call:
    """Calls one function of an op."""

    def __init__(self, library: OpLibrary, op: Op, returned: Op) -> None:
        self._library = library
        self._op = op
        self._name = op.name.encode()
        self._inputs = op.inputs
        self._variadic = bool(op.inputs) and op.inputs[-1].variadic
        self._label = f"{op.domain}::{op.name}"
        self._attributes = {attribute.name: attribute for attribute in op.attributes}
        self._has_required = any(attribute.required for attribute in op.attributes)
        indices = {output.name: index for index, output in enumerate(op.outputs)}
        self._returned = [indices[output.name] for output in returned.outputs]
        self._wanted = sum(1 << index for index in self._returned)

    def __call__(self, tensors: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        given = self._given(tensors, arguments)
        attributes = self._packed_attributes(arguments) if arguments or self._has_required else _NO_ATTRIBUTES
        words: list[int] = []
        held: list[Any] = []  # what the addresses in `words` point to
        for declared, value in given:
            if value is None:
                if not declared.optional:
                    raise TypeError(f"{self._label}: input '{declared.name}' is required: {self._expected(declared)}")
                words += _ABSENT
                continue
            array, code = self._array(declared, value, given)
            if code == _STRINGS:
                ends, characters = self._strings(declared, array)
                pair = ends.__array_struct__, characters.__array_struct__
                words += (code, _interface(pair[0], None), _interface(pair[1], None))
                held.append(pair)
            else:
                capsule = array.__array_struct__
                words += (code, _interface(capsule, None), 0)
                held.append(capsule)
        call = _head(len(given)).pack(self._wanted, THREADS.count, len(given), *words) + attributes
        made: list[tuple[int, Any, Any]] = []
        status = self._library.run(self._name, call, len(call), _allocate, made)
        if status:
            raise self._error(status, made, given, words[::3])
        return self._outputs(made)

    def _given(self, tensors: tuple[Any, ...], arguments: dict[str, Any]) -> list[tuple[Input, Any]]:
        """Returns the value of each input, those of a variadic one at the end. Takes them from `arguments`."""
        inputs = self._inputs
        if len(tensors) > len(inputs):
            raise TypeError(
                f"{self._label}: expected at most {len(inputs)} inputs, got {len(tensors)}; attributes go by name"
            )
        given = list(zip(inputs, tensors, strict=False))
        for declared in inputs[len(tensors) :]:
            given.append((declared, arguments.pop(declared.name, None)))
        if self._variadic and given[-1][1] is not None:
            last = given.pop()[1]
            if not isinstance(last, (list, tuple)):
                raise TypeError(
                    f"{self._label}: input '{inputs[-1].name}': expected a list of arrays, got {type(last).__name__}"
                )
            given += [(inputs[-1], value) for value in last]
        return given

    def _array(self, declared: Input, value: Any, given: Sequence[tuple[Input, Any]]) -> tuple[Array, int]:
        """Returns the elements of an input in C order and the machine's byte order, and their dtype's code. Copies them
        if they lie otherwise."""
        array = value
        if type(value) is not np.ndarray:
            if isinstance(value, _LITERALS) and not isinstance(value, np.generic):
                array = self._literal(declared, value, given)
            else:
                array = np.asarray(value)
                if array.dtype.kind == "O" and not isinstance(value, np.ndarray):
                    raise TypeError(
                        f"{self._label}: input '{declared.name}': {self._expected(declared)}, got {value!r}"
                    )
        code = _CODES.get(array.dtype)
        if code is None:
            if array.dtype.kind in "UST":
                return array, _STRINGS
            native = array.dtype.newbyteorder("=")
            code = _CODES.get(native)
            if code is None:
                raise TypeError(
                    f"{self._label}: input '{declared.name}': {self._expected(declared)}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
            array = array.astype(native)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned) and code != _STRINGS:
            array = np.array(array, order="C")
        return array, code

    def _literal(self, declared: Input, value: Any, given: Sequence[tuple[Input, Any]]) -> Array:
        """Returns a Python number, text or list as an array of the dtype that the input has in this call."""
        where = f"{self._label}: input '{declared.name}'"
        dtype = self._dtype_of_literal(declared, given)
        if dtype is None:
            raise TypeError(f"{where}: {self._expected(declared)}, got a {type(value).__name__}: pass an array")
        try:
            found = np.asarray(value)
            kind = "f" if dtype.kind == "V" else dtype.kind  # bf16 is of kind V
            if found.size and found.dtype.kind not in _LITERAL_KINDS[kind]:
                raise TypeError(f"{where}: {self._expected(declared)}, got a {type(value).__name__} of {found.dtype}")
            return np.asarray(value, dtype)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{where}: {error}") from None

    def _dtype_of_literal(self, declared: Input, given: Sequence[tuple[Input, Any]]) -> np.dtype[Any] | None:
        """Returns the dtype that the signature or another input gives to an input, None if neither does."""
        choices = self._op.type_variables.get(declared.type, (declared.type,))
        if len(choices) == 1:
            return DTYPES[choices[0]].numpy
        for other, value in given:
            literal = isinstance(value, _LITERALS) and not isinstance(value, np.generic)
            if other.type == declared.type and value is not None and not literal:
                dtype: np.dtype[Any] = np.asarray(value).dtype.newbyteorder("=")
                return dtype if dtype in _CODES else None
        return None

    def _strings(self, declared: Input, array: Array) -> tuple[Array, Array]:
        """Returns the end of each string, and the characters of all."""
        parts: list[bytes] = []
        for element in array.ravel().tolist():
            if isinstance(element, str):
                parts.append(element.encode(errors="surrogateescape"))
            elif isinstance(element, bytes):
                parts.append(element)
            else:
                raise TypeError(
                    f"{self._label}: input '{declared.name}': expected elements of type str or bytes, got {element!r}"
                )
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64).reshape(array.shape)
        return ends, np.frombuffer(b"".join([*parts, b"\0"]), np.uint8)

    def _packed_attributes(self, arguments: Mapping[str, Any]) -> bytes:
        check_arguments(self._op, arguments)
        return attribute_bytes(self._attributes, arguments)

    def _expected(self, declared: Input) -> str:
        return f"expected {' or '.join(self._op.type_variables.get(declared.type, (declared.type,)))}"

    def _error(
        self, status: int, made: list[tuple[int, Any, Any]], given: Sequence[tuple[Input, Any]], codes: Sequence[int]
    ) -> BaseException:
        """Returns what a failed call raises."""
        message = self._library.message().decode(errors="replace")
        if made and made[-1][0] < 0:
            error: BaseException = made[-1][1]
            return MemoryError(f"{message}: {error}") if isinstance(error, (MemoryError, ValueError)) else error
        if status != 1:
            return RuntimeError(message or f"{self._label}: out of memory")
        variables: dict[str, str] = {}
        for (declared, value), code in zip(given, codes, strict=True):
            if value is not None:
                name = variables.setdefault(declared.type, _NAMES[code])
                if name != _NAMES[code] or name not in self._op.type_variables.get(declared.type, (declared.type,)):
                    return TypeError(message)
        return ValueError(message)

    def _outputs(self, made: list[tuple[int, Any, Any]]) -> Any:
        """Returns what a call returns, from the arrays that it has made."""
        if len(made) == 1:
            return made[0][1]
        arrays: dict[int, Any] = {}
        for index, array, _ in made:
            arrays[index] = _as_strings(arrays[index], array) if index in arrays else array
        outputs = tuple([arrays[index] for index in self._returned])
        return outputs[0] if len(outputs) == 1 else outputs


@cache
def _head(count: int) -> struct.Struct:
    """Returns the format of the beginning of a call with so many inputs. For each it has the dtype's code, and the
    addresses of the interface of the elements and, for strings, of the interface of the characters."""
    return struct.Struct(f"<QII{3 * count}q")


def _make_array(made: list[tuple[int, Any, Any]], index: int, code: int, rank: int, dims: Any) -> int | None:
    """Creates the array of an output, and returns the address of its interface. An exception would be lost in C, so it
    goes to `made` as well."""
    try:
        array = np.empty(dims[:rank], _DTYPES[code])
        capsule = array.__array_struct__
        made.append((index, array, capsule))
        address: int | None = _interface(capsule, None)
        return address
    except BaseException as error:  # a MemoryError, or the KeyboardInterrupt of somebody who waits no longer
        made.append((-1, error, None))
        return None


_allocate = ALLOCATE(_make_array)


def _as_strings(ends: Array, characters: Array) -> Array:
    """Returns an array of str. Bytes that are no UTF-8 become surrogates, as in the names of files."""
    data, strings, begin = characters.tobytes(), np.empty(ends.size, np.object_), 0
    for index, end in enumerate(ends.ravel().tolist()):
        strings[index] = data[begin:end].decode(errors="surrogateescape")
        begin = end
    return strings.reshape(ends.shape)
