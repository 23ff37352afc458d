"""Lets the start of a thread fail where Python would wait for ever.

`threading.Thread.start` waits until the new thread says that it runs. One that has no memory for that ends before, and
the start learns nothing of it (python/cpython issue 140746, mended in later versions). The gateway's event loop starts
threads too, through pools, and would hang with all clients.
"""

from __future__ import annotations

import threading

# Seconds in which a thread must run. It takes less than a millisecond on a machine that isn't busy. Nothing tells of
# one that has ended, because a thread without memory can't even call what would tell.
_SECONDS = 2.0


class _Started(threading.Event):
    """The event for which `Thread.start` waits."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        """Waits. Raises RuntimeError, as `Thread.start` does if the system has no thread."""
        if timeout is not None:
            return super().wait(timeout)
        if super().wait(_SECONDS):
            return True
        self._thread.run = _nothing  # type: ignore[method-assign]  # it may still begin
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            threading._limbo.pop(self._thread, None)  # type: ignore[attr-defined]
        raise RuntimeError("can't start new thread: there is no memory for it")


def _nothing() -> None:
    """What a thread does that was given up."""


def bound() -> None:
    """Bounds the starts of all threads of this process from now on."""
    if getattr(threading.Thread.start, "bounded", False):
        return
    start = threading.Thread.start

    def bounded(self: threading.Thread) -> None:
        if not self._started.is_set():  # type: ignore[attr-defined]  # else it was started before, and that is refused
            self._started = _Started(self)  # type: ignore[attr-defined]
        start(self)

    bounded.bounded = True  # type: ignore[attr-defined]
    threading.Thread.start = bounded  # type: ignore[method-assign]
