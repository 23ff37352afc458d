"""What a run costs, measured: decides how many rows to batch, and whether a run may happen on the event loop."""

from __future__ import annotations

from collections.abc import Hashable

# Until a size has run this often, it is chosen whenever that many rows wait: bounded exploration.
EXPLORE = 4
# Every so many choices go, in turn, to the other sizes: machines and inputs change.
REVISIT = 256
# A batch may cost this much more per row than the cheapest size: less than that can't be told from noise, and a batch
# saves hand-overs that are not measured.
TOLERANCE = 1.15
# Runs on a thread before a size may move to the loop. The first ones pay for allocations and are not counted.
PROBATION = 16
WARM_UP = 2
MAX_SHAPES = 256


class SizeCost:
    """Running statistics of one batch size class: O(1) a run, no samples kept."""

    __slots__ = ("count", "cpu_p99", "inline", "least_wall", "needed", "per_row", "recent", "second", "top", "wall")

    def __init__(self) -> None:
        self.count = 0
        self.per_row = 0.0  # 20th percentile of nanoseconds per row: the machine's other work only ever adds
        self.wall = 0.0  # median of nanoseconds per run, on the loop
        self.cpu_p99 = 0.0  # 99th percentile of the running thread's CPU nanoseconds
        self.top = 0.0
        self.second = 0.0
        self.least_wall = float("inf")
        self.inline = False
        self.needed = PROBATION
        self.recent = 0  # runs since the last move between thread and loop

    def record(self, rows: int, wall: int, cpu: int, on_loop: bool, limit_ns: float) -> None:
        """Adds a run. A quantile follows its samples by relative steps, so one outlier moves it by one step."""
        self.count += 1
        if self.count <= WARM_UP:
            self.per_row = wall / rows
            return
        if self.count == WARM_UP + 1:
            self.per_row = wall / rows
        elif self.count <= WARM_UP + EXPLORE:
            self.per_row = min(self.per_row, wall / rows)
        else:
            self.per_row *= 1.006 if wall > self.per_row * rows else 0.976
        if self.count <= PROBATION + WARM_UP:
            if cpu > self.top:
                self.top, self.second = float(cpu), self.top
            elif cpu > self.second:
                self.second = float(cpu)
            self.cpu_p99 = self.second or self.top
        else:
            self.cpu_p99 *= 1.099 if cpu > self.cpu_p99 else 0.999
        self.recent += on_loop == self.inline
        if on_loop:
            self._watch_loop(wall, cpu, limit_ns)
        else:
            self.least_wall = min(self.least_wall, wall)
            # CPU time, because on a busy machine a thread's wall time holds others' turns; the least wall time
            # as well, because an op that waits for something takes no CPU and must not hold up the loop.
            if self.recent >= self.needed and self.cpu_p99 < limit_ns and self.least_wall < limit_ns:
                self._move(True)

    def _watch_loop(self, wall: int, cpu: int, limit_ns: float) -> None:
        """Takes a size off the loop when it turns slow: at once where it is far over, else when its figures say so."""
        if self.inline and wall > 10 * limit_ns and cpu > limit_ns:
            self._move(False)
            self.needed = min(self.needed * 4, 1 << 14)
            return
        self.wall = float(wall) if not self.wall else self.wall * (1.03 if wall > self.wall else 0.97)
        if self.inline and (self.cpu_p99 > limit_ns or (self.recent >= 4 and self.wall > limit_ns)):
            self._move(False)
            self.needed = min(self.needed * 2, 1 << 14)

    def _move(self, inline: bool) -> None:
        self.inline = inline
        self.recent = 0
        self.wall = 0.0
        self.least_wall = float("inf")


class CostCurve:
    """Costs of one input shape by batch size; class k holds sizes 2**(k-1)+1 to 2**k."""

    __slots__ = ("choices", "limit_ns", "sizes")

    def __init__(self, limit_ns: float) -> None:
        self.sizes: dict[int, SizeCost] = {}
        self.limit_ns = limit_ns
        self.choices = 0

    def record(self, rows: int, wall: int, cpu: int, on_loop: bool) -> None:
        """Adds a run of `rows` rows that took `wall` nanoseconds and `cpu` nanoseconds of its thread."""
        k = (rows - 1).bit_length()
        cost = self.sizes.get(k)
        if cost is None:
            cost = self.sizes[k] = SizeCost()
            smaller = self.sizes.get(k - 1)
            # A class seen for the first time on the loop got there by extrapolation: it is inline until measured.
            cost.inline = on_loop and smaller is not None
        cost.record(rows, wall, cpu, on_loop, self.limit_ns)

    def cheap(self, rows: int) -> bool:
        """Whether a run of this size may happen on the event loop."""
        k = (rows - 1).bit_length()
        cost = self.sizes.get(k)
        if cost is not None:
            return cost.inline
        for j in range(k - 1, -1, -1):
            smaller = self.sizes.get(j)
            if smaller is not None:
                # No more than in proportion: fixed costs are counted again for each row.
                return smaller.inline and smaller.cpu_p99 * rows / (1 << j) < self.limit_ns
        return False

    def choose(self, waiting: int, limit: int) -> int:
        """How many of the waiting rows to run at once: the most that cost about least per row."""
        top = min(waiting, limit)
        if top <= 1:
            return 1
        self.choices += 1
        k = (top - 1).bit_length()
        measured = self.sizes.get(k)
        if measured is None or measured.count < EXPLORE + WARM_UP:
            return top
        options = [(top, measured.per_row)]
        for j in range(k - 1, -1, -1):
            cost = self.sizes.get(j)
            if cost is None or cost.count < EXPLORE + WARM_UP:
                return 1 << j
            options.append((1 << j, cost.per_row))
        if self.choices % REVISIT == 0:
            return options[(self.choices // REVISIT) % len(options)][0]
        bound = TOLERANCE * min(per_row for _, per_row in options)
        return next(rows for rows, per_row in options if per_row <= bound)


class Profile:
    """The cost curves of one model, one for each input shape, the oldest dropped first."""

    __slots__ = ("curves", "limit_ns")

    def __init__(self, limit_us: float) -> None:
        self.limit_ns = limit_us * 1000
        self.curves: dict[Hashable, CostCurve] = {}

    def curve(self, key: Hashable) -> CostCurve:
        """The curve of a shape, made when it is first seen."""
        found = self.curves.get(key)
        if found is None:
            if len(self.curves) >= MAX_SHAPES:
                del self.curves[next(iter(self.curves))]
            found = self.curves[key] = CostCurve(self.limit_ns)
        return found
