"""Prometheus metrics with Triton's names. Each scrape reads the statistics of the models."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from opgate.service.core.op_times import BOUNDS_NS, OpTimes, by_op
from opgate.service.core.statistics import Histogram, ModelStatistics
from opgate.service.execution.response_cache import ResponseCache
from opgate.service.telemetry.gpus import GpuCollector
from opgate.service.telemetry.memory import memory_limit
from opgate.service.telemetry.statistics_message import Counted

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)
_LABELS = ["model", "version"]
_TURN_NS = 1_000_000
_OP_SECONDS = "opgate_op_seconds"

_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda s: s.success_count,
    ),
    ("nv_inference_count", "Number of inferences performed (a batch of n counts n)", lambda s: s.inferences),
    ("nv_inference_exec_count", "Number of model executions performed", lambda s: s.executions),
    ("nv_inference_request_duration_us", "Cumulative inference request duration", lambda s: s.request_ns // 1000),
    ("nv_inference_queue_duration_us", "Cumulative inference queuing duration", lambda s: s.queue_ns // 1000),
    ("nv_inference_compute_input_duration_us", "Cumulative compute input duration", lambda s: s.input_ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Cumulative compute inference duration", lambda s: s.infer_ns // 1000),
    ("nv_inference_compute_output_duration_us", "Cumulative compute output duration", lambda s: s.output_ns // 1000),
)

_CACHE_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda s: s.cache_hits),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda s: s.cache_misses),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda s: s.cache_hit_ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda s: s.cache_miss_ns // 1000,
    ),
)

# A value that is None is left out.
_GAUGES: tuple[tuple[str, str, Callable[[ModelStatistics], float | None]], ...] = (
    (
        "opgate_model_processes",
        "Worker processes that can run",
        lambda s: sum(bool(worker.pid) for worker in s.workers),
    ),
    ("opgate_instances", "Runs of a model at once", lambda s: s.instances or None),
    ("opgate_intra_op_threads", "Threads of a run of ONNX Runtime", lambda s: s.intra_op_threads or None),
    ("nv_inference_pending_request_count", "Requests that wait to be executed", lambda s: s.pending + s.held),
    ("nv_model_load_duration_secs", "Time that loading the model took", lambda s: s.load_seconds),
    ("opgate_model_memory_bytes", "Memory that the last load of the model added", lambda s: s.memory_bytes or None),
)

_OWN_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("opgate_overdue_runs", "Runs that took longer than the limit", lambda s: s.overdue),
    (
        "opgate_padded_elements",
        "Elements of padded inputs, before padding",
        lambda s: s.padded_elements,
    ),
    (
        "opgate_model_process_deaths",
        "Worker processes that ended although they should run",
        lambda s: sum(worker.deaths for worker in s.workers),
    ),
    ("opgate_model_loads", "Loads of the model", lambda s: s.loads),
    ("opgate_model_evictions", "Times that the model left memory for others", lambda s: s.evictions),
    ("opgate_padding_elements", "Elements that padding added to them", lambda s: s.padding_elements),
)

_HISTOGRAMS: tuple[tuple[str, str, float, Callable[[ModelStatistics], Histogram]], ...] = (
    (
        "opgate_request_duration_seconds",
        "Time from a request's arrival to its answer",
        1e9,
        lambda s: s.request_seconds,
    ),
    ("opgate_queue_duration_seconds", "Time that a request waited", 1e9, lambda s: s.queue_seconds),
    ("opgate_compute_infer_duration_seconds", "Time of a model execution", 1e9, lambda s: s.infer_seconds),
    ("opgate_batch_size", "Rows of a model execution", 1, lambda s: s.batch_rows),
)


if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool


class Memory(Protocol):
    """The memory of the models."""

    budget: int
    used: int
    again: int


class Source(Protocol):
    """Where the gateway's own numbers come from."""

    def index(self) -> list[tuple[str, str, str, str]]: ...

    def residency(self) -> Iterable[tuple[str, int, bool]]: ...

    def memory(self) -> Memory: ...

    def limited(self) -> Mapping[str, int]: ...

    def answers(self) -> Mapping[tuple[str, str, str], int]: ...

    def connections(self) -> int: ...
    def grpc_connections(self) -> int: ...
    def held_bytes(self) -> int: ...

    def deaths(self) -> int: ...

    def running(self) -> int: ...

    def cache(self) -> ResponseCache: ...

    def triton(self) -> TritonPool | None: ...

    def versions(self) -> dict[str, str]: ...

    def of_models(self) -> Iterable[str]: ...


