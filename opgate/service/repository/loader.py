"""Loads one version of a model from its folder: config, op library, session, scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from opgate.cpu import usable_cores
from opgate.service.core.checks import Limits
from opgate.service.core.errors import ServingError
from opgate.service.core.op_times import OpTimesOfModel
from opgate.service.core.presentation import Presentation
from opgate.service.core.request import Request
from opgate.service.core.spec import PYTHON, ModelSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.triton_messages import ModelConfig, ModelInstanceGroup
from opgate.service.execution.batch import try_out
from opgate.service.execution.gpus import CUDA_NAMES, TENSORRT
from opgate.service.execution.pipeline import Executor, Pipeline, Step
from opgate.service.execution.prepared import PreparedModels
from opgate.service.execution.rate_limiter import CORE, Claim, RateLimiter
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.sequences import (
    Executions,
    SequenceBatching,
    Sequencer,
    SequenceScheduler,
    engine_spec,
)
from opgate.service.execution.session import FileSession, ModelSession, SessionOptions, open_prepared
from opgate.service.isolation.calls import Calls
from opgate.service.isolation.file_session import ProcessSession
from opgate.service.isolation.opening import OnnxOpening
from opgate.service.isolation.worker_session import WorkerSession
from opgate.service.repository.autocomplete import complete
from opgate.service.repository.config import (
    ONNX_FILE,
    PYTHON_FILE,
    SESSION_PREFIX,
    ConfigError,
    in_python,
    parameter,
    read_config,
    refuse_unsupported,
    runs_on_triton,
    state_defaults,
    states_max_batch_size,
    with_schedulers,
)
from opgate.service.repository.devices import accelerators, demands, place
from opgate.service.repository.ensembles import check_ensemble, with_labels
from opgate.service.repository.op_libraries import (
    Library,
    counterpart,
    explain,
    library_of_missing_op,
    trusted_folders,
    trusted_library,
    with_refusals,
)
from opgate.service.repository.padding_config import with_padding
from opgate.service.repository.paths import confined, file_name
from opgate.service.repository.presentation_from_config import read_presentation
from opgate.service.repository.proving import prove
from opgate.service.repository.python_models import check_allowed, confinement, open_python, worker_limits
from opgate.service.repository.sequence_config import read_sequences
from opgate.service.repository.spec_from_config import make_spec
from opgate.service.repository.validation import check_against_engine
from opgate.service.settings import Settings

logger = logging.getLogger("opgate.repository")

_LEAST_SHARE, _MOST_SHARE = 0.001, 1000
# How much more a run on the event loop may cost where the process has a single core.
_ON_ONE_CORE = 5.0
# How a pointer of Git LFS begins: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS = b"version https://git-lfs"
# Files of a folder that an error names.
_NAMED_FILES = 5


@dataclass(frozen=True, slots=True)
class Shared:
    """What the models of a process share. With `limiter` their instances run only when that lets them. `calls` are the
    requests of models in Python to other models. Files that `prepared` has are opened in that form."""

    limiter: RateLimiter | None = None
    calls: Calls | None = None
    prepared: PreparedModels | None = None


_NOTHING = Shared()


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A version of a model that can serve.

    `steps` are the models that an ensemble runs. `stamp` differs if another load would bring something else. `try_on`
    runs a request in any session of the model file. Only the event loop's thread calls the methods.
    """

    config: ModelConfig
    spec: ModelSpec
    executor: Executor
    statistics: ModelStatistics
    presentation: Presentation
    steps: tuple[LoadedModel, ...] = ()
    stamp: tuple[Hashable, ...] = ()
    session: FileSession | None = None  # one of those of a model file
    try_on: Callable[[FileSession, Request], None] | None = None
    loaded_at: float = field(default_factory=time.time)
    _holders: int = 0  # what still submits requests: ensembles, and requests that are read
    _let_go: asyncio.Event | None = None

    @property
    def submit(self) -> Callable[[Request], None]:
        """The function that accepts a checked request."""
        return self.executor.submit

    @property
    def holders(self) -> int:
        """How many hold the model."""
        return self._holders

    def hold(self) -> None:
        """Keeps the model able to accept requests until `release`, although another may take its place meanwhile."""
        self._holders += 1

    def release(self) -> None:
        """Ends a `hold`."""
        self._holders -= 1
        if self._let_go is not None and not self._holders:
            self._let_go.set()

    async def close(self) -> None:
        """Waits until nothing holds the model and its requests are answered, and gives its memory back."""
        if self._holders:
            self._let_go = asyncio.Event()
            await self._let_go.wait()
        await self.executor.close()
        self.statistics.op_times.close()
        for step in self.steps:
            step.release()


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


