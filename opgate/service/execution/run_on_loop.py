"""The model run that holds the event loop, for the watchdog thread and the crash handler."""

from __future__ import annotations


class OnLoop:
    """The run on the event loop: the model, and since when by perf_counter, 0 if there is none."""

    __slots__ = ("model", "since_ns")

    def __init__(self) -> None:
        self.model = ""
        self.since_ns = 0


#: The event loop of this process. Other threads only read it.
ON_LOOP = OnLoop()
