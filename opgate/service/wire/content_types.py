"""MLServer's content types: what the values of a tensor stand for, where a request says so.

Their names and meaning are those of MLServer's user guide, chapter "Content Types (and Codecs)". A model gets and gives
the same tensors as without them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from opgate.service.core.checks import TensorInfo
from opgate.service.core.errors import ServingError, invalid
from opgate.service.core.request import Array
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import element
from opgate.service.native.engine_strings import first_bytes
from opgate.service.wire import files

PARAMETER = "content_type"
BASE64, DATETIME, NUMPY, PANDAS, STRING = "base64", "datetime", "np", "pd", "str"
_OF_TENSORS = (BASE64, DATETIME, NUMPY, STRING)
_OF_REQUESTS = (NUMPY, PANDAS, STRING)
# What writing an element costs, in bytes of JSON that cost as much to read.
_ELEMENT_COST = 256


@dataclass(frozen=True, slots=True)
class Content:
    """The content type of a tensor, "" if it has none of its own, whether it is a column of a table, and whether its
    texts are files of a UINT8 input."""

    type: str
    column: bool = False
    files: bool = False

    @property
    def nulls(self) -> bool:
        """Whether NaN is null in JSON."""
        return self.column or self.type == NUMPY

    def read(self, array: Array, name: str) -> Array:
        """Returns an input as the model gets it, of the same shape.

        Raises ServingError (INVALID) for the first element that is not of this type.
        """
        if self.type == BASE64:
            return _each(_decoded, array, f"input '{name}'", BASE64)
        self._check(array, f"input '{name}'")
        return array

    def write(self, array: Array, name: str) -> Array:
        """Returns an output as the client wants it, of the same shape.

        Raises ServingError (INVALID) for the first element that can't be of this type, and for a shape that is no
        column.
        """
        if self.column:
            _check_column(array.shape, f"output '{name}'")
        if self.type == BASE64:
            return _each(_encoded, array, f"output '{name}'", BASE64)
        self._check(array, f"output '{name}'")
        return array

    def cost(self, array: Array) -> int:
        """Returns what `write` costs, in bytes of JSON that cost as much to read."""
        return array.size * _ELEMENT_COST if self.type in (BASE64, DATETIME) else 0

    def _check(self, array: Array, where: str) -> None:
        if self.type == DATETIME:
            _each(_moment, array, where, "a date and time in ISO 8601")
        elif self.type == STRING and (index := first_bytes(np.asarray(array, order="C"))) >= 0:
            raise invalid(f"{where}: element {index}: expected UTF-8 (content_type str), got other bytes")


def of_request(parameters: Mapping[str, Any], inputs: int) -> str:
    """Returns the content type of a request with so many inputs, "" if it has none. Raises ServingError (INVALID)."""
    if PARAMETER not in parameters:
        return ""
    name = _named(parameters, "the request", _OF_REQUESTS)
    if name in (NUMPY, STRING) and inputs != 1:
        raise invalid(f"the request: content_type {name} needs one input, got {inputs}: name it at the inputs instead")
    return name


def of_input(
    parameters: Mapping[str, Any], of_request: str, spec: ModelSpec, info: TensorInfo, in_json: bool = False
) -> tuple[TensorInfo, Content | None]:
    """Returns an input with the shape that the model wants, and its content, None if the request names none for it.

    Such an input may have the shape [N] for [N, 1] and the other way around. `in_json` says whether its data is in
    JSON: there a UINT8 input takes files in base64, and has the shape of files of one byte here. Raises ServingError
    (INVALID).
    """
    if not of_request and PARAMETER not in parameters:
        return info, None
    where = f"input '{info.name}'"
    name = _named(parameters, where, _OF_TENSORS) or (of_request if of_request != PANDAS else "")
    if not name and not of_request:
        return info, None
    tensor = spec.inputs.get(info.name)
    if in_json and name == BASE64 and tensor is not None and tensor.is_file and info.datatype in ("BYTES", "UINT8"):
        return TensorInfo(info.name, "UINT8", files.sent_shape(spec, tensor, info.shape)), Content(BASE64, files=True)
    _check_datatype(name, info.datatype, where)
    if of_request == PANDAS:
        _check_column(info.shape, where)
    return info._replace(shape=_fitting(spec, info)), Content(name, of_request == PANDAS)


def of_output(parameters: Mapping[str, Any], of_request: str, datatype: str, name: str) -> Content | None:
    """Returns the content of an output, None if the request names none for it. Raises ServingError (INVALID)."""
    if not of_request and PARAMETER not in parameters:
        return None
    where = f"output '{name}'"
    if own := _named(parameters, where, _OF_TENSORS):
        _check_datatype(own, datatype, where)
        return Content(own, of_request == PANDAS)
    if of_request == NUMPY:
        return Content(NUMPY)
    if of_request == PANDAS:
        return Content(STRING if datatype == "BYTES" else "", True)
    return Content(STRING) if of_request == STRING and datatype == "BYTES" else None


def of_answer(of_request: str, outputs: int) -> str:
    """Returns the content type of an answer with so many outputs, "" if it has none."""
    return of_request if outputs and (of_request == PANDAS or outputs == 1) else ""


def _check_column(shape: tuple[int, ...], where: str) -> None:
    """Raises ServingError (INVALID) unless a tensor of this shape has one value for each row."""
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise invalid(f"{where}: content_type pd: expected a column of shape [N] or [N, 1], got {list(shape)}")


def _named(parameters: Mapping[str, Any], where: str, known: tuple[str, ...]) -> str:
    name = parameters.get(PARAMETER)
    if name is None:
        return ""
    if name not in known:
        raise invalid(f"{where}: content_type: expected one of {', '.join(known)}, got {str(name)[:40]!r}")
    return str(name)


def _check_datatype(content_type: str, datatype: str, where: str) -> None:
    if content_type not in ("", NUMPY) and datatype != "BYTES":
        raise invalid(f"{where}: content_type {content_type} needs the datatype BYTES, got {datatype}")


def _fitting(spec: ModelSpec, info: TensorInfo) -> tuple[int, ...]:
    tensor, shape = spec.inputs.get(info.name), info.shape
    if tensor is None:
        return shape
    rank = len(tensor.dims) + int(spec.batched)
    if rank == 2 and len(shape) == 1:
        return (*shape, 1)
    return shape[:1] if rank == 1 and len(shape) == 2 and shape[1] == 1 else shape


def _each(convert: Callable[[Any], Any], array: Array, where: str, expected: str) -> Array:
    """Returns the converted elements of an array. Raises ServingError (INVALID), as a ValueError of `convert` says."""
    converted: Array = np.empty(array.size, np.object_)
    for i, value in enumerate(array.reshape(-1)):
        try:
            converted[i] = convert(value)
        except ValueError as error:
            raise _wrong(i, value, where, expected, error) from None
    return converted.reshape(array.shape)


def _wrong(index: int, value: str | bytes, where: str, expected: str, error: ValueError) -> ServingError:
    why = f" ({error})" if isinstance(error, binascii.Error) else ""
    return invalid(f"{where}: element {index}: expected {expected}, got {value[:40]!r}{why}")


def _decoded(value: str | bytes) -> str | bytes:
    return element(base64.b64decode(value, validate=True))


def _encoded(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode("ascii")


def _moment(value: str | bytes) -> datetime:
    return datetime.fromisoformat(value if isinstance(value, str) else value.decode())
