"""The models that serve: knows their versions, and why others don't serve."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.rate_limiter import RateLimiter, read_supplies
from opgate.service.execution.response_cache import ResponseCache
from opgate.service.freed_memory import give_back
from opgate.service.isolation.calls import Calls
from opgate.service.repository.background_loads import (
    Loading,
    Outcome,
    needed_by,
    read_configs,
    unavailable,
    versions_after,
)
from opgate.service.repository.config import ConfigError
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.loader import LoadedModel, limits_of
from opgate.service.repository.repositories import Repositories, Source, only_source
from opgate.service.settings import Settings
from opgate.service.similar_names import Names

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool

logger = logging.getLogger("opgate.repository")

_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_LONG_NAME = 256


@dataclass(slots=True)
class Entry:
    """One model, and what came of the last attempt to load it.

    `reasons` says by version why it doesn't serve, or why its last reload failed if it still serves as it was. Version
    0 stands for the whole model. `unloaded` says of versions that served before why they were taken away.
    """

    name: str
    source: Source | None = None
    config: ModelConfig | None = None  # as it is written
    versions: dict[int, LoadedModel] = field(default_factory=dict)
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
    """

    def __init__(self, settings: Settings, triton: TritonPool | None = None) -> None:
        """`triton` are the servers that run the models, if this process doesn't."""
        self._settings = settings
        self.triton = triton
        self.closed = 0  # models that were replaced or unloaded and have ended
        self._limiter: RateLimiter | None = None
        if settings.rate_limit != "off":
            self._limiter = RateLimiter(read_supplies(settings.rate_limit_resource))
        self.cache = ResponseCache(settings.response_cache_byte_size)
        self.repositories = Repositories(settings.repositories())
        self.calls = Calls(self.find, limits_of(settings), settings.write_timeout)
        self._entries: dict[str, Entry] = {}
        self._names: Names | None = None  # those of the entries, once somebody has misspelt one
        self._closing: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self.complete = False  # whether the catalog has tried to load every model that it shall

    def load_all(self, only: str = "") -> None:
        """Loads every model, or in the mode "explicit" those of the setting `load_model`. Keeps the reason of each
        failure.

        `only` is the name of a model: then that model and the models that it needs are loaded, and no others.
        Raises ConfigError if there is no repository, or if it is the folder of a model, and ServingError (UNAVAILABLE)
        if no Triton server answers. Any other failure only makes its model unavailable.
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
        self.take(self.loading().load(sources, configs))
        self.complete = True

    def _wanted(self, only: str, configs: Mapping[str, ModelConfig | ServingError]) -> set[str]:
        if only:
            return needed_by([only], configs) | ({only} & configs.keys())
        if self._settings.model_control_mode != "explicit":
            return set(configs)
        named = set(self._settings.models_to_load())
        if "*" in named:
            named = named - {"*"} | set(configs)
        return needed_by(sorted(named), configs) | named

    def loading(self) -> Loading:
        """Returns what loads models beside those that serve."""
        serving = {name: dict(entry.versions) for name, entry in self._entries.items()}
        return Loading(self._settings, self.triton, serving, self._step, self.cache, self._limiter, self.calls)

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
            entry.versions, entry.reasons, entry.unloaded = after, outcome.reasons, {}
        self._changed(replaced)

    def take_away(self, entry: Entry, reason: str, *, wanted: bool) -> None:
        """Lets a model serve no more. `wanted` says whether it comes back with the models that it uses."""
        replaced = list(entry.versions.values())
        entry.unloaded = dict.fromkeys(entry.versions, reason) or entry.unloaded or {0: reason}
        entry.versions, entry.reasons, entry.kept, entry.wanted = {}, {}, False, wanted
        self._changed(replaced)

    def forget(self, entry: Entry) -> None:
        """Lets a model serve no more that no repository has."""
        del self._entries[entry.name]
        self._changed(entry.versions.values())

    def _changed(self, replaced: Iterable[LoadedModel]) -> None:
        self._names = None
        for model in replaced:
            task = asyncio.get_running_loop().create_task(self._close(model))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for listener in self._listeners:
            listener()

    async def _close(self, model: LoadedModel) -> None:
        """Closes a model, and gives its memory back to the system."""
        await model.close()
        self.closed += 1
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
            for entry in self._entries.values():
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
        with the reason if it didn't load, INVALID if `version` is no number.
        """
        entry = self._entries.get(name)
        if entry is None:
            if self._names is None:
                self._names = Names(self._entries)
            near = self._names.nearest(name)
            name = name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..."
            hint = f", did you mean '{near}'?" if near else ""
            raise ServingError(Kind.NOT_FOUND, f"Request for unknown model: '{name}' is not found{hint}")
        if entry.unloaded and not entry.versions:
            raise ServingError(
                Kind.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions, it was unloaded"
            )
        if not version:
            if entry.versions:
                return entry.versions[max(entry.versions)]
            raise unavailable(name, "; ".join(entry.reasons.values()) or "no version is loaded")
        if not _VERSION.fullmatch(version):
            raise ServingError(Kind.INVALID, f"model '{name}': the version must be a number, got '{version[:40]}'")
        number = int(version)
        model = entry.versions.get(number)
        if model is not None:
            return model
        reason = entry.reasons.get(number) or entry.reasons.get(0)
        if reason is not None:
            raise unavailable(f"{name}' version '{number}", reason)
        known = ", ".join(map(str, sorted(entry.versions))) or "none"
        raise ServingError(
            Kind.NOT_FOUND,
            f"Request for unknown model: '{name}' version {number} is not found, loaded versions: {known}",
        )

    def versions(self, name: str) -> list[int]:
        """Returns the versions of a model that serve, in ascending order."""
        return sorted(self._entries[name].versions)

    def listed(self, name: str, asked: str) -> list[str]:
        """Returns the versions in the metadata of a model: the one that was asked for, or all that serve."""
        return [asked] if asked else [str(version) for version in self.versions(name)]

    def models(self) -> Iterator[LoadedModel]:
        """Yields every version that serves, in order of name and version. Any thread may ask for them."""
        for entry in sorted(self._entries.values(), key=_by_name):
            for _, model in sorted(entry.versions.items()):
                yield model

    def index(self) -> list[tuple[str, str, str, str]]:
        """Returns name, version, state and reason of every model that was loaded or tried.

        The version is "" if the whole model is unavailable. A version that is READY has a reason if its last reload
        failed.
        """
        rows = []
        for entry in sorted(self._entries.values(), key=_by_name):
            for version in sorted({*entry.versions, *entry.reasons, *entry.unloaded}):
                model = entry.versions.get(version)
                if model is None:
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
        await asyncio.gather(*(model.close() for model in self.models()), *self._closing)
