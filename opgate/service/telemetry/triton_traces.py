"""The trace settings of Triton: which requests are traced, for all models or for one, and where their times go."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.core.request import OpCall, Request
from opgate.service.telemetry.journal import Answer, Recorder

logger = logging.getLogger("opgate.trace")

OFF, TIMESTAMPS = "OFF", "TIMESTAMPS"
TO_FILE, TO_OPENTELEMETRY = "triton", "opentelemetry"
_MOST = 1 << 62
_INTEGER = re.compile(r"-?[0-9]{1,19}")
# Traces are written in so many at once, and at the end.
_BATCH = 64


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Every `rate`-th request is traced, `count` of them, or all if that is -1. With `frequency` a file has so many
    traces, and the next ones go to another one."""

    level: str = OFF
    rate: int = 1000
    count: int = -1
    frequency: int = 0
    file: str = ""
    mode: str = TO_FILE

    def check(self) -> None:
        """Raises ServingError (INVALID) if the traces have no place to go to."""
        if self.level != OFF and self.mode == TO_FILE and not self.file:
            raise invalid(
                "trace_level: expected OFF, because no trace file is given: start with --trace-config file=..."
            )

    def as_map(self) -> dict[str, Any]:
        """Returns the settings by Triton's names, as its JSON has them."""
        return {
            "trace_level": [self.level],
            "trace_rate": str(self.rate),
            "trace_count": str(self.count),
            "log_frequency": str(self.frequency),
            "trace_file": self.file,
            "trace_mode": self.mode,
        }


_FIELDS = {"trace_level": "level", "trace_rate": "rate", "trace_count": "count", "log_frequency": "frequency"}
_LEAST = {"rate": 1, "count": -1, "frequency": 0}


def read_trace_config(text: str) -> TraceSettings:
    """Reads Triton's --trace-config: "level=TIMESTAMPS", "rate=100", "triton,file=/tmp/t.json", joined by semicolons.

    Raises ValueError that says what is wrong.
    """
    settings = TraceSettings()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        mode, _, rest = part.rpartition(",")
        key, _, value = rest.partition("=")
        known = {field.name for field in fields(TraceSettings)} | {"log-frequency"}
        if mode not in ("", TO_FILE, TO_OPENTELEMETRY) or key not in known or not value:
            raise ValueError(f"'{part[:80]}': expected level, rate, count, log-frequency, file or mode, as in rate=100")
        name = "frequency" if key == "log-frequency" else key
        try:
            change: dict[str, Any] = {name: value if name in ("file", "mode") else _read(name, value)}
        except ServingError as error:
            raise ValueError(error.message) from None
        settings = replace(settings, **change)
    if settings.mode not in (TO_FILE, TO_OPENTELEMETRY):
        raise ValueError(f"mode '{settings.mode[:40]}': expected {TO_FILE} or {TO_OPENTELEMETRY}")
    try:
        settings.check()
    except ServingError as error:
        raise ValueError(error.message) from None
    return settings


def _integer(value: Any) -> int:
    """Returns a number, or what a text of ASCII digits says. Raises ValueError, TypeError."""
    if isinstance(value, str) and _INTEGER.fullmatch(value) is None:
        raise ValueError(value[:80])
    return int(value)


def _read(field: str, value: Any) -> Any:
    """Returns the value of a setting. Raises ServingError (INVALID)."""
    if field == "level":
        levels = [value] if isinstance(value, str) else value
        if not isinstance(levels, list) or len(levels) != 1 or levels[0] not in (OFF, TIMESTAMPS):
            raise invalid(f"trace_level: expected {OFF} or {TIMESTAMPS}, got {str(value)[:80]}")
        return levels[0]
    try:
        number = _integer(value[0] if isinstance(value, list) and len(value) == 1 else value)
    except (TypeError, ValueError):
        number = -2
    if isinstance(value, (bool, float)) or not _LEAST[field] <= number < _MOST:
        raise invalid(f"trace setting {field}: expected a number from {_LEAST[field]} on, got {str(value)[:80]!r}")
    return number


