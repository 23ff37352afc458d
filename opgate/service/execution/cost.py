"""Measures the cost of runs. It decides how many rows to batch, and whether a run may happen on the event loop."""

from __future__ import annotations

from collections.abc import Hashable

# A size of which enough rows wait is chosen until it has run this often after its warm-up. This bounds the exploration.
EXPLORE = 4
# One choice in this many takes one of the measured sizes in turn, whatever it costs: machines and inputs change.
REVISIT = 256
# A batch may cost this much more per row than the cheapest size. A smaller difference can't be told from noise, and a
# large batch saves hand-overs between threads, which are not measured.
TOLERANCE = 1.15
# A size must run this often on a thread before it may move to the event loop.
PROBATION = 16
# The first runs of a size pay for allocations and are not counted.
WARM_UP = 2
# No hand-over between threads costs less than this many nanoseconds.
LEAST_HAND_OVER = 20_000.0
# A model keeps the costs of at most this many input shapes.
MAX_SHAPES = 256
# A typical time is the mean of about this many runs.
MEMORY = 16


class SizeCost:
    """Running statistics of one class of batch sizes. Adding a run takes constant time and keeps no sample."""

    __slots__ = ("count", "cpu", "inline", "least_wall", "needed", "per_row", "recent", "wall")

    def __init__(self) -> None:
        self.count = 0
        self.per_row = 0.0  # nanoseconds per row, 20th percentile, because other work on the machine only adds time
        self.wall = 0.0  # nanoseconds per run on the event loop, median
        self.cpu = 0.0  # CPU nanoseconds of the thread that runs, mean
        self.least_wall = float("inf")  # the least nanoseconds of a run on a thread since the last move
        self.inline = False  # whether runs happen on the event loop
        self.needed = PROBATION  # runs on a thread before the next move to the event loop
        self.recent = 0  # runs since the last move between thread and event loop

    def record(self, rows: int, wall: int, cpu: int, on_loop: bool, limit_ns: float) -> None:
        """Adds a run. `limit_ns` is what a run on the event loop may cost."""
        self.count += 1
        if self.count <= WARM_UP:
            self.per_row = wall / rows
            self.cpu = float(cpu)
            return
        if self.count == WARM_UP + 1:
            self.per_row = wall / rows
        elif self.count <= WARM_UP + EXPLORE:
            self.per_row = min(self.per_row, wall / rows)
        else:
            # A quantile moves up or down by a fixed factor, however far off the sample is.
            self.per_row *= 1.006 if wall > self.per_row * rows else 0.976
        # The mean decides, so that a model which is slow now and then is known as slow. A single sample counts at most
        # eight times the mean, because on a busy machine some samples are hundreds of times too high.
        self.cpu += (min(float(cpu), 8 * self.cpu) - self.cpu) / 16
        self.recent += on_loop == self.inline
        if on_loop:
            self._watch_loop(wall, cpu, limit_ns)
        else:
            self.least_wall = min(self.least_wall, wall)
            # The CPU time decides, because on a busy machine the wall time includes the turns of other threads. The
            # least wall time decides too, because an op that waits takes no CPU time but would hold up the loop.
            if self.recent >= self.needed and self.cpu < limit_ns and self.least_wall < limit_ns:
                self._move(True)

    def _watch_loop(self, wall: int, cpu: int, limit_ns: float) -> None:
        """Moves a size off the event loop when it turns slow.

        One run far over the limit is enough. Otherwise the mean or the median must exceed twice the limit, so that a
        size near the limit doesn't go back and forth.
        """
        if self.inline and wall > 20 * limit_ns and cpu > 2 * limit_ns:
            self._move(False)
            self.needed = min(self.needed * 4, 1 << 14)
            return
        self.wall = float(wall) if not self.wall else self.wall * (1.03 if wall > self.wall else 0.97)
        if self.inline and (self.cpu > 2 * limit_ns or (self.recent >= 4 and self.wall > 2 * limit_ns)):
            self._move(False)
            self.needed = min(self.needed * 2, 1 << 14)

    def _move(self, inline: bool) -> None:
        self.inline = inline
        self.recent = 0
        self.wall = 0.0
        self.least_wall = float("inf")


