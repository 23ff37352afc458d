"""The stream of what happens in the gateway. One task reads the processes once a second, for all who watch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import onnxruntime
import orjson

from opgate.service.console.process_view import Key, Marks, add_rows
from opgate.service.console.processes import read_machine
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.statistics import BATCH_BOUNDS, LATENCY_BOUNDS_NS
from opgate.service.gateway import Gateway, package_version
from opgate.service.telemetry.memory import memory_limit

logger = logging.getLogger("opgate.console")

_SECONDS = 1.0
# What the processes use is told so often if nothing else happens, and a sign of life comes so often.
_IDLE_SECONDS = 5.0
_ALIVE_SECONDS = 15.0
# Who takes nothing for so many ticks is left behind and connects again. More can't watch at once.
_MOST_BEHIND = 8
_MOST_WATCHERS = 256
_MOST_REQUESTS = 100
# A tick has so many of them at most: each goes to every console.
_MOST_OF_TICK = 25
_MOST_LINES = 500
# Settings that are limits of all requests.
_LIMITS = (
    "max_body_bytes",
    "max_json_bytes",
    "max_held_bytes",
    "max_concurrent_requests",
    "max_queue_size",
    "run_timeout",
)


class _Watcher:
    """One who watches. `log` says whether it may see the log."""

    def __init__(self, log: bool) -> None:
        self.log = log
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_BEHIND)


class Feed:
    """What all processes have told so far. Only the event loop's thread uses it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watchers: set[_Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._forget()

    def _forget(self) -> None:
        self._marks: dict[int, Marks] = {}
        self._rows: dict[int, dict[Key, dict[str, Any]]] = {}  # by process
        self._models: dict[Key, dict[str, Any]] = {}  # of all processes
        self._requests: deque[dict[str, Any]] = deque(maxlen=_MOST_REQUESTS)
        self._lines: deque[dict[str, Any]] = deque(maxlen=_MOST_LINES)
        self._server: dict[str, Any] = {}
        self._told = self._listed = 0.0
        self._unknown: set[Key] = set()  # models of the repositories that nobody has loaded

    def hello(self, why_not: str) -> dict[str, Any]:
        """Returns what doesn't change. `why_not` says why the client may not load models, "" if it may."""
        settings = self._gateway.settings
        return {
            "version": package_version(),
            "python": platform.python_version(),
            "onnxruntime": onnxruntime.__version__,
            "bounds_s": [bound / 1e9 for bound in LATENCY_BOUNDS_NS],
            "batch_bounds": list(BATCH_BOUNDS),
            "control_mode": settings.model_control_mode,
            "can_load": not why_not,
            "why_not": why_not,
            "bodies": settings.console_bodies,
            "workers": settings.workers,
            "limits": {name: getattr(settings, name) for name in _LIMITS},
        }

    async def watch(self, hello: Mapping[str, Any], log: bool) -> AsyncIterator[bytes]:
        """Yields the events for one client, until it leaves or the gateway stops. Raises ServingError (OVERLOADED)."""
        if len(self._watchers) >= _MOST_WATCHERS:
            raise ServingError(Kind.OVERLOADED, f"{_MOST_WATCHERS} consoles are open, which is the limit")
        watcher = _Watcher(log)
        self._watchers.add(watcher)
        try:
            async with self._starting:
                if self._task is None:
                    self._forget()
                    await self._look()
                    self._task = asyncio.create_task(self._run())
            yield _event("hello", hello) + _event("tick", self._everything(log))
            while (event := await watcher.events.get()) is not None:
                yield event
        finally:
            self._watchers.discard(watcher)

    async def requests(self) -> dict[str, Any]:
        """Returns the last requests of all processes, the newest first, and the slowest of each model."""
        parts = await self._gateway.all_processes.run("last_requests")
        last = sorted((each for part in parts for each in part["requests"]), key=lambda each: -each["at"])
        slowest: dict[str, dict[str, Any]] = {}
        for each in (each for part in parts for each in part["slowest"]):
            if each["model"] not in slowest or slowest[each["model"]]["ms"] < each["ms"]:
                slowest[each["model"]] = each
        return {"requests": last[:_MOST_REQUESTS], "slowest": sorted(slowest.values(), key=lambda each: -each["ms"])}

    async def _run(self) -> None:
        alive = time.monotonic()
        try:
            while self._watchers and not self._gateway.draining:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._gateway.stopping.wait(), _SECONDS)
                try:
                    tick = await self._look()
                except ServingError as error:  # a process has just died
                    logger.warning("the console can't be told of the gateway: %s", error.message)
                    tick = None
                if tick is not None:
                    alive = time.monotonic()
                    self._send(tick)
                elif time.monotonic() - alive > _ALIVE_SECONDS:
                    alive = time.monotonic()
                    self._send(None)
        except Exception:
            logger.exception("the console's stream ended")
        finally:
            self._task = None
            for watcher in list(self._watchers):
                _end(watcher)

    def _send(self, tick: Mapping[str, Any] | None) -> None:
        """Sends a tick to all, or a sign of life."""
        if tick is None:
            data = without = b": idle\n\n"
        else:
            data = _event("tick", tick)
            log = {name: value for name, value in tick.items() if name != "log"}
            without = _event("tick", log) if any(not watcher.log for watcher in self._watchers) else b""
        for watcher in list(self._watchers):
            if watcher.events.full():
                self._watchers.discard(watcher)
                _end(watcher)
            else:
                watcher.events.put_nowait(data if watcher.log else without)

    def _everything(self, log: bool) -> dict[str, Any]:
        tick = {
            "at": time.time_ns() // 1_000_000,
            "models": list(self._models.values()),
            "gone": [],
            "server": self._server,
            "requests": list(self._requests),
        }
        return tick | ({"log": list(self._lines)} if log else {})

    async def _look(self) -> dict[str, Any] | None:
        """Reads all processes. Returns what is new, None if nothing is."""
        parts = await self._gateway.all_processes.run("look", self._marks)
        changed: set[Key] = set()
        self._marks = {part["pid"]: part["marks"] for part in parts}
        for pid in self._rows.keys() - self._marks.keys():
            changed |= self._rows.pop(pid).keys()
        requests: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        for part in parts:
            rows = self._rows.setdefault(part["pid"], {})
            keys = set(part["keys"])
            for key in rows.keys() - keys:
                changed.add(key)
                del rows[key]
            for row in part["models"]:
                key = (row["name"], row["version"])
                changed.add(key)
                rows[key] = row
            requests += part["requests"]
            lines += part["log"]
        changed |= await self._list()
        gone = []
        for key in changed:
            of_processes = [rows[key] for rows in self._rows.values() if key in rows]
            if of_processes:
                self._models[key] = add_rows(of_processes)
            elif key in self._unknown:
                state = "LOADING" if key[0] in self._gateway.control.loading else "NOT LOADED"
                self._models[key] = {"name": key[0], "version": "", "state": state, "reason": ""}
            elif self._models.pop(key, None) is not None:
                gone.append(key)
        requests.sort(key=lambda request: request["at"])
        lines.sort(key=lambda line: line["at"])
        self._requests.extend(requests)
        self._lines.extend(lines)
        now = time.monotonic()
        if not (changed or requests or lines) and now - self._told < _IDLE_SECONDS:
            return None
        self._told = now
        self._server = self._of_server(parts)
        return {
            "at": time.time_ns() // 1_000_000,
            "models": [self._models[key] for key in sorted(changed) if key in self._models],
            "gone": gone,
            "server": self._server,
            "requests": requests[-_MOST_OF_TICK:],
            "log": lines[-_MOST_REQUESTS:],
        }

    async def _list(self) -> set[Key]:
        """Looks now and then for models that nobody has loaded. Returns those that changed."""
        now = time.monotonic()
        control = self._gateway.control
        before = self._unknown
        if control.is_explicit and now - self._listed >= _IDLE_SECONDS:
            self._listed = now
            self._unknown = {(row[0], "") for row in await control.index(False) if not row[2]}
        known = {name for rows in self._rows.values() for name, _ in rows}
        self._unknown = {key for key in self._unknown if key[0] not in known}
        return {key for key in self._unknown if key[0] in control.loading} | (before ^ self._unknown)

    def _of_server(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        totals = {name: sum(part["totals"][name] for part in parts) for name in parts[0]["totals"]} if parts else {}
        settings = self._gateway.settings
        return {
            "processes": [process for part in parts for process in part["processes"]],
            **totals,
            "held_limit": settings.max_held_bytes * settings.workers,
            "concurrent_limit": settings.max_concurrent_requests * settings.workers,
            "memory_limit_bytes": memory_limit(),
            "machine": read_machine(),
        }


def _end(watcher: _Watcher) -> None:
    if watcher.events.full():
        watcher.events.get_nowait()
    watcher.events.put_nowait(None)


def _event(name: str, content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS))
