"""Converts protobuf messages to plain JSON values. Writes 64-bit integers as numbers, as Triton does."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def to_plain(message: Any, with_defaults: bool = False) -> dict[str, Any]:
    """Returns a message as JSON values, with the field names of the .proto file and 64-bit integers as numbers.

    Protobuf's own JSON writes such integers as strings. `with_defaults` includes fields that are not set.
    """
    values = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=with_defaults
    )
    return _numbers(values, message.DESCRIPTOR)


def _numbers(values: dict[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    return {name: _value(value, descriptor.fields_by_name[name]) for name, value in values.items()}


def _value(value: Any, field: FieldDescriptor) -> Any:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_name["value"]
        return {key: _value(part, entry) for key, part in value.items()}
    if isinstance(value, list):
        return [_value(part, field) for part in value]
    if message is not None:
        return _numbers(value, message) if isinstance(value, dict) else value
    return int(value) if field.cpp_type in _WIDE and isinstance(value, str) else value
