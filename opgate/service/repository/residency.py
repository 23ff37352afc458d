"""Which models are in memory: those that are loaded on demand make room for each other under a budget."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

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
# Seconds between two looks whether models in use have become idle.
_LOOK = 0.05


def is_on_demand(config: ModelConfig, settings: Settings) -> bool:
    """Returns whether a model is loaded when somebody asks for it. Raises ConfigError."""
    asked = parameter(config, "residency")
    if asked not in ("", "always", "on_demand"):
        raise ConfigError(f"parameter 'residency': expected always or on_demand, got '{asked}'")
    if settings.backend == "triton" and runs_on_triton(config):
        return False
    return asked == "on_demand" or (not asked and bool(settings.model_memory))


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


class Residency:
    """The memory of the models of a process. Only the event loop's thread uses it."""

    def __init__(
        self,
        budget: int,
        models: Models,
        give_back: Callable[[], Awaitable[None]],
        patience: float,
    ) -> None:
        """`budget` are the bytes that models may take, 0 for any number. A load waits `patience` seconds for room."""
        self.budget = budget
        self.used = 0  # bytes, when it was last measured
        self.again = 0  # loads of models that left a short while before
        self._models = models
        self._give_back = give_back
        self._patience = patience
        self._empty = self._empty_alone = 0  # bytes without a model: of all pages, and of shared ones the part
        self._reserved = 0  # bytes that loads under way need
        self._before = self._together = 0  # bytes before these loads began, and that they need together
        self._order = asyncio.Lock()
        self._left: dict[tuple[str, str], float] = {}  # when models left, by name and version
        self._returns: deque[float] = deque()
        self._warned = -_SOON

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
        models = [*(model for model, _ in self._models.resident()), *loaded]
        workers = [worker.pid for model in models for worker in model.statistics.workers if worker.pid]

        def read() -> int:
            own = proportional_set_size() - self._empty_alone if exact else resident_set_size() - self._empty
            return max(0, own) + sum(map(proportional_set_size, workers))

        self.used = await asyncio.to_thread(read) if exact or workers else read()
        return self.used

    async def load(
        self,
        name: str,
        need: int,
        work: Callable[[], Awaitable[None]],
        loaded: Callable[[], Iterable[LoadedModel]],
        *,
        first: bool = True,
    ) -> int:
        """Loads a model that needs so many bytes, when there is room. Models that were idle for longest make it.
        `loaded` returns what came of it. Unless it is the `first`, others have been loaded that belong to it.

        Returns the bytes that the load added. Raises ServingError (OVERLOADED) if models in use take the room.
        """
        await self._reserve(name, need, first)
        try:
            await work()
            added = await self.measure(loaded()) - self._before
            # Loads side by side are measured together.
            return max(0, added) * need // self._together
        finally:
            self._reserved -= need

    async def _reserve(self, name: str, need: int, first: bool) -> None:
        """Keeps room for a load. Others look for theirs while it waits."""
        end = time.monotonic() + self._patience
        while True:
            async with self._order:
                if await self._make_room(name, need, first):
                    if not self._reserved:
                        self._before, self._together = await self.measure(), 0
                    self._reserved += need
                    self._together += need
                    return
            if time.monotonic() > end:
                raise ServingError(Kind.OVERLOADED, self._no_room(name, need))
            await asyncio.sleep(_LOOK)

    async def _make_room(self, name: str, need: int, first: bool) -> bool:
        """Lets models go until there is room, or no other can go. Returns whether there is.

        Raises ServingError (OVERLOADED) if there will be none.
        """
        trimmed = True
        while await self.measure() + self._reserved + need > self.budget:
            over = await self.measure(exact=True) + self._reserved + need - self.budget
            if over <= 0:
                break
            if not trimmed:  # what the models had may lie in the memory of allocators
                await self._give_back()
                trimmed = True
            elif leaving := self._idle(over):
                used = await self.measure()
                await self._let_go(leaving)
                self._before -= used - await self.measure()
                trimmed = False
            elif not self._reserved and not any(True for _ in self._models.resident()):
                if not first:  # those others have the memory
                    raise ServingError(Kind.OVERLOADED, self._no_room(name, need))
                break  # only the load can tell what it takes
            else:
                return False
        return True

    def _no_room(self, name: str, need: int) -> str:
        used = f"models that can't leave take {self.used} bytes, loads under way {self._reserved}"
        return f"no room for model '{name}': it needs about {need} bytes, {used}, --model-memory is {self.budget}"

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

    async def _let_go(self, models: Sequence[LoadedModel]) -> None:
        now = time.monotonic()
        for model in models:
            self._left[model.spec.name, model.spec.version] = now
            model.statistics.evictions += 1
        logger.info("models leave memory: %s", ", ".join(model.spec.name for model in models))
        await self._models.let_go(models)

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
                "models leave memory and come back within a minute (%d times in the last one): --model-memory %d is "
                "too small for the models in use",
                len(self._returns),
                self.budget,
            )


def needed(known: int, prepared: int, files: int) -> int:
    """Returns the bytes to keep for a load: what the model took the last time, if that is known, and what its files may
    take. A prepared form is only mapped."""
    return max(known, prepared or int(files * _OPENING), 1)


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
