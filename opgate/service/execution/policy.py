"""Decides which waiting requests form the next batch.

A line is the queue of the requests that may share a batch, see `opgate.service.execution.scheduler`. The decision
depends only on the line, the config, the measured costs and the time that the caller passes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from opgate.service.core.request import Request
from opgate.service.core.spec import Batching
from opgate.service.execution.cost import CostCurve, RunTimes


class Choice(NamedTuple):
    """How many requests at the front of the line run now, and how many rows they have.

    If `requests` is 0, none runs now, and the scheduler must look again at `wake_ns`.
    """

    requests: int
    rows: int
    wake_ns: int


def choose(line: Collection[Request], batching: Batching, max_rows: int, curve: CostCurve, now_ns: int) -> Choice:
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
    times = curve.times if batching.max_latency_ns else None
    if times is not None:
        count = _in_time(line, sums, batching.max_latency_ns, times, now_ns)
        if 0 < count < len(sums):
            full = True  # another request would make the batch too slow
            times.deny(sums[count])
            del sums[count:]
            rows = sums[-1]
    if batching.adaptive:
        return _up_to(sums, curve.choose(rows, max_rows, first.rows))
    oldest_ns = first.received_ns
    if not batching.in_order:
        oldest_ns = min([request.received_ns for request in islice(line, len(sums))])
    delay_ns = batching.max_delay_ns
    if times is not None:
        # The other half is for runs that take longer than the estimate.
        delay_ns = min(delay_ns, (batching.max_latency_ns - int(times.estimate(rows))) // 2)
    return _configured(sums, batching, full, oldest_ns + delay_ns, now_ns)


def _in_time(line: Collection[Request], sums: Sequence[int], limit_ns: int, times: RunTimes, now_ns: int) -> int:
    """Returns how many requests at the front of the line can run together so that the oldest of them is answered in
    time, 0 if even the first one alone would be late."""
    arrivals = list(accumulate([request.received_ns for request in islice(line, len(sums))], min))

    def late(i: int) -> bool:
        return now_ns + times.estimate(sums[i]) > arrivals[i] + limit_ns

    # More requests never take less time, and their oldest never came later.
    return bisect_left(range(len(sums)), True, key=late)


def _up_to(sums: list[int], size: int) -> Choice:
    """Chooses as many requests as fit into `size` rows, at least one."""
    count = sum(1 for total in sums if total <= size) or 1
    return Choice(count, sums[count - 1], 0)


def _configured(sums: list[int], batching: Batching, full: bool, wake_ns: int, now_ns: int) -> Choice:
    """Chooses by Triton's rule.

    A batch of a preferred size runs at once. Else all waiting requests run together as soon as no other request fits or
    the delay of the oldest has passed, at `wake_ns`.
    """
    preferred = [total for total in sums if total in batching.preferred]
    if preferred:
        size = max(preferred)
        return Choice(sums.index(size) + 1, size, 0)
    enough = full or (bool(batching.preferred) and sums[-1] >= max(batching.preferred))
    if enough or now_ns >= wake_ns:
        return Choice(len(sums), sums[-1], 0)
    return Choice(0, 0, wake_ns)
