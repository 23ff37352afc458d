"""Pads the inputs of requests to the longest of a batch, computes masks, and cuts the outputs back.

Sizes are those of the dims behind the batch dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from opgate.service.core.datatypes import DataType
from opgate.service.core.errors import Kind, ServingError, internal
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import Cut, Mask, Padding, TensorSpec, rounded
from opgate.service.core.tensors import empty, join_rows

# The bits of 1.0, because NumPy has no bfloat16.
_ONE_BF16 = 0x3F80


def padded_sizes(padding: Padding, name: str, requests: Sequence[Request]) -> tuple[int, ...]:
    """Returns the sizes that a padded input has in a batch of these requests."""
    shapes = [request.inputs[name].shape[1:] for request in requests]
    return rounded(padding, name, [max(sizes) for sizes in zip(*shapes, strict=True)])


def pad(padding: Padding, name: str, requests: Sequence[Request]) -> Array:
    """Returns a padded input of a batch. The array of a single request is not copied if nothing is added to it.

    Raises ServingError (TOO_LARGE) if the batch would have more elements of it than it may.
    """
    arrays = [request.inputs[name] for request in requests]
    sizes = padded_sizes(padding, name, requests)
    if all(array.shape[1:] == sizes for array in arrays):
        return arrays[0] if len(arrays) == 1 else join_rows(arrays)
    rows = sum([len(array) for array in arrays])
    spec = padding.inputs[name]
    if rows * math.prod(sizes) > spec.max_elements:
        raise ServingError(
            Kind.TOO_LARGE,
            f"input '{name}': a batch in shape {[rows, *sizes]} is over the limit of {spec.max_elements} elements",
        )
    joined = empty((rows, *sizes), arrays[0].dtype)
    joined.fill(spec.value)
    begin = 0
    for array in arrays:
        end = begin + len(array)
        joined[(slice(begin, end), *map(slice, array.shape[1:]))] = array
        begin = end
    return joined


def mask(padding: Padding, target: Mask, requests: Sequence[Request]) -> Array:
    """Returns a mask of a batch: 1 where the requests brought data, 0 elsewhere."""
    variable = padding.inputs[target.source].variable
    sizes = padded_sizes(padding, target.source, requests)
    rows = sum([request.rows for request in requests])
    marks = np.zeros((rows, *(sizes[dim] for dim in variable)), target.datatype.dtype)
    begin = 0
    for request in requests:
        end = begin + request.rows
        own = request.inputs[target.source].shape[1:]
        marks[(slice(begin, end), *(slice(own[dim]) for dim in variable))] = _one(target.datatype)
        begin = end
    return marks


def _one(datatype: DataType) -> int:
    return _ONE_BF16 if datatype.name == "BF16" else 1


def cut(
    cuts: Sequence[Cut], tensor: TensorSpec, array: Array, request: Request, sizes: Mapping[str, tuple[int, ...]]
) -> Array:
    """Returns the part of a request's rows of an output that follows from its own data, as a copy if it is smaller.

    `sizes` are those of the padded inputs in the batch. Raises ServingError (INTERNAL) if the output doesn't have the
    sizes of the inputs that it follows.
    """
    if array.ndim != len(tensor.dims) + 1:
        raise internal(
            f"output '{tensor.name}' has shape {list(array.shape)}, expected {len(tensor.dims) + 1} dims to cut padding"
        )
    index = [slice(None)] * array.ndim
    for step in cuts:
        expected = sizes[step.source][step.source_dim]
        if array.shape[step.dim + 1] != expected:
            raise internal(
                f"output '{tensor.name}' has shape {list(array.shape)}, expected {expected} in dim {step.dim + 1}, "
                f"to which input '{step.source}' was padded"
            )
        index[step.dim + 1] = slice(request.inputs[step.source].shape[step.source_dim + 1])
    part = array[tuple(index)]
    return array if part.shape == array.shape else np.ascontiguousarray(part)


def element_counts(padding: Padding, requests: Sequence[Request]) -> tuple[int, int]:
    """Returns how many elements the requests brought of padded inputs, and how many these have in the batch."""
    rows = sum([request.rows for request in requests])
    brought = padded = 0
    for name in padding.inputs:
        brought += sum([request.inputs[name].size for request in requests])
        padded += rows * math.prod(padded_sizes(padding, name, requests))
    return brought, padded
