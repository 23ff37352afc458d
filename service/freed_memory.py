"""Gives memory that was freed back to the system.

The C library keeps freed memory for later. A gateway that has nothing to do needs none of it.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
#: Seconds between two looks.
_INTERVAL = 1.0


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
