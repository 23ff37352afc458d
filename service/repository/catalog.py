"""All models of a repository: knows which versions serve, and why the others don't."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.errors import Kind, ServingError
from opgate.service.execution.spec import ModelSpec
from opgate.service.repository.config import ConfigError, parameter, refuse_unsupported, runs_on_triton
from opgate.service.repository.ensembles import step_models
from opgate.service.repository.loader import LoadedModel, load_config, load_ensemble, load_model, unavailable
from opgate.service.repository.paths import model_names, version_numbers
from opgate.service.settings import Settings

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool

_VERSION = re.compile(r"[1-9][0-9]{0,17}")

logger = logging.getLogger("opgate.repository")


@dataclass(slots=True)
class Entry:
    """One model folder. `reasons` says by version why it is unavailable; version 0 stands for the whole model."""

    name: str
    versions: dict[int, LoadedModel] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


def _check_layout(repository: Path, names: Sequence[str]) -> None:
    """Raises ConfigError if the repository is the folder of a model. Warns if it has no model."""
    is_model = (repository / "config.pbtxt").is_file() or any(
        name.isdecimal() and any((repository / name).glob("*.onnx")) for name in names
    )
    if is_model:
        raise ConfigError(
            f"model repository '{repository}' is the folder of a model: expected a folder with "
            f"<model>/<version>/model.onnx; '{repository.parent}' may be the one"
        )
    if not names:
        logger.warning("model repository '%s' is empty: expected <model>/<version>/model.onnx", repository)


_LONG_NAME = 256


class Catalog:
    """The models of the repository, loaded at start-up."""

    def __init__(self, settings: Settings, triton: TritonPool | None = None) -> None:
        """`triton` are the servers that run the models, if this process doesn't."""
        self._settings = settings
        self._triton = triton
        self._entries: dict[str, Entry] = {}
        self._configs: dict[str, ModelConfig] = {}
        self.complete = False  # whether the catalog has tried to load every model

    def load_all(self, only: str = "") -> None:
        """Loads every model, an ensemble after the models of its steps. Keeps the reason of each failure.

        `only` is the name of a model: then that model and the models that it needs are loaded, and no others.
        Raises ConfigError if there is no repository, or if it is the folder of a model, and ServingError (UNAVAILABLE)
        if no Triton server answers. Any other failure only makes its model unavailable.
        """
        repository = self._settings.model_repository
        if not repository.is_dir():
            raise ConfigError(
                f"model repository '{repository.absolute()}' is not a directory: name one with --model-repository"
            )
        repository = repository.resolve()
        names = model_names(repository)
        _check_layout(repository, names)
        if self._triton is not None:
            self._triton.wait(self._settings.triton_start_timeout)
        configs: dict[str, ModelConfig] = {}
        for name in names:
            entry = self._entries[name] = Entry(name)
            try:
                configs[name] = load_config(repository, name, self._triton is not None)
            except ServingError as error:
                self._failed(entry, 0, error.message)
        if only:
            configs = {name: configs[name] for name in _needed_by(only, configs)}
            self._entries = {name: entry for name, entry in self._entries.items() if name in configs or name == only}
        self._configs = configs
        ensembles = {name for name, config in configs.items() if config.HasField("ensemble_scheduling")}
        for name in configs:
            if name not in ensembles:
                self._load(repository, configs[name], False)
        for name in _in_order(configs, ensembles, self._entries, self._failed):
            self._load(repository, configs[name], True)
        self.complete = True

    def _load(self, repository: Path, config: ModelConfig, ensemble: bool) -> None:
        entry = self._entries[config.name]
        try:
            versions = chosen_versions(config, version_numbers(repository / config.name))
        except ServingError as error:
            self._failed(entry, 0, error.message)
            return
        for version in versions:
            try:
                if self._triton is not None and self._is_remote(config):
                    from opgate.service.repository.remote import load_remote

                    settings, triton = self._settings, self._triton
                    loaded = load_remote(repository, config, version, settings, triton, self._spec_of_step)
                elif ensemble:
                    refuse_unsupported(config)
                    loaded = load_ensemble(repository, config, version, self._settings, self._step)
                else:
                    loaded = load_model(repository, config, version, self._settings)
            except ServingError as error:
                self._failed(entry, version, error.message)
                continue
            except Exception as error:  # a broken model file must not keep the other models from being served
                logger.exception("loading model '%s' failed", config.name)
                self._failed(entry, version, f"{type(error).__name__}: {error}")
                continue
            entry.versions[version] = loaded
            logger.info(
                "model loaded",
                extra={"model": config.name, "version": version, "seconds": round(loaded.statistics.load_seconds, 3)},
            )

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
            model = self._configs.get(step.model_name)
            if model is None or not self._is_remote(model):
                return False
            status = parameter(model, "row_status_output")
            if status and (not shown or step.output_map.get(status) != shown):
                return False
        return True

    def _failed(self, entry: Entry, version: int, reason: str) -> None:
        entry.reasons[version] = reason
        logger.error("model unavailable: %s", reason, extra={"model": entry.name, "version": version or None})

    def _step(self, name: str, version: int) -> LoadedModel:
        return self.find(name, "" if version < 0 else str(version))

    def _spec_of_step(self, name: str, version: int) -> ModelSpec:
        return self._step(name, version).spec

    def find(self, name: str, version: str = "") -> LoadedModel:
        """Returns a version of a model, the highest one that serves if `version` is empty.

        Raises ServingError: NOT_FOUND if the repository has no such model or version, UNAVAILABLE with the reason if it
        didn't load, INVALID if `version` is no number.
        """
        entry = self._entries.get(name)
        if entry is None:
            # To compare a name takes as long as it is.
            near = difflib.get_close_matches(name, self._entries, n=1) if len(name) <= _LONG_NAME else []
            name = name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..."
            hint = f", did you mean '{near[0]}'?" if near else ""
            raise ServingError(Kind.NOT_FOUND, f"Request for unknown model: '{name}' is not found{hint}")
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

    def models(self) -> Iterator[LoadedModel]:
        """Yields every version that serves, in order of name and version."""
        for name in sorted(self._entries):
            for version in self.versions(name):
                yield self._entries[name].versions[version]

    def index(self) -> list[tuple[str, str, str, str]]:
        """Returns name, version, state and reason of every model in the repository.

        The version is "" if the whole model is unavailable.
        """
        rows = []
        for entry in self._entries.values():
            for version in sorted({*entry.versions, *entry.reasons}):
                model = entry.versions.get(version)
                reason = entry.reasons[version] if model is None else model.executor.overdue
                state = "UNAVAILABLE" if model is None or reason else "READY"
                rows.append((entry.name, str(version) if version else "", state, reason))
        return rows

    def unavailable(self) -> list[str]:
        """Returns the names of the models of which a version failed to load or is not ready."""
        return [
            entry.name
            for entry in self._entries.values()
            if entry.reasons or any(model.executor.overdue for model in entry.versions.values())
        ]

    async def close(self) -> None:
        """Closes every model, after it has answered the requests that it has accepted."""
        for model in self.models():
            await model.executor.close()