class ModelMetrics:
    """Writes the statistics of the models as metrics.

    It writes the lines itself: the families of prometheus_client cost several times as much, and there are 80 lines a
    version of a model.
    """

    def __init__(self, models: Callable[[], Iterable[Counted]]) -> None:
        self._models = models

    def lines(self) -> Iterator[str]:
        """Yields the lines of every metric, those of a model's version as one text."""
        rows = [(_labels(m.spec.name, m.spec.version), m.statistics) for m in self._models()]
        for name, text, read in (*_COUNTERS, *_CACHE_COUNTERS):
            yield _comments(name, text, "counter")
            for labels, statistics in rows:
                yield f"{name}{{{labels}}} {_number(read(statistics))}\n"
        name = "nv_inference_request_failure"
        yield _comments(name, "Number of failed inference requests", "counter")
        for labels, statistics in rows:
            for reason, count in sorted({"BACKEND": 0, **statistics.failures}.items()):
                model, _, version = labels.rpartition(",")
                yield f'{name}{{{model},reason="{reason}",{version}}} {_number(count)}\n'
        for name, text, gauge in _GAUGES:
            yield _comments(name, text, "gauge")
            for labels, statistics in rows:
                if (value := gauge(statistics)) is not None:
                    yield f"{name}{{{labels}}} {_number(value)}\n"
        for name, text, read in _OWN_COUNTERS:
            yield _comments(f"{name}_total", text, "counter")
            for labels, statistics in rows:
                yield f"{name}_total{{{labels}}} {_number(read(statistics))}\n"
        for name, text, unit, histogram in _HISTOGRAMS:
            yield _comments(name, text, "histogram")
            for labels, statistics in rows:
                yield _histogram(name, labels, histogram(statistics), unit)
        yield _comments(_OP_SECONDS, "Time of a call of a custom op; on a GPU, of its launch", "histogram")
        for labels, statistics in rows:
            yield _op_times(labels, statistics.op_times.read())


def _op_times(model: str, times: OpTimes) -> str:
    """Returns the lines of the ops of a version of a model."""
    lines = []
    for (op, _), (total_ns, *counts) in sorted(by_op(times).items()):
        histogram = Histogram(BOUNDS_NS)
        histogram.counts, histogram.total = counts, total_ns
        lines.append(_histogram(_OP_SECONDS, f'{model},op="{_escaped(op)}"', histogram, 1e9))
    return "".join(lines)


