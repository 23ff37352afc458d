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

MARK = b"opgate python 1\n"
#: A variable of the environment. If it is "log", why the function of an op failed is told to the log alone: a server's
#: clients are not its author.
ERRORS = "OPGATE_OP_ERRORS"


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


def embedded_ops(library: bytes) -> list[EmbeddedOp]:
    """Returns the ops in Python that the file of a library has behind its end."""
    end = len(library) - len(MARK) - 8
    if end < 0 or not library.endswith(MARK):
        return []
    (size,) = struct.unpack_from("<Q", library, end)
    return unpacked(library[end - size : end])[1] if size <= end else []


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
