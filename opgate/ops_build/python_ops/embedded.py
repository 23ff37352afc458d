"""The table of the ops whose kernels are functions in Python. It stands behind the end of a library, in its file.

    domain, number of ops, then for each op: signature, doc, name of the file, source
    the size of all that in eight bytes
    MARK

A text is its number of bytes in four bytes, then the bytes in UTF-8. op_call/python_kernels.cpp reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = b"opgate python 1\n"


@dataclass(frozen=True, slots=True)
class EmbeddedOp:
    """An op whose kernel is a function in Python, with the op.py that has it. `file` is what messages call it."""

    signature: str
    doc: str
    file: str
    source: bytes


def packed(domain: str, ops: Iterable[EmbeddedOp]) -> bytes:
    """Returns what is written behind the end of a library: nothing without ops."""
    entries = [
        b"".join(map(_text, (op.signature.encode(), op.doc.encode(), op.file.encode(), op.source))) for op in ops
    ]
    if not entries:
        return b""
    table = _text(domain.encode()) + struct.pack("<I", len(entries)) + b"".join(entries)
    return table + struct.pack("<Q", len(table)) + MARK


def unpacked(table: bytes) -> tuple[str, list[EmbeddedOp]]:
    """Returns the domain and the ops of a table, which stands before its size."""
    texts = _Texts(table)
    domain = texts.text().decode()
    (count,) = struct.unpack("<I", texts.take(4))
    ops = [
        EmbeddedOp(texts.text().decode(), texts.text().decode(), texts.text().decode(), texts.text())
        for _ in range(count)
    ]
    return domain, ops


def embedded_ops(library: Path) -> list[EmbeddedOp]:
    """Returns the ops in Python that a library has, without loading it. Raises OSError."""
    tail = 8 + len(MARK)
    with library.open("rb") as file:
        size = file.seek(0, 2)
        if size < tail:
            return []
        file.seek(size - tail)
        (length,) = struct.unpack("<Q", file.read(8))
        if file.read() != MARK or length > size - tail:
            return []
        file.seek(size - tail - length)
        return unpacked(file.read(length))[1]


def _text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


class _Texts:
    """Reads a table from its beginning."""

    def __init__(self, table: bytes) -> None:
        self._table, self._at = table, 0

    def take(self, count: int) -> bytes:
        part = self._table[self._at : self._at + count]
        self._at += count
        return part

    def text(self) -> bytes:
        (count,) = struct.unpack("<I", self.take(4))
        return self.take(count)
