"""Reads the data of tensors in encoded ModelInferRequests, without an object for each number: protobuf_fields.cpp."""

class TooLarge(ValueError):
    """A message has more beside the data of its tensors than it may have."""

class Broken(ValueError):
    """The bytes are not a valid message."""

def split(
    message: bytes | memoryview, most_envelope: int, most_parts: int, /
) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Splits a ModelInferRequest.

    Returns the message without the data of its tensors, the offset and size of each entry of raw_input_contents, and
    the index of the input, the offset and size of each `contents`. Raises Broken, and TooLarge if the first would have
    more than `most_envelope` bytes or one of the others more than `most_parts` entries.
    """

def numbers(
    message: bytes | memoryview,
    offset: int,
    size: int,
    field: int,
    wire_type: int,
    itemsize: int,
    into: memoryview,
    start: int,
    /,
) -> int:
    """Reads the entries of a repeated field of a message in these bytes into memory, from its item `start` on.

    Integers and booleans have wire type 0, floats 5, doubles 1. Returns the number of items with those before, which
    may be more than there is room for. Raises Broken. Other threads run meanwhile.
    """

def strings(message: bytes | memoryview, offset: int, size: int, field: int, most: int, /) -> list[bytes]:
    """Returns the entries of a repeated field of bytes, of many one more than `most`. Raises Broken."""