def _comments(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labels(name: str, version: str) -> str:
    return f'model="{_escaped(name)}",version="{version}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    # The package has no types.
    write: Callable[[float], str] = floatToGoString
    return f"{value}.0" if type(value) is int and 0 <= value < 1_000_000 else write(value)


def _histogram(name: str, labels: str, histogram: Histogram, unit: float) -> str:
    total = 0
    lines: list[str] = []
    for bound, count in zip((*histogram.bounds, None), list(histogram.counts), strict=True):
        total += count
        le = "+Inf" if bound is None else str(bound / unit)
        lines.append(f'{name}_bucket{{le="{le}",{labels}}} {_number(total)}\n')
    lines.append(
        f"{name}_count{{{labels}}} {_number(total)}\n{name}_sum{{{labels}}} {_number(histogram.total / unit)}\n"
    )
    return "".join(lines)


class CpuCollector(Collector):
    """Measures the CPU use of the machine since the last scrape."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def collect(self) -> Iterator[Metric]:
        """Yields the CPU use as a fraction, nothing if /proc/stat can't be read."""
        try:
            line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
            numbers = [int(part) for part in line.split()[1:9]]
        except (OSError, ValueError):
            return
        idle, total = numbers[3] + numbers[4], sum(numbers)
        busy = 1 - (idle - self._last[0]) / max(1, total - self._last[1])
        self._last = (idle, total)
        yield GaugeMetricFamily("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", max(0.0, busy))


class GatewayCollector(Collector):
    """What the gateway itself does: readiness of models, answers, connections, requests under way, versions."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yields every metric family."""
        source = self._source
        ready = GaugeMetricFamily("opgate_model_ready", "Whether a version of a model can serve", labels=_LABELS)
        for name, version, state, _ in source.index():
            ready.add_metric([name, version], float(state == "READY"))
        yield ready
        resident = GaugeMetricFamily(
            "opgate_model_resident",
            "Gateway processes that have a version in memory that is loaded on demand",
            labels=_LABELS,
        )
        for name, number, here in source.residency():
            resident.add_metric([name, str(number)], float(here))
        yield resident
        memory = source.memory()
        if memory.budget:
            yield GaugeMetricFamily("opgate_model_memory_budget_bytes", "Memory that models may take", memory.budget)
            yield GaugeMetricFamily("opgate_model_memory_used_bytes", "Memory that they took last", memory.used)
            yield CounterMetricFamily(
                "opgate_model_returns", "Loads of models that left memory less than a minute before", memory.again
            )
        limited = CounterMetricFamily(
            "opgate_limited_requests", "Requests beyond what their client may send", labels=["client"]
        )
        for client, count in sorted(source.limited().items()):
            limited.add_metric([client], float(count))
        yield limited
        answers = CounterMetricFamily(
            "opgate_responses", "Answers by protocol, route and status", labels=["protocol", "route", "code"]
        )
        for labels, count in sorted(source.answers().items()):
            answers.add_metric(list(labels), float(count))
        yield answers
        yield GaugeMetricFamily("opgate_http_connections", "Open connections of HTTP", source.connections())
        yield GaugeMetricFamily("opgate_grpc_connections", "Open connections of gRPC", source.grpc_connections())
        yield GaugeMetricFamily("opgate_held_bytes", "Bytes that requests and answers hold", source.held_bytes())
        yield GaugeMetricFamily("opgate_gateway_processes", "Gateway processes that serve", 1)
        yield CounterMetricFamily("opgate_gateway_process_deaths", "Gateway processes that died", source.deaths())
        yield GaugeMetricFamily("opgate_running_requests", "Inference requests without an answer", source.running())
        cache = source.cache()
        yield GaugeMetricFamily("opgate_cache_bytes", "Bytes of results in the response cache", cache.bytes)
        yield GaugeMetricFamily("opgate_cache_entries", "Results in the response cache", len(cache))
        yield CounterMetricFamily("opgate_cache_evictions", "Results that made room for others", cache.evictions)
        yield from _triton(source.triton())
        yield GaugeMetricFamily("opgate_memory_limit_bytes", "Memory that the process may have", memory_limit())
        yield InfoMetricFamily("opgate_build", "Versions of the gateway and its engine", source.versions())


def _triton(pool: TritonPool | None) -> Iterator[Metric]:
    """Yields the metrics of the Triton servers, nothing if this process runs the models."""
    if pool is None:
        return
    up = GaugeMetricFamily("opgate_triton_up", "Whether a Triton server gets calls", labels=["server"])
    running = GaugeMetricFamily("opgate_triton_running_calls", "Calls without an answer", labels=["server"])
    calls = CounterMetricFamily("opgate_triton_calls", "Ended calls by the code of gRPC", labels=["server", "code"])
    for server in pool.servers:
        up.add_metric([server.url], float(not server.down))
        running.add_metric([server.url], server.running)
        for code, count in sorted(server.calls.items()):
            calls.add_metric([server.url, code], count)
    yield from (up, running, calls)
    yield CounterMetricFamily("opgate_triton_retries", "Calls that another server got", pool.retries)


class Metrics:
    """The metrics of one gateway. They use no global registry, so that several gateways can live in one process."""

    def __init__(self, models: Callable[[], Iterable[Counted]], source: Source | None = None) -> None:
        """Without `source` the metrics of the gateway itself are left out."""
        self._models = ModelMetrics(models)
        self._of_models = (lambda: ()) if source is None else source.of_models
        self._registry = CollectorRegistry()
        if source is not None:
            self._registry.register(GatewayCollector(source))
        ProcessCollector(registry=self._registry)
        self._registry.register(CpuCollector())
        self._registry.register(GpuCollector())
        self._running: asyncio.Task[bytes] | None = None
        self._next: asyncio.Task[bytes] | None = None

    def text(self, pause: Callable[[], object] = lambda: None) -> bytes:
        """Returns all metrics in the text format of Prometheus. `pause` is called about once in a millisecond."""
        parts: list[str] = []
        end = perf_counter_ns() + _TURN_NS
        for lines in itertools.chain(self._models.lines(), self._of_models()):
            parts.append(lines)
            if perf_counter_ns() > end:
                pause()
                end = perf_counter_ns() + _TURN_NS
        # prometheus_client adds _total to the name of a counter in its HELP and TYPE lines. These lines must have the
        # name of the samples, and Triton's names don't end in _total.
        return "".join(parts).encode() + _TOTAL.sub(rb"\1 ", generate_latest(self._registry))

    async def collect(self) -> bytes:
        """Returns all metrics, written on a thread. Those who ask while they are written share the next text."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[bytes] | None) -> bytes:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        # Where threads want the interpreter, it changes every 5 ms, unless one lets the other have it.
        return await asyncio.to_thread(self.text, partial(sleep, 0.0002))
