"""Memory that was freed: the C library keeps it for later, in several arenas. It shall be little, and go back to the
system when the gateway has nothing to do.
"""

from __future__ import annotations

import asyncio
import ctypes
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


async def give_back() -> None:
    """Gives it back, on a thread. Takes milliseconds, in which other threads may wait for memory."""
    if _malloc_trim is not None:
        await asyncio.to_thread(_malloc_trim, 0)


async def give_back_when_idle(accepted: Callable[[], int], running: Callable[[], int]) -> None:
    """Gives it back whenever requests were answered and then none came from one look to the next.

    `accepted` returns how many requests there were, and `running` how many are under way.
    """
    seen = given_back = accepted()
    while True:
        await asyncio.sleep(_INTERVAL)
        before, seen = seen, accepted()
        if seen == before and seen != given_back and not running():
            given_back = seen
            await give_back()
