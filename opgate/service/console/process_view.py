"""What one gateway process tells the console: its models, its last requests, its log and what it uses."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from opgate.service.console.processes import read_process
from opgate.service.core.statistics import ModelStatistics
from opgate.service.repository.catalog import Catalog
from opgate.service.repository.control import ModelControl
from opgate.service.telemetry.logs import extra_fields
from opgate.service.telemetry.recent_requests import Recent, RecentRequests

Key = tuple[str, str]

_MOST_LINES = 500
_MOST_MESSAGE = 4000
# So many runs of a second record the calls of their ops while somebody watches, and so long after the last look.
_RECORDED_A_SECOND = 20
_WATCHED_SECONDS = 5.0


class Marks(NamedTuple):
    """What of a process has been told: the models that had changed by then, requests and lines of the log."""

    models: int = 0
    requests: int = 0
    lines: int = 0


class Gateway(Protocol):
    """What the view needs of a gateway process."""

    running: int
    observed: bool
    deaths: int
    connections: Collection[object]
    grpc_connections: Collection[object]

    @property
    def catalog(self) -> Catalog: ...

    @property
    def control(self) -> ModelControl: ...

    @property
    def budget(self) -> Budget: ...


class Budget(Protocol):
    """The bytes that requests and answers hold."""

    @property
    def used(self) -> int: ...


class LogLines(logging.Handler):
    """Keeps the last lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_LINES)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line."""
        try:
            message = record.getMessage()[:_MOST_MESSAGE]
            if record.exc_info and record.exc_info[1] is not None:
                message += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"[:_MOST_MESSAGE]
            line = {
                "at": int(record.created * 1000),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": message,
                "fields": {name: str(value)[:200] for name, value in extra_fields(record).items()},
            }
        except Exception:
            self.handleError(record)
            return
        self._lines.append((self._number, line))  # a handler has a lock
        self._number += 1

    def since(self, number: int) -> tuple[list[dict[str, Any]], int]:
        """Returns the lines from a number on, the oldest first, and the number of the next one."""
        lines = [(own, line) for own, line in list(self._lines) if own >= number]
        return [line for _, line in lines], lines[-1][0] + 1 if lines else number


class ProcessView:
    """Tells what has changed in this process. Only the event loop's thread uses it, but for the log."""

    def __init__(self, gateway: Gateway, recent: RecentRequests) -> None:
        self._gateway = gateway
        self.recent = recent
        self.log = LogLines()
        self._seen: dict[Key, tuple[tuple[Any, ...], int]] = {}
        self._stamp = 0
        self._watched_until = 0.0
        self._second = 0
        self._left = 0

    def is_watched(self) -> bool:
        """Returns whether somebody has the console open."""
        return time.monotonic() < self._watched_until

    def records_ops(self) -> bool:
        """Returns whether the next run shall record the calls of its ops, because somebody watches: some do in each
        second."""
        now = time.monotonic()
        if int(now) != self._second:
            self._second, self._left = int(now), _RECORDED_A_SECOND
        self._left -= 1
        return self._left >= 0

    def read(self, marks: Mapping[int, Marks]) -> dict[str, Any]:
        """Returns what is new since the marks of this process."""
        self._watched_until = time.monotonic() + _WATCHED_SECONDS
        self._gateway.observed = True
        own = marks.get(os.getpid(), Marks())
        models, keys = self._models(own.models)
        requests = self.recent.since(own.requests)
        lines, next_line = self.log.since(own.lines)
        return {
            "pid": os.getpid(),
            "marks": Marks(self._stamp, requests[-1].number if requests else own.requests, next_line),
            "models": models,
            "keys": keys,
            "requests": [self._told(request) for request in requests],
            "log": lines,
            "processes": self._processes(),
            "totals": {
                "http_connections": len(self._gateway.connections),
                "grpc_connections": len(self._gateway.grpc_connections),
                "running": self._gateway.running,
                "held_bytes": self._gateway.budget.used,
                "model_bytes": self._gateway.control.residency.used,
                "model_budget": self._gateway.control.residency.budget,
                "deaths": self._gateway.deaths,
            },
        }

    def last_requests(self) -> dict[str, Any]:
        """Returns the last requests, and the slowest of each model."""
        return {
            "requests": [self._told(request) for request in self.recent.since(0)],
            "slowest": [self._told(request) for request in self.recent.slowest()],
        }

    @staticmethod
    def _told(request: Recent) -> dict[str, Any]:
        """Returns a request, known by its number and its process."""
        return {**request.as_map(), "pid": os.getpid()}

    def _processes(self) -> list[dict[str, Any]]:
        found = [read_process(os.getpid(), "gateway")]
        for model in self._gateway.catalog.models():
            found += [read_process(w.pid, "worker", model.spec.name) for w in model.statistics.workers if w.pid]
        return [process for process in found if process is not None]

    def _models(self, stamp: int) -> tuple[list[dict[str, Any]], list[Key]]:
        """Returns the models that changed after the stamp, and the names and versions of all."""
        self._stamp += 1
        statistics = {(m.spec.name, m.spec.version): m.statistics for m in self._gateway.catalog.models()}
        rows, seen = [], {}
        loading = self._gateway.control.loading
        here = {(m.spec.name, m.spec.version) for m, _ in self._gateway.catalog.resident()}
        for name, version, settled, why in self._gateway.catalog.index():
            key = (name, version)
            state, reason = ("LOADING", "") if name in loading and settled != "READY" else (settled, why)
            counted = statistics.get(key)
            now: tuple[Any, ...] = (state, reason)
            if counted is not None:
                deaths = sum(worker.deaths for worker in counted.workers)
                ends = (counted.success_count, counted.fail_count, counted.executions)
                now = (state, reason, id(counted), *ends, counted.pending + counted.held, deaths)
            before, changed = self._seen.get(key, ((), 0))
            if now != before:
                changed = self._stamp
            seen[key] = (now, changed)
            if changed > stamp:
                row = {"name": name, "version": version, "state": state, "reason": reason}
                rows.append(row if counted is None else row | _numbers(counted, key in here))
        self._seen = seen
        return rows, list(seen)


