"""DecodePoints in NumPy."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import numpy as np

from opgate.ops_build.case import Array

_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8",
}  # fmt: skip


class _Bad(Exception):
    """A file that can't be decoded, with its status."""


def reference(data: Array, ends: Array, *, max_points: int) -> tuple[Array, Array, Array]:
    """xyz f32 [p, 3], and the offset and the status i32 [n] of the n point clouds in `data`."""
    clouds, status, begin = [], [], 0
    for end in ends.tolist():
        try:
            clouds.append(_points(data[begin:end].tobytes(), max_points))
            status.append(0)
        except _Bad as bad:
            clouds.append(np.zeros((1, 3), np.float32))
            status.append(bad.args[0])
        begin = end
    offset = np.cumsum([len(cloud) for cloud in clouds], dtype=np.int64).astype(np.int32)
    return np.concatenate([np.zeros((0, 3), np.float32), *clouds]), offset, np.array(status, np.int32)


def _points(file: bytes, max_points: int) -> Array:
    if file.startswith(b"\x93NUMPY"):
        points = _from_npy(file, max_points)
    elif file.startswith((b"ply\n", b"ply\r\n")):
        points = _from_ply(file, max_points)
    else:
        raise _Bad(1)
    with np.errstate(over="ignore"):
        points = points.astype(np.float32)
    if not np.isfinite(points).all():
        raise _Bad(5)
    return points


def _check_count(count: int, max_points: int) -> None:
    if not 1 <= count <= max_points:
        raise _Bad(3 if count else 6)


def _from_npy(file: bytes, max_points: int) -> Array:
    if len(file) < 12:
        raise _Bad(2)
    if not 1 <= file[6] <= 3:
        raise _Bad(4)
    begin = 10 if file[6] == 1 else 12
    header_end = begin + int.from_bytes(file[8:begin], "little")
    if header_end > len(file):
        raise _Bad(2)
    header = file[begin:header_end].decode("latin1")
    found = [re.search(rf"'{key}' *: *(.+)", header) for key in ("descr", "fortran_order", "shape")]
    if not all(found):
        raise _Bad(2)
    descr, order, shape = (match[1] for match in found if match)
    if not descr.startswith(("'<f4'", "'<f8'")):
        raise _Bad(4)
    if not order.startswith(("True", "False")) or not shape.startswith("("):
        raise _Bad(2)
    sizes = re.match(r"\( *(\d+), *(\d+)\)", shape)
    if not sizes or int(sizes[2]) < 3:
        raise _Bad(4)
    _check_count(int(sizes[1]), max_points)
    try:
        array: Array = np.load(io.BytesIO(file))
    except ValueError:
        raise _Bad(2) from None
    return array[:, :3]


def _from_ply(file: bytes, max_points: int) -> Array:
    match = re.search(rb"(?:^|\n)\s*end_header\b[^\n]*\n", file)
    if not match:
        raise _Bad(_header_fault(file) or 2)
    header, body = file[: match.start()].decode("latin1"), file[match.end() :]
    if fault := _header_fault(header.encode("latin1") + b"\n"):
        raise _Bad(fault)
    lines = [line.split() for line in header.split("\n")]
    text = next((line[1] == "ascii" for line in lines if line[0] == "format"), None)
    elements = [line for line in lines if line[0] == "element"]
    if text is None or not elements:
        raise _Bad(2)
    properties = list(_vertex_properties(lines))
    names = [name for name, _ in properties]
    if not {"x", "y", "z"} <= set(names):
        raise _Bad(4)
    count = int(elements[0][2])
    _check_count(count, max_points)
    columns = [names.index(axis) for axis in "xyz"]
    if not text:
        record = np.dtype([(str(index), "<" + kind) for index, (_, kind) in enumerate(properties)])
        if count * record.itemsize > len(body):
            raise _Bad(2)
        vertices = np.frombuffer(body, record, count)
        return np.stack([vertices[str(column)].astype(np.float64) for column in columns], 1)
    words = body.split()[: count * len(properties)]
    if len(words) < count * len(properties):
        raise _Bad(2)
    try:
        rows = [words[row * len(properties) :] for row in range(count)]
        return np.array([[float(row[column]) for column in columns] for row in rows])
    except ValueError:
        raise _Bad(2) from None


def _header_fault(header: bytes) -> int:
    """The status of the first line that can't be read, 0 if there is none."""
    lines = header.decode("latin1").split("\n")
    element = ""
    for line in lines[:-1]:
        words = [*line.split(), "", "", ""]
        if words[0] == "format" and words[1] not in ("ascii", "binary_little_endian"):
            return 4
        if words[0] == "element":
            if not element and words[1] != "vertex":
                return 4
            if not element and not words[2].isdecimal():
                return 2
            element = "behind" if element else "vertex"
        if words[0] == "property" and element != "behind" and (not element or words[1] not in _TYPES):
            return 4 if element and words[1] == "list" else 2
        if words[0] not in ("ply", "format", "comment", "obj_info", "element", "property"):
            return 2
    return 0


def _vertex_properties(lines: list[list[str]]) -> Iterator[tuple[str, str]]:
    """The names and types of the first element's properties."""
    element = 0
    for line in lines:
        element += line[0] == "element"
        if line[0] == "property" and element == 1:
            yield line[2], _TYPES[line[1]]
