"""What the requests of a batch have in common, for models whose config has `batch_by` or `length_buckets`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec

#: Bytes that such an input may have. They are compared on the event loop.
MAX_GROUP_BYTES = 4096

#: Strings whose lengths are looked at.
MAX_STRINGS = 4096


def group_of(spec: ModelSpec, request: Request) -> Hashable:
    """Returns a value that two requests share only if their inputs of `batch_by` are equal, and the longest rows of
    their inputs of `length_buckets` fall into one bucket.

    If all rows of an input are equal, their number doesn't matter. Floats are compared by their bits.
    Raises ServingError (TOO_LARGE).
    """
    values = [_value(spec, name, request.inputs[name]) for name in spec.batch_by if name in request.inputs]
    buckets = [
        bisect_left(sizes, _longest(request.inputs[name])) if name in request.inputs else -1
        for name, sizes in spec.length_buckets.items()
    ]
    return tuple(values + buckets)


def _longest(array: Array) -> int:
    """Returns the length of the longest row: its elements, or the characters of its strings. It looks at some thousand
    strings, no more: this happens on the event loop, and a wrong bucket changes no answer."""
    if array.dtype != object or not array.size:
        return array.size // max(1, len(array))
    each = array.size // len(array)
    if each > MAX_STRINGS:
        return each
    lengths = list(map(len, array[: max(1, MAX_STRINGS // each)].reshape(-1).tolist()))
    return max(lengths) if each == 1 else max(sum(lengths[at : at + each]) for at in range(0, len(lengths), each))


def _value(spec: ModelSpec, name: str, array: Array) -> Hashable:
    if array.dtype != object:
        if array.nbytes > MAX_GROUP_BYTES:
            raise _too_large(spec, name, array.nbytes)
        rows: list[Hashable] = [row.tobytes() for row in array]
    else:
        size = _string_bytes(array)
        if size > MAX_GROUP_BYTES:
            raise _too_large(spec, name, size)
        rows = [tuple(row.reshape(-1).tolist()) for row in array]
    alike = len(set(rows)) == 1
    return array.shape[1:], rows[0] if alike else tuple(rows)


def _string_bytes(array: Array) -> int:
    """Returns the bytes of strings as requests carry them, each behind four bytes with its length.

    If they are too many by their number or their characters alone, it returns that lower bound.
    """
    size = 4 * array.size
    if size <= MAX_GROUP_BYTES:
        texts = array.reshape(-1).tolist()
        characters = size + sum(map(len, texts))
        if characters > MAX_GROUP_BYTES:
            return characters
        size += sum([len(text.encode() if isinstance(text, str) else text) for text in texts])
    return size


def _too_large(spec: ModelSpec, name: str, size: int) -> ServingError:
    return ServingError(
        Kind.TOO_LARGE,
        f"input '{name}' of model '{spec.name}' has {size} bytes or more, the limit is {MAX_GROUP_BYTES} "
        "for an input of batch_by",
    )
