"""What a network gives in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from opgate.attach.model.report import shape_text
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the network: its name, its dtype, and what it gave for one random picture."""

    name: str
    dtype: str
    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the answer to one picture."""
        return tuple(self.value.shape)

    def __str__(self) -> str:
        return f"{self.name} {shape_text(self.shape)}"


def name_of(value: Array) -> str:
    """Returns the name of an array's dtype, as a signature has it."""
    return next((name for name, dtype in DTYPES.items() if dtype.numpy == value.dtype), str(value.dtype))


def type_of(dtype: str) -> int:
    """Returns the type of onnx.TensorProto that has such a name."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype].numpy)))


def are_probabilities(values: np.ndarray) -> bool:
    """Returns whether the last axis holds what a softmax gives."""
    numbers = values.astype(np.float64)
    return bool(numbers.size) and float(numbers.min()) >= 0 and bool(np.allclose(numbers.sum(-1), 1, atol=1e-2))


def class_axis(shape: Sequence[int], size: tuple[int, int]) -> int | None:
    """Returns the axis of the classes in maps: 1 or 3, so that the others have the form of a picture of `size`. None
    if neither fits. A side may be a pixel off, as it is where sizes were rounded."""
    for slack in (0, 1):
        for axis, (height, width) in ((1, shape[2:]), (3, shape[1:3])):
            if abs(height * size[1] - width * size[0]) <= slack * max(size):
                return axis
    return None
