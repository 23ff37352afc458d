"""How long the calls of a model's ops take: a histogram of each node, as the op libraries count them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from typing import Protocol

#: The upper bounds of all buckets but the last one, in nanoseconds: 1 us, 2 us, and so on to 2 s.
BOUNDS_NS = tuple(1000 << i for i in range(22))
#: By op and node: the nanoseconds of all calls, and behind them the count of each bucket.
OpTimes = dict[tuple[str, str], list[int]]

_ROWS = struct.Struct("<Q")
_ROW = struct.Struct(f"<II{2 + len(BOUNDS_NS)}q")
# Nodes of a model that are gone and still stand for themselves. Others count for their op.
_MOST_NODES = 4096
# The largest number that can be: a worker may write anything. The sum of a row fits in 64 bits.
_MOST = 1 << 55
# Characters of a name.
_LONGEST = 256


class Source(Protocol):
    """A session, in this process or in one of its own."""

    def op_times(self) -> OpTimes:
        """Returns the times of its nodes. They never go back."""


def read_times(memory: bytes | mmap, begin: int, end: int) -> OpTimes:
    """Returns what `write_times` of op_call/op_times.h has written to a part of memory, as far as it can be read:
    another process may overwrite it at any moment."""
    found: OpTimes = {}
    (rows,) = _ROWS.unpack_from(memory, begin)
    at = begin + _ROWS.size
    for _ in range(min(rows, _MOST_NODES)):
        names_at = at + _ROW.size
        if names_at > end:
            break
        op_size, node_size, *numbers = _ROW.unpack_from(memory, at)
        node_at, at = names_at + op_size, names_at + op_size + node_size
        if max(op_size, node_size) > _LONGEST or at > end or min(numbers) < 0 or max(numbers) > _MOST:
            break
        add(found, {(_text(memory[names_at:node_at]), _text(memory[node_at:at])): numbers})
    return found


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def add(times: OpTimes, others: Mapping[tuple[str, str], Sequence[int]]) -> None:
    """Adds times to those of the same nodes."""
    for key, numbers in others.items():
        known = times.get(key)
        times[key] = (
            list(numbers) if known is None else [one + other for one, other in zip(known, numbers, strict=True)]
        )


def sum_of(parts: Iterable[Mapping[tuple[str, str], Sequence[int]]]) -> OpTimes:
    """Returns the times of all together."""
    total: OpTimes = {}
    for part in parts:
        add(total, part)
    return total


def by_op(times: OpTimes) -> OpTimes:
    """Returns the times of each op. The nodes have no names."""
    return sum_of({(op, ""): numbers} for (op, _), numbers in times.items())


def bounded(times: OpTimes) -> OpTimes:
    """Returns the times of past nodes. If there are too many, they are those of ops."""
    return times if len(times) <= _MOST_NODES else by_op(times)


def quantile(counts: Sequence[int], q: float) -> float:
    """Returns the time in seconds that the fraction `q` of the calls took at most, 0 without calls.

    It lies in the bucket of the histogram, which is as wide as its lower bound. Beyond the largest bound it is that.
    """
    total = sum(counts)
    if not total:
        return 0.0
    wanted, seen, lower = q * total, 0, 0
    for count, upper in zip(counts, BOUNDS_NS, strict=False):
        if count and seen + count >= wanted:
            return (lower + (upper - lower) * max(0.0, wanted - seen) / count) / 1e9
        seen, lower = seen + count, upper
    return lower / 1e9


class OpTimesOfModel:
    """The times of a model version: those of its sessions, and those of the loads before that it has replaced, so that
    they never go back while the version serves. Any thread may use it."""

    def __init__(self, sessions: Iterable[Source] = ()) -> None:
        self._sessions = tuple(sessions)
        self._before: OpTimesOfModel | None = None
        self._past: OpTimes = {}
        self._lock = threading.Lock()

    def follow(self, before: OpTimesOfModel) -> None:
        """Takes over what a load has counted that this one replaces, and what it still counts."""
        with self._lock:
            self._before = before

    def read(self) -> OpTimes:
        """Returns the times by op and node."""
        with self._lock:
            return self._read()

    def _read(self) -> OpTimes:
        before = {} if self._before is None else self._before.read()
        return sum_of((self._past, before, *(session.op_times() for session in self._sessions)))

    def close(self) -> None:
        """Lets go of the sessions, which have been closed, and keeps what they have counted."""
        with self._lock:
            self._past = bounded(self._read())
            self._before, self._sessions = None, ()


def rows_of(times: OpTimes) -> list[dict[str, object]]:
    """Returns the times as clients get them, those that took longest in all first. Times are in seconds."""
    rows = sorted(times.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        {
            "op": op,
            "node": node,
            "count": sum(counts),
            "seconds": total_ns / 1e9,
            "p50": quantile(counts, 0.5),
            "p99": quantile(counts, 0.99),
        }
        for (op, node), (total_ns, *counts) in rows
    ]
