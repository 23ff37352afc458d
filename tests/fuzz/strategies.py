"""What the targets send: good messages of every kind, with changes of their parts and of their bytes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16")  # fmt: skip
INTEGERS = st.sampled_from(
    [0, 1, 2, 3, 4, 7, -1, -2, 255, 256, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63)]
)
#: Characters that something may take for something else.
ODD = "\0\n\r\t\x1b /\\.%:;,\"'<>{}[]é\u2028😀ﬃ"
TEXTS = st.one_of(
    st.sampled_from(["", "x", "y", "double", "..", "../x", "a/b", "-1", "1", "true", "NaN", "file:///etc/passwd", "x" * 300]),
    st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"])), max_size=12),
)  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), INTEGERS, st.integers(2**63, 2**70), st.floats(), TEXTS)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
#: Changes of bytes: where, what, and with which bytes.
EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 14),
        st.sampled_from(("insert", "replace", "delete", "repeat", "cut")),
        st.one_of(
            st.binary(min_size=1, max_size=4), st.sampled_from([b"\xff\xff\xff\xff", b'"', b"[", b"\r\n", b"\0"])
        ),
    ),
    max_size=3,
)


def edited(data: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
    """Returns bytes with changes."""
    for place, kind, new in edits:
        at = place % (len(data) + 1)
        match kind:
            case "insert":
                data = data[:at] + new + data[at:]
            case "replace":
                data = data[:at] + new + data[at + len(new) :]
            case "delete":
                data = data[:at] + data[at + len(new) :]
            case "repeat":
                data = data[:at] + data[at : at + 8 * len(new)] * 3 + data[at:]
            case "cut":
                data = data[:at]
    return data


def rarely(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], times: int = 3) -> st.SearchStrategy[Any]:
    """Draws what is usual, and once after so many times what is odd."""
    return st.integers(0, times).flatmap(lambda number: odd if number == times else usual)


@st.composite
def changed(draw: st.DrawFn, usual: st.SearchStrategy[Any], keys: st.SearchStrategy[str], most: int = 2) -> Any:
    """Draws JSON values in which some members or elements are gone, are others, or are new ones. `keys` has the names of
    members that may come in."""
    value = copy.deepcopy(draw(usual))
    for _ in range(draw(st.integers(0, most))):
        places = list(_containers(value))
        if not places:
            return draw(VALUES)
        place = draw(st.sampled_from(places))
        if isinstance(place, dict):
            key = draw(st.one_of(keys, st.sampled_from(sorted(place)) if place else keys))
        else:
            key = draw(st.integers(0, len(place)))
        match draw(st.integers(0, 3)):
            case 0 if isinstance(place, dict):
                place.pop(key, None)
            case 0 | 1 if isinstance(place, list):
                place[key:] = place[key + 1 :] if key % 2 else [*place[key:], *place[key:]]
            case _ if isinstance(place, list):
                place[key : key + 1] = [draw(st.one_of(LEAVES, VALUES))]
            case _:
                place[key] = draw(st.one_of(LEAVES, LEAVES, VALUES))
    return value


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


Hints = Mapping[str, st.SearchStrategy[Any]]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], hints: Hints, depth: int = 5, most: int = 4) -> Message:
    """Draws messages of a protobuf type with some of its fields. `hints` has good values of fields, by the name of the
    field or by that of its message and itself."""
    message = kind()
    if not kind.DESCRIPTOR.fields:
        return message
    fields = draw(st.lists(st.sampled_from(list(kind.DESCRIPTOR.fields)), max_size=most, unique_by=lambda f: f.name))
    for field in fields:
        _fill(draw, message, field, hints, depth)
    return message


def _fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, hints: Hints, depth: int) -> None:
    if field.message_type is not None and depth == 0:
        return
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(draw(st.integers(0, 2))):
            key = draw(_value(keys, hints, f"{field.name}.key"))
            if values.message_type is None:
                target[key] = draw(_value(values, hints, f"{field.name}.value"))
            else:
                target[key].CopyFrom(draw(_message(values.message_type, hints, depth)))
    elif field.is_repeated:
        for _ in range(draw(st.integers(0, 3))):
            if field.message_type is None:
                target.append(draw(_value(field, hints)))
            else:
                target.add().CopyFrom(draw(_message(field.message_type, hints, depth)))
    elif field.message_type is None:
        setattr(message, field.name, draw(_value(field, hints)))
    else:
        target.CopyFrom(draw(_message(field.message_type, hints, depth)))


def _message(descriptor: Descriptor, hints: Hints, depth: int) -> st.SearchStrategy[Message]:
    return messages(GetMessageClass(descriptor), hints, depth - 1)


def _value(field: FieldDescriptor, hints: Hints, name: str = "") -> st.SearchStrategy[Any]:
    usual = hints.get(f"{field.containing_type.name}.{field.name}", hints.get(name or field.name))
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            odd: st.SearchStrategy[Any] = st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            odd = st.sampled_from([value.number for value in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_FLOAT:
            odd = st.floats(width=32)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            odd = st.floats()
        case FieldDescriptor.CPPTYPE_STRING:
            odd = TEXTS if field.type == FieldDescriptor.TYPE_STRING else st.binary(max_size=40)
        case _:
            low, high = _RANGES[field.cpp_type]
            odd = INTEGERS.filter(lambda number: low <= number <= high)
    return odd if usual is None else rarely(usual, odd)


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