def _numbers(s: ModelStatistics, in_memory: bool) -> dict[str, Any]:
    return {
        "requests": s.success_count,
        "failures": s.fail_count,
        "inferences": s.inferences,
        "executions": s.executions,
        "pending": s.pending + s.held,
        "request_ns": s.request_ns,
        "queue_ns": s.queue_ns,
        "input_ns": s.input_ns,
        "infer_ns": s.infer_ns,
        "output_ns": s.output_ns,
        "request_counts": list(s.request_seconds.counts),
        "queue_counts": list(s.queue_seconds.counts),
        "infer_counts": list(s.infer_seconds.counts),
        "batch_counts": list(s.batch_rows.counts),
        "cache_hits": s.cache_hits,
        "cache_misses": s.cache_misses,
        "instances": s.instances,
        "processes": sum(bool(worker.pid) for worker in s.workers),
        "deaths": sum(worker.deaths for worker in s.workers),
        "memory_bytes": s.memory_bytes if in_memory else None,
        "load_seconds": s.load_seconds,
        "last_ms": s.last_ms,
    }


# Of these the largest of all processes is meant, of other numbers the sum.
_MOST = ("load_seconds", "last_ms")


def add_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of a model from those of all processes. It is ready if it is ready everywhere."""
    merged = dict(rows[0])
    for row in rows[1:]:
        if row["state"] != "READY":
            merged |= {"state": row["state"], "reason": row["reason"]}
        for name, value in row.items():
            mine = merged.get(name)
            if mine is None:
                merged[name] = value
            elif name in _MOST:
                merged[name] = max(mine, value)
            elif isinstance(value, list):
                merged[name] = [a + b for a, b in zip(mine, value, strict=True)]
            elif isinstance(value, int):
                merged[name] = mine + value
    return merged
