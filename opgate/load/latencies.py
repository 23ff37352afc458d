"""Latencies in bounded memory, and what is read from them: percentiles, bars of a histogram, the aim of a search."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: The edges of the buckets lie 1% apart, from a microsecond to about three hours.
_FIRST = 1e-6
_RATIO = 1.01
_BUCKETS = math.ceil(math.log(1e10) / math.log(_RATIO))
_SLO = re.compile(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Latencies:
    """Counts seconds in buckets 1% wide. Its size doesn't grow, and percentiles are right within 0.5%."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._total = 0.0
        self.count = 0
        self.least = math.inf
        self.most = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        """Counts all of these latencies."""
        if not seconds:
            return
        values = np.asarray(seconds)
        buckets = np.log(np.maximum(values, _FIRST) / _FIRST) / math.log(_RATIO)
        self._counts += np.bincount(np.minimum(buckets.astype(np.int64), _BUCKETS - 1), minlength=_BUCKETS)
        self._total += float(values.sum())
        self.count += len(seconds)
        self.least = min(self.least, float(values.min()))
        self.most = max(self.most, float(values.max()))

    @property
    def mean(self) -> float:
        """The mean in seconds, NaN if there is none."""
        return self._total / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """Returns the seconds that `percent` of the latencies don't exceed, NaN if there is none."""
        if not self.count:
            return math.nan
        # Without the rounding, 99.9% of 1000 would be more than 999.
        rank = max(1, math.ceil(round(self.count * percent / 100, 6)))
        if rank == self.count:
            return self.most
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle: float = _FIRST * _RATIO ** (bucket + 0.5)
        return min(max(middle, self.least), self.most)

    def over(self, seconds: float) -> int:
        """Returns how many latencies lie in the buckets above the one of `seconds`."""
        bucket = int(math.log(max(seconds, _FIRST) / _FIRST) / math.log(_RATIO))
        return int(self._counts[bucket + 1 :].sum())

    def bars(self, most: int = 16) -> list[tuple[float, int]]:
        """Returns at most so many bars from the least to the greatest latency: the seconds at which each begins, and
        its count. Each bar is the same factor wide."""
        used = np.flatnonzero(self._counts)
        if not used.size:
            return []
        first, last = int(used[0]), int(used[-1])
        width = math.ceil((last - first + 1) / most)
        return [
            (_FIRST * _RATIO**begin, int(self._counts[begin : begin + width].sum()))
            for begin in range(first, last + 1, width)
        ]


@dataclass(frozen=True, slots=True)
class Slo:
    """The latency that a percentile must stay under."""

    percent: float
    seconds: float

    @property
    def share(self) -> float:
        """The share of the requests that may take longer."""
        return 1 - self.percent / 100

    def __str__(self) -> str:
        return f"p{self.percent:g} under {duration(self.seconds)}"


def read_slo(text: str) -> Slo:
    """Reads a text such as p99=20ms. Raises ValueError that says what was expected."""
    found = _SLO.fullmatch(text.replace(" ", ""))
    if found is None or not 0 < float(found[1]) < 100 or not float(found[2]):
        raise ValueError(f"--slo: expected a percentile and a time in s, ms or us, such as p99=20ms, got '{text}'")
    return Slo(float(found[1]), float(found[2]) * _UNITS[found[3]])


def duration(seconds: float) -> str:
    """Returns seconds as a text of three digits with a fitting unit."""
    if math.isnan(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size * 0.9995 or unit == "us":
            value = seconds / size
            return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
    raise AssertionError
