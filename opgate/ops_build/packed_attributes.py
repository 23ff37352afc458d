"""Packs the values of attributes into bytes. op_call/packed_attributes.h reads them.

Numbers are little-endian.

    attributes  u32 count, attributes
    attribute   text name, u8 kind, value
    text        u32 bytes, UTF-8

The kind of an attribute is its index in the C++ type AttributeValue: 0 int (i64), 1 float (f64), 2 bool (u8), 3 text.
The kinds 4 to 7 are lists of those; a list is a u32 count and the elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.op_table import Attribute

_KINDS = {"int": 0, "float": 1, "bool": 2, "str": 3, "choice": 3}
#: The kind of a list is the kind of its elements plus this number.
_LIST = 4


def text_bytes(text: str) -> bytes:
    """Returns a text in the format."""
    encoded = text.encode(errors="surrogateescape")
    return struct.pack("<I", len(encoded)) + encoded


_ELEMENTS: Sequence[Callable[[Any], bytes]] = (
    lambda value: struct.pack("<q", value),
    lambda value: struct.pack("<d", np.float32(value)),  # an attribute in a model has single precision
    lambda value: struct.pack("<B", bool(value)),
    text_bytes,
)


def attribute_bytes(declared: Mapping[str, Attribute], values: Mapping[str, Any]) -> bytes:
    """Returns values of attributes in the format. `declared` has the attributes of the op by name. Raises KeyError if
    it lacks one."""
    parts = [struct.pack("<I", len(values))]
    parts += [text_bytes(name) + _value(declared[name], value) for name, value in values.items()]
    return b"".join(parts)


def _value(declared: Attribute, value: Any) -> bytes:
    kind = _KINDS[declared.kind]
    element = _ELEMENTS[kind]
    if not declared.list:
        return struct.pack("<B", kind) + element(value)
    return struct.pack("<BI", kind + _LIST, len(value)) + b"".join(map(element, value))
