"""Loads one version of a model from its folder: config, op library, session, scheduler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from opgate.service.errors import Kind, ServingError
from opgate.service.execution.checks import Limits
from opgate.service.execution.gpus import CUDA, TENSORRT
from opgate.service.execution.pipeline import Pipeline, Step
from opgate.service.execution.request import Request
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.session import Session, SessionOptions, usable_cores
from opgate.service.execution.spec import ModelSpec
from opgate.service.repository.autocomplete import complete
from opgate.service.repository.config import (
    SESSION_PREFIX,
    ConfigError,
    parameter,
    read_config,
    refuse_unsupported,
    runs_on_triton,
    state_version_policy,
)
from opgate.service.repository.devices import accelerators, place
from opgate.service.repository.ensembles import check_ensemble, with_labels
from opgate.service.repository.op_libraries import Library, counterpart, explain_missing_op, trusted_library
from opgate.service.repository.paths import confined, file_name
from opgate.service.repository.presentation import Presentation, read_presentation
from opgate.service.repository.specification import make_spec
from opgate.service.repository.validation import check_against_engine
from opgate.service.settings import Settings
from opgate.service.telemetry.statistics import ModelStatistics

logger = logging.getLogger("opgate.repository")

# How much more a run on the event loop may cost where the process has a single core.
_ON_ONE_CORE = 5.0


class Executor(Protocol):
    """Runs the requests of a model: a Scheduler, or a Pipeline for an ensemble."""

    def submit(self, request: Request) -> None: ...

    @property
    def overdue(self) -> str: ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A version of a model that can serve."""

    config: ModelConfig
    spec: ModelSpec
    executor: Executor
    statistics: ModelStatistics
    presentation: Presentation

    @property
    def submit(self) -> Callable[[Request], None]:
        """The function that accepts a checked request."""
        return self.executor.submit


def limits_of(settings: Settings) -> Limits:
    """Returns the limits on a single request."""
    return Limits(
        max_rank=settings.max_rank,
        max_elements=settings.max_elements,
        max_strings=settings.max_strings,
        max_tensors=settings.max_tensors,
        max_json_bytes=settings.max_json_bytes,
        max_json_depth=settings.max_json_depth,
        max_string_bytes=settings.max_string_bytes,
    )


def load_config(repository: Path, name: str, triton: bool = False) -> ModelConfig:
    """Returns the config of a model as it is written, an empty one if there is no file.

    `triton` says that there are Triton servers, which run the model unless its config says no. Raises ConfigError if
    the config can't be read, names another model or sets a field that the gateway doesn't support.
    """
    folder = confined(repository, repository / name)
    path = folder / "config.pbtxt"
    config = read_config(confined(repository, path)) if path.exists() else ModelConfig()
    if config.name and config.name != name:
        raise ConfigError(f"config.pbtxt names the model '{config.name}', its folder is '{name}'")
    refuse_unsupported(config, triton and runs_on_triton(config))
    config.name = name
    return config


def load_model(repository: Path, config: ModelConfig, version: int, settings: Settings) -> LoadedModel:
    """Opens one version of an ONNX model. Raises ServingError (UNAVAILABLE) with the reason."""
    began = time.perf_counter()
    config = copied(config)
    folder = confined(repository, repository / config.name)
    path = folder / str(version) / file_name(config.default_model_filename or "model.onnx", "default_model_filename")
    if not path.is_file():
        raise ConfigError(f"there is no model file {config.name}/{version}/{path.name}")
    path = confined(repository, path)
    names = config.model_operations.op_library_filename
    if len(names) > 1:
        # A session can register a domain only once, and the domain of a library is not known before it is loaded.
        raise ConfigError("model_operations.op_library_filename: one library a model, got " + ", ".join(names))
    trusted = settings.trusted_directories()
    library = trusted_library(names[0], [folder / str(version), folder], trusted) if names else None
    try:
        sessions = _sessions(path, config, library, settings)
    except ServingError as error:
        raise ConfigError(explain_missing_op(error.message, names[0] if names else "", trusted)) from error
    session = sessions[0]
    complete(config, config.name, session.inputs, session.outputs, settings.default_max_batch_size)
    spec = make_spec(config, version, repository, folder)
    check_against_engine(spec, session.inputs, session.outputs, session.defaulted)
    presentation = read_presentation(config, spec)
    statistics = ModelStatistics()
    scheduler = Scheduler(
        spec,
        sessions,
        statistics,
        max_queue_size=settings.max_queue_size,
        inline_limit_us=inline_limit_us(settings, on_gpu=any(session.gpu is not None for session in sessions)),
        run_timeout=settings.run_timeout,
    )
    statistics.load_seconds = time.perf_counter() - began
    return LoadedModel(config, spec, scheduler, statistics, presentation)


def inline_limit_us(settings: Settings, *, on_gpu: bool) -> float:
    """Returns what a run on the event loop may cost in microseconds."""
    if on_gpu:
        return 0.0  # the event loop must not wait for a GPU
    # On a single core a thread gives the event loop no time, and takes some for the change of threads.
    return settings.inline_limit_us * (_ON_ONE_CORE if usable_cores() == 1 else 1)


