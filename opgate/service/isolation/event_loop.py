"""The event loop of a model in Python. It runs on a thread of its own from its first use to the end of the model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any


class EventLoop:
    """Runs coroutines, and whatever tasks they leave behind."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, awaitable: Awaitable[Any]) -> Future[Any]:
        """Begins to run something, and returns its future."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self._loop)
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="event loop", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(_waited(awaitable), self._loop)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        """Runs the loop until `stop`. What `sys.exit` raises ends a loop: it goes on, the task has the exception."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
                return

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Runs something and returns its result. Raises what it raises."""
        return self.start(awaitable).result()

    def stop(self, seconds: float = 1.0) -> None:
        """Ends the loop and its thread."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)


async def _waited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