def chosen_versions(config: ModelConfig, present: list[int]) -> list[int]:
    """Returns the versions that the version policy selects. Raises ConfigError if one is missing."""
    if not present:
        raise ConfigError("the model's folder has no version: expected a folder named by a number, such as 1")
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return present
    if choice == "specific":
        missing = sorted(set(policy.specific.versions) - set(present))
        if missing:
            raise ConfigError(f"version_policy wants version {missing[0]}, present are {present}")
        return sorted(set(policy.specific.versions))
    return present[-(policy.latest.num_versions or 1) :]


def _in_order(
    configs: dict[str, ModelConfig],
    ensembles: set[str],
    entries: dict[str, Entry],
    failed: Callable[[Entry, int, str], None],
) -> list[str]:
    """Returns the ensembles in an order in which each comes after those that it uses.

    Ensembles that wait for each other in a cycle are left out and marked as failed.
    """
    ordered: list[str] = []
    todo = sorted(ensembles)
    while todo:
        ready = [n for n in todo if not set(step_models(configs[n])) & set(todo)]
        if not ready:
            for name in todo:
                failed(entries[name], 0, "ensembles use each other in a cycle: " + ", ".join(todo))
            break
        ordered += ready
        todo = [n for n in todo if n not in ready]
    return ordered


def _needed_by(name: str, configs: dict[str, ModelConfig]) -> set[str]:
    """Returns the names of the model, of the models of its steps, and of the model that draws its picture."""
    needed: set[str] = set()
    todo = {name}
    while todo:
        current = todo.pop()
        if current in configs and current not in needed:
            needed.add(current)
            todo |= {*step_models(configs[current]), parameter(configs[current], "predict_picture_model")}
    return needed
