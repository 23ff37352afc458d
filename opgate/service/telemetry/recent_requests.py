"""The last inference requests of a gateway process, and the slowest of each model, for its console."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

import numpy as np

from opgate.service.core.request import Array, OpCall, Request, StepRun, Times
from opgate.service.telemetry.journal import Answer

#: So many of the last requests are kept.
MOST = 100
# So many requests are kept of each second, and the slowest. Others are only counted.
_A_SECOND = 100
_SECOND_NS = 1_000_000_000
# Models of which the slowest request is kept.
_MOST_MODELS = 1000
# Calls of ops that are kept of a request.
_MOST_CALLS = 200
# Of a tensor that the operator lets people see: elements at each end, and characters in all.
_ENDS, _MOST_TEXT = 8, 600


class Recent(NamedTuple):
    """An answered request. `at_ns` is the time of its answer since 1970, `ended_ns` the same by perf_counter."""

    number: int
    at_ns: int
    ended_ns: int
    answer: Answer
    error: str
    rows: int
    id: str
    times: Times | None
    steps: tuple[StepRun, ...]
    op_calls: tuple[OpCall, ...]
    inputs: Mapping[str, str] | None
    outputs: Mapping[str, str] | None

    def as_map(self) -> dict[str, Any]:
        """Returns it as the console shows it. Times are in microseconds since its arrival."""
        answer, began = self.answer, self.ended_ns - self.answer.ns
        found: dict[str, Any] = {
            "id": self.number,
            "at": (self.at_ns - answer.ns) // 1_000_000,
            "protocol": answer.protocol,
            "route": answer.route,
            "code": answer.code,
            "ms": answer.ns / 1e6,
            "model": answer.model,
            "version": answer.version,
            "client": answer.client,
            "request_id": answer.ids.request_id or self.id,
            "rows": self.rows,
            "error": self.error,
            "phases": [] if self.times is None else list(_phases(self.times, began, self.ended_ns)),
            "steps": [
                {
                    "model": name,
                    "failed": failed,
                    "phases": list(_phases(times, began)),
                    **_part(times, began),
                    **_ops(calls, began),
                }
                for name, times, failed, calls in self.steps
            ],
        }
        found |= _ops(self.op_calls, began)
        if self.inputs is not None:
            found |= {"inputs": self.inputs, "outputs": self.outputs or {}}
        return found


def _us(ns: int) -> float:
    return ns / 1000


def _ops(calls: Sequence[OpCall], began: int) -> dict[str, Any]:
    """Returns the calls of ops as the console shows them, nothing if there are none."""
    rows = [
        {
            "op": call.op,
            "node": call.node,
            "begin_us": _us(call.begin_ns - began),
            "us": _us(call.end_ns - call.begin_ns),
            "inputs": call.inputs,
            "outputs": call.outputs,
        }
        for call in calls
    ]
    return {"ops": rows} if rows else {}


def _shortened(step: StepRun) -> StepRun:
    return step._replace(op_calls=step.op_calls[:_MOST_CALLS])


def _part(times: Times, began: int) -> dict[str, float]:
    end = times.ended_ns or times.run_end_ns or times.received_ns
    return {"begin_us": _us(times.received_ns - began), "us": _us(end - times.received_ns)}


def _phases(times: Times, began: int, ended: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the parts of a request in their order. `began` and `ended` are those of the request for its client."""
    marks = [
        ("read", min(began, times.received_ns) if ended else 0, times.received_ns),
        ("queue", times.received_ns, times.started_ns),
        ("input", times.started_ns, times.run_begin_ns),
        ("run", times.run_begin_ns, times.run_end_ns),
        ("output", times.run_end_ns, times.ended_ns),
        ("write", times.ended_ns, ended),
    ]
    for name, begin, end in marks:
        if 0 < begin < end:
            yield {"name": name, "begin_us": _us(begin - began), "us": _us(end - begin)}


def _preview(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Returns the beginning and the end of each tensor as text, with its datatype and shape."""
    found = {}
    for name, array in arrays.items():
        flat = array.reshape(-1)
        shown = [_element(value) for value in flat[: 2 * _ENDS]]
        if len(flat) > 2 * _ENDS:
            shown = [*shown[:_ENDS], "...", *(_element(value) for value in flat[-_ENDS:])]
        found[name] = f"{array.dtype}{list(array.shape)} {' '.join(shown)}"[:_MOST_TEXT]
    return found


def _element(value: Any) -> str:
    if isinstance(value, (bytes, str)):
        return repr(value[:_MOST_TEXT])
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


class RecentRequests:
    """Keeps the last requests. Only the event loop's thread uses it. Its memory is bounded."""

    def __init__(self, bodies: bool) -> None:
        """With `bodies` the beginnings of inputs and outputs are kept too."""
        self._bodies = bodies
        self._last: deque[Recent] = deque(maxlen=MOST)
        self._slowest: OrderedDict[str, Recent] = OrderedDict()
        self._slowest_ns: dict[str, int] = {}  # the times of those: every quick request asks
        self._number = 0
        self._second = self._left = 0

    def wants(self, model: str, began_ns: int) -> bool:
        """Returns whether to keep a request without an error that began at `began_ns` and ends now."""
        now = perf_counter_ns()
        return self._left > 0 or now > self._second or now - began_ns > self._slowest_ns.get(model, 0)

    def _has_room(self) -> bool:
        """Returns whether there were fewer requests in this second than are kept of one."""
        now = perf_counter_ns()
        if now > self._second:
            self._second, self._left = now + _SECOND_NS, _A_SECOND
        return self._left > 0

    def add(self, answer: Answer, request: Request | None, error: str) -> None:
        """Keeps a request that has been answered, unless there were too many in this second. The slowest is kept."""
        slowest = request is not None and not error and answer.ns > self._slowest_ns.get(answer.model, 0)
        if not (self._has_room() or slowest):
            return
        self._number += 1
        self._left -= 1
        shown = request if self._bodies else None
        recent = Recent(
            self._number,
            time_ns(),
            perf_counter_ns(),
            answer,
            error[:1000],
            0 if request is None else request.rows,
            "" if request is None else request.id[:128],
            None if request is None else request.times(),
            () if request is None else tuple(map(_shortened, request.steps)),
            () if request is None else tuple((request.op_calls or ())[:_MOST_CALLS]),
            None if shown is None else _preview(shown.inputs),
            None if shown is None else _preview(shown.result or {}),
        )
        self._last.append(recent)
        if slowest:
            self._slowest[answer.model] = recent
            self._slowest_ns[answer.model] = answer.ns
            if len(self._slowest) > _MOST_MODELS:
                name, _ = self._slowest.popitem(last=False)
                del self._slowest_ns[name]

    def since(self, number: int) -> list[Recent]:
        """Returns the kept requests with a higher number, the oldest first."""
        return [recent for recent in self._last if recent.number > number]

    def slowest(self) -> list[Recent]:
        """Returns the slowest request of each model that was answered without an error."""
        return list(self._slowest.values())
