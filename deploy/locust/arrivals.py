"""The open loop: requests are due at random times that don't depend on the answers."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

#: A request that starts more seconds after it was due than this counts as late. gevent's timers alone take about 0.001.
LATE = 0.01


class Arrivals:
    """The times at which the requests of one user are due: a Poisson process of `rate` requests a second.

    All times are seconds of one clock that only goes forward. Processes that don't depend on each other add up to one
    Poisson process, so N users of rate R/N make requests that are due at the rate R.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._due = now + random.expovariate(rate)

    def wait(self, now: float) -> float:
        """Returns the seconds until the next request is due, 0 if it is already."""
        return max(0.0, self._due - now)

    def start(self, now: float) -> float:
        """Starts the next request. Returns how many seconds ago it was due."""
        lateness = max(0.0, now - self._due)
        self._due += random.expovariate(self._rate)
        return lateness

    def drop(self, now: float) -> int:
        """Gives up the requests that are due and not started. Returns their number."""
        dropped = 0
        while self._due <= now:
            self.start(now)
            dropped += 1
        return dropped


@dataclass
class Tally:
    """How many requests of an open loop were started, how many of these were late, and how many were never started."""

    started: int = 0
    late: int = 0
    dropped: int = 0

    def start(self, lateness: float) -> None:
        """Counts a request that starts so many seconds after it was due."""
        self.started += 1
        self.late += lateness > LATE

    def add(self, other: Tally) -> None:
        self.started += other.started
        self.late += other.late
        self.dropped += other.dropped

    def take(self) -> dict[str, int]:
        """Returns the counts by name and sets them to 0."""
        counts = asdict(self)
        self.started = self.late = self.dropped = 0
        return counts

    def __str__(self) -> str:
        share = self.late / self.started if self.started else 0.0
        return (
            f"open loop: {self.started} requests started, {share:.1%} of them more than {LATE * 1000:g} ms late; "
            f"{self.dropped} were due and not started when their users stopped"
        )
