"""Which models are in memory: those that are loaded on demand make room for each other under a budget."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.config import ConfigError, parameter, runs_on_triton
from opgate.service.repository.loader import LoadedModel
from opgate.service.settings import Settings

logger = logging.getLogger("opgate.repository")

# A model stays for at least so many times the seconds that its load took, and for no more seconds than the second
# number because of that. So a process spends no more than a part of its time on loads of models that it has let go.
_STAYS, _STAYS_AT_MOST, _STAYS_AT_LEAST = 10.0, 10.0, 0.2
# Seconds in which a model that leaves and comes back makes the models thrash, and how many of them are worth a warning.
_SOON, _MANY = 60.0, 10
# Opening a model file takes this many times its size for a while, because it is read, parsed and laid out.
_OPENING = 2.5
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Bytes that a model has of which nobody knows how many.
_LEAST = 1 << 20
# Seconds between two looks whether models in use have become idle, and between two at what all models take.
_LOOK, _WATCH = 0.05, 2.0
# Seconds for which others go past a load that waits for room. Then it goes before them for as long, and so on: a model
# in use may itself wait for one of the others.
_PASSED = 5.0
# Seconds for which a load of which nobody knows what it takes keeps others of that kind waiting.
_UNKNOWN = 10.0


def is_on_demand(config: ModelConfig, settings: Settings) -> bool:
    """Returns whether a model is loaded when somebody asks for it. Raises ConfigError."""
    asked = parameter(config, "residency")
    if asked not in ("", "always", "on_demand"):
        raise ConfigError(f"parameter 'residency': expected always or on_demand, got '{asked}'")
    if settings.backend == "triton" and runs_on_triton(config):
        return False
    return asked == "on_demand" or (not asked and bool(settings.model_memory))


def in_mib(size: int) -> str:
    """Returns a number of bytes as people read it."""
    return f"{size / (1 << 20):.1f} MiB"


def resident_set_size(pid: int | str = "self") -> int:
    """Returns the bytes of memory of a process, with all of the pages that it shares. 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def proportional_set_size(pid: int | str = "self") -> int:
    """Returns the bytes of memory of a process, of pages that several processes share its part. 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def size_of_file(path: Path) -> int:
    """Returns the bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def size_of_files(folder: Path) -> int:
    """Returns the bytes of the files in a folder of a version."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118
            except OSError:
                continue
    return total


class Models(Protocol):
    """The models of a gateway process."""

    def resident(self) -> Iterable[tuple[LoadedModel, bool]]:
        """Yields the models in memory, and whether they may leave it."""

    async def let_go(self, models: Sequence[LoadedModel]) -> None:
        """Takes models out of memory. They come back when somebody asks for them."""

    @property
    def is_closing(self) -> bool:
        """Whether models that serve no more have not ended yet."""


class Residency:
    """The memory of the models of a process. Only the event loop's thread uses it.

    It is long, because who makes room, who measures what a load took and who looks after the budget count with the same
    numbers.
    """

    def __init__(
        self,
        budget: int,
        models: Models,
        give_back: Callable[[], Awaitable[None]],
        patience: float,
        shares: bool = False,
    ) -> None:
        """`budget` are the bytes that models may take, 0 for any number. A load waits `patience` seconds for room.
        `shares` says that other processes have the same models."""
        self.budget = budget
        self.used = 0  # bytes, when it was last measured, of what others have too the part
        self.again = 0  # loads of models that left a short while before
        self._shares = shares
        self._measured = 0  # bytes, when it was last measured, exactly or not
        self._models = models
        self._give_back = give_back
        self._patience = patience
        self._empty = self._empty_alone = 0  # bytes without a model: of all pages, and of shared ones the part
        self._reserved = 0  # bytes that loads under way need
        self._loading = self._changes = 0  # loads under way, and what has begun or left since the start
        self._order = asyncio.Lock()
        self._waiting: dict[object, float] = {}  # when loads began that have found no room, the first of them first
        self._unknown_since = -_UNKNOWN  # when the last load began of which nobody knows what it takes
        self._left: dict[tuple[str, str], float] = {}  # when models left, by name and version
        self._returns: deque[float] = deque()
        self._warned = self._warned_beyond = -_SOON

    def begin(self) -> None:
        """Notes what the process takes without a model."""
        if self.budget:
            self._empty, self._empty_alone = resident_set_size(), proportional_set_size()

    async def measure(self, loaded: Iterable[LoadedModel] = (), *, exact: bool = False) -> int:
        """Returns the bytes that the models take: what this process has more than without a model, and what their
        worker processes have. `loaded` are models that don't serve yet.

        Pages that other processes have too are counted in full, unless it is `exact`: each process has its part of
        them then, which takes milliseconds to find out. The parts of workers are always known.
        """
        models = dict.fromkeys([*(model for model, _ in self._models.resident()), *loaded])
        workers = [worker.pid for model in models for worker in model.statistics.workers if worker.pid]

        def read() -> int:
            own = proportional_set_size() - self._empty_alone if exact else resident_set_size() - self._empty
            return max(0, own) + sum(map(proportional_set_size, workers))

        self._measured = await asyncio.to_thread(read) if exact or workers else read()
        if exact or not self._shares:
            self.used = self._measured
        return self._measured

    async def watch(self) -> None:
        """Measures what the models take, again and again. Lets idle ones go if it is more than the budget: a model in
        Python may take more than its load did, and nobody knows what its first load takes."""
        while True:
            await asyncio.sleep(_WATCH)
            try:
                async with self._order:
                    await self._look_after()
            except Exception:  # this task is the only one
                logger.exception("what models take can't be looked after")

    async def _look_after(self) -> None:
        if await self.measure(exact=self._shares) <= self.budget or self._reserved:
            return
        if (over := await self.measure(exact=True) - self.budget) <= 0:
            return
        if leaving := self._idle(over):
            await self._let_go(leaving, "the budget")
            await self._give_back()
        elif time.monotonic() - self._warned_beyond > _SOON:
            self._warned_beyond = time.monotonic()
            logger.warning(
                "models take %s, this process may have %s for them, and none can leave now: they are in use, came a "
                "moment ago or stay always",
                in_mib(self.used),
                in_mib(self.budget),
            )

    async def reserve(self, needs: Mapping[str, Need]) -> Room:
        """Keeps room for models that are loaded together, when there is room for all of them: who waited with some of
        them loaded would keep what others wait for. Models that were idle for longest make the room. Others look for
        theirs while this waits.

        Raises ServingError (OVERLOADED) if models in use take the room, and UNAVAILABLE if those do that never leave.
        """
        began = time.monotonic()
        bytes_of = {name: need.stays for name, need in needs.items()}
        opening = max((need.opening for need in needs.values()), default=0)  # they are opened one by one
        stays, least = sum(bytes_of.values()), sum(need.least for need in needs.values())
        need = stays + opening
        unknown = any(need.unknown for need in needs.values())
        tight = False
        me = object()
        try:
            while need:
                async with self._order:
                    now = time.monotonic()
                    if unknown and now - self._unknown_since < _UNKNOWN:
                        began = now  # its time begins with its turn
                    elif self._may_begin(me):
                        if await self._make_room(needs, need, least):
                            beyond = self._measured + self._reserved + need > self.budget
                            tight = beyond and any(True for _ in self._models.resident())
                            self._reserved += need
                            if unknown:
                                self._unknown_since = time.monotonic()
                            break
                        self._waiting.setdefault(me, began)
                if time.monotonic() - began > self._patience:
                    raise ServingError(Kind.OVERLOADED, self._no_room(needs, need))
                await asyncio.sleep(_LOOK)
        finally:
            self._waiting.pop(me, None)
        return Room(self, bytes_of, opening, tight, self._unknown_since if unknown and need else None)

    def _may_begin(self, me: object) -> bool:
        """Returns whether the load that waits for room for longest doesn't go before this one now."""
        first, began = next(iter(self._waiting.items()), (me, 0.0))
        return first is me or not int((time.monotonic() - began) / _PASSED) % 2

    async def load(
        self, need: int, work: Callable[[], Awaitable[None]], loaded: Callable[[], Iterable[LoadedModel]]
    ) -> tuple[int, bool]:
        """Loads a model for which a room has so many bytes. `loaded` returns what came of it.

        Returns the bytes that the load added, and whether they were measured. Beside other loads, or models that leave,
        that can't be: then they are those that it was expected to add, or what its worker processes have.
        """
        before = await self.measure()
        self._changes += 1
        changes, alone = self._changes, not self._loading
        self._loading += 1
        try:
            await work()
        finally:
            self._loading -= 1
        added = await self.measure(loaded()) - before
        if alone and changes == self._changes:
            return max(0, added), True
        workers = [worker.pid for model in loaded() for worker in model.statistics.workers if worker.pid]
        return max(need, sum(map(proportional_set_size, workers))), False

    async def is_beyond(self, loaded: Iterable[LoadedModel]) -> bool:
        """Returns whether models take more than the budget once allocators have given back what they keep. `loaded` are
        those that don't serve yet."""
        await self._give_back()
        return await self.measure(loaded, exact=True) > self.budget

    async def is_stuck(self, loaded: Iterable[LoadedModel]) -> bool:
        """Returns whether models take more than the budget and none can leave. `loaded` are those that don't serve
        yet."""
        if self._reserved or any(may_leave for _, may_leave in self._models.resident()):
            return False
        return self._measured > self.budget and await self.is_beyond(loaded)

    def give_up(self, need: int, unknown_since: float | None = None) -> None:
        """Keeps so many bytes no longer. `unknown_since` says when a load began that has ended, if nobody knew what it
        takes."""
        self._reserved -= need
        if unknown_since == self._unknown_since:
            self._unknown_since = -_UNKNOWN

    async def _make_room(self, names: Iterable[str], need: int, least: int) -> bool:
        """Lets models go until there is room, or no other can go. Returns whether there is.

        Raises ServingError (UNAVAILABLE) if there will be none.
        """
        trimmed, given = True, False
        while await self.measure() + self._reserved + need > self.budget:
            over = await self.measure(exact=True) + self._reserved + need - self.budget
            if over <= 0:
                break
            if not trimmed:  # what the models had may lie in the memory of allocators
                await self._give_back()
                trimmed = given = True
            elif (stays := self._stays()) and stays + least > self.budget:  # then nobody needs to leave for it
                raise ServingError(Kind.UNAVAILABLE, self._no_room(names, least, "at least", stays))
            elif leaving := self._idle(over):
                await self._let_go(leaving, ", ".join(names))
                trimmed = False
            elif not (
                self._reserved or self._models.is_closing or any(may_leave for _, may_leave in self._models.resident())
            ):
                if not given:
                    trimmed = False
                elif self._measured + least > self.budget:
                    raise ServingError(Kind.UNAVAILABLE, self._no_room(names, least, "at least", self._measured))
                else:
                    break  # no room will come, and only the load can tell what it takes
            else:
                return False
        return True

    def _stays(self) -> int:
        """Returns the bytes that never leave: what the models that stay took, but no more than what was measured less
        what the others took. What a load took may be an estimate."""
        sizes = {True: 0, False: 0}
        for model, may_leave in self._models.resident():
            sizes[may_leave] += model.statistics.memory_bytes
        return max(0, min(sizes[False], self._measured - sizes[True]))

    def _no_room(self, names: Iterable[str], need: int, about: str = "about", stays: int = 0) -> str:
        """Returns an error. `stays` are the bytes that never leave, if they are why."""
        of = " and ".join(f"'{name}'" for name in names)
        if stays:
            used = f"what never leaves takes {in_mib(stays)}"
        else:
            used = f"what is in memory takes {in_mib(self._measured)}, loads under way {in_mib(self._reserved)}"
        return f"no room for {of}: {about} {in_mib(need)} are needed, {used}, --model-memory is {in_mib(self.budget)}"

    def _idle(self, over: int) -> list[LoadedModel]:
        """Returns idle models that take at least so many bytes together, those that were used last as the last."""
        now = time.time()
        able = [model for model, may_leave in self._models.resident() if may_leave and _may_leave(model, now)]
        users: dict[LoadedModel, list[LoadedModel]] = {}
        for model in able:
            for step in model.steps:
                users.setdefault(step, []).append(model)
        leaving: dict[LoadedModel, None] = {}
        for model in sorted(able, key=lambda model: _last_use(model, users)):
            if over <= 0:
                break
            group = _with_users(model, users, set(able))
            for one in group:
                if one not in leaving:
                    leaving[one] = None
                    over -= max(_LEAST, one.statistics.memory_bytes)
        return list(leaving)

    async def _let_go(self, models: Sequence[LoadedModel], whom: str) -> None:
        now = time.monotonic()
        self._changes += 1
        for model in models:
            self._left[model.spec.name, model.spec.version] = now
            model.statistics.evictions += 1
        sizes = [f"{model.spec.name} ({in_mib(model.statistics.memory_bytes)})" for model in models]
        logger.info("models leave memory for %s: %s", whom, ", ".join(sizes))
        await self._models.let_go(models)
        self._changes += 1

    def came(self, model: LoadedModel) -> None:
        """Notes that a model was loaded on demand. Warns if models come and go too quickly."""
        now = time.monotonic()
        left = self._left.pop((model.spec.name, model.spec.version), None)
        if left is None or now - left > _SOON:
            return
        self.again += 1
        self._returns.append(now)
        while self._returns[0] < now - _SOON:
            self._returns.popleft()
        if len(self._returns) >= _MANY and now - self._warned > _SOON:
            self._warned = now
            logger.warning(
                "models leave memory and come back within a minute (%d times in the last one): --model-memory is too "
                "small for the models in use, of which this process may have %s",
                len(self._returns),
                in_mib(self.budget),
            )


