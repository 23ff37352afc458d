"""The models that serve: knows their versions, and why others don't serve."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opgate.service.core.errors import Kind, NotLoadedError, ServingError
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.prepared import PreparedModels
from opgate.service.execution.rate_limiter import CORE, RateLimiter, Supply, read_supplies
from opgate.service.execution.response_cache import ResponseCache
from opgate.service.freed_memory import give_back
from opgate.service.isolation.calls import Calls
from opgate.service.repository.background_loads import (
    Loading,
    Outcome,
    chosen_versions,
    needed_by,
    present_versions,
    read_configs,
    unavailable,
    versions_after,
)
from opgate.service.repository.config import ConfigError
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.loader import LoadedModel, Shared, cores_of, limits_of
from opgate.service.repository.repositories import Repositories, Source, only_source
from opgate.service.repository.residency import is_on_demand
from opgate.service.settings import Settings
from opgate.service.similar_names import Names

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool

logger = logging.getLogger("opgate.repository")

_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_LONG_NAME = 256
_LOADING = "it is still being loaded"
# Seconds after which a load on demand that failed is tried again: the first time, and at most.
_TRY_AGAIN, _TRY_AGAIN_AT_MOST = 1.0, 60.0


@dataclass(slots=True)
class Absent:
    """A version that is loaded when somebody asks for it. `model` is what it was when it left memory."""

    model: LoadedModel | None = None
    reason: str = ""  # why its last load failed
    failures: int = 0  # in a row
    failed_at: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether its last load failed so short a while ago that it isn't tried again yet."""
        wait = min(_TRY_AGAIN_AT_MOST, _TRY_AGAIN * 2 ** min(self.failures - 1, 10))
        return bool(self.failures) and time.monotonic() - self.failed_at < wait

    def failed(self, reason: str) -> None:
        """Notes that a load failed."""
        self.reason, self.failed_at = reason, time.monotonic()
        self.failures += 1


@dataclass(slots=True)
class Entry:
    """One model, and what came of the last attempt to load it.

    `reasons` says by version why it doesn't serve, or why its last reload failed if it still serves as it was. Version
    0 stands for the whole model. `unloaded` says of versions that served before why they were taken away. `versions`
    are in memory, those that are `absent` are loaded when somebody asks for them.
    """

    name: str
    source: Source | None = None
    config: ModelConfig | None = None  # as it is written
    versions: dict[int, LoadedModel] = field(default_factory=dict)
    absent: dict[int, Absent] = field(default_factory=dict)
    on_demand: bool = False  # whether its versions may leave memory, and come back
    reasons: dict[int, str] = field(default_factory=dict)
    unloaded: dict[int, str] = field(default_factory=dict)
    wanted: bool = True  # whether it comes back when a model that it uses is loaded again
    kept: bool = False  # whether what serves is from before the last attempt, which failed

    def faults(self) -> dict[int, str]:
        """Returns the reasons of what doesn't serve. If an older version still serves, that is nothing."""
        return {} if self.versions and self.kept else self.reasons


def _by_name(entry: Entry) -> str:
    return entry.name


