"""Loads and unloads models while others serve: for clients, and when files of a repository change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from opgate.service.core.errors import Kind, ServingError, detached, internal, invalid, of_system
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.background_loads import Outcome, read_configs
from opgate.service.repository.catalog import Catalog, Entry
from opgate.service.repository.config import ConfigError
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.op_libraries import stamp_of_libraries
from opgate.service.repository.overrides import Override
from opgate.service.repository.repositories import Source, only_source, stamp_of_parts
from opgate.service.settings import Settings

logger = logging.getLogger("opgate.repository")

T = TypeVar("T")

# Takes the names of the models that a load brings, or why it failed. Returns why the model may not be loaded although
# this process could, or why it failed in others too; None if what came of it here holds.
Agree = Callable[[Sequence[str], ServingError | None], Awaitable[ServingError | None]]


async def alone(names: Sequence[str], error: ServingError | None) -> None:
    """Agrees to what came of a load, because there is no other process."""


class ModelControl:
    """Changes which models serve, one change after the other. Its methods run on the event loop's thread.

    Models are loaded on a thread of its own, beside those that serve.
    """

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._repositories = catalog.repositories
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "opgate-load")
        self._seen: dict[str, Hashable] = {}  # by model, its files when it was last loaded or tried
        self._folders: dict[str, Path] = {}  # by model, the files that a client sent in place of its folder
        # With several gateway processes the supervisor removes the files that clients sent.
        self._removes_files = settings.workers == 1
        self._job: Future[Any] | None = None  # the last one that the thread got
        self._polling: asyncio.Task[None] | None = None
        self.loading: frozenset[str] = frozenset()  # the models that the thread loads now

    async def load(self, name: str, override: Override, agree: Agree = alone) -> list[str]:
        """Loads a model as its files are now, and the models of its steps if it is an ensemble.

        What was loaded serves once all gateway processes `agree` to it. Returns the names of all models that were
        loaded or were needed for that. Raises ServingError: UNAVAILABLE if clients may not load models, NOT_FOUND if no
        repository has it, INVALID if it can't be loaded or the override isn't allowed. What served before still does
        then.
        """
        kept = False
        try:
            self.check_explicit()
            async with self._lock:
                outcomes: dict[str, Outcome] = {}
                try:
                    outcomes = await self._off_loop(lambda: self._load([name], override), [name])
                    error = _failure(name, outcomes[name])
                except ServingError as raised:
                    error = detached(raised)
                except OSError as raised:
                    logger.exception("loading '%s' failed", name)
                    error = of_system(raised)
                except Exception as raised:
                    logger.exception("loading '%s' failed", name)
                    error = internal(f"{type(raised).__name__}: {raised}")
                refusal = await agree(list(outcomes), error)
                if refusal is not None:
                    await self._drop(outcomes)
                    outcomes, error = {}, refusal
                self._catalog.take(outcomes)
                if name in outcomes and outcomes[name].versions:
                    self._keep_folder(name, override)
                    kept = True
        finally:
            if not kept and self._removes_files:
                override.remove()
        if error is not None:
            raise error
        return list(outcomes)

    async def _drop(self, outcomes: dict[str, Outcome]) -> None:
        """Closes what was loaded and may not serve."""
        for name, outcome in outcomes.items():
            entry = self._catalog.entry(name)
            serving = entry.versions.values() if entry is not None else ()
            for model in outcome.versions.values():
                if model not in serving:
                    await model.executor.close()  # it doesn't hold its steps yet

    async def unload(self, name: str, dependents: bool = False) -> list[str]:
        """Unloads a model, and the ensembles that use it. With `dependents` the models of its steps go as well.

        Returns the names of the models, without those ensembles, when they take no more requests. They are closed when
        the accepted ones are answered. A model that isn't loaded is left as it is. Raises ServingError (UNAVAILABLE) if
        clients may not unload models.
        """
        self.check_explicit()
        async with self._lock:
            names = self._with_steps(name) if dependents else [name]
            users = self._catalog.users_of(names)
            for each in names:
                if entry := self._catalog.entry(each):
                    self._catalog.take_away(entry, "unloaded", wanted=False)
            for entry in users:
                if entry.versions:
                    self._catalog.take_away(
                        entry, f"unloaded together with a model that it uses ('{name}')", wanted=True
                    )
            for each in names:
                self._keep_folder(each, None)
            return [each for each in names if self._catalog.entry(each) is not None]

    async def index(self, only_ready: bool) -> list[tuple[str, str, str, str]]:
        """Returns name, version, state and reason of every model of the repositories. A model that nobody has loaded
        has only a name."""
        rows = [row for row in self._catalog.index() if row[2] == "READY" or not only_ready]
        if self.is_explicit and not only_ready:
            known = {row[0] for row in rows}
            found = await asyncio.to_thread(self._repositories.find)
            rows += [(name, "", "", "") for name in found if name not in known]
        return sorted(rows, key=lambda row: row[0])

    def start(self) -> None:
        """Begins to look for changes, if the settings say so."""
        if self._settings.model_control_mode == "poll":
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Ends the polling and removes the files of clients. A load under way goes on."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        self._thread.shutdown(wait=False, cancel_futures=True)
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._repositories.close()

    @property
    def is_explicit(self) -> bool:
        """Whether clients load and unload models."""
        return self._settings.model_control_mode == "explicit"

    def check_explicit(self) -> None:
        """Raises ServingError (UNSUPPORTED, UNAVAILABLE) if clients may not load and unload models."""
        if self._catalog.triton is not None:
            raise ServingError(Kind.UNSUPPORTED, "Triton runs the models: load and unload them there")
        if not self.is_explicit:
            raise ServingError(
                Kind.UNAVAILABLE,
                "explicit model load / unload is not allowed: the gateway runs with --model-control-mode "
                f"{self._settings.model_control_mode}, expected explicit",
            )

    async def _off_loop(self, work: Callable[[], T], loaded: Iterable[str] = ()) -> T:
        """Does work on the thread, which loads these models."""
        job = self._thread.submit(work)
        self._job, self.loading = job, frozenset(loaded)
        try:
            return await asyncio.wrap_future(job)
        finally:
            self.loading = frozenset()

    @property
    def is_loading(self) -> bool:
        """Whether the thread is at work. Nothing can stop it, also if nobody waits for it any more."""
        return self._job is not None and self._job.running()

    def _load(self, names: Iterable[str], override: Override | None = None) -> dict[str, Outcome]:
        """Loads models, the models of their steps, and the ensembles that use one of them. Runs on the thread."""
        self._repositories.refresh()
        found = self._repositories.find()
        sources: dict[str, Source] = {}
        configs: dict[str, ModelConfig | ServingError] = {}
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in sources:
                continue
            entry = self._catalog.entry(name)
            try:
                if name not in names and entry is not None and entry.versions and entry.source is not None:
                    sources[name] = entry.source  # a step that serves what a client has sent keeps that
                else:
                    sources[name] = self._source(name, found, override if name in names else None)
            except ConfigError as error:
                sources[name], configs[name] = found[name][0], error
                continue
            configs.update(read_configs([sources[name]], False))
            config = configs[name]
            if isinstance(config, ModelConfig):
                todo += [step for step in step_models(config) if step in found]
        for user in self._catalog.users_of(sources):
            if user.name not in sources and user.source is not None and self._may_come_back(user, sources):
                sources[user.name] = user.source
                configs.update(read_configs([user.source], False))
        return self._catalog.loading().load(list(sources.values()), configs)

    def _may_come_back(self, user: Entry, sources: Collection[str]) -> bool:
        """Returns whether an ensemble serves, or is not served only because of models that are loaded now."""
        steps = step_models(user.config) if user.config is not None else []
        entries = (self._catalog.entry(step) for step in steps if step not in sources)
        return bool(user.versions) or all(entry is not None and entry.versions for entry in entries)

    def _source(self, name: str, found: dict[str, list[Source]], override: Override | None) -> Source:
        if override is not None and override.folder is not None:
            known = found.get(name)
            config = override.config if known is None else override.beside(known[0])
            return Source(name, override.folder, config, override.states_batch)
        if name not in found:
            raise ServingError(Kind.NOT_FOUND, f"failed to load '{name}': no repository has a folder of that name")
        source = only_source(name, found[name])
        if override is None or override.config is None:
            return source
        return Source(name, source.repository, override.beside(source), override.states_batch)

    def _keep_folder(self, name: str, override: Override | None) -> None:
        """Removes the files that a client sent for a model, and keeps those of an override while it serves."""
        old = self._folders.pop(name, None)
        if override is not None and override.folder is not None and self._removes_files:
            self._folders[name] = override.folder
        if old is not None:
            self._thread.submit(shutil.rmtree, old, True)

    def _with_steps(self, name: str) -> list[str]:
        names: list[str] = []
        todo = [name]
        while todo:
            name = todo.pop()
            entry = self._catalog.entry(name)
            if name not in names:
                names.append(name)
                todo += step_models(entry.config) if entry is not None and entry.config is not None else []
        return names

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.repository_poll_secs)
            try:
                await self._look()
            except Exception:
                logger.exception("looking for changes in the model repository failed")

    async def _look(self) -> None:
        """Loads what is new or has changed, and lets go what is gone."""
        async with self._lock:
            stamps = await self._off_loop(self._stamps)
            changed = [name for name, stamp in stamps.items() if self._seen.get(name) != stamp]
            gone = [entry for entry in self._catalog.entries() if entry.name not in stamps]
            if changed:
                self._catalog.take(await self._off_loop(lambda: self._load(changed), changed))
            self._seen = stamps
            for entry in gone:
                users = self._catalog.users_of([entry.name])
                self._catalog.forget(entry)
                logger.info("model unloaded: its folder is gone", extra={"model": entry.name})
                for user in users:
                    self._catalog.take_away(
                        user, f"unloaded: model '{entry.name}', which it uses, is gone", wanted=True
                    )

    def _stamps(self) -> dict[str, Hashable]:
        """Returns for each model a value that differs when something has changed from which it is made."""
        self._repositories.refresh()
        libraries = stamp_of_libraries(self._settings.trusted_directories())
        return {
            name: (tuple(stamp_of_parts(source.folder) for source in sources), libraries)
            for name, sources in self._repositories.find().items()
        }


def _failure(name: str, outcome: Outcome) -> ServingError | None:
    """Returns the error of a load that failed, None if it didn't."""
    if not outcome.reasons:
        return None
    reasons = "; ".join(f"version {v}: {why}" if v else why for v, why in sorted(outcome.reasons.items()))
    return invalid(f"failed to load '{name}': {reasons}")