class Room:
    """The bytes that are kept for models, until each of them has been loaded or nobody loads it any more."""

    def __init__(
        self,
        residency: Residency,
        needs: Mapping[str, int],
        opening: int,
        tight: bool,
        unknown_since: float | None = None,
    ) -> None:
        """`opening` are the bytes that one of them takes while it is opened. `tight` says that the models go beside
        others that never leave, and may take more than is left. `unknown_since` says when they began, if nobody
        knows what one of them takes."""
        self.tight = tight
        self.measured = True  # whether that is so of what they took
        self._unknown_since = unknown_since
        self._residency = residency
        self._needs = dict(needs)
        self._opening = opening
        self._one_by_one = asyncio.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._needs

    async def load(
        self, name: str, work: Callable[[], Awaitable[None]], loaded: Callable[[], Iterable[LoadedModel]]
    ) -> int:
        """Loads a model. `loaded` returns what came of it. Returns the bytes that it added."""
        async with self._one_by_one:
            need = self._needs.pop(name)
            try:
                added, measured = await self._residency.load(need, work, loaded)
                self.measured &= measured
                return added
            finally:
                self._residency.give_up(need)

    def close(self) -> None:
        """Gives up what is left."""
        self._residency.give_up(sum(self._needs.values()) + self._opening, self._unknown_since)
        self._needs.clear()
        self._opening, self._unknown_since = 0, None


