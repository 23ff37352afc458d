"""The order of loads: those of the same models one after the other, others side by side, and not too many at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue
from typing import TypeVar

from opgate.service.core.errors import Kind, ServingError

logger = logging.getLogger("opgate.repository")

T = TypeVar("T")
# What a thread does, which returns how to tell that it is done, and the name of the thread meanwhile.
_Work = tuple[Callable[[], Callable[[], None]], str]

# Seconds after which a load no longer counts as one of those that may be under way. It may never end.
_PATIENCE = 60.0
# Seconds after which a thread ends that has nothing to load.
_IDLE = 10.0


class Turns:
    """Lets changes of the same models come one after the other, in the order in which they asked."""

    def __init__(self) -> None:
        self._taken: list[Turn] = []

    def take(self, names: Collection[str]) -> Turn:
        """Returns a turn for a change of these models. It begins when those have ended that were taken before, and ends
        with the block of an `async with`."""
        turn = Turn(self._taken, frozenset(names))
        self._taken.append(turn)
        return turn


class Turn:
    def __init__(self, taken: list[Turn], names: frozenset[str]) -> None:
        self._taken = taken
        self._names = names
        self._before = [turn for turn in taken if turn._names & names]
        self._ended = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether others come before."""
        return any(not turn._ended.is_set() for turn in self._before)

    async def __aenter__(self) -> None:
        try:
            while self._before:
                await self._before[-1]._ended.wait()
                self._before.pop()
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        self._taken.remove(self)
        self._ended.set()


class LoadThreads:
    """Loads models on threads, so many at once. A load that takes very long gives its place to another one, so that one
    that never ends holds up nobody."""

    def __init__(self, count: int, patience: float = _PATIENCE) -> None:
        self._free = asyncio.Semaphore(count)
        self._threads = _Threads()
        self._patience = patience
        self._loading: dict[str, int] = {}

    @property
    def loading(self) -> frozenset[str]:
        """The models that are loaded now."""
        return frozenset(self._loading)

    async def run(self, name: str, work: Callable[[], T]) -> T:
        """Does the work of loading a model. It goes on if nobody waits for it any more, because nothing can stop it.

        Raises ServingError (UNAVAILABLE) if the system has no thread for it.
        """
        await self._free.acquire()
        place = _Place(self._free)
        timer = asyncio.get_running_loop().call_later(self._patience, self._go_on, name, place)

        def ended() -> None:
            timer.cancel()
            place.leave()
            self._loading[name] -= 1
            if not self._loading[name]:
                del self._loading[name]

        self._loading[name] = self._loading.get(name, 0) + 1
        try:
            done = self._threads.run(work, f"load-{name}", ended)
        except BaseException:
            ended()
            raise
        return await done

    def _go_on(self, name: str, place: _Place) -> None:
        text = "loading takes longer than %g s: another model is loaded meanwhile"
        logger.warning(text, self._patience, extra={"model": name})
        place.leave()


class _Place:
    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def leave(self) -> None:
        """Gives the place back, once."""
        if self._free is not None:
            self._free.release()
            self._free = None


class _Threads:
    """Threads that do one work after the other, and don't keep the process alive. A new thread finds little memory in
    the arenas of the C library, which costs a load a quarter of its time."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work]] = []  # where those that are idle wait for work

    def run(self, work: Callable[[], T], name: str, ended: Callable[[], None]) -> asyncio.Future[T]:
        """Does work on a thread that is idle, or else on a new one. `ended` is called on the loop after it.

        Raises ServingError (UNAVAILABLE) if the system has no thread for it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(value: T | None, error: BaseException | None) -> None:
            ended()
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)  # type: ignore[arg-type]  # what the work returned
            else:
                future.set_exception(error)

        def do() -> Callable[[], None]:
            value, error = None, None
            try:
                value = work()
            except BaseException as raised:
                error = raised
            return lambda: hand_over(value, error)

        def hand_over(value: T | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(tell, value, error)
            except RuntimeError:
                logger.warning("the event loop closed before %s ended", name)

        given = self._idle.pop() if self._idle else self._new()
        given.put((do, name))
        return future

    def _new(self) -> SimpleQueue[_Work]:
        given: SimpleQueue[_Work] = SimpleQueue()
        try:
            threading.Thread(target=self._serve, args=(given,), name="load", daemon=True).start()
        except RuntimeError as error:
            raise ServingError(Kind.UNAVAILABLE, f"the system has no thread for it: {error}") from None
        return given

    def _serve(self, given: SimpleQueue[_Work]) -> None:
        while True:
            try:
                do, threading.current_thread().name = given.get(timeout=_IDLE)
            except Empty:
                try:
                    self._idle.remove(given)
                    return
                except ValueError:  # it was taken since, and work comes
                    continue
            hand_over = do()
            self._idle.append(given)  # before anybody learns that the work has ended, and gives the next
            hand_over()
            del do, hand_over  # they refer to a model
