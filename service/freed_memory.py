"""Memory that nobody needs: the C library keeps what was freed for later, in several arenas, and Python keeps objects
that refer to each other until its collector comes. Both shall be little, and go back to the system when the gateway has
nothing to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable

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
    # It visits old objects again when those that grew old meanwhile are a quarter of what the last visit left. Nothing
    # is left now. Otherwise it would wait for a quarter of the frozen ones.
    gc.collect()


async def give_back() -> None:
    """Gives it back, after what is only in cycles was freed. The first takes milliseconds of the event loop. The other
    is done on a thread, and takes milliseconds in which other threads may wait for memory.
    """
    gc.collect()
    if _malloc_trim is not None:
        await asyncio.to_thread(_malloc_trim, 0)


async def give_back_when_idle(activity: Callable[[], int], running: Callable[[], int]) -> None:
    """Gives it back whenever something was done and then nothing from one look to the next.

    `activity` returns how much was done: requests that began and models that changed. `running` returns how many
    requests are under way.
    """
    seen = given_back = activity()
    while True:
        await asyncio.sleep(_INTERVAL)
        before, seen = seen, activity()
        if seen == before and seen != given_back and not running():
            given_back = seen
            await give_back()