def load_config(repository: Path, name: str, triton: bool = False, override: ModelConfig | None = None) -> ModelConfig:
    """Returns the config of a model as it is written, an empty one if there is no file.

    `triton` says that there are Triton servers, which run the model unless its config says no. `override` replaces what
    is written. Raises ConfigError if the config can't be read, names another model or sets a field that the gateway
    doesn't support.
    """
    folder = confined(repository, repository / name)
    path = folder / "config.pbtxt"
    if override is not None:
        config = copied(override)
    else:
        config = read_config(confined(repository, path)) if path.exists() else ModelConfig()
        if _has_only_python(folder, config):
            config.backend = "python"
    if config.name and config.name != name:
        raise ConfigError(f"config.pbtxt names the model '{config.name}', its folder is '{name}'")
    refuse_unsupported(config, triton and runs_on_triton(config))
    config.name = name
    return config


def _has_only_python(folder: Path, config: ModelConfig) -> bool:
    """Returns whether the model file of a config that names no backend is in Python. Then Triton takes this backend."""
    if config.backend or config.platform or config.HasField("ensemble_scheduling"):
        return False
    if config.default_model_filename:
        return bool(config.default_model_filename == PYTHON_FILE)
    names = {path.name for path in folder.glob("[1-9]*/model.*")}
    return PYTHON_FILE in names and ONNX_FILE not in names


def model_file(folder: Path, config: ModelConfig, version: int) -> Path:
    """Returns where the file of a version lies in the folder of its model, if it is there. Raises ConfigError."""
    usual = PYTHON_FILE if in_python(config) else ONNX_FILE
    path = folder / str(version) / file_name(config.default_model_filename or usual, "default_model_filename")
    if path.is_dir() and not in_python(config):
        path /= ONNX_FILE  # as in Triton, beside the files with its data
    return path


def load_model(
    repository: Path,
    config: ModelConfig,
    version: int,
    settings: Settings,
    shared: Shared = _NOTHING,
    states_batch: bool | None = None,
    counted: ModelStatistics | None = None,
) -> LoadedModel:
    """Opens one version of an ONNX model, or of a model in Python.

    Raises ServingError (UNAVAILABLE) with the reason.

    `counted` are the statistics that it goes on with. `states_batch` says whether the config says what max_batch_size
    is; None means that it was read from the model's folder.
    """
    began = time.perf_counter()
    config = copied(config)
    folder = confined(repository, repository / config.name)
    if in_python(config):
        check_allowed(settings)
    path = model_file(folder, config, version)
    if not path.is_file():
        names = sorted(entry.name for entry in confined(repository, path.parent).iterdir())
        there = ", ".join(names[:_NAMED_FILES]) + ", ..." * (len(names) > _NAMED_FILES)
        raise ConfigError(
            f"there is no model file {config.name}/{path.relative_to(folder)}, its folder has {there or 'no files'}"
        )
    path = confined(repository, path)
    _refuse_pointer(path)
    if in_python(config):
        sessions, added = open_python(path, config, version, folder, settings, shared.calls)
    else:
        sessions, added = _open(path, config, [folder / str(version), folder], settings, shared.prepared)
    try:
        loaded = _connect(repository, config, version, settings, shared, states_batch, sessions, added, counted)
    except BaseException:
        for session in dict.fromkeys(sessions):
            session.close()
        raise
    loaded.statistics.load_seconds = time.perf_counter() - began
    loaded.statistics.loads += 1
    return loaded


