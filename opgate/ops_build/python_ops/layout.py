"""The dims of the tensors of a formula: elements [...], or rows of n columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.op_table import Input, Op, Output
from opgate.ops_build.python_ops.expression import Over


def texts(tensor: Input | Output) -> list[str]:
    """Returns the dims as a signature has them: ["...", "n"]."""
    return ["..." if dim["kind"] == "ellipsis" else str(dim.get("name", dim.get("expr", "?"))) for dim in tensor.dims]


def columns_of(op: Op) -> str | None:
    """Returns what the signature calls the number of columns, the last size that has a name, or None if the op has no
    rows."""
    names = [texts(tensor)[-1] for tensor in op.inputs if tensor.dims]
    return next((name for name in names if name.isidentifier()), None)


def has_rows(op: Op) -> bool:
    """Returns whether all tensors have dims that a formula over rows may have, and an input has rows."""
    columns = columns_of(op)
    known = [["..."], ["...", columns], [columns], ["...", "1"]] if columns else [["..."]]
    tensors: list[Input | Output] = [*op.inputs, *op.outputs]
    return all(texts(tensor) in known for tensor in tensors) and any(texts(tensor)[0] == "..." for tensor in op.inputs)


def over(op: Op, tensor: Input | Output) -> Over:
    """Returns what a tensor has a value for."""
    dims = texts(tensor)
    if columns_of(op) is None or (len(dims) == 2 and dims[1] != "1"):
        return Over.ELEMENT
    return Over.ROW if dims[0] == "..." else Over.COLUMN


def rows_of(op: Op, arrays: Mapping[str, Array]) -> tuple[tuple[int, ...], int]:
    """Returns the dims that [...] stands for in inputs, and the number of columns (1 if the op has no rows)."""
    columns = columns_of(op)
    leading = next(tensor for tensor in op.inputs if texts(tensor)[0] == "...")
    shape = np.shape(arrays[leading.name])
    length = next((np.shape(arrays[t.name])[-1] for t in op.inputs if columns and texts(t)[-1] == columns), 1)
    return shape[: len(shape) - len(leading.dims) + 1], int(length)


def shapes(op: Op, arrays: Mapping[str, Array]) -> list[tuple[int, ...]]:
    """Returns the shapes of the outputs for inputs."""
    leading, length = rows_of(op, arrays)
    return [
        sum(((leading if dim == "..." else (1,) if dim == "1" else (length,)) for dim in texts(output)), ())
        for output in op.outputs
    ]


def input_shapes(op: Op, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the inputs for that of the elements."""
    leading, columns = (shape[:-1], shape[-1:]) if columns_of(op) else (shape, ())
    of_dim = {"...": leading, "1": (1,)}
    return {tensor.name: sum((of_dim.get(dim, columns) for dim in texts(tensor)), ()) for tensor in op.inputs}


def few_rows(op: Op, arrays: Mapping[str, Array], elements: int) -> dict[str, Array]:
    """Returns the first rows of inputs, which have so many elements or few more."""
    leading, length = rows_of(op, arrays)
    count = max(1, elements // max(1, length))
    found = {}
    for tensor in op.inputs:
        array, dims = arrays[tensor.name], texts(tensor)
        found[tensor.name] = (
            array.reshape(math.prod(leading), *array.shape[len(leading) :])[:count] if dims[0] == "..." else array
        )
    return found


def with_last_axis(op: Op, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns inputs that broadcast: one number for a row gets a last axis."""
    flat = {tensor.name for tensor in op.inputs if columns_of(op) and texts(tensor) == ["..."]}
    return {name: array[..., None] if name in flat else array for name, array in arrays.items()}


def as_outputs(op: Op, arrays: Mapping[str, Array], results: list[Array]) -> list[Array]:
    """Returns what was computed of with_last_axis(arrays) with the shapes of the outputs. What is a value for a column
    becomes the sum over the rows."""
    leading, length = rows_of(op, arrays)
    found = []
    for output, result, shape in zip(op.outputs, results, shapes(op, arrays), strict=True):
        if columns_of(op) and texts(output)[0] != "...":
            found.append(np.broadcast_to(result, (*leading, length)).reshape(math.prod(leading), length).sum(0))
        elif columns_of(op) and texts(output) == ["..."]:
            found.append(np.broadcast_to(result, (*leading, 1))[..., 0])
        else:
            found.append(np.broadcast_to(result, shape))
    return found