class HandOver:
    """What it costs to have a run on a thread: the way there and the way back to the event loop.

    A run that costs less may happen on the event loop, because handing it over would hold up the loop for longer.
    """

    __slots__ = ("limit_ns", "most_ns", "typical_ns")

    def __init__(self, most_us: float) -> None:
        """With `most_us` 0 every run is handed over."""
        self.most_ns = most_us * 1000
        self.typical_ns = self.most_ns
        self.limit_ns = self.most_ns  # what a run on the event loop may cost

    def record(self, ns: int) -> None:
        """Adds a hand-over. The median counts: what a busy loop or machine adds is a part of what it costs."""
        self.typical_ns *= 1.03 if ns > self.typical_ns else 0.97
        self.typical_ns = max(LEAST_HAND_OVER, self.typical_ns)
        self.limit_ns = min(self.most_ns, self.typical_ns)


class _SizeTime:
    """The mean rows and nanoseconds of the latest runs of one class of batch sizes."""

    __slots__ = ("count", "rows", "wall")

    def __init__(self) -> None:
        self.count = 0
        self.rows = 0.0
        self.wall = 0.0

    def record(self, rows: int, wall: int, anew: bool) -> None:
        """Adds a run. `anew` forgets those before it."""
        self.count += 1
        weight = 1 / min(max(1, self.count - WARM_UP), MEMORY)
        if anew or weight == 1:
            self.rows, self.wall = float(rows), float(wall)
            return
        self.rows += (rows - self.rows) * weight
        # A run that took far longer than usual says little about the next one.
        self.wall += (min(float(wall), 8 * self.wall) - self.wall) * weight


class RunTimes:
    """What a run of one input shape takes, by batch size, for a model that has a limit on its latency.

    The least cost per row, by which `CostCurve` chooses a size, would promise too much.
    """

    __slots__ = ("_denials", "_doubted", "_points", "_sizes")

    def __init__(self) -> None:
        self._sizes: dict[int, _SizeTime] = {}
        self._points: list[tuple[float, float, int]] = []  # rows, nanoseconds and the largest size of each known class
        self._denials = 0
        self._doubted: int | None = None  # the times of this class and of larger ones are not believed

    def record(self, rows: int, wall: int) -> None:
        """Adds a run of `rows` rows that took `wall` nanoseconds."""
        k = (rows - 1).bit_length()
        size = self._sizes.get(k)
        if size is None:
            size = self._sizes[k] = _SizeTime()
            self._sizes = dict(sorted(self._sizes.items(), reverse=True))
        answers_doubt = self._doubted is not None and k >= self._doubted
        size.record(rows, wall, answers_doubt)
        if answers_doubt and _is_known(size):
            self._doubted = None
        points, least = [], float("inf")
        for k, size in self._sizes.items():
            if _is_known(size):
                least = min(least, size.wall)  # a batch doesn't take longer than a larger one
                if self._doubted is None or k < self._doubted:
                    points.append((size.rows, least, 1 << k))
        self._points = points[::-1]

    def estimate(self, rows: int) -> float:
        """Returns the nanoseconds that a run of so many rows takes, 0 if that is not known. More rows never take less.

        Between two measured sizes the times lie on a line. In a larger size than all measured ones a row is taken to
        cost as much as in the largest of them. If that has been doubted, such a size is taken to cost no more than they
        do, so it is tried.
        """
        below_rows = below = 0.0
        largest = 1
        for size_rows, wall, top in self._points:
            if size_rows > rows:
                return below + (wall - below) * (rows - below_rows) / (size_rows - below_rows)
            below_rows, below, largest = size_rows, wall, top
        if not below_rows:
            return 0.0
        return below * (rows if self._doubted is None else min(rows, largest)) / below_rows

    def knows(self, rows: int) -> bool:
        """Returns whether runs of so many rows, or of more, were measured."""
        return bool(self._points) and rows <= self._points[-1][2]

    def deny(self, rows: int) -> None:
        """Counts a batch of so many rows that didn't run because it would take too long.

        It is not measured then. So after many times its estimate is doubted, until it has run: it may have been slow
        only for a while, and a size that never ran may cost less than it is taken to.
        """
        self._denials += 1
        if self._denials % REVISIT == 0:
            largest = self._points[-1][2] if self._points else 1
            k = min((rows - 1).bit_length(), largest.bit_length())  # or the first class that never ran
            self._doubted = k
            self._points = [point for point in self._points if point[2] < 1 << k]


