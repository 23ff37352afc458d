from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import flat

PLY_TYPES = {
    "char": "i1", "uchar": "u1", "short": "<i2", "ushort": "<u2", "int": "<i4", "uint": "<u4", "float": "<f4",
    "double": "<f8", "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4",
    "float32": "<f4", "float64": "<f8",
}  # fmt: skip


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def ply(points: Array, *, text: bool = False, kind: str = "float", extra: str = "", newline: str = "\n") -> bytes:
    """A PLY file of points [n, 3]. With `extra`, a property of that type stands before y."""
    lines = [
        "ply", f"format {'ascii' if text else 'binary_little_endian'} 1.0", "comment a cloud",
        f"element vertex {len(points)}", f"property {kind} x", *([f"property {extra} red"] if extra else []),
        f"property {kind} y", f"property {kind} z", "element face 0", "property list uchar int vertex_indices",
        "end_header", "",
    ]  # fmt: skip
    names = ["x", *(["red"] if extra else []), "y", "z"]
    record = np.dtype([(name, PLY_TYPES[extra if name == "red" else kind]) for name in names])
    vertices = np.zeros(len(points), record)
    for name, column in zip("xyz", points.T, strict=True):
        vertices[name] = column.astype(record[name])
    if extra:
        vertices["red"] = 100
    body = "".join(" ".join(str(value) for value in row) + newline for row in vertices.tolist()).encode()
    return newline.join(lines).encode() + (body if text else vertices.tobytes())


def cloud(count: int) -> Array:
    return np.random.default_rng(count).normal(0, 3, (count, 3))


def case(name: str, files: list[bytes], **attributes: Any) -> Case:
    data, ends = flat(files)
    return Case(name, {"data": data, "ends": ends}, attributes, (1e-7, 1e-7))


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for kind in ("<f4", "<f8"):
        for columns in (3, 4, 7):
            array = np.random.default_rng(columns).normal(size=(11, columns)).astype(kind)
            files = [npy(array), npy(np.asfortranarray(array)), npy(array[:1])]
            yield case(f"NPY {kind}, {columns} columns", files)
    for version in ((1, 0), (2, 0), (3, 0)):
        yield case(f"NPY of version {version[0]}", [npy(cloud(5), version)])
    for kind in PLY_TYPES:
        points = np.abs(cloud(7)) * 9
        files = [ply(points, text=text, kind=kind, extra=extra) for text in (False, True) for extra in ("", "uchar")]
        yield case(f"PLY of {kind}", files)
    yield case("PLY with more properties", [ply(cloud(9), extra=extra) for extra in ("double", "short", "int8")])
    yield case("PLY with other line ends", [ply(cloud(4), text=text, newline="\r\n") for text in (True, False)])
    head = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    for body in ("1 2 3 4 5 6", "1\t2 3\n\n4 5\n6", "+1 -2. .3e1\n1e-60 1E2 6\n", "1 2 3\n4 5 6\n7 8 9\n"):
        yield case(f"numbers as text: {body!r}", [(head + body).encode()])
    for word in (
        *("1e-400", "-1e-400", "0.0e-999", "0." + "0" * 400 + "1", "1" + "0" * 400 + "e-400"),
        *("1e-99999999999999999999", "1e-310", "4.9e-324", "2e-324", "1e-45", "7e-46", "3.4028235e38", "3.40282356e38"),
    ):
        yield case(f"a number at an edge: {word[:24]}", [(head + f"1 2 3 4 {word} 6").encode()])
    for word in (
        "1e400",
        "-1e400",
        "1" + "0" * 400,
        "0." + "0" * 400 + "1e800",
        "1e99999999999999999999",
        "3.4028236e38",
    ):
        yield case(f"a number too large: {word[:24]}", [(head + f"1 2 3 4 {word} 6").encode()])
    yield case("no rows", [])
    yield case("as many points as may be", [npy(cloud(9)), ply(cloud(9))], max_points=9)
    yield from bad_cases(head)


def bad_cases(head: str) -> Iterator[Case]:
    good, binary = npy(cloud(9)), ply(cloud(9))
    header = np.lib.format.header_data_from_array_1_0(cloud(9))
    for name, file in [
        ("empty", b""),
        ("text", b"no points at all"),
        ("a magic alone", b"\x93NUMPY"),
        ("NPY of version 9", b"\x93NUMPY\x09\x00" + good[8:]),
        ("a truncated NPY header", good[:40]),
        ("a truncated NPY", good[:-1]),
        ("an NPY header that ends before its shape", b"\x93NUMPY\1\0\x10\0{'descr': '<f4',"),
        ("integers", npy(cloud(3).astype(np.int32))),
        ("big-endian", npy(cloud(3).astype(">f4"))),
        ("one dim", npy(np.zeros(9))),
        ("three dims", npy(np.zeros((3, 3, 3)))),
        ("two columns", npy(np.zeros((3, 2)))),
        ("no points", npy(np.zeros((0, 3)))),
        ("more points than there are bytes", good.replace(str(header["shape"]).encode(), b"(99, 3)")),
        ("NaN", npy(np.full((2, 3), np.nan))),
        ("infinite", npy(np.full((2, 3), np.inf, np.float32))),
        ("too large for f32", npy(np.full((2, 3), 1e39))),
        ("a PLY header alone", b"ply\n"),
        ("a PLY header without its end", binary[:60]),
        ("a truncated PLY", binary[:-1]),
        ("big-endian PLY", binary.replace(b"little", b"big")),
        ("a PLY without a format", binary.replace(b"format binary_little_endian 1.0\n", b"")),
        ("a PLY with faces first", b"ply\nformat ascii 1.0\nelement face 0\nend_header\n"),
        ("a PLY without elements", b"ply\nformat ascii 1.0\nend_header\n"),
        ("a PLY without z", binary.replace(b"float z", b"float w")),
        ("a PLY with lists", binary.replace(b"float y", b"list uchar int y")),
        ("a PLY with an unknown type", binary.replace(b"float y", b"half y")),
        ("a PLY with an unknown line", binary.replace(b"comment", b"remark")),
        ("a PLY whose count is no number", binary.replace(b"vertex 9", b"vertex x")),
        ("a PLY with a property of no element", b"ply\nformat ascii 1.0\nproperty float x\nend_header\n"),
        ("a PLY without points", ply(cloud(0))),
        ("a PLY of 2^60 points", head.replace("vertex 2", f"vertex {2**60}").encode()),
        ("a PLY with too few numbers", (head + "1 2 3 4 5 ").encode()),
        ("a PLY with a word", (head + "1 2 3 4 five 6").encode()),
        ("a PLY with NaN", (head + "1 2 3 4 nan 6").encode()),
        ("a PLY with half a number", (head + "1 2 3 4 5x 6").encode()),
    ]:
        yield case(f"bad: {name}", [binary, file, good])
    yield case("bad: more points than may be", [good, npy(cloud(4)), binary], max_points=8)
    data, ends = flat([good, good])
    inputs: dict[str, Array] = {"data": data, "ends": ends[::-1].copy()}
    yield Case("ends decreasing", inputs, error="input 'ends': expected offsets that don't decrease")
    for value in (0, (1 << 28) + 1):
        inputs = {"data": data, "ends": ends}
        yield Case(f"max_points {value}", inputs, {"max_points": value}, error="attribute 'max_points'")
