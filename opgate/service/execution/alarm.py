"""A timer of the event loop that counts microseconds. uvloop's own timers count milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls a function once, some time after `set`. It belongs to the event loop that runs when it is made.

    It is a timerfd of Linux, which wakes the loop as a socket does.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._file = _libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        asyncio.get_running_loop().add_reader(self._file, self._on_ready)

    def set(self, ns: int) -> None:
        """Rings in `ns` nanoseconds, at once if that is not positive. Forgets an earlier time."""
        seconds, rest = divmod(max(ns, 1), 10**9)
        self._set(_Setting(_Time(0, 0), _Time(seconds, rest)))

    def cancel(self) -> None:
        """Doesn't ring."""
        self._set(_Setting(_Time(0, 0), _Time(0, 0)))

    def close(self) -> None:
        """Gives the timer back."""
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)

    def _set(self, setting: _Setting) -> None:
        if _libc.timerfd_settime(self._file, 0, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _on_ready(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was set anew in this turn of the loop
        self._ring()