def _is_known(size: _SizeTime) -> bool:
    return size.count >= WARM_UP + EXPLORE


class CostCurve:
    """The costs of one input shape by batch size. Class k holds the sizes 2**(k-1)+1 to 2**k."""

    __slots__ = ("choices", "hand_over", "sizes", "times")

    def __init__(self, hand_over: HandOver, timed: bool = False) -> None:
        """If `timed`, it also keeps what runs take, in `times`."""
        self.sizes: dict[int, SizeCost] = {}
        self.hand_over = hand_over
        self.choices = 0
        self.times = RunTimes() if timed else None

    def record(self, rows: int, wall: int, cpu: int, on_loop: bool) -> None:
        """Adds a run of `rows` rows that took `wall` nanoseconds and `cpu` nanoseconds of CPU time of its thread."""
        k = (rows - 1).bit_length()
        cost = self.sizes.get(k)
        if cost is None:
            cost = self.sizes[k] = SizeCost()
            smaller = self.sizes.get(k - 1)
            # A new class runs on the loop only if `cheap` estimated so from a smaller class. It stays there until its
            # own costs move it off.
            cost.inline = on_loop and smaller is not None
        cost.record(rows, wall, cpu, on_loop, self.hand_over.limit_ns)
        if self.times is not None:
            self.times.record(rows, wall)

    def cheap(self, rows: int) -> bool:
        """Returns whether a run of this many rows may happen on the event loop."""
        k = (rows - 1).bit_length()
        cost = self.sizes.get(k)
        if cost is not None:
            return cost.inline
        for j in range(k - 1, -1, -1):
            smaller = self.sizes.get(j)
            if smaller is not None:
                # An estimate in proportion to the rows is rather too high: it multiplies the fixed costs as well.
                return smaller.inline and smaller.cpu * rows / (1 << j) < self.hand_over.limit_ns
        return False

    def choose(self, waiting: int, limit: int, least: int = 1) -> int:
        """Returns how many of the waiting rows to run at once: the largest size that costs about the least per row.

        The first request has `least` rows, so a run has no fewer.
        """
        top = min(waiting, limit)
        if top <= least:
            return least
        self.choices += 1
        k = (top - 1).bit_length()
        measured = self.sizes.get(k)
        if measured is None or measured.count < EXPLORE + WARM_UP:
            return top
        options = [(top, measured.per_row)]
        for j in range(k - 1, (least - 1).bit_length() - 1, -1):
            cost = self.sizes.get(j)
            if cost is None or cost.count < EXPLORE + WARM_UP:
                return 1 << j
            options.append((1 << j, cost.per_row))
        if self.choices % REVISIT == 0:
            return options[(self.choices // REVISIT) % len(options)][0]
        bound = TOLERANCE * min(per_row for _, per_row in options)
        return next(rows for rows, per_row in options if per_row <= bound)


class Profile:
    """The cost curves of one model, one for each input shape. The oldest one makes room for a new one."""

    __slots__ = ("_timed", "curves", "hand_over")

    def __init__(self, inline_limit_us: float, timed: bool = False) -> None:
        """If `timed`, each curve keeps what runs take."""
        self.hand_over = HandOver(inline_limit_us)
        self.curves: dict[Hashable, CostCurve] = {}
        self._timed = timed

    def curve(self, key: Hashable) -> CostCurve:
        """Returns the curve of a shape. Creates it if the shape is new."""
        curve = self.curves.get(key)
        if curve is None:
            if len(self.curves) >= MAX_SHAPES:
                del self.curves[next(iter(self.curves))]
            curve = self.curves[key] = CostCurve(self.hand_over, self._timed)
        return curve
