"""Returns freed memory to the system when the gateway is idle.

The C library and ONNX Runtime keep freed memory in arenas. Python keeps objects that refer to each other until its
collector runs. This module limits the arenas, trims them, and runs the collector after models were closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
from collections.abc import Callable

from opgate.service.execution import arena

_libc = ctypes.CDLL(None)
_malloc_trim = getattr(_libc, "malloc_trim", None)
_mallopt = getattr(_libc, "mallopt", None)
_M_ARENA_MAX = -8
#: Each thread gets an arena, and what is left over in one is of no use to another. Threads come and go with models.
_ARENAS = 2
#: Seconds between two looks.
_INTERVAL = 1.0


def use_few_arenas() -> None:
    """Limits the arenas of later threads, unless the variable MALLOC_ARENA_MAX does."""
    if _mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        _mallopt(_M_ARENA_MAX, _ARENAS)


def keep_all() -> None:
    """Tells Python's collector of cycles that all objects that there are now live as long as the process."""
    gc.collect()
    gc.freeze()
    # The collector visits old objects when as many have grown old since its last visit as a quarter of those that it
    # left then. This visit leaves none. Without it the frozen objects would count, and the next visit would be far off.
    gc.collect()


async def give_back() -> None:
    """Gives freed memory back, on a thread. Takes milliseconds, or a tenth of a second for each gigabyte. Other threads
    may wait for memory meanwhile."""
    with contextlib.suppress(RuntimeError):  # the system has no more threads
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    arena.shrink()
    if _malloc_trim is not None:
        _malloc_trim(0)


async def give_back_when_idle(
    accepted: Callable[[], int], closed: Callable[[], int], running: Callable[[], int]
) -> None:
    """Gives freed memory back whenever requests were answered or models were closed, and then nothing happened from one
    look to the next.

    After models were closed it calls the collector before, because the parts of a model refer to each other. That takes
    the event loop milliseconds, or a tenth of a second if ten thousand connections are open.

    `accepted` returns how many requests there were, `closed` how many models were closed, and `running` how many
    requests are under way.
    """
    seen = given_back = accepted(), closed()
    while True:
        await asyncio.sleep(_INTERVAL)
        before, seen = seen, (accepted(), closed())
        if seen == before and seen != given_back and not running():
            if seen[1] != given_back[1]:
                gc.collect()
            given_back = seen
            await give_back()
