"""Measures what runs of a model cost in this process: by batch size, threads of a run and runs at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opgate.load.target_model import Input
from opgate.service.core.checks import TensorInfo, check_inputs
from opgate.service.core.errors import invalid
from opgate.service.core.request import Request
from opgate.service.core.spec import ModelSpec
from opgate.service.execution.batch import Batch, execute
from opgate.service.execution.cost import CostCurve, HandOver
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.sequences import SequenceScheduler
from opgate.service.repository.loader import LoadedModel, limits_of, load_model, on_cpu
from opgate.service.settings import Settings

Floats = np.ndarray[Any, np.dtype[np.float64]]

#: A measurement takes so many seconds, and ends earlier after so many runs of each thread.
SECONDS = 0.4
_RUNS = 2000
_LEAST_RUNS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """The runs of one batch size. `walls` are the seconds of runs, `cpu` the CPU seconds of the thread that runs."""

    walls: Floats
    cpu: float

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return float(np.median(self.walls))


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs by (threads of a run, runs at once, rows). Rows are those of `sizes`."""

    sizes: tuple[int, ...]
    by_case: dict[tuple[int, int, int], Cost]

    def busy_counts(self, threads: int) -> list[int]:
        """Returns how many runs at once were measured with so many threads."""
        return sorted({busy for own, busy, _ in self.by_case if own == threads})

    def median(self, threads: int, busy: int, rows: float) -> float:
        """Returns the seconds of a run. Between the measured sizes they lie on a line."""
        known = [self.by_case[threads, busy, size].median for size in self.sizes]
        return float(np.interp(rows, self.sizes, known))


def powers(limit: int) -> list[int]:
    """Returns the powers of two below a limit, and the limit."""
    return [*(1 << k for k in range(limit.bit_length()) if 1 << k < limit), limit]


def pairs(cores: int) -> list[tuple[int, int]]:
    """Returns the pairs of instances and threads to try. Together they never have more threads than there are cores."""
    return [(i, t) for i in powers(cores) for t in powers(cores) if i * t <= cores]


def sizes_of(spec: ModelSpec, rows: int) -> tuple[int, ...]:
    """Returns the batch sizes to measure, in rows, if a request has so many."""
    return tuple(rows * count for count in powers(max(1, spec.max_batch_size // rows)))


def scheduler_of(model: LoadedModel) -> Scheduler:
    """Returns the queue of the model file: of its first instance, if sequences have rows of an instance."""
    executor = model.executor
    if isinstance(executor, SequenceScheduler):
        executor = executor.instances[0]
    assert isinstance(executor, Scheduler)
    return executor


def request_of(model: LoadedModel, inputs: Sequence[Input], settings: Settings) -> Request:
    """Makes a request to the model file. For a model with sequences it is the first of one, with its controls and
    state. Raises ServingError if the model refuses the inputs."""
    spec = model.spec
    infos = [TensorInfo(given.name, given.datatype.name, given.array.shape) for given in inputs]
    fit = check_inputs(spec, infos, limits_of(settings))
    arrays = {given.name: given.array for given in inputs}
    request = Request(arrays, fit.rows, fit.key, tuple(spec.outputs), weight=fit.weight)
    if not isinstance(model.executor, SequenceScheduler):
        return request
    if fit.rows != 1:
        raise invalid(f"model '{spec.name}' has sequences: expected a batch size of 1, got {fit.rows}")
    return model.executor.sequencer.alone(request)


@contextmanager
def opened(repository: Path, config: Any, version: int, settings: Settings, threads: int) -> Iterator[LoadedModel]:
    """Opens a model with so many threads for a run. Raises ServingError."""
    config = on_cpu(config)
    config.parameters["intra_op_thread_count"].string_value = str(threads)
    model = load_model(repository, config, version, settings)
    try:
        yield model
    finally:
        asyncio.run(model.executor.close())


def measure(
    load: Callable[[int], Any], inputs: Sequence[Input], settings: Settings, cores: int, tell: Callable[[str], None]
) -> Costs:
    """Measures every case. `load` opens the model with a number of threads. `tell` hears what is measured.

    Raises ServingError if a run fails.
    """
    by_case: dict[tuple[int, int, int], Cost] = {}
    sizes: tuple[int, ...] = ()
    tried = pairs(cores)
    for threads in sorted({own for _, own in tried}):
        with load(threads) as model:
            rows = request_of(model, inputs, settings).rows
            sizes = sizes_of(model.spec, rows)
            for busy in (i for i, own in tried if own == threads):
                for size in sizes:
                    tell(f"{busy} at once, {threads} thread{'s' if threads > 1 else ''} each, {size} rows")
                    requests = [request_of(model, inputs, settings) for _ in range(size // rows)]
                    by_case[threads, busy, size] = _measure(model, requests, size, busy)
    return Costs(sizes, by_case)


def _measure(model: LoadedModel, requests: Sequence[Request], rows: int, busy: int) -> Cost:
    """Runs a batch again and again on so many threads."""
    scheduler = scheduler_of(model)
    walls: list[list[float]] = [[] for _ in range(busy)]
    failed: list[Exception] = []
    _run_once(scheduler, requests, rows)  # allocates
    end = time.perf_counter() + SECONDS
    cpu: list[float] = []

    def work(own: list[float]) -> None:
        try:
            begin = time.thread_time()
            while len(own) < _LEAST_RUNS or (time.perf_counter() < end and len(own) < _RUNS):
                own.append(_run_once(scheduler, requests, rows))
            cpu.append((time.thread_time() - begin) / len(own))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in walls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    # The first run of a thread is not like the others, and at the end fewer run at once.
    return Cost(np.array([wall for own in walls for wall in own[1:-1]]), sum(cpu) / len(cpu))


def _run_once(scheduler: Scheduler, requests: Sequence[Request], rows: int) -> float:
    """Runs a batch as the scheduler does, and returns its seconds. Raises ServingError if it failed."""
    fresh = [Request(each.inputs, each.rows, each.key, each.outputs, weight=each.weight) for each in requests]
    batch = Batch(fresh, rows, CostCurve(HandOver(0.0)))
    execute(scheduler.session, scheduler.spec, batch)
    for request in fresh:
        if request.error is not None:
            raise request.error
    return batch.wall_ns / 1e9
