"""Loads models beside those that serve. What serves doesn't change until the catalog takes the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from opgate.service.core.errors import Kind, ServingError, of_load
from opgate.service.core.spec import PYTHON, ModelSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.response_cache import CachedExecutor, ResponseCache
from opgate.service.repository.config import (
    ConfigError,
    ignored,
    parameter,
    refuse_unsupported,
    runs_on_triton,
    shortened,
)
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.loader import LoadedModel, Shared, load_config, load_ensemble, load_model
from opgate.service.repository.op_libraries import stamp_of_libraries
from opgate.service.repository.paths import refuse_special_files, version_numbers
from opgate.service.repository.repositories import Source, stamp_of
from opgate.service.repository.residency import is_on_demand
from opgate.service.settings import Settings

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool

logger = logging.getLogger("opgate.repository")

# Returns the version of a model that serves, the highest one for 0 and -1. Raises ServingError.
Find = Callable[[str, int], LoadedModel]


@dataclass(slots=True)
class Outcome:
    """What came of loading a model.

    `versions` are those that can serve, `reasons` says by version why another can't; 0 stands for the whole model.
    """

    source: Source
    config: ModelConfig | None = None
    versions: dict[int, LoadedModel] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    kind: Kind = Kind.UNAVAILABLE  # of the reasons


@dataclass(frozen=True, slots=True)
class Step:
    """A model to load, and the models that must have been loaded before."""

    name: str
    after: Collection[str]


class Loading:
    """Loads some models that belong together. Whoever has one calls `plan` and then `load` for each step of the plan,
    on any thread."""

    def __init__(
        self,
        settings: Settings,
        triton: TritonPool | None,
        serving: Mapping[str, Mapping[int, LoadedModel]],
        find: Find,
        cache: ResponseCache,
        shared: Shared,
        counted: Mapping[tuple[str, int], ModelStatistics] | None = None,
        only: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """`serving` has the versions that serve by model. One whose files are the same is taken from there.

        `find` finds models that are not loaded now, for the steps of ensembles. `shared` is what the models share.
        `counted` has the statistics that versions go on with. With `only` no other versions are loaded.
        """
        self._settings = settings
        self._triton = triton
        self._serving = serving
        self._find = find
        self._cache = cache
        self._shared = shared
        self._counted = counted or {}
        self._only = only or {}
        self._outcomes: dict[str, Outcome] = {}

    @cached_property
    def _libraries(self) -> Hashable:
        """What stands for the op libraries as they are. A thread that loads finds it, because that takes a while."""
        return stamp_of_libraries(self._settings)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What came of each model."""
        return self._outcomes

    def plan(self, sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError]) -> list[Step]:
        """Returns what is to load. Each step comes after those that it waits for. `configs` are those of
        `read_configs`."""
        for source in sources:
            config = configs[source.name]
            outcome = self._outcomes[source.name] = Outcome(source)
            if isinstance(config, ServingError):
                self._failed(outcome, 0, config.message)
            else:
                outcome.config = config
        ensembles = {
            name: outcome.config
            for name, outcome in self._outcomes.items()
            if outcome.config is not None and outcome.config.HasField("ensemble_scheduling")
        }
        steps = [Step(name, ()) for name, o in self._outcomes.items() if o.config is not None and name not in ensembles]
        planned = {step.name for step in steps}
        for name in self._in_order(ensembles):
            steps.append(Step(name, planned.intersection(step_models(ensembles[name]))))
            planned.add(name)
        return steps

    def load_all(
        self, sources: Sequence[Source], configs: Mapping[str, ModelConfig | ServingError]
    ) -> dict[str, Outcome]:
        """Loads models side by side, ensembles after the models of their steps. Returns what came of each."""
        steps = self.plan(sources, configs)
        alone = [step.name for step in steps if not step.after]
        threads = min(self._settings.model_load_thread_count, len(alone))
        if threads > 1:
            with ThreadPoolExecutor(threads, "opgate-load") as pool:
                list(pool.map(self.load, alone))
        else:
            for name in alone:
                self.load(name)
        for step in steps:
            if step.after:
                self.load(step.name)
        return self._outcomes

    def load(self, name: str) -> None:
        """Loads a model of the plan. Raises nothing: its outcome says why it can't serve."""
        outcome = self._outcomes[name]
        config = outcome.config
        assert config is not None  # `plan` has looked
        try:
            is_on_demand(config, self._settings)  # raises if the config says something else
            present = present_versions(outcome.source, config)
            if config.name in self._only:  # whatever the policy says now
                versions = [version for version in self._only[config.name] if version in present]
                for gone in sorted(set(self._only[config.name]) - set(present)):
                    self._failed(outcome, gone, "its folder is gone")
            else:
                versions = chosen_versions(config, present)
        except (ServingError, OSError) as error:
            self._failed(outcome, 0, str(error))
            return
        if missing := sorted(set(config.version_policy.specific.versions) - set(present)):
            logger.warning("%s", _missing(missing, present), extra={"model": config.name})
        unread: list[str] = []
        for version in versions:
            try:
                refuse_special_files(outcome.source.folder)
                stamp = self._stamp(outcome.source, config, version)
                kept = self._serving.get(config.name, {}).get(version)
                if kept is not None and self._is_same(kept, stamp):
                    outcome.versions[version] = kept
                    continue
                loaded = self._load_version(outcome.source, config, version)
            except ServingError as error:
                self._failed(outcome, version, error.message)
                continue
            except Exception as error:  # a broken model file must not keep the other models from being served
                logger.exception("loading model '%s' failed", config.name)
                self._failed(outcome, version, of_load(error))
                continue
            loaded.stamp = stamp
            outcome.versions[version] = loaded
            unread = [] if self._runs_on_triton(config) else ignored(loaded.config)
            statistics = loaded.statistics
            logger.info(
                "model loaded",
                extra={
                    "model": config.name,
                    "version": version,
                    "seconds": round(statistics.load_seconds, 3),
                    "instances": statistics.instances or None,
                    "intra_op_threads": statistics.intra_op_threads or None,
                    "processes": self._settings.workers,
                },
            )
        if unread:
            text = shortened("; ".join(unread))
            logger.info("config: ignored, because nothing here reads it: %s", text, extra={"model": config.name})

    def fail(self, name: str, error: ServingError) -> None:
        """Says why a model of the plan can't be loaded."""
        self._outcomes[name].kind = error.kind
        self._failed(self._outcomes[name], 0, error.message)

    def _runs_on_triton(self, config: ModelConfig) -> bool:
        return self._triton is not None and self._is_remote(config)

    def _load_version(self, source: Source, config: ModelConfig, version: int) -> LoadedModel:
        counted = self._counted.get((config.name, version))
        if self._triton is not None and self._is_remote(config):
            from opgate.service.repository.remote import load_remote

            return load_remote(source.repository, config, version, self._settings, self._triton, self._spec_of_step)
        if config.HasField("ensemble_scheduling"):
            refuse_unsupported(config)
            loaded = load_ensemble(source.repository, config, version, self._settings, self._step, counted)
        else:
            loaded = load_model(
                source.repository,
                config,
                version,
                self._settings,
                self._shared,
                source.states_batch,
                counted,
            )
        if config.response_cache.enable:
            loaded.executor = CachedExecutor(
                loaded.executor, self._cache, loaded.statistics, reads_requests=_reads_requests(loaded)
            )
        return loaded

    def _stamp(self, source: Source, config: ModelConfig, version: int) -> tuple[Hashable, ...]:
        """Returns a value that differs when something has changed from which a version is made."""
        folder = source.folder
        beside = [path for path in folder.iterdir() if not path.name.isdecimal()]
        files = (folder, stamp_of(folder / str(version)), tuple(sorted((path.name, stamp_of(path)) for path in beside)))
        return (*files, config.SerializeToString(deterministic=True), source.states_batch, self._libraries)

    def _is_same(self, kept: LoadedModel, stamp: tuple[Hashable, ...]) -> bool:
        """Returns whether a version that serves is what loading it again would bring."""
        old = kept.stamp
        uses_library = bool(kept.config.model_operations.op_library_filename)
        if old[:-1] != stamp[:-1] or (uses_library and old[-1] != stamp[-1]):
            return False
        try:
            steps = tuple(self._step(s.model_name, s.model_version) for s in kept.config.ensemble_scheduling.step)
        except ServingError:
            return False
        return not kept.steps or kept.steps == steps

    def _is_remote(self, config: ModelConfig) -> bool:
        """Returns whether Triton runs a model: if its config doesn't say no, and an ensemble only if that is so of each
        step.

        If a step has an output with the status of its rows that the ensemble doesn't show, only the gateway reads it,
        so the ensemble runs here, step by step.
        """
        if not runs_on_triton(config):
            return False
        shown = parameter(config, "row_status_output")
        for step in config.ensemble_scheduling.step:
            outcome = self._outcomes.get(step.model_name)
            model = outcome.config if outcome is not None else None
            if model is None or not self._is_remote(model):
                return False
            status = parameter(model, "row_status_output")
            if status and (not shown or step.output_map.get(status) != shown):
                return False
        return True

    def _failed(self, outcome: Outcome, version: int, reason: str) -> None:
        outcome.reasons[version] = reason
        name = outcome.source.name
        keeps = "; what served before still does" if self._serving.get(name) else ""
        logger.error("model unavailable: %s%s", reason, keeps, extra={"model": name, "version": version or None})

    def _step(self, name: str, version: int) -> LoadedModel:
        outcome = self._outcomes.get(name)
        if outcome is None:
            return self._find(name, version)
        serving = self._serving.get(name, {})
        after = {**serving, **outcome.versions} if name in self._only else versions_after(outcome, serving)
        if version <= 0 and after:  # a step that states no version has 0
            return after[max(after)]
        if version in after:
            return after[version]
        reasons = outcome.reasons.get(version) or "; ".join(outcome.reasons.values())
        raise unavailable(name, reasons or f"version {version} is not loaded")

    def _spec_of_step(self, name: str, version: int) -> ModelSpec:
        return self._step(name, version).spec

    def _in_order(self, ensembles: Mapping[str, ModelConfig]) -> list[str]:
        """Returns the ensembles in an order in which each comes after those that it uses.

        Ensembles that wait for each other in a cycle are left out and marked as failed.
        """
        uses = {name: [step for step in step_models(config) if step in ensembles] for name, config in ensembles.items()}
        for name in sorted(uses):
            if cycle := _cycle(name, uses):
                self._failed(self._outcomes[name], 0, "ensembles use each other in a cycle: " + " -> ".join(cycle))
        todo = [name for name in sorted(uses) if not self._outcomes[name].reasons]
        ordered: list[str] = []
        while todo:
            ready = [name for name in todo if not set(uses[name]) & set(todo)]
            ordered += ready
            todo = [name for name in todo if name not in ready]
        return ordered


