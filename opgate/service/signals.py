"""Signals to stop, on a thread of their own, so that a process whose event loop hangs still ends.

The same thread looks once a second whether a run holds the event loop.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from opgate.service.execution.run_on_loop import OnLoop
from opgate.service.native import process

logger = logging.getLogger("opgate")


class SignalThread:
    """Waits for SIGTERM or SIGINT. It ends the process if nothing else does: after `seconds`, or at a second signal."""

    def __init__(self, seconds: float, on_loop: OnLoop, hold_limit: float, *, alone: bool = True) -> None:
        """A run that holds the event loop for more than `hold_limit` seconds is logged.

        Without `alone` another process ends this one if it must end at once, and a second signal means nothing: it may
        come from whatever sent the first one to both.
        """
        self._alone = alone
        self._seconds = seconds
        self._on_loop = on_loop
        self._hold_limit = hold_limit
        self._stop: Callable[[], object] | None = None
        self._signals, self._send = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        process.forward_signals(self._send)
        threading.Thread(target=self._wait, name="opgate-signals", daemon=True).start()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Sets what the first signal calls, on the thread. Until this is set, a signal ends the process at once."""
        self._stop = stop
        self.take_signals()

    def take_signals(self) -> None:
        """Lets the thread have the signals again, which asyncio may have taken."""
        process.forward_signals(self._send)

    def _came(self, seconds: float) -> bool:
        """Waits for a signal. Returns whether one came."""
        ready, _, _ = select.select([self._signals], [], [], seconds)
        return bool(ready) and bool(os.read(self._signals, 1))

    def _wait(self) -> None:
        told = 0
        while not self._came(1.0):
            since = self._on_loop.since_ns
            if since and since != told and time.perf_counter_ns() - since > self._hold_limit * 1e9:
                told = since
                text = "a run of model '%s' has held the event loop for %g s: the gateway serves nobody"
                logger.error(text, self._on_loop.model, self._hold_limit, extra={"model": self._on_loop.model})
        if self._stop is None:
            logger.info("stopped before it served")
            end_process(0)
            return
        self._stop()
        end = time.monotonic() + self._seconds
        while (again := self._came(max(0.0, end - time.monotonic()))) and not self._alone:
            pass
        if again:
            logger.warning("a second signal came: stopping at once")
        elif self._on_loop.since_ns:
            model = self._on_loop.model
            logger.error("model '%s' still holds the event loop: stopping without it", model, extra={"model": model})
        else:
            logger.error("the gateway did not stop in time")
        end_process(1)


def end_process(status: int) -> None:
    """Ends the process without waiting for threads that run models."""
    logging.shutdown()
    os._exit(status)