class Catalog:
    """The models of the repositories.

    After `load_all`, only the event loop's thread uses it, except `find`, which loading calls on its thread.

    It is long, because whoever asks for a model and whatever loads one or lets it go work on the same entries.
    """

    def __init__(self, settings: Settings, triton: TritonPool | None = None) -> None:
        """`triton` are the servers that run the models, if this process doesn't."""
        self._settings = settings
        self.triton = triton
        self.closed = 0  # models that were replaced or unloaded and have ended
        limiter = None
        if settings.rate_limit != "off":
            supplies = read_supplies(settings.rate_limit_resource)
            if settings.rate_limit == "fair":
                supplies.append(Supply(CORE.name, cores_of(settings), None))
            limiter = RateLimiter(supplies)
        self.cache = ResponseCache(settings.response_cache_byte_size)
        self.repositories = Repositories(settings.repositories())
        self.calls = Calls(self.find, limits_of(settings), settings.write_timeout)
        self.prepared = PreparedModels(settings.model_cache, settings.model_cache_byte_size)
        self.shared = Shared(limiter, self.calls, self.prepared)
        self._entries: dict[str, Entry] = {}
        self._names: Names | None = None  # those of the entries, once somebody has misspelt one
        self._closing: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self.complete = False  # whether the catalog has tried to load every model that it shall

    def load_all(self, only: str = "") -> None:
        """Loads every model, or in the mode "explicit" those of the setting `load_model`. Keeps the reason of each
        failure.

        `only` is the name of a model: then that model and the models that it needs are loaded, and no others. Raises
        what `find_all` raises. Any other failure only makes its model unavailable.
        """
        sources, configs = self.find_all(only)
        self.take(self.loading().load_all(sources, configs))
        self.complete = True

    def find_all(self, only: str = "") -> tuple[list[Source], dict[str, ModelConfig | ServingError]]:
        """Returns the models that `load_all` loads, and their configs or why they can't be read.

        Raises ConfigError if there is no repository, or if it is the folder of a model, and ServingError (UNAVAILABLE)
        if no Triton server answers.
        """
        if self.triton is not None and self._settings.model_control_mode != "none":
            raise ConfigError(
                "--model-control-mode: expected none with --backend triton, which loads the models itself"
            )
        self.repositories.check()
        if self.triton is not None:
            self.triton.wait(self._settings.triton_start_timeout)
        found = self.repositories.find()
        configs: dict[str, ModelConfig | ServingError] = {}
        sources: list[Source] = []
        for name, several in found.items():
            try:
                sources.append(only_source(name, several))
            except ConfigError as error:
                configs[name] = error
                sources.append(several[0])
        configs = {**read_configs(sources, self.triton is not None), **configs}
        wanted = self._wanted(only, configs)
        sources = [source for source in sources if source.name in wanted]
        for name in sorted(wanted - set(found)):
            self._entries[name] = Entry(name, reasons={0: "no repository has a folder of that name"})
            logger.error("no repository has a folder of that name", extra={"model": name})
        return sources, configs

    def expect(
        self, sources: Iterable[Source], configs: Mapping[str, ModelConfig | ServingError]
    ) -> dict[str, ModelConfig | ServingError]:
        """Takes in which of these models are loaded on demand. Returns the configs of all, with why one of them doesn't
        fit. Those that are loaded now can't serve until then."""
        configs = dict(configs)
        for source in sources:
            config = configs[source.name]
            try:
                if isinstance(config, ServingError) or not is_on_demand(config, self._settings):
                    if source.name not in self._entries:
                        self._entries[source.name] = Entry(source.name, source, reasons={0: _LOADING})
                    continue
                versions = chosen_versions(config, present_versions(source, config))
            except (ServingError, OSError) as error:
                configs[source.name] = error if isinstance(error, ServingError) else ConfigError(str(error))
                continue
            entry = self._entries.setdefault(source.name, Entry(source.name))
            entry.source, entry.config, entry.on_demand = source, config, True
            entry.absent = {version: entry.absent.get(version) or Absent() for version in versions}
            entry.reasons, entry.unloaded, entry.wanted = {}, {}, True
        self._changed(())
        return configs

    def _wanted(self, only: str, configs: Mapping[str, ModelConfig | ServingError]) -> set[str]:
        if only:
            return needed_by([only], configs) | ({only} & configs.keys())
        if self._settings.model_control_mode != "explicit":
            return set(configs)
        named = set(self._settings.models_to_load())
        if "*" in named:
            named = named - {"*"} | set(configs)
        return needed_by(sorted(named), configs) | named

    def loading(self, only: Mapping[str, Collection[int]] | None = None) -> Loading:
        """Returns what loads models beside those that serve. With `only` it loads no other versions."""
        serving = {name: dict(entry.versions) for name, entry in self._entries.items()}
        counted = self._counted(self._entries if only is None else only)
        return Loading(self._settings, self.triton, serving, self._step, self.cache, self.shared, counted, only)

    def _counted(self, names: Iterable[str]) -> dict[tuple[str, int], ModelStatistics]:
        """Returns the statistics of versions that have left memory."""
        return {
            (name, version): absent.model.statistics
            for name in names
            for version, absent in self._entries[name].absent.items()
            if absent.model is not None
        }

    def _step(self, name: str, version: int) -> LoadedModel:
        return self.find(name, "" if version <= 0 else str(version))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls a function after each change of the models that serve."""
        self._listeners.append(listener)

    def take(self, outcomes: Mapping[str, Outcome]) -> None:
        """Lets what was loaded take the traffic. What it replaces answers its requests and is closed."""
        replaced: list[LoadedModel] = []
        for name, outcome in outcomes.items():
            entry = self._entries.setdefault(name, Entry(name))
            after = versions_after(outcome, entry.versions)
            for model in set(after.values()) - set(entry.versions.values()):
                for step in model.steps:
                    step.hold()
            for version, model in after.items():
                before = entry.versions.get(version, model)
                if before is not model:
                    model.statistics.op_times.follow(before.statistics.op_times)
            replaced += [model for model in entry.versions.values() if model not in after.values()]
            entry.kept = bool(outcome.reasons and entry.versions and not entry.faults())
            entry.wanted = True
            if outcome.versions or not entry.versions:  # else what serves is not of this attempt
                entry.source, entry.config = outcome.source, outcome.config or entry.config
            if outcome.versions and outcome.config is not None:
                entry.on_demand = is_on_demand(outcome.config, self._settings)
            entry.versions, entry.reasons, entry.unloaded = after, outcome.reasons, {}
            entry.absent = {version: absent for version, absent in entry.absent.items() if outcome.reasons}
            for version in after:
                entry.absent.pop(version, None)
        self._changed(replaced)

    def take_back(self, outcomes: Mapping[str, Outcome], asked: Mapping[str, Collection[int]]) -> None:
        """Lets versions serve that were loaded on demand. Keeps why others weren't."""
        for name, outcome in outcomes.items():
            entry = self._entries[name]
            for model in outcome.versions.values():
                for step in model.steps:
                    step.hold()
            for version in outcome.versions:
                entry.absent.pop(version, None)
            entry.versions = {**entry.versions, **outcome.versions}
            for version, reason in outcome.reasons.items():
                for other, absent in entry.absent.items():
                    if version == other or (not version and other in asked.get(name, ())):
                        absent.failed(reason)
        self._changed(())

    def resident(self) -> Iterator[tuple[LoadedModel, bool]]:
        """Yields the models in memory, and whether they may leave it."""
        for entry in self._entries.values():
            for model in entry.versions.values():
                yield model, entry.on_demand

    async def let_go(self, models: Sequence[LoadedModel]) -> None:
        """Takes models out of memory, which are loaded on demand. They come back when somebody asks for them.

        An ensemble comes before the models of its steps.
        """
        for model in models:
            entry, version = self._entries[model.spec.name], int(model.spec.version)
            del entry.versions[version]
            entry.absent[version] = Absent(model)
        if closing := self._changed(models, gives_back=False):
            await asyncio.wait(closing)  # they end also if nobody waits any more

    @property
    def is_closing(self) -> bool:
        """Whether models that serve no more have not ended yet."""
        return bool(self._closing)

    def take_away(self, entry: Entry, reason: str, *, wanted: bool) -> None:
        """Lets a model serve no more. `wanted` says whether it comes back with the models that it uses."""
        replaced = list(entry.versions.values())
        entry.unloaded = dict.fromkeys([*entry.versions, *entry.absent], reason) or entry.unloaded or {0: reason}
        entry.versions, entry.absent, entry.reasons, entry.kept, entry.wanted = {}, {}, {}, False, wanted
        self._changed(replaced)

    def forget(self, entry: Entry) -> None:
        """Lets a model serve no more that no repository has."""
        del self._entries[entry.name]
        self._changed(entry.versions.values())

    def _changed(self, replaced: Iterable[LoadedModel], *, gives_back: bool = True) -> list[asyncio.Task[None]]:
        """Closes models, and tells the listeners. Returns what closes them."""
        self._names = None
        tasks = []
        for model in replaced:
            task = asyncio.get_running_loop().create_task(self._close(model, gives_back))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            tasks.append(task)
        for listener in self._listeners:
            listener()
        return tasks

    async def _close(self, model: LoadedModel, gives_back: bool) -> None:
        """Closes a model, and gives its memory back to the system."""
        await model.close()
        self.closed += 1
        if gives_back:
            await give_back()
        logger.info("model closed", extra={"model": model.spec.name, "version": int(model.spec.version)})

    def entries(self) -> Iterator[Entry]:
        """Yields what is known of every model that was loaded or tried."""
        yield from list(self._entries.values())

    def entry(self, name: str) -> Entry | None:
        """Returns what is known of a model that was loaded or tried."""
        return self._entries.get(name)

    def users_of(self, names: Iterable[str]) -> list[Entry]:
        """Returns the ensembles that use one of these models, directly or through others, without the models
        themselves. Those that a client has unloaded are left out."""
        reached = set(names)
        users: dict[str, Entry] = {}
        grows = True
        while grows:
            grows = False
            for entry in list(self._entries.values()):  # a load may find models on a thread
                if entry.config is None or entry.name in reached or not entry.wanted:
                    continue
                if reached & set(step_models(entry.config)):
                    reached.add(entry.name)
                    users[entry.name] = entry
                    grows = True
        return [users[name] for name in sorted(users)]

    def find(self, name: str, version: str = "") -> LoadedModel:
        """Returns a version of a model, the highest one that serves if `version` is empty.

        Raises ServingError: NOT_FOUND if the repository has no such model or version or it was unloaded, UNAVAILABLE
        with the reason if it didn't load, INVALID if `version` is no number, and NotLoadedError if it is loaded on
        demand.
        """
        entry = self._entries.get(name)
        if entry is None:
            if self._names is None:
                self._names = Names(self._entries)
            near = self._names.nearest(name)
            name = name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..."
            hint = f", did you mean '{near}'?" if near else ""
            if self._settings.model_control_mode == "explicit":
                hint += " (--model-control-mode is explicit: a client must load it first)"
            raise ServingError(Kind.NOT_FOUND, f"Request for unknown model: '{name}' is not found{hint}")
        if entry.unloaded and not entry.versions:
            raise ServingError(
                Kind.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions, it was unloaded"
            )
        if not version:
            if newest := max([*entry.versions, *entry.absent], default=0):
                return entry.versions.get(newest) or _raise_absent(name, newest, entry.absent[newest])
            raise unavailable(name, "; ".join(entry.reasons.values()) or "no version is loaded")
        if not _VERSION.fullmatch(version):
            raise ServingError(Kind.INVALID, f"model '{name}': the version must be a number, got '{version[:40]}'")
        number = int(version)
        model = entry.versions.get(number)
        if model is not None:
            return model
        if number in entry.absent:
            return _raise_absent(name, number, entry.absent[number])
        reason = entry.reasons.get(number) or entry.reasons.get(0)
        if reason is not None:
            raise unavailable(f"{name}' version '{number}", reason)
        known = ", ".join(map(str, sorted([*entry.versions, *entry.absent]))) or "none"
        raise ServingError(
            Kind.NOT_FOUND,
            f"Request for unknown model: '{name}' version {number} is not found, loaded versions: {known}",
        )

    def known(self, name: str, version: str = "") -> LoadedModel:
        """Returns a version as `find` does, or what it was when it left memory."""
        try:
            return self.find(name, version)
        except NotLoadedError as error:
            absent = self._entries[name].absent[error.version]
            if absent.model is None:
                raise
            return absent.model

    def missing(self, name: str, version: int) -> dict[str, set[int]]:
        """Returns what must be loaded so that a version serves: it, and versions of the models of its steps, by
        name."""
        found: dict[str, set[int]] = {}
        todo = [(name, version)]
        while todo:
            name, version = todo.pop()
            entry = self._entries.get(name)
            if entry is None:
                continue
            version = version if version > 0 else max([*entry.versions, *entry.absent], default=0)
            if version in entry.absent and version not in found.get(name, ()):
                found.setdefault(name, set()).add(version)
                config = entry.config or ModelConfig()
                todo += [(step.model_name, step.model_version) for step in config.ensemble_scheduling.step]
        return found

    def versions(self, name: str) -> list[int]:
        """Returns the versions of a model that serve, in ascending order."""
        entry = self._entries[name]
        return sorted([*entry.versions, *entry.absent])

    def listed(self, name: str, asked: str) -> list[str]:
        """Returns the versions in the metadata of a model: the one that was asked for, or all that serve."""
        return [asked] if asked else [str(version) for version in self.versions(name)]

    def models(self) -> Iterator[LoadedModel]:
        """Yields every version that serves, in order of name and version. Any thread may ask for them.

        Those that were never loaded are left out. Those that left memory are as they were then.
        """
        for entry in sorted(self._entries.values(), key=_by_name):
            left = {version: absent.model for version, absent in list(entry.absent.items()) if absent.model is not None}
            for _, model in sorted({**left, **entry.versions}.items()):
                yield model

    def residency(self) -> Iterator[tuple[str, int, bool]]:
        """Yields name and version of every version that is loaded on demand, and whether it is in memory."""
        for entry in sorted(self._entries.values(), key=_by_name):
            if entry.on_demand:
                for version in sorted([*entry.versions, *entry.absent]):
                    yield entry.name, version, version in entry.versions

    def index(self) -> list[tuple[str, str, str, str]]:
        """Returns name, version, state and reason of every model that was loaded or tried.

        The version is "" if the whole model is unavailable. A version that is READY has a reason if its last reload
        failed, or if it is not in memory.
        """
        rows = []
        for entry in sorted(self._entries.values(), key=_by_name):
            for version in sorted({*entry.versions, *entry.reasons, *entry.unloaded, *entry.absent}):
                model, absent = entry.versions.get(version), entry.absent.get(version)
                if absent is not None:
                    state = "UNAVAILABLE" if absent.reason else "READY"
                    reason = absent.reason or "not in memory: it is loaded on demand"
                elif model is None:
                    state, reason = "UNAVAILABLE", entry.reasons.get(version) or entry.unloaded[version]
                else:
                    reason = model.executor.overdue
                    state = "UNAVAILABLE" if reason else "READY"
                    reason = reason or entry.reasons.get(version, "")
                rows.append((entry.name, str(version) if version else "", state, reason))
        return rows

    def unavailable(self) -> list[str]:
        """Returns the names of the models of which a version failed to load or is not ready.

        A model whose reload failed and that serves as before is not among them.
        """
        return [
            entry.name
            for entry in self._entries.values()
            if entry.faults() or any(model.executor.overdue for model in entry.versions.values())
        ]

    async def close(self) -> None:
        """Closes every model, after it has answered the requests that it has accepted."""
        # An ensemble holds its steps, so each waits for those that use it.
        await asyncio.gather(*(model.close() for model, _ in self.resident()), *self._closing)


def _raise_absent(name: str, version: int, absent: Absent) -> LoadedModel:
    """Raises NotLoadedError, or ServingError (UNAVAILABLE) while a load that failed isn't tried again."""
    if absent.waits:
        raise unavailable(f"{name}' version '{version}", absent.reason)
    raise NotLoadedError(name, version, absent.reason)
