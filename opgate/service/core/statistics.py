"""Statistics of each model, as plain numbers that are cheap to update. The metrics and the /stats routes read them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from opgate.service.core.op_times import OpTimesOfModel

LATENCY_BOUNDS_NS = tuple(
    int(seconds * 1e9)
    for seconds in (
        0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    )
)  # fmt: skip
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts values by bucket and adds them up. The last bucket has no upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, value: int) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class WorkerState(Protocol):
    """What there is to say of the worker process of an instance."""

    deaths: int

    @property
    def pid(self) -> int:
        """The number of the process, 0 while there is none."""

    @property
    def asks_ready(self) -> bool:
        """Whether the model says itself whether it is ready."""

    def ask_ready(self) -> Future[str]:
        """Asks a model that `asks_ready`. The result is why it isn't ready, or empty."""


class BatchCount:
    """Totals of the executions with one batch size. Times are in nanoseconds."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class ModelStatistics:
    """Totals of one model version since it was loaded. One that is loaded on demand goes on with those that it had.
    Times are in nanoseconds.

    Only the event loop's thread writes them.
    """

    __slots__ = (
        "batch_rows", "batches", "cache_hit_ns", "cache_hits", "cache_miss_ns", "cache_misses", "evictions",
        "executions", "fail_count", "fail_ns", "failures", "held", "infer_ns", "infer_seconds", "inferences",
        "input_ns", "instances", "intra_op_threads", "last_ms", "load_seconds", "loads", "memory_bytes", "op_times",
        "output_ns", "overdue", "padded_elements",
        "padding_elements", "pending", "queue_ns", "queue_seconds", "request_ns", "request_seconds", "success_count",
        "workers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.load_seconds = 0.0
        self.loads = 0
        self.evictions = 0  # how often it left memory to make room
        self.memory_bytes = 0  # that its last load added; 0 if nobody has measured that
        self.op_times = OpTimesOfModel()
        self.instances = 0  # of this process; 0 if it runs no model file itself
        self.intra_op_threads = 0  # of each run; 0 if the gateway doesn't say how many
        self.pending = 0
        self.held = 0  # requests that wait for an earlier one of their sequence, or for a place for it
        self.overdue = 0  # runs that outlived their limit
        self.workers: Sequence[WorkerState] = ()  # the worker processes of the instances, if they have them
        self.padded_elements = 0  # of inputs that runs pad to the longest row, as the requests brought them
        self.padding_elements = 0  # that the padding added
        self.success_count = 0
        self.request_ns = 0
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0
        self.cache_hits = 0
        self.cache_hit_ns = 0
        self.cache_misses = 0
        self.cache_miss_ns = 0
        self.fail_count = 0
        self.fail_ns = 0
        self.failures: Counter[str] = Counter()
        self.inferences = 0
        self.executions = 0
        self.last_ms = 0
        self.batches: dict[int, BatchCount] = {}
        self.request_seconds = Histogram(LATENCY_BOUNDS_NS)
        self.queue_seconds = Histogram(LATENCY_BOUNDS_NS)
        self.infer_seconds = Histogram(LATENCY_BOUNDS_NS)
        self.batch_rows = Histogram(BATCH_BOUNDS)

    def succeeded(self, rows: int, request_ns: int, queue_ns: int) -> None:
        """Counts a request that got a result."""
        self.success_count += 1
        self.inferences += rows
        self.request_ns += request_ns
        self.queue_ns += queue_ns
        self.request_seconds.add(request_ns)
        self.queue_seconds.add(queue_ns)

    def hit(self, request_ns: int, look_up_ns: int) -> None:
        """Counts a request that was answered from the cache. It is no inference."""
        self.success_count += 1
        self.request_ns += request_ns
        self.request_seconds.add(request_ns)
        self.cache_hits += 1
        self.cache_hit_ns += look_up_ns

    def missed(self, ns: int) -> None:
        """Counts a request whose result the cache did not have. `ns` is the time for looking it up and keeping it."""
        self.cache_misses += 1
        self.cache_miss_ns += ns

    def failed(self, reason: str, request_ns: int) -> None:
        """Counts a request that got an error. `reason` is the value of its Kind."""
        self.fail_count += 1
        self.fail_ns += request_ns
        self.failures[reason] += 1

    def executed(self, rows: int, requests: int, durations: tuple[int, int, int], times: int = 1) -> None:
        """Counts one batch of several requests. As in Triton, each request is charged the time of the whole batch.

        `durations` are the nanoseconds of input, inference and output. `times` is the number of runs: more than one if
        the batch failed and its requests ran again one by one.
        """
        input_ns, infer_ns, output_ns = durations
        self.executions += times
        self.input_ns += input_ns * requests
        self.infer_ns += infer_ns * requests
        self.output_ns += output_ns * requests
        self.infer_seconds.add(infer_ns)
        self.batch_rows.add(rows)
        self.last_ms = int(time.time() * 1000)
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchCount()
        batch.count += 1
        batch.input_ns += input_ns
        batch.infer_ns += infer_ns
        batch.output_ns += output_ns