def load_ensemble(
    repository: Path, config: ModelConfig, version: int, settings: Settings, find: Callable[[str, int], LoadedModel]
) -> LoadedModel:
    """Checks an ensemble against the models of its steps and connects them.

    Raises ServingError (UNAVAILABLE) with the reason.
    """
    began = time.perf_counter()
    config = copied(config)
    config.platform = "ensemble"
    folder = confined(repository, repository / config.name)
    if not config.input or not config.output:
        raise ConfigError("an ensemble's config must state its inputs and outputs")
    state_version_policy(config)
    spec = make_spec(config, version, repository, folder)

    def lookup(name: str, wanted: int) -> ModelSpec:
        try:
            return find(name, wanted).spec
        except ServingError as error:
            raise ConfigError(f"step '{name}': {error.message}") from error

    models = check_ensemble(config, spec, lookup)
    spec = with_labels(config, spec, lookup)
    steps = []
    for step, model in zip(config.ensemble_scheduling.step, models, strict=True):
        executor = find(step.model_name, step.model_version).executor
        overdue = partial(_overdue, executor)
        steps.append(Step(model, executor.submit, dict(step.input_map), dict(step.output_map), overdue))
    statistics = ModelStatistics()
    pipeline = Pipeline(spec, steps, statistics, limits_of(settings))
    statistics.load_seconds = time.perf_counter() - began
    return LoadedModel(config, spec, pipeline, statistics, read_presentation(config, spec))


def _overdue(executor: Executor) -> str:
    return executor.overdue


def copied(config: ModelConfig) -> ModelConfig:
    """Returns a copy of a config, which can be completed."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def on_cpu(config: ModelConfig) -> ModelConfig:
    """Returns a copy of a config with one instance, on the CPU, and without accelerators of a GPU."""
    new = copied(config)
    del new.instance_group[:]
    new.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    new.optimization.execution_accelerators.ClearField("gpu_execution_accelerator")
    return new


def _sessions(path: Path, config: ModelConfig, library: Library | None, settings: Settings) -> list[Session]:
    """Opens the session of each instance. The instances on the CPU share one, each instance on a GPU has its own."""
    asked = any(group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group)
    devices = sorted(place(config), key=lambda device: device is None)  # an idle GPU is taken before an idle CPU
    on_cpu = replace(_session_options(config, len(devices), settings), libraries=(library.image,) if library else ())
    on_gpu = on_cpu
    if library is not None and any(device is not None for device in devices):
        on_gpu = _with_libraries_for_gpus(on_cpu, library, settings.trusted_directories())
    shared: Session | None = None
    sessions: list[Session] = []
    for device in devices:
        if device is None:
            shared = shared or Session(path, on_cpu)
            sessions.append(shared)
            continue
        session = Session(path, replace(on_gpu, gpu=device))
        _check_nodes(config.name, device, session.nodes(), asked, on_gpu.tensorrt is not None)
        sessions.append(session)
    return sessions


def _check_nodes(model: str, gpu: int, nodes: Mapping[str, set[str]], asked: bool, tensorrt: bool) -> None:
    """Logs what the CPU runs. Raises ConfigError if a provider that the config asks for runs nothing."""
    on_cpu = ", ".join(sorted(nodes.get("CPUExecutionProvider", ())))
    if tensorrt and TENSORRT not in nodes:
        raise ConfigError("gpu_execution_accelerator 'tensorrt': TensorRT takes no node of the model")
    if not nodes.keys() & {CUDA, TENSORRT}:
        if asked:
            raise ConfigError(f"instance_group KIND_GPU: no node of the model has a kernel for CUDA: {on_cpu}")
        logger.warning("model '%s' was placed on GPU %d, and the CPU runs all of it: %s", model, gpu, on_cpu)
    elif on_cpu:
        logger.info("model '%s' on GPU %d: the CPU runs %s", model, gpu, on_cpu)


def _with_libraries_for_gpus(options: SessionOptions, library: Library, trusted: Sequence[Path]) -> SessionOptions:
    """Names the library for CUDA of the same ops, and their plugins if the config asks for TensorRT."""
    of_cuda = counterpart(library, "onnxruntime", "cuda", trusted)
    if of_cuda is None:
        logger.warning(
            "op library %s has no trusted library for CUDA beside it: its ops run on the CPU", library.path.name
        )
    plugins = None if options.tensorrt is None else counterpart(library, "tensorrt", "cuda", trusted)
    return replace(
        options,
        libraries=((of_cuda or library).image,),
        tensorrt_plugins=plugins.image if plugins is not None else None,
    )


def _session_options(config: ModelConfig, instances: int, settings: Settings) -> SessionOptions:
    """Returns the options that the sessions of all instances share."""
    providers = accelerators(config)
    threads = settings.intra_op_threads or max(1, usable_cores() // instances)
    levels = {-1: "basic", 0: "all", 1: "extended", 2: "disabled"}
    return SessionOptions(
        intra_op_threads=_number(config, "intra_op_thread_count") or threads,
        inter_op_threads=_number(config, "inter_op_thread_count"),
        parallel=bool(_number(config, "execution_mode", (0, 1))),
        graph_level=levels[config.optimization.graph.level],
        memory_arena=bool(_number(config, "enable_mem_arena", (0, 1), 1)),
        memory_pattern=bool(_number(config, "enable_mem_pattern", (0, 1), 1)),
        arena_shrinkage=parameter(config, "memory.enable_memory_arena_shrinkage"),
        cuda=providers.cuda,
        tensorrt=providers.tensorrt,
        entries={key: value.string_value for key, value in config.parameters.items() if key.startswith(SESSION_PREFIX)},
    )


def _number(config: ModelConfig, key: str, allowed: tuple[int, ...] = (), default: int = 0) -> int:
    text = parameter(config, key)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"parameter '{key}': expected an integer, got '{text}'") from None
    if value < 0 or (allowed and value not in allowed):
        raise ConfigError(f"parameter '{key}': expected {list(allowed) or 'a positive integer'}, got {value}")
    return value


def unavailable(name: str, reason: str) -> ServingError:
    """Returns the error for a model that exists but didn't load."""
    return ServingError(Kind.UNAVAILABLE, f"model '{name}' is not available: {reason}")
