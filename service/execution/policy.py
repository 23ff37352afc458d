"""Decides which waiting requests form the next batch.

A line is the queue of the requests that may share a batch, see `opgate.service.execution.scheduler`. The decision
depends only on the line, the config, the measured costs and the time that the caller passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from opgate.service.execution.cost import CostCurve
from opgate.service.execution.request import Request
from opgate.service.execution.spec import Batching


class Choice(NamedTuple):
    """How many requests at the front of the line run now, and how many rows they have.

    If `requests` is 0, none runs now, and the scheduler must look again at `wake_ns`.
    """

    requests: int
    rows: int
    wake_ns: int


def choose(line: Iterable[Request], batching: Batching, max_rows: int, curve: CostCurve, now_ns: int) -> Choice:
    """Chooses the next batch of a line. Raises ValueError if the line is empty."""
    sums: list[int] = []
    rows = 0
    full = False
    first: Request | None = None
    for request in islice(line, max_rows):
        first = first or request
        if rows + request.rows > max_rows:
            full = True
            break
        rows += request.rows
        sums.append(rows)
    if first is None:
        raise ValueError("an empty line has no next batch")
    full = full or rows == max_rows
    if batching.adaptive:
        return _up_to(sums, curve.choose(rows, max_rows, first.rows))
    return _configured(sums, batching, full, first.received_ns, now_ns)


def _up_to(sums: list[int], size: int) -> Choice:
    """Chooses as many requests as fit into `size` rows, at least one."""
    count = sum(1 for total in sums if total <= size) or 1
    return Choice(count, sums[count - 1], 0)


def _configured(sums: list[int], batching: Batching, full: bool, oldest_ns: int, now_ns: int) -> Choice:
    """Chooses by Triton's rule.

    A batch of a preferred size runs at once. Else all waiting requests run together as soon as no other request fits or
    the delay has passed.
    """
    preferred = [total for total in sums if total in batching.preferred]
    if preferred:
        size = max(preferred)
        return Choice(sums.index(size) + 1, size, 0)
    enough = full or (bool(batching.preferred) and sums[-1] >= max(batching.preferred))
    wake = oldest_ns + batching.max_delay_ns
    if enough or now_ns >= wake:
        return Choice(len(sums), sums[-1], 0)
    return Choice(0, 0, wake)