class Tracing:
    """The trace settings of a gateway and its models. It is a Recorder. Only the event loop's thread uses it."""

    def __init__(self, start: TraceSettings, opentelemetry: Recorder | None, changed: Callable[[bool], None]) -> None:
        """`start` are the settings at the start. `changed` is told whether any request may be traced."""
        self._start = self._common = start
        self._of_model: dict[str, dict[str, Any]] = {}  # what differs from the common settings
        self._opentelemetry = opentelemetry
        self._changed = changed
        self._seen: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._file = TraceFile()

    def settings(self, model: str = "") -> TraceSettings:
        """Returns the settings of a model, "" for those of all models."""
        return replace(self._common, **self._of_model.get(model, {}))

    def update(self, model: str, changes: Mapping[str, Any]) -> TraceSettings:
        """Changes settings by Triton's names and returns them all. None takes back what was changed before.

        Raises ServingError: INVALID if a value or name is wrong, UNSUPPORTED for those that no client may change.
        """
        for name in changes:
            if name in ("trace_file", "trace_mode"):
                raise ServingError(Kind.UNSUPPORTED, f"{name} can not be updated through network protocol")
            if name not in _FIELDS:
                raise invalid(f"'{name[:80]}' is no trace setting: expected one of {', '.join(_FIELDS)}")
        own = dict(self._of_model.get(model, {}))
        common = self._common
        for name, value in changes.items():
            field = _FIELDS[name]
            if model and value is None:
                own.pop(field, None)
            elif model:
                own[field] = _read(field, value)
            else:
                common = replace(
                    common, **{field: getattr(self._start, field) if value is None else _read(field, value)}
                )
        replace(common, **own).check()
        self._common = common
        if model:
            self._of_model[model] = own
        for counted in [model] if model else list(self._left):
            self._left.pop(counted, None)
        self.tell()
        return self.settings(model)

    def tell(self) -> None:
        """Tells whether any request may be traced."""
        levels = {self._common.level, *(own.get("level", OFF) for own in self._of_model.values())}
        self._changed(levels != {OFF})

    def takes(self, model: str) -> bool:
        """Returns whether the next request of a model is traced, because it is its turn."""
        settings = self.settings(model)
        if settings.level == OFF:
            return False
        seen = self._seen[model] = self._seen.get(model, -1) + 1
        left = self._left.setdefault(model, settings.count)
        if seen % settings.rate or not left:
            return False
        if left > 0:
            self._left[model] = left - 1
        return True

    def record(self, answer: Answer, request: Request) -> None:
        """Traces an answered request that was chosen. One that did not come to that is chosen now if it is its turn."""
        if not (self.takes(answer.model) if request.traced is None else request.traced):
            return
        settings = self.settings(answer.model)
        if settings.mode == TO_FILE:
            self._file.add(settings, answer, request)
        elif self._opentelemetry is not None:
            self._opentelemetry.record(answer, request)

    def close(self) -> None:
        """Writes what is left."""
        self._file.close()


class TraceFile:
    """Writes traces as Triton does: a list of objects in JSON, two for each request. A thread does the writing."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "opgate-trace")
        self._number = 0
        self._waiting: list[tuple[TraceSettings, list[dict[str, Any]]]] = []
        self._counts: dict[str, int] = {}  # traces by file
        self._begun: set[str] = set()  # the paths that have traces of this process
        self._failed: set[str] = set()

    def add(self, settings: TraceSettings, answer: Answer, request: Request) -> None:
        """Adds the trace of an answered request."""
        self._number += 1
        facts = {"id": self._number, "model_name": answer.model, "model_version": answer.version or ""}
        if request.id:
            facts["request_id"] = request.id
        stamps = {"id": self._number, "timestamps": [{"name": n, "ns": ns} for n, ns in _stamps(request)]}
        self._waiting.append((settings, [facts, stamps]))
        if len(self._waiting) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._thread.submit(self._write, waiting)

    def _write(self, traces: Sequence[tuple[TraceSettings, list[dict[str, Any]]]]) -> None:
        for settings, objects in traces:
            count = self._counts.get(settings.file, 0)
            self._counts[settings.file] = count + 1
            path = settings.file + (f".{count // settings.frequency}" if settings.frequency else "")
            try:
                _append(Path(path), objects, path not in self._begun)
                self._begun.add(path)
            except OSError as error:
                self._begun.discard(path)  # the next one begins it anew
                if path not in self._failed:
                    self._failed.add(path)
                    logger.warning("traces can't be written to %s: %s", path, error.strerror)

    def close(self) -> None:
        """Writes what is left."""
        self._flush()
        self._thread.shutdown()


def _append(path: Path, objects: Sequence[dict[str, Any]], begins: bool) -> None:
    """Adds objects to the list in a file, which is valid JSON before and after."""
    data = b",".join(orjson.dumps(one) for one in objects)
    with path.open("wb" if begins else "rb+") as file:
        if begins:
            file.write(b"[" + data + b"]")
        else:
            file.seek(-1, 2)
            file.write(b"," + data + b"]")


def _stamps(request: Request) -> list[tuple[str, int]]:
    """Returns Triton's timestamps, and two for each call of a custom op, as Triton has them of what a backend does."""
    times = request.times()
    names = (
        ("REQUEST_START", times.received_ns),
        ("QUEUE_START", times.received_ns),
        ("COMPUTE_START", times.started_ns),
        ("COMPUTE_INPUT_END", times.run_begin_ns),
        *(stamp for call in request.op_calls or () for stamp in _stamps_of(call)),
        ("COMPUTE_OUTPUT_START", times.run_end_ns),
        ("COMPUTE_END", times.ended_ns),
        ("REQUEST_END", times.ended_ns),
    )
    return [(name, ns) for name, ns in names if ns]


def _stamps_of(call: OpCall) -> tuple[tuple[str, int], tuple[str, int]]:
    name = f"{call.op} {call.node}".rstrip()
    return (f"OP_START {name}", call.begin_ns), (f"OP_END {name}", call.end_ns)