def _connect(
    repository: Path,
    config: ModelConfig,
    version: int,
    settings: Settings,
    shared: Shared,
    states_batch: bool | None,
    sessions: Sequence[ModelSession],
    added: list[str],
    counted: ModelStatistics | None,
) -> LoadedModel:
    """Checks an opened model against its config, tries it out and gives it a queue. `added` is what `_open` added."""
    folder = confined(repository, repository / config.name)
    session = sessions[0]
    stated = states_max_batch_size(folder) if states_batch is None else states_batch
    batch = 0 if stated else settings.default_max_batch_size
    if not in_python(config):
        added += complete(config, config.name, session.inputs, session.outputs, batch, session.defaulted)
    if added:
        logger.info("config completed: %s", ", ".join(added), extra={"model": config.name, "version": version})
    spec = make_spec(config, version, repository, folder)
    limits = limits_of(settings)
    spec = with_padding(config, spec, session.inputs, session.outputs, limits)
    sequences = read_sequences(config, folder, limits)
    if sequences is not None and settings.workers > 1:
        raise ConfigError(
            "sequence_batching keeps the state of a sequence in one process: expected --workers 1 (OPGATE_WORKERS), "
            f"got {settings.workers}"
        )
    engine = spec if sequences is None else engine_spec(spec, sequences)
    if not in_python(config):
        check_against_engine(engine, session.inputs, session.outputs, session.defaulted)
    presentation = read_presentation(config, spec)

    def try_on(session: ModelSession, request: Request) -> None:
        if sequences is None:
            try_out(session, engine, request)
        else:
            Sequencer(spec, sequences).try_out(request, run=partial(try_out, session, engine))

    runs = [partial(try_on, session) for session in dict.fromkeys(sessions)]
    warm_ups = prove(config, spec, folder, version, runs, limits, settings.run_timeout)
    statistics = counted or ModelStatistics()
    statistics.instances, statistics.intra_op_threads = len(sessions), session.intra_op_threads
    op_times = OpTimesOfModel(dict.fromkeys(sessions))
    if counted is not None:
        op_times.follow(counted.op_times)
    statistics.op_times = op_times
    statistics.workers = [session for session in sessions if isinstance(session, WorkerSession)]
    claims = _claims(config, shared.limiter, sessions)
    if sequences is None:
        scheduler = _scheduler(spec, sessions, statistics, settings, claims)
        for request, wall_ns in warm_ups:
            scheduler.learn(request, wall_ns)
        executor: Executor = scheduler
    else:
        executor = _sequence_scheduler(spec, sequences, sessions, statistics, settings, claims)
    loaded = LoadedModel(with_schedulers(config), spec, executor, statistics, presentation)
    if not session.takes_requests:
        loaded.session, loaded.try_on = session, try_on
    return loaded


def _scheduler(
    spec: ModelSpec,
    sessions: Sequence[ModelSession],
    statistics: ModelStatistics,
    settings: Settings,
    claims: Sequence[Claim],
) -> Scheduler:
    return Scheduler(
        spec,
        sessions,
        statistics,
        max_queue_size=settings.max_queue_size,
        # The event loop must not wait for a GPU, nor for another process.
        inline_limit_us=inline_limit_us(settings, waits=any(s.isolated or s.gpu is not None for s in sessions)),
        # A worker process that takes too long is ended, and its run with it.
        run_timeout=None if all(session.isolated for session in sessions) else settings.run_timeout,
        claims=claims,
    )


def _sequence_scheduler(
    spec: ModelSpec,
    sequences: SequenceBatching,
    sessions: Sequence[ModelSession],
    statistics: ModelStatistics,
    settings: Settings,
    claims: Sequence[Claim],
) -> SequenceScheduler:
    # A sequence that has a row for itself has it in one instance, and a model in Python keeps what it knows of a
    # sequence in one instance, so each of these has a queue of its own.
    in_one = sequences.oldest is None or spec.platform == PYTHON
    groups = [slice(i, i + 1) for i in range(len(sessions))] if in_one else [slice(None)]
    engine = engine_spec(spec, sequences)
    counted = sequences.oldest is not None or spec.platform == PYTHON
    instances = [
        _scheduler(engine, sessions[group], Executions(statistics, counted), settings, claims[group])
        for group in groups
    ]
    return SequenceScheduler(spec, sequences, instances, statistics, max_queue_size=settings.max_queue_size)