def _cycle(name: str, uses: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the shortest way from an ensemble back to itself, an empty list if there is none."""
    ways = [[name]]
    seen: set[str] = set()
    for way in ways:  # it grows
        for step in uses[way[-1]]:
            if step == name:
                return [*way, name]
            if step not in seen:
                seen.add(step)
                ways.append([*way, step])
    return []


def versions_after(outcome: Outcome, serving: Mapping[int, LoadedModel]) -> dict[int, LoadedModel]:
    """Returns the versions that serve once the outcome is taken. What served before stays if anything failed."""
    return {**serving, **outcome.versions} if outcome.reasons else dict(outcome.versions)


def read_configs(sources: Sequence[Source], triton: bool) -> dict[str, ModelConfig | ServingError]:
    """Returns the config of each model as it is written, or why it can't be read. `triton` is that of `load_config`."""
    configs: dict[str, ModelConfig | ServingError] = {}
    for source in sources:
        try:
            configs[source.name] = load_config(source.repository, source.name, triton, source.config)
        except ServingError as error:
            configs[source.name] = error
        except OSError as error:
            configs[source.name] = ConfigError(f"the folder can't be read: {error}")
    return configs


def present_versions(source: Source, config: ModelConfig) -> list[int]:
    """Returns the versions of which a model has a folder. Raises OSError."""
    present = version_numbers(source.folder)
    if not present and config.HasField("ensemble_scheduling"):
        return [1]  # an object store can't keep the empty folder of an ensemble's version
    return present


def chosen_versions(config: ModelConfig, present: list[int]) -> list[int]:
    """Returns the versions that the version policy selects, of those that are present. Raises ConfigError if there is
    none."""
    if not present:
        raise ConfigError("the model's folder has no version: expected a folder named by a number, such as 1")
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return present
    if choice == "specific":
        if not policy.specific.versions:
            raise ConfigError("version_policy.specific names no version")
        wanted = sorted(set(policy.specific.versions))
        chosen = [version for version in wanted if version in present]
        if not chosen:
            raise ConfigError(_missing(wanted, present))
        return chosen
    return present[-(policy.latest.num_versions or 1) :]


def _missing(versions: Sequence[int], present: Sequence[int]) -> str:
    text = f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"
    return shortened(
        f"version_policy.specific wants {text}, present are {list(present)}: add a folder, or name only these"
    )


def needed_by(names: Sequence[str], configs: Mapping[str, ModelConfig | ServingError]) -> set[str]:
    """Returns the names of the models, of the models of their steps, and of those that draw their pictures."""
    needed: set[str] = set()
    todo = set(names)
    while todo:
        name = todo.pop()
        config = configs.get(name)
        if config is None or name in needed:
            continue
        needed.add(name)
        if isinstance(config, ModelConfig):
            todo |= {*step_models(config), parameter(config, "predict_picture_model")}
    return needed


def unavailable(name: str, reason: str) -> ServingError:
    """Returns the error for a model that exists but didn't load."""
    return ServingError(Kind.UNAVAILABLE, f"model '{name}' is not available: {reason}")


def _reads_requests(model: LoadedModel) -> bool:
    """Returns whether a model, or one that it runs, sees more of a request than its inputs."""
    return model.spec.platform == PYTHON or any(map(_reads_requests, model.steps))
