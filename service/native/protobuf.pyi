"""Looks into encoded protobuf messages without parsing them. See protobuf_module.cpp."""

def split_tail(message: bytes | memoryview, field: int, /) -> tuple[int, list[tuple[int, int]]] | None:
    """Finds the entries of a field of bytes that ends a message, as a repeated field with the highest number does.

    Returns the number of bytes before them, and the offset and size of each. Returns None if other fields follow them,
    or if the message is not valid.
    """