class Need(NamedTuple):
    """The bytes that a load is expected to take: what stays, what opening takes beside that for a while, and what it
    takes at least. `unknown` says that nothing tells what stays."""

    stays: int
    opening: int
    least: int
    unknown: bool = False


def needed(known: int, prepared: int, files: int) -> Need:
    """Returns what a load takes: what the model took the last time, if that is known, and what its files may take. A
    prepared form is only mapped."""
    if prepared:
        return Need(max(known, prepared), 0, 0)
    stays = max(known, files, 1)
    return Need(stays, max(0, int(files * _OPENING) - stays), 0)


def _may_leave(model: LoadedModel, now: float) -> bool:
    stays = min(_STAYS_AT_MOST, max(_STAYS_AT_LEAST, _STAYS * model.statistics.load_seconds))
    return model.executor.at_rest and now - model.loaded_at >= stays


def _last_use(model: LoadedModel, users: dict[LoadedModel, list[LoadedModel]]) -> float:
    own = max(model.statistics.last_ms / 1000, model.loaded_at)
    return max([own, *(_last_use(user, users) for user in users.get(model, ()))])


def _with_users(
    model: LoadedModel, users: dict[LoadedModel, list[LoadedModel]], able: set[LoadedModel]
) -> list[LoadedModel]:
    """Returns a model behind the ensembles that hold it, none if something else holds one of them."""
    group: list[LoadedModel] = []
    todo = [model]
    for one in todo:  # it grows
        holding = users.get(one, [])
        if one.holders != len(holding) or one not in able:
            return []
        group.append(one)
        todo += [user for user in dict.fromkeys(holding) if user not in todo]
    return group[::-1]
