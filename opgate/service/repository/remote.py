"""Loads one version of a model that Triton runs: its config, completed by Triton, and the calls to it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.triton.pool import TritonPool
from opgate.service.execution.triton.remote import RemoteModel
from opgate.service.repository.config import state_defaults, with_schedulers
from opgate.service.repository.ensembles import Lookup, with_labels
from opgate.service.repository.loader import LoadedModel, copied, limits_of
from opgate.service.repository.paths import confined
from opgate.service.repository.presentation_from_config import read_presentation
from opgate.service.repository.spec_from_config import make_spec
from opgate.service.settings import Settings


def load_remote(
    repository: Path, config: ModelConfig, version: int, settings: Settings, pool: TritonPool, lookup: Lookup
) -> LoadedModel:
    """Connects a version of a model with the servers that run it. Raises ServingError (UNAVAILABLE) with the reason.

    `lookup` finds the models of an ensemble's steps.
    """
    began = time.perf_counter()
    completed = pool.config(config.name, str(version))
    config = copied(config)
    # What the config leaves out is as Triton has it.
    config.max_batch_size = completed.max_batch_size
    if not config.input:
        config.input.extend(completed.input)
    if not config.output:
        config.output.extend(completed.output)
    state_defaults(config)
    spec = make_spec(config, version, repository, confined(repository, repository / config.name))
    if config.HasField("ensemble_scheduling"):
        spec = with_labels(config, spec, lookup)
    if completed.backend not in ("", "onnxruntime"):
        spec = replace(spec, platform=completed.platform or completed.backend)
    statistics = ModelStatistics()
    executor = RemoteModel(
        spec,
        pool,
        statistics,
        limits_of(settings),
        max_queue_size=settings.max_queue_size,
        call_timeout=settings.run_timeout,
    )
    presentation = read_presentation(config, spec)
    statistics.load_seconds = time.perf_counter() - began
    statistics.loads += 1
    return LoadedModel(with_schedulers(config), spec, executor, statistics, presentation)
