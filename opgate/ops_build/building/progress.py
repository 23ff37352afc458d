"""Says how far a build is, from the lines of Ninja and Make."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_LINE = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]")


class CompilerProgress:
    """Turns the lines of a build tool into what people read.

    On a `terminal` each line replaces the last one. Elsewhere there is one line every `every` seconds.
    """

    def __init__(self, terminal: bool, every: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.terminal = terminal
        self._every = every
        self._clock = clock
        self._began = self._said = clock()
        self._done = 0

    def line(self, line: str) -> str:
        """Returns what to print for a line that begins with "[12/80]" or "[ 15%]", or "" for nothing."""
        found = _LINE.match(line)
        if found is None:
            return ""
        done, all_ = int(found[1]), int(found[2] or 100)
        now = self._clock()
        if done < self._done:  # the next of several builds
            self._began = now
        self._done = done
        if not self.terminal and now - self._said < self._every:
            return ""
        self._said = now
        seconds = (now - self._began) * (all_ - done) / max(done, 1)
        left = f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"
        said = f"compiled {done * 100 // all_} %, {left} left"
        return f"\r\033[K{said}\r" if self.terminal else said
