"""Triton's classification extension: the largest elements of each row of an output, as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Array
from opgate.service.core.spec import TensorSpec
from opgate.service.core.tensors import element

# What looking at a number or a text and writing a class cost, in bytes of JSON that cost the same.
_NUMBER_COST, _TEXT_COST, _CLASS_COST = 4, 96, 256


@dataclass(frozen=True, slots=True)
class Classification:
    """What a client wants instead of the tensor: the `count` largest elements of each row, of an output of a model that
    batches, or else of the whole output."""

    tensor: TensorSpec
    count: int
    batched: bool
    most: int  # classes that an answer may have

    def classes(self, array: Array) -> Array:
        """Returns texts `value:index`, or `value:index:label` where the index has a label: [rows, classes], or
        [classes] if the model doesn't batch.

        The largest element comes first. Equal ones come in the order of their indices, and NaN after every number.
        Strings compare by their bytes, which for texts is the order of their code points. A class whose string is not
        UTF-8 is bytes. There are no more classes than elements. Raises ServingError (TOO_LARGE).
        """
        rows, elements = self._rows(array), self._elements(array)
        count = min(self.count, elements)
        if rows * count > self.most:
            text = f"output '{self.tensor.name}': {rows * count} classes are over the limit of {self.most}"
            raise ServingError(Kind.TOO_LARGE, f"{text} (OPGATE_MAX_STRINGS)")
        found: Array = np.empty((rows, count), np.object_)
        for i, row in enumerate(array.reshape(rows, elements)):
            found[i] = self._row(row, count)
        return found if self.batched else found[0]

    def cost(self, array: Array) -> int:
        """Returns what `classes` costs, in bytes of JSON that cost the same."""
        count = min(self.count, self._elements(array))
        each = _TEXT_COST if array.dtype == object else _NUMBER_COST
        return array.size * each + self._rows(array) * count * _CLASS_COST

    def _rows(self, array: Array) -> int:
        return len(array) if self.batched else 1

    def _elements(self, array: Array) -> int:
        return math.prod(array.shape[1:] if self.batched else array.shape)

    def _row(self, row: Array, count: int) -> list[Any]:
        if not count:
            return []
        if row.dtype == object:
            strings = [text.encode() if isinstance(text, str) else text for text in row]
            order = sorted(range(len(strings)), key=strings.__getitem__, reverse=True)[:count]
            return [element(b"%b:%d%b" % (strings[i], i, self._label(i).encode())) for i in order]
        numbers = self._numbers(row)
        order = _largest(numbers, count).tolist()
        # As C++ writes them: six digits after the point, and integers as they are.
        form: Any = "{:f}" if numbers.dtype.kind == "f" else "{}"
        values = [form.format(value) for value in numbers[order].tolist()]
        return [f"{value}:{i}{self._label(i)}" for value, i in zip(values, order, strict=True)]

    def _numbers(self, row: Array) -> Array:
        """Returns a row as a type that NumPy compares."""
        if self.tensor.datatype.name == "BF16":
            return (row.astype(np.uint32) << 16).view(np.float32)
        return row.view(np.uint8) if row.dtype == np.bool_ else row

    def _label(self, index: int) -> str:
        labels = self.tensor.labels
        return f":{labels[index]}" if index < len(labels) and labels[index] else ""


def _largest(numbers: Array, count: int) -> Array:
    """Returns the indices of the `count` largest numbers, from the largest on, and of equal ones in ascending order."""
    keys = -numbers if numbers.dtype.kind == "f" else ~numbers  # both turn the order around and overflow nowhere
    candidates = np.arange(len(keys))
    if count < len(keys):
        last = np.partition(keys, count - 1)[count - 1]
        candidates = np.flatnonzero(~(keys > last))  # all of them if it is NaN
    order: Array = candidates[np.argsort(keys[candidates], kind="stable")[:count]]
    return order