def _claims(config: ModelConfig, limiter: RateLimiter | None, sessions: Sequence[ModelSession]) -> list[Claim]:
    """Returns a claim for each instance, none if the limiter doesn't limit the model.

    Raises ServingError (UNAVAILABLE) if an instance could never run.
    """
    needed = demands(config)
    share = _share(config)
    if limiter is not None and limiter.fair:
        needed = [
            # A model in Python may wait for another one, which needs a core.
            demand
            if session.gpu is not None or session.takes_requests
            else replace(demand, resources={**demand.resources, CORE: 1}, share=share)
            for demand, session in zip(needed, sessions, strict=True)
        ]
    return limiter.add(needed) if limiter is not None and any(demand.resources for demand in needed) else []


def _share(config: ModelConfig) -> float:
    """Reads the parameter `share`. Raises ConfigError."""
    text = parameter(config, "share") or "1"
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not _LEAST_SHARE <= share <= _MOST_SHARE:
        raise ConfigError(f"parameter 'share': expected a number from {_LEAST_SHARE} to {_MOST_SHARE}, got '{text}'")
    return share


def cores_of(settings: Settings) -> int:
    """Returns how many cores a gateway process counts on: its share of those that all of them may use."""
    return max(1, usable_cores() // settings.workers)


def inline_limit_us(settings: Settings, *, waits: bool) -> float:
    """Returns what a run on the event loop may cost in microseconds: nothing if it `waits` for something else."""
    if waits:
        return 0.0
    # On a single core a thread gives the event loop no time, and takes some for the change of threads.
    return settings.inline_limit_us * (_ON_ONE_CORE if cores_of(settings) == 1 else 1)


def load_ensemble(
    repository: Path,
    config: ModelConfig,
    version: int,
    settings: Settings,
    find: Callable[[str, int], LoadedModel],
    counted: ModelStatistics | None = None,
) -> LoadedModel:
    """Checks an ensemble against the models of its steps and connects them. `counted` are the statistics that it goes
    on with.

    Raises ServingError (UNAVAILABLE) with the reason.
    """
    began = time.perf_counter()
    config = copied(config)
    folder = confined(repository, repository / config.name)
    if not config.input or not config.output:
        raise ConfigError("an ensemble's config must state its inputs and outputs")
    state_defaults(config)
    spec = make_spec(config, version, repository, folder)

    def lookup(name: str, wanted: int) -> ModelSpec:
        try:
            found = find(name, wanted).spec
        except ServingError as error:
            raise ConfigError(f"step '{name}': {error.message}") from error
        if found.decoupled and not found.streams:
            raise ConfigError(f"step '{name}': only a model in Python may be decoupled in an ensemble")
        return found

    models = check_ensemble(config, spec, lookup)
    # As in Triton, an ensemble is decoupled if one of its steps is.
    spec = replace(with_labels(config, spec, lookup), decoupled=any(model.streams for model in models))
    config.model_transaction_policy.decoupled = spec.decoupled
    if spec.decoupled and config.response_cache.enable:
        raise ConfigError("response_cache of an ensemble with a decoupled step")
    loaded = tuple(find(step.model_name, step.model_version) for step in config.ensemble_scheduling.step)
    steps = [
        # A map of protobuf has no order: the inputs come in that of the step's config.
        Step(
            spec,
            model.executor,
            {name: step.input_map[name] for name in spec.inputs if name in step.input_map},
            dict(step.output_map),
        )
        for step, spec, model in zip(config.ensemble_scheduling.step, models, loaded, strict=True)
    ]
    statistics = counted or ModelStatistics()
    pipeline = Pipeline(spec, steps, statistics, limits_of(settings), 2 * settings.write_timeout)
    prove(config, spec, folder, version, [pipeline.try_out], limits_of(settings), settings.run_timeout)
    statistics.load_seconds = time.perf_counter() - began
    statistics.loads += 1
    return LoadedModel(config, spec, pipeline, statistics, read_presentation(config, spec), loaded)


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


def _refuse_pointer(path: Path) -> None:
    """Raises ConfigError if the file only stands for one that Git LFS keeps elsewhere."""
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise ConfigError(f"{path.name} is a pointer of Git LFS, not the model: run `git lfs pull`")


def _open(
    path: Path, config: ModelConfig, places: Sequence[Path], settings: Settings, prepared: PreparedModels | None
) -> tuple[list[ModelSession], list[str]]:
    """Opens the sessions of a model with the op libraries that its config names.

    If the model has an op that these lack, it gets the trusted library that has it. Returns the sessions, and the names
    of the libraries that came so. Raises ConfigError.
    """
    trusted = trusted_folders(settings)
    named = config.model_operations.op_library_filename
    try:
        libraries = [trusted_library(name, places, trusted) for name in named]
    except ConfigError as error:
        raise with_refusals(error, settings) from None
    added: list[str] = []
    while True:
        try:
            return _sessions(path, config, libraries, trusted, settings, prepared), added
        except ServingError as error:
            found = library_of_missing_op(error.message, libraries, trusted)
            if found is None:
                explained = ConfigError(explain(error.message, libraries, trusted))
                raise with_refusals(explained, settings) from error
        libraries.append(found)
        named.append(found.path.name)
        added.append(f"op library {found.path.name}")


def _sessions(
    path: Path,
    config: ModelConfig,
    libraries: Sequence[Library],
    trusted: Sequence[Path],
    settings: Settings,
    prepared: PreparedModels | None,
) -> list[ModelSession]:
    """Opens the session of each instance.

    The instances on the CPU share one, unless each has a process of its own. Each instance on a GPU has its own.
    """
    asked = any(group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group)
    devices = sorted(place(config), key=lambda device: device is None)  # an idle GPU is taken before an idle CPU
    if config.cc_model_filenames and devices[0] is not None:
        raise ConfigError(
            "cc_model_filenames: the gateway doesn't choose files by compute capability: put the file for this GPU "
            "into default_model_filename"
        )
    images = tuple(library.image for library in libraries)
    on_cpu = replace(_session_options(config, len(devices), settings), libraries=images)
    on_gpu = on_cpu
    if libraries and any(device is not None for device in devices):
        on_gpu = _with_libraries_for_gpus(on_cpu, libraries, trusted)
    in_python = [library for library in libraries if library.python_ops]
    if in_python and not settings.allow_python_ops:
        raise ConfigError(
            f"{in_python[0].path.name} has ops that are functions in Python, which run whatever their op.py says: such "
            "models are served only with --allow-python-ops (OPGATE_ALLOW_PYTHON_OPS)"
        )
    isolated = bool(in_python) or is_isolated(config, settings)
    sessions: list[ModelSession] = []
    with contextlib.ExitStack() as opened:
        for device in devices:
            if device is None and sessions and sessions[-1].gpu is None and not isolated:
                sessions.append(sessions[-1])
                continue
            options = on_cpu if device is None else replace(on_gpu, gpu=device)
            found = None
            if prepared is not None and not isolated:  # nobody trusts the file of an isolated model
                # Several gateway processes share the pages of a prepared file, so that is worth waiting for.
                digests = [library.digest for library in libraries]
                found = prepared.find(path, options, digests, wait=settings.workers > 1)
            if isolated:
                opening = OnnxOpening(config.name, path, options, confinement(settings), settings.log_format == "json")
                session: ModelSession = ProcessSession(config.name, opening, worker_limits(settings))
            else:
                session = open_prepared(path, options, found)
            opened.callback(session.close)
            if device is not None:
                _check_nodes(config.name, device, session.nodes(), asked, on_gpu.tensorrt is not None)
            sessions.append(session)
        opened.pop_all()
    return sessions


def is_isolated(config: ModelConfig, settings: Settings) -> bool:
    """Returns whether a model runs in processes of its own. Raises ConfigError."""
    asked = parameter(config, "isolation") or "none"
    if asked not in ("none", "process"):
        raise ConfigError(f"parameter 'isolation': expected none or process, got '{asked}'")
    return "process" in (asked, settings.isolation)


def _check_nodes(model: str, gpu: int, nodes: Mapping[str, set[str]], asked: bool, tensorrt: bool) -> None:
    """Logs what the CPU runs. Raises ConfigError if a provider that the config asks for runs nothing."""
    on_cpu = ", ".join(sorted(nodes.get("CPUExecutionProvider", ())))
    if tensorrt and TENSORRT not in nodes:
        raise ConfigError("gpu_execution_accelerator 'tensorrt': TensorRT takes no node of the model")
    if not nodes.keys() & {*CUDA_NAMES, TENSORRT}:
        if asked:
            raise ConfigError(f"instance_group KIND_GPU: no node of the model has a kernel for CUDA: {on_cpu}")
        logger.warning("model '%s' was placed on GPU %d, and the CPU runs all of it: %s", model, gpu, on_cpu)
    elif on_cpu:
        logger.info("model '%s' on GPU %d: the CPU runs %s", model, gpu, on_cpu)


def _with_libraries_for_gpus(
    options: SessionOptions, libraries: Sequence[Library], trusted: Sequence[Path]
) -> SessionOptions:
    """Names the libraries for CUDA of the same ops, and their plugins if the config asks for TensorRT."""
    images: list[Path] = []
    plugins: list[Path] = []
    for library in libraries:
        of_cuda = counterpart(library, "onnxruntime", "cuda", trusted)
        if of_cuda is None:
            logger.warning(
                "op library %s has no trusted library for CUDA beside it: its ops run on the CPU", library.path.name
            )
        images.append((of_cuda or library).image)
        of_tensorrt = None if options.tensorrt is None else counterpart(library, "tensorrt", "cuda", trusted)
        if of_tensorrt is not None:
            plugins.append(of_tensorrt.image)
    return replace(options, libraries=tuple(images), tensorrt_plugins=tuple(plugins))


def _session_options(config: ModelConfig, instances: int, settings: Settings) -> SessionOptions:
    """Returns the options that the sessions of all instances share."""
    providers = accelerators(config)
    threads = settings.intra_op_threads or max(1, cores_of(settings) // instances)
    levels = {-1: "basic", 0: "all", 1: "extended", 2: "disabled"}
    return SessionOptions(
        intra_op_threads=_number(config, "intra_op_thread_count") or threads,
        inter_op_threads=_number(config, "inter_op_thread_count"),
        parallel=bool(_number(config, "execution_mode", (0, 1))),
        graph_level=levels.get(config.optimization.graph.level, "all"),  # as in Triton
        memory_arena=_truth(config, "enable_mem_arena"),
        memory_pattern=_truth(config, "enable_mem_pattern"),
        arena_shrinkage=parameter(config, "memory.enable_memory_arena_shrinkage"),
        cuda=providers.cuda,
        tensorrt=providers.tensorrt,
        entries={key: value.string_value for key, value in config.parameters.items() if key.startswith(SESSION_PREFIX)},
    )


def _truth(config: ModelConfig, key: str) -> bool:
    """Returns whether a parameter is true, which it is if nothing is said."""
    text = parameter(config, key)
    value = {"": True, "true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise ConfigError(f"parameter '{key}': expected true, false, 1 or 0, got '{text}'")
    return value


def _number(config: ModelConfig, key: str, allowed: tuple[int, ...] = ()) -> int:
    text = parameter(config, key)
    if not text:
        return 0
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"parameter '{key}': expected an integer, got '{text}'") from None
    if value < 0 or (allowed and value not in allowed):
        raise ConfigError(f"parameter '{key}': expected {list(allowed) or 'a positive integer'}, got {value}")
    return value
