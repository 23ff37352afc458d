"""Prometheus metrics with Triton's names. Each scrape reads the statistics of the models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from opgate.service.execution.response_cache import ResponseCache
from opgate.service.telemetry.gpus import GpuCollector
from opgate.service.telemetry.memory import memory_limit
from opgate.service.telemetry.statistics import Histogram, ModelStatistics
from opgate.service.telemetry.statistics_message import Counted

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)
_LABELS = ["model", "version"]

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

_OWN_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("opgate_overdue_runs", "Runs that took longer than the limit", lambda s: s.overdue),
    (
        "opgate_padded_elements",
        "Elements that requests brought of inputs that runs pad to the longest row",
        lambda s: s.padded_elements,
    ),
    (
        "opgate_model_process_deaths",
        "Worker processes that ended although they should run",
        lambda s: sum(worker.deaths for worker in s.workers),
    ),
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


class Source(Protocol):
    """Where the gateway's own numbers come from."""

    def index(self) -> list[tuple[str, str, str, str]]: ...

    def answers(self) -> Mapping[tuple[str, str, str], int]: ...

    def connections(self) -> int: ...
    def grpc_connections(self) -> int: ...
    def held_bytes(self) -> int: ...

    def deaths(self) -> int: ...

    def running(self) -> int: ...

    def cache(self) -> ResponseCache: ...

    def triton(self) -> TritonPool | None: ...

    def versions(self) -> dict[str, str]: ...


class ModelCollector(Collector):
    """Turns the statistics of the models into metrics at each scrape."""

    def __init__(self, models: Callable[[], Iterable[Counted]]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yields every metric family, each with the values of all models."""
        rows = [([m.spec.name, m.spec.version], m.statistics) for m in self._models()]
        for name, text, read in (*_COUNTERS, *_CACHE_COUNTERS):
            family = _plain_counter(name, text)
            for labels, statistics in rows:
                family.add_metric(labels, float(read(statistics)))
            yield family
        failures = _plain_counter("nv_inference_request_failure", "Number of failed inference requests", "reason")
        for labels, statistics in rows:
            for reason, count in sorted((statistics.failures or {"BACKEND": 0}).items()):
                failures.add_metric([*labels, reason], float(count))
        yield failures
        pending = GaugeMetricFamily(
            "nv_inference_pending_request_count", "Requests that wait to be executed", labels=_LABELS
        )
        seconds = GaugeMetricFamily("nv_model_load_duration_secs", "Time that loading the model took", labels=_LABELS)
        workers = GaugeMetricFamily("opgate_model_processes", "Worker processes that can run", labels=_LABELS)
        instances = GaugeMetricFamily("opgate_instances", "Runs of a model at once", labels=_LABELS)
        threads = GaugeMetricFamily("opgate_intra_op_threads", "Threads of a run of ONNX Runtime", labels=_LABELS)
        for labels, statistics in rows:
            workers.add_metric(labels, sum(bool(worker.pid) for worker in statistics.workers))
            if statistics.instances:
                instances.add_metric(labels, statistics.instances)
            if statistics.intra_op_threads:
                threads.add_metric(labels, statistics.intra_op_threads)
            pending.add_metric(labels, statistics.pending + statistics.held)
            seconds.add_metric(labels, statistics.load_seconds)
        yield workers
        yield instances
        yield threads
        yield pending
        yield seconds
        for name, text, read in _OWN_COUNTERS:
            own = CounterMetricFamily(name, text, labels=_LABELS)
            for labels, statistics in rows:
                own.add_metric(labels, float(read(statistics)))
            yield own
        for name, text, unit, histogram in _HISTOGRAMS:
            family_h = HistogramMetricFamily(name, text, labels=_LABELS)
            for labels, statistics in rows:
                family_h.add_metric(labels, _buckets(histogram(statistics), unit), histogram(statistics).total / unit)
            yield family_h


def _plain_counter(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[*_LABELS, *labels])
    family.type = "counter"
    return family


def _buckets(histogram: Histogram, unit: float) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else str(bound / unit), total))
    return buckets


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
        self._registry = CollectorRegistry()
        self._registry.register(ModelCollector(models))
        if source is not None:
            self._registry.register(GatewayCollector(source))
        ProcessCollector(registry=self._registry)
        self._registry.register(CpuCollector())
        self._registry.register(GpuCollector())

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        # prometheus_client adds _total to the name of a counter in its HELP and TYPE lines. These lines must have the
        # name of the samples, and Triton's names don't end in _total.
        return _TOTAL.sub(rb"\1 ", generate_latest(self._registry))
