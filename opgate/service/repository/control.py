"""Loads and unloads models while others serve: at the start, for clients, for the first request to a model that is
loaded on demand, and when files of a repository change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from opgate.service.core.errors import Kind, ServingError, detached, internal, invalid, of_load, of_system
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.freed_memory import give_back
from opgate.service.repository.background_loads import (
    Loading,
    Outcome,
    Step,
    chosen_versions,
    read_configs,
    unavailable,
)
from opgate.service.repository.catalog import Catalog, Entry
from opgate.service.repository.config import ConfigError, in_python
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.load_order import LoadThreads, Turn, Turns
from opgate.service.repository.loader import LoadedModel, model_file
from opgate.service.repository.op_libraries import stamp_of_libraries
from opgate.service.repository.overrides import Override
from opgate.service.repository.paths import version_numbers
from opgate.service.repository.repositories import Source, only_source, stamp_of_parts
from opgate.service.repository.residency import (
    Need,
    Residency,
    Room,
    in_mib,
    is_on_demand,
    needed,
    size_of_file,
    size_of_files,
)
from opgate.service.settings import Settings
from opgate.service.telemetry.memory import memory_limit

logger = logging.getLogger("opgate.repository")

T = TypeVar("T")

# Takes the names of the models that a load brings, or why it failed. Returns why the model may not be loaded although
# this process could, or why it failed in others too; None if what came of it here holds.
Agree = Callable[[Sequence[str], ServingError | None], Awaitable[ServingError | None]]


async def alone(names: Sequence[str], error: ServingError | None) -> None:
    """Agrees to what came of a load, because there is no other process."""


class ModelControl:
    """Changes which models serve. Changes of the same models come one after the other, others side by side. Its methods
    run on the event loop's thread.

    Models are loaded on threads of their own, beside those that serve.

    It is long, because all that changes models must take turns.
    """

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._repositories = catalog.repositories
        self._finding = asyncio.Lock()  # whoever has it decides which models its change is of
        # With a budget, loads by clients hold room until all gateway processes agree: each would wait for another's.
        self._agreeing = asyncio.Lock()
        self._turns = Turns()
        self._threads = LoadThreads(settings.model_load_thread_count)
        self._finder = ThreadPoolExecutor(1, "opgate-find")
        several = settings.workers > 1
        self.residency = Residency(settings.model_memory, catalog, give_back, settings.run_timeout, several)
        self._coming: dict[tuple[str, int], asyncio.Task[None]] = {}  # loads on demand
        self._seen: dict[str, Hashable] = {}  # by model, its files when it was last loaded or tried
        self._folders: dict[str, Path] = {}  # by model, the files that a client sent in place of its folder
        # With several gateway processes the supervisor removes the files that clients sent.
        self._removes_files = settings.workers == 1
        self._repeated: list[asyncio.Task[None]] = []  # what is done again and again
        self._starting: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def loading(self) -> frozenset[str]:
        """The models that are loaded now."""
        return self._threads.loading

    async def load_at_start(self, patience: float) -> None:
        """Loads the models that serve from the start. The others are loaded when somebody asks for them.

        Returns when all were tried, or when those that are left have taken so many seconds. These go on, and the
        gateway is not ready until they have ended. Raises what `Catalog.find_all` raises.
        """
        self.residency.begin()
        self._catalog.prepared.start()
        sources, configs = await self._off_loop(self._catalog.find_all)
        if self._settings.model_control_mode == "poll":
            self._seen = await self._off_loop(self._stamps)
        configs = self._catalog.expect(sources, configs)
        entries = (self._catalog.entry(source.name) for source in sources)
        later = {entry.name for entry in entries if entry is not None and entry.absent}
        if self.residency.budget:
            logger.info(
                "this process has %s of --model-memory: %d models are loaded when they are asked for, %d stay always",
                in_mib(self.residency.budget),
                len(later),
                len(sources) - len(later),
            )
            if self.residency.budget * self._settings.workers > memory_limit():
                logger.warning("--model-memory is more than this process may have: %s", in_mib(memory_limit()))
        now = set(with_steps([source.name for source in sources if source.name not in later], configs.get))
        tasks = self._load_groups([source for source in sources if source.name in now], configs)
        starting = asyncio.create_task(self._start(tasks))
        await asyncio.wait([starting], timeout=patience)
        if not starting.done():
            names = ", ".join(sorted(self.loading))
            logger.warning("the gateway serves without the models that still load after %g s: %s", patience, names)
            self._starting = starting

    async def _start(self, tasks: Collection[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks)
        self._catalog.complete = True

    def _load_groups(
        self, sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError]
    ) -> list[asyncio.Task[None]]:
        """Loads models side by side, those together that belong together. Returns what does."""
        tasks = []
        for group in _groups(sources, configs):
            turn = self._turns.take([source.name for source in group])
            task = asyncio.create_task(self._load_group(group, configs, turn))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            tasks.append(task)
        return tasks

    async def _load_group(
        self, sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError], turn: Turn
    ) -> None:
        try:
            async with turn:
                now = self._now(sources, configs)
                with self._held(now):
                    self._catalog.take(await self._load(now, configs))
        except Exception:
            logger.exception("loading %s failed", ", ".join(source.name for source in sources))

    def _now(self, sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError]) -> list[Source]:
        """Returns those of the models that are loaded now: the others are loaded when somebody asks for them, and are
        not in memory. What is known of those holds no longer."""
        later = []
        for source in sources:
            entry, config = self._catalog.entry(source.name), configs[source.name]
            with contextlib.suppress(ServingError):  # whoever loads it says so
                on_demand = isinstance(config, ModelConfig) and is_on_demand(config, self._settings)
                if on_demand and (entry is None or not entry.versions):
                    later.append(source)
        pinned = with_steps([source.name for source in sources if source not in later], configs.get)
        later = [source for source in later if source.name not in pinned]
        for source in later:
            if (entry := self._catalog.entry(source.name)) is not None:
                entry.absent.clear()
        self._catalog.expect(later, configs)
        return [source for source in sources if source not in later]

    @contextlib.contextmanager
    def _held(self, sources: Iterable[Source]) -> Iterator[None]:
        """Keeps those of the models in memory that are there."""
        models: list[LoadedModel] = []
        for source in sources:
            for name in self._with_steps(source.name):
                if (entry := self._catalog.entry(name)) is not None:
                    models += entry.versions.values()
        for model in models:
            model.hold()
        try:
            yield
        finally:
            for model in models:
                model.release()

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
            async with contextlib.AsyncExitStack() as stack:
                if self.residency.budget and self._settings.workers > 1:
                    await stack.enter_async_context(self._agreeing)
                outcomes: dict[str, Outcome] = {}
                try:
                    sources, configs = await self._find([name], override, stack)
                    stack.enter_context(self._held(sources))
                    outcomes = await self._load(sources, configs)
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

    async def bring(self, name: str, version: int) -> None:
        """Loads a version that is loaded on demand, and what it needs. Those who ask for it meanwhile share the load.

        Raises ServingError (UNAVAILABLE) if it can't be loaded, and OVERLOADED if there is no room for it.
        """
        task = self._coming.get((name, version))
        if task is None:
            task = self._coming[name, version] = asyncio.create_task(self._bring(name, version))
            task.add_done_callback(lambda _: self._coming.pop((name, version)))
        await asyncio.wait([task])
        if (error := task.exception()) is not None:
            if isinstance(error, ServingError):
                raise ServingError(error.kind, error.message)
            raise unavailable(name, of_load(error))

    async def _bring(self, name: str, version: int) -> None:
        async with self._turns.take(self._with_steps(name)):
            while missing := self._catalog.missing(name, version):
                sources = [self._source_of(each) for each in missing]
                configs = await self._off_loop(partial(read_configs, sources, False))
                # Nothing is held meanwhile: two ensembles would wait for each other's steps.
                room = await self._reserve(sources, configs, missing)
                if self._catalog.missing(name, version) == missing:
                    break
                if isinstance(room, Room):
                    room.close()  # one of the steps left
            else:
                return  # another change was first
            if isinstance(room, ServingError):
                self._cannot_bring(name, sources, configs, room, missing)
                raise ServingError(room.kind, unavailable(name, room.message).message)
            with self._held(sources):
                outcomes = await self._load(sources, configs, missing, room)
                self._catalog.take_back(outcomes, missing)
            for outcome in outcomes.values():
                for model in outcome.versions.values():
                    self.residency.came(model)
            for outcome in outcomes.values():
                for reason in outcome.reasons.values():
                    raise ServingError(outcome.kind, unavailable(outcome.source.name, reason).message)

    def _cannot_bring(
        self,
        name: str,
        sources: Sequence[Source],
        configs: Mapping[str, ModelConfig | ServingError],
        why: ServingError,
        asked: Mapping[str, Collection[int]],
    ) -> None:
        """Keeps why a model can't be loaded on demand, but not of the models of its steps: there may be room for each
        of these. Where models in use had the room, it is tried again at once."""
        if why.kind is Kind.OVERLOADED:
            return
        loading = self._catalog.loading(None)
        loading.plan(sources, configs)
        loading.fail(name, why)
        self._catalog.take_back({name: loading.outcomes[name]}, asked)

    def _source_of(self, name: str) -> Source:
        entry = self._catalog.entry(name)
        assert entry is not None and entry.source is not None  # it has versions that are absent
        return entry.source

    async def _drop(self, outcomes: dict[str, Outcome]) -> None:
        """Closes what was loaded and may not serve."""
        for name, outcome in outcomes.items():
            for model in self._fresh(name, outcome):
                await model.executor.close()  # it doesn't hold its steps yet

    def _fresh(self, name: str, outcome: Outcome) -> list[LoadedModel]:
        """Returns what came of a load and doesn't serve yet. Versions whose files are the same are kept."""
        entry = self._catalog.entry(name)
        serving = entry.versions.values() if entry is not None else ()
        return [model for model in outcome.versions.values() if model not in serving]

    async def unload(self, name: str, dependents: bool = False) -> list[str]:
        """Unloads a model, and the ensembles that use it. With `dependents` the models of its steps go as well.

        Returns the names of the models, without those ensembles, when they take no more requests. They are closed when
        the accepted ones are answered. A model that isn't loaded is left as it is. Raises ServingError (UNAVAILABLE) if
        clients may not unload models.
        """
        self.check_explicit()
        async with self._finding:
            names = self._with_steps(name) if dependents else [name]
            turn = self._turns.take({*names, *(entry.name for entry in self._catalog.users_of(names))})
        async with turn:
            users = self._catalog.users_of(names)
            for each in names:
                if entry := self._catalog.entry(each):
                    self._catalog.take_away(entry, "unloaded", wanted=False)
            for entry in users:
                if entry.versions or entry.absent:
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
        """Begins to look for changes, and at what models take, if the settings say so."""
        loop = asyncio.get_running_loop()
        if self._settings.model_control_mode == "poll":
            self._repeated.append(loop.create_task(self._poll()))
        if self.residency.budget:
            self._repeated.append(loop.create_task(self.residency.watch()))

    async def close(self) -> None:
        """Ends what is done again and again, and removes the files of clients. A load under way goes on."""
        for repeated in self._repeated:
            repeated.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await repeated
        for task in (*self._under_way, *self._coming.values(), self._starting):
            if task is not None:
                task.cancel()  # it holds models, and its thread can't be stopped
        self._finder.shutdown(wait=False, cancel_futures=True)
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

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Reads the repository, on a thread."""
        return await asyncio.wrap_future(self._finder.submit(work))

    def is_coming(self, name: str, version: int) -> bool:
        """Whether a version that is loaded on demand is being loaded."""
        return (name, version) in self._coming

    @property
    def is_loading(self) -> bool:
        """Whether a thread loads a model. Nothing can stop it, also if nobody waits for it any more."""
        return bool(self._threads.loading)

    async def _load(
        self,
        sources: Sequence[Source],
        configs: Mapping[str, ModelConfig | ServingError],
        only: Mapping[str, Collection[int]] | None = None,
        room: Room | ServingError | None = None,
    ) -> dict[str, Outcome]:
        """Loads models side by side, ensembles after the models of their steps. `room` is what `_reserve` returned for
        them. Raises nothing for a broken model."""
        loading = self._catalog.loading(only)
        plan = loading.plan(sources, configs)
        room = room or await self._reserve(sources, configs, only)
        tasks: dict[str, asyncio.Task[None]] = {}
        for step in plan:
            after = [tasks[name] for name in step.after]
            tasks[step.name] = asyncio.create_task(self._load_one(loading, step, after, room))
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            if isinstance(room, Room):
                room.close()
        if self.residency.budget:
            await self._refuse_too_large(loading, room, only is not None)
        return loading.outcomes

    async def _refuse_too_large(self, loading: Loading, room: Room | ServingError, on_demand: bool) -> None:
        """Closes what was loaded together and takes more than the budget, or if it is tight more than is left of it."""
        if isinstance(room, ServingError):
            return
        fresh = {name: self._fresh(name, outcome) for name, outcome in loading.outcomes.items()}
        models = [model for found in fresh.values() for model in found]
        added = sum(model.statistics.memory_bytes for model in models)
        too_large = room.measured and added > self.residency.budget and await self.residency.is_beyond(models)
        too_large = too_large or (room.tight and await self.residency.is_stuck(models))
        if not models or not too_large:
            return
        beside = "" if added > self.residency.budget else " beside what never leaves"
        budget = in_mib(self.residency.budget)
        text = f"{_takes(loading.outcomes)} {in_mib(added)}{beside}, --model-memory (OPGATE_MODEL_MEMORY) is {budget}"
        together = [name for name, found in fresh.items() if found]
        ensembles = [name for name in together if any(model.steps for model in fresh[name])]
        for name in ensembles if on_demand and ensembles else together:  # there may be room for a step alone
            loading.fail(name, ServingError(Kind.UNAVAILABLE, text))
        for name in together:
            kept = {n: m for n, m in loading.outcomes[name].versions.items() if m not in fresh[name]}
            loading.outcomes[name].versions = kept
        for model in models:
            await model.executor.close()

    async def _reserve(
        self,
        sources: Sequence[Source],
        configs: Mapping[str, ModelConfig | ServingError],
        only: Mapping[str, Collection[int]] | None,
    ) -> Room | ServingError:
        """Keeps room for models that are loaded together. Returns an error if there is none: UNAVAILABLE if their files
        are larger than the budget or what never leaves takes the room, else OVERLOADED."""
        needs: dict[str, Need] = {}
        budget = self.residency.budget
        for source in sources if budget else ():
            config = configs[source.name]
            if not isinstance(config, ModelConfig) or config.HasField("ensemble_scheduling"):
                continue
            versions = None if only is None else only.get(source.name)
            with contextlib.suppress(ConfigError, OSError):  # the load says so
                needs[source.name] = await self._off_loop(partial(self._need, source, config, versions))
        if (least := sum(need.least for need in needs.values())) > budget:
            text = (
                f"{_takes(needs)} more than {in_mib(least)}, --model-memory (OPGATE_MODEL_MEMORY) is {in_mib(budget)}"
            )
            return ServingError(Kind.UNAVAILABLE, text)
        try:
            return await self.residency.reserve(needs)
        except ServingError as error:
            return detached(error)

    async def _load_one(
        self,
        loading: Loading,
        step: Step,
        after: Sequence[asyncio.Task[None]],
        room: Room | ServingError,
    ) -> None:
        if after:
            await asyncio.wait(after)
        outcome = loading.outcomes[step.name]
        if outcome.config is None or outcome.config.HasField("ensemble_scheduling"):
            await self._threads.run(step.name, partial(loading.load, step.name))
            return
        try:
            work = partial(self._threads.run, step.name, partial(loading.load, step.name))
            if isinstance(room, ServingError):
                raise ServingError(room.kind, room.message)
            if step.name not in room:
                await work()
                return
            added = await room.load(step.name, work, outcome.versions.values)
            models = list(outcome.versions.values())
            for model in models:
                model.statistics.memory_bytes = added // len(models)
        except ServingError as error:
            loading.fail(step.name, error)
        except Exception as error:
            logger.exception("loading model '%s' failed", step.name)
            loading.fail(step.name, ServingError(Kind.UNAVAILABLE, of_load(error)))

    def _need(self, source: Source, config: ModelConfig, only: Collection[int] | None) -> Need:
        """Returns what loading the versions of a model takes. Raises ConfigError."""
        entry = self._catalog.entry(source.name)
        stays = opening = least = 0
        unknown = False
        chosen = chosen_versions(config, version_numbers(source.folder)) if only is None else only
        for version in chosen:
            absent = entry.absent.get(version) if entry is not None else None
            known = 0 if absent is None or absent.model is None else absent.model.statistics.memory_bytes
            file = model_file(source.folder, config, version)
            prepared = self._catalog.prepared.size_of(file)
            need = needed(known, prepared, size_of_files(source.folder / str(version)))
            stays, opening = stays + need.stays, opening + need.opening
            serves = entry is not None and version in entry.versions
            unknown |= not known and not serves and in_python(config)
            if not serves and not known and not prepared and file.suffix == ".onnx":  # a session keeps its weights
                least += size_of_file(file)
        return Need(max(1, stays), opening, least, unknown)

    async def _find(
        self, names: Sequence[str], override: Override | None, stack: contextlib.AsyncExitStack
    ) -> tuple[list[Source], dict[str, ModelConfig | ServingError]]:
        """Finds models, the models of their steps, and the ensembles that use one of them. Returns them and their
        configs when it is their turn to change, which lasts until the stack ends.

        Those who ask first have the first turn, in every gateway process.
        """
        async with self._finding:
            sources, configs = await self._off_loop(lambda: self._found(names, override))
            turn = self._turns.take([source.name for source in sources])
        waits, own = turn.waits, {source.name for source in sources}
        await stack.enter_async_context(turn)
        if waits:  # those before may have changed them
            sources, configs = await self._off_loop(lambda: self._found(names, override))
        return [source for source in sources if source.name in own], configs

    def _found(
        self, names: Iterable[str], override: Override | None, *, gone: bool = False
    ) -> tuple[list[Source], dict[str, ModelConfig | ServingError]]:
        self._repositories.refresh()
        found = self._repositories.find()
        sources: dict[str, Source] = {}
        configs: dict[str, ModelConfig | ServingError] = {}
        todo = [name for name in names if name in found or not gone]
        while todo:
            name = todo.pop()
            if name in sources:
                continue
            try:
                if name not in names and (source := self._known_source(name)) is not None:
                    sources[name] = source  # a step that serves what a client has sent keeps that
                else:
                    sources[name] = self._source(name, found, override if name in names else None)
            except ConfigError as error:
                sources[name], configs[name] = found[name][0], error
                continue
            configs.update(read_configs([sources[name]], False))
            config = configs[name]
            if isinstance(config, ModelConfig):
                todo += [step for step in step_models(config) if step in found or self._known_source(step)]
        for user in self._catalog.users_of(sources):
            if user.name not in sources and user.source is not None and self._may_come_back(user, sources):
                sources[user.name] = user.source
                for step in step_models(user.config) if user.config is not None else ():
                    entry = self._catalog.entry(step)
                    if entry is not None and entry.source is not None and entry.absent and step not in sources:
                        sources[step] = entry.source
                configs.update(read_configs([s for s in sources.values() if s.name not in configs], False))
        return list(sources.values()), configs

    def _known_source(self, name: str) -> Source | None:
        """Returns where a model is from that serves or is loaded on demand, None if there is no such model."""
        entry = self._catalog.entry(name)
        return entry.source if entry is not None and (entry.versions or entry.absent) else None

    def _may_come_back(self, user: Entry, sources: Collection[str]) -> bool:
        """Returns whether an ensemble serves, or is not served only because of models that are loaded now."""
        if user.absent:
            return bool(user.versions)  # it is loaded when somebody asks for it
        steps = step_models(user.config) if user.config is not None else []
        entries = (self._catalog.entry(step) for step in steps if step not in sources)
        return bool(user.versions) or all(entry is not None and (entry.versions or entry.absent) for entry in entries)

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
            self._finder.submit(shutil.rmtree, old, True)

    def _with_steps(self, name: str) -> list[str]:
        """Returns a model and those of its steps, as they are known."""

        def config(name: str) -> ModelConfig | None:
            entry = self._catalog.entry(name)
            return None if entry is None else entry.config

        return with_steps([name], config)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.repository_poll_secs)
            try:
                await self._look()
            except Exception:
                logger.exception("looking for changes in the model repository failed")

    async def _look(self) -> None:
        """Loads what is new or has changed, and lets go what is gone."""
        stamps = await self._off_loop(self._stamps)
        changed = [name for name, stamp in stamps.items() if self._seen.get(name) != stamp]
        if changed:
            async with self._finding:
                sources, configs = await self._off_loop(lambda: self._found(changed, None, gone=True))
                self._load_groups(sources, configs)
        self._seen = stamps
        gone = [entry for entry in self._catalog.entries() if entry.name not in stamps]
        for entry in gone:
            users = self._catalog.users_of([entry.name])
            async with self._turns.take([entry.name, *(user.name for user in users)]):
                self._catalog.forget(entry)
                logger.info("model unloaded: its folder is gone", extra={"model": entry.name})
                for user in users:
                    self._catalog.take_away(
                        user, f"unloaded: model '{entry.name}', which it uses, is gone", wanted=True
                    )

    def _stamps(self) -> dict[str, Hashable]:
        """Returns for each model a value that differs when something has changed from which it is made."""
        self._repositories.refresh()
        libraries = stamp_of_libraries(self._settings)
        return {
            name: (tuple(stamp_of_parts(source.folder) for source in sources), libraries)
            for name, sources in self._repositories.find().items()
        }


def _takes(names: Collection[str]) -> str:
    """Returns the beginning of a sentence about what models take."""
    return "it takes" if len(names) == 1 else f"{', '.join(sorted(names))} take together"


def _failure(name: str, outcome: Outcome) -> ServingError | None:
    """Returns the error of a load that failed, None if it didn't."""
    if not outcome.reasons:
        return None
    reasons = "; ".join(f"version {v}: {why}" if v else why for v, why in sorted(outcome.reasons.items()))
    return invalid(f"failed to load '{name}': {reasons}")


def with_steps(names: Iterable[str], config_of: Callable[[str], ModelConfig | ServingError | None]) -> list[str]:
    """Returns the names of models and of those of their steps."""
    found: dict[str, None] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = None
            config = config_of(name)
            todo += step_models(config) if isinstance(config, ModelConfig) else []
    return list(found)


def _groups(sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError]) -> list[list[Source]]:
    """Returns the models that belong together: ensembles and the models of their steps."""
    groups: dict[str, set[str]] = {source.name: {source.name} for source in sources}
    for source in sources:
        for name in groups.keys() & with_steps([source.name], configs.get):
            if groups[name] is not groups[source.name]:
                groups[source.name] |= groups[name]
                for member in groups[name]:
                    groups[member] = groups[source.name]
    of_name = {source.name: source for source in sources}
    return [[of_name[name] for name in sorted(group)] for group in {id(g): g for g in groups.values()}.values()]
