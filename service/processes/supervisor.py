"""Starts several gateway processes on one port, replaces one that dies, and lets them do together what clients ask."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from opgate.service.errors import Kind
from opgate.service.execution.session import usable_cores
from opgate.service.isolation.process import cause_of_death
from opgate.service.isolation.session import wait_before_start
from opgate.service.listening import bind_shared, listen
from opgate.service.processes.everywhere import READS
from opgate.service.processes.merging import add_past
from opgate.service.processes.messages import Opening, Outcome, packed, read
from opgate.service.processes.state import State
from opgate.service.settings import Settings
from opgate.service.signals import SignalThread

logger = logging.getLogger("opgate.processes")

# Limits in bytes on all requests together. Each process gets its share of them.
SHARED = ("max_inflated_bytes", "max_grpc_bytes", "max_shared_memory_bytes", "response_cache_byte_size")
# Seconds in which every process must answer what only reads.
_MOST_READ = 5.0
# A process that served for so many seconds did not die of its start.
_HEALTHY = 30.0


@dataclass(eq=False)
class _Child:
    """A gateway process."""

    place: int
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    joined: bool = False  # whether it takes part in what all do
    listening_since: float = 0.0
    leaving: bool = False
    metrics: bytes = b""  # that it told last

    def send(self, *message: Any) -> None:
        self.writer.write(packed(message))


@dataclass(eq=False)
class _Order:
    """An operation that processes run. `number` is that of the one that has asked for it."""

    asker: _Child
    number: int
    operation: str
    arguments: tuple[Any, ...]
    waits_for: set[_Child] = field(default_factory=set)
    outcomes: dict[_Child, Outcome] = field(default_factory=dict)


def share_of(settings: Settings) -> Settings:
    """Returns the settings of one of the processes."""
    return settings.model_copy(update={name: getattr(settings, name) // settings.workers for name in SHARED})


class Supervisor:
    """The gateway processes. Everything happens on the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._children: set[_Child] = set()
        self._orders: dict[int, _Order] = {}
        self._numbers = itertools.count(1)
        self._state = State()
        self._past = b""  # the counters of processes that have died
        self._deaths = [0] * (settings.workers + 1)  # by place
        self._failures = [0] * (settings.workers + 1)  # deaths in a row, by place
        self._following: set[asyncio.Task[None]] = set()
        # By place. They stay open when the process of the place dies: another one takes the connections meanwhile.
        self._sockets: dict[int, dict[str, socket.socket]] = {}
        self._takers: dict[int, _Child] = {}  # by place, the process that takes the connections
        self._ports: dict[str, int] = {}
        self._served = self._stopping = self._failed = False
        self._stopped = asyncio.Event()

    async def run(self, thread: SignalThread) -> bool:
        """Serves until a signal comes. Returns whether every process ended cleanly.

        Raises OSError if a port is taken.
        """
        loop = asyncio.get_running_loop()
        settings = self._settings
        if settings.http:
            self._bind("http", "HTTP", settings.http_host, "--http-host")
        if settings.grpc:
            option = "--grpc-host" if settings.grpc_host else "--http-host"
            self._bind("grpc", "gRPC", settings.grpc_host or settings.http_host, option)
        if settings.workers > (cores := usable_cores()):
            logger.warning("%d gateway processes share %d cores", settings.workers, cores)
        thread.on_stop(lambda: loop.call_soon_threadsafe(self._stop))
        for place in range(1, settings.workers + 1):
            self._follow(self._keep(place))
        await self._stopped.wait()
        while self._following:
            await asyncio.wait(self._following)
        return not self._failed

    def _bind(self, name: str, protocol: str, host: str, option: str) -> None:
        """Makes a socket for each process, all with one port."""
        port = getattr(self._settings, f"{name}_port")
        if port:
            listen(protocol, host, port, option).close()  # others of this user could share it otherwise
        for place in range(1, self._settings.workers + 1):
            bound = bind_shared(host, port)
            port = self._ports[f"{name}_port"] = bound.getsockname()[1]
            self._sockets.setdefault(place, {})[name] = bound

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        self._following.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the supervisor failed", exc_info=error)
            self._failed = True
            self._stop()

    def _stop(self) -> None:
        """Lets every process finish what it has accepted."""
        self._stopping = True
        self._stopped.set()
        for sockets in self._sockets.values():
            for bound in sockets.values():
                bound.close()  # the processes close theirs when they have answered
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)

    async def _keep(self, place: int) -> None:
        """Runs a process, and another one when it has died."""
        while not self._stopping:
            name = f"gateway process {place} of {self._settings.workers}"
            listening_since = 0.0
            try:
                child = await self._start(place)
            except OSError as error:
                cause = f"{name} can't be started ({error})"
            else:
                await self._obey(child)
                status = await child.process.wait()
                self._forget(child)
                cause, listening_since = cause_of_death(status, name), child.listening_since
                if self._stopping:
                    self._failed |= status != 0 and listening_since > 0  # else it had accepted nothing
                    return
            if not self._served:
                logger.error("%s before all served", cause)
                self._failed = True
                self._stop()
                return
            self._deaths[place] += 1
            healthy = listening_since and time.monotonic() - listening_since > _HEALTHY
            self._failures[place] = 1 if healthy else self._failures[place] + 1
            wait = wait_before_start(self._failures[place])
            when = f"in {wait:g} s" if wait else "now"
            logger.error("%s: another one starts %s", cause, when, extra={"deaths": self._deaths[place]})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait)

    async def _start(self, place: int) -> _Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        files = {
            each: {name: bound.fileno() for name, bound in sockets.items()} for each, sockets in self._sockets.items()
        }
        command = [
            sys.executable,
            "-P",
            "-m",
            "opgate.service.processes.member",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        try:
            # In a session of its own no Ctrl-C reaches it: the supervisor tells it.
            process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=(theirs.fileno(), *(file for some in files.values() for file in some.values())),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        child = _Child(place, process, reader, writer)
        writer.write(packed(Opening(share_of(self._settings), place, self._deaths[place], files)))
        self._children.add(child)
        if self._stopping:
            self._stop()
        return child

    async def _obey(self, child: _Child) -> None:
        """Does what a process says, until it ends."""
        while (message := await read(child.reader)) is not None:
            match message:
                case ("loaded",):
                    self._join(child)
                case ("listening",):
                    child.listening_since = time.monotonic()
                    self._take_over(child)
                    self._tell_listening(child)
                case ("leaving",):
                    child.leaving = True
                    self._give_up(child)
                case ("run", number, operation, arguments):
                    self._run(_Order(child, number, operation, arguments))
                case ("did", order, outcome):
                    self._did(child, order, outcome)

    def _join(self, child: _Child) -> None:
        """Lets a process do what the others have done and do now. Then it listens, the first ones at the same time."""
        for operation, arguments in self._state.operations():
            child.send("do", 0, operation, arguments)
        child.joined = True
        for number, order in self._orders.items():
            order.waits_for.add(child)
            child.send("do", number, order.operation, order.arguments)
        joined = [each for each in self._children if each.joined]
        if self._served:
            child.send("listen")
        elif len(joined) == self._settings.workers:
            for each in joined:
                each.send("listen")

    def _take_over(self, child: _Child) -> None:
        """Lets a process that listens take the connections of its place, and of those where nobody does."""
        taker = self._takers.get(child.place)
        if taker is not None:
            taker.send("release", child.place)
        self._takers[child.place] = child
        if self._served:
            self._share_out()

    def _give_up(self, child: _Child) -> None:
        """Lets others take the connections that a process takes."""
        self._takers = {place: taker for place, taker in self._takers.items() if taker is not child}
        if self._served and not self._stopping:
            self._share_out()

    def _share_out(self) -> None:
        """Finds a process for the connections of each place where nobody takes them."""
        able = [child for child in self._children if child.listening_since and not child.leaving]
        for place in self._sockets:
            if place not in self._takers and able:
                taker = min(able, key=lambda child: list(self._takers.values()).count(child))
                self._takers[place] = taker
                taker.send("adopt", place)

    def _tell_listening(self, child: _Child) -> None:
        settings = self._settings
        count = sum(bool(each.listening_since) for each in self._children)
        if self._served:
            logger.info("gateway process %d of %d listens again", child.place, settings.workers)
        elif count == settings.workers:
            self._served = True
            told = {"host": settings.http_host, **self._ports, "processes": settings.workers}
            logger.info("listening", extra=told)

    def _run(self, order: _Order) -> None:
        number = next(self._numbers)
        self._orders[number] = order
        order.waits_for = {child for child in self._children if child.joined}
        if order.operation in READS:
            asyncio.get_running_loop().call_later(_MOST_READ, self._give_up_waiting, number)
        data = packed(("do", number, order.operation, order.arguments))
        for child in order.waits_for:
            child.writer.write(data)

    def _did(self, child: _Child, number: int, outcome: Outcome) -> None:
        if number not in self._orders:
            return  # nobody waits for it any more
        order = self._orders[number]
        order.waits_for.discard(child)
        order.outcomes[child] = outcome
        if order.operation == "metrics" and outcome.error is None:
            child.metrics = outcome.value
        self._finish(number)

    def _finish(self, number: int) -> None:
        """Answers the process that has asked, if no other still works at it."""
        order = self._orders[number]
        if order.waits_for:
            return
        del self._orders[number]
        # What a process counted that has died meanwhile is in the past.
        outcomes = [outcome for child, outcome in order.outcomes.items() if child in self._children]
        failed = sum(outcome.error is not None for outcome in outcomes)
        if not failed and outcomes:
            self._state.note(order.operation, order.arguments, outcomes[0].value)
        elif order.operation == "register" and failed < len(outcomes):  # no process may know it alone
            self._run(_Order(order.asker, 0, "unregister", order.arguments[:1]))
        self._answer(order, outcomes)

    def _answer(self, order: _Order, outcomes: list[Outcome]) -> None:
        if order.asker in self._children:
            order.asker.send("done", order.number, outcomes, self._past)

    def _give_up_waiting(self, number: int) -> None:
        """Answers the process that has asked for something that not every process tells in time."""
        order = self._orders.pop(number, None)
        if order is not None:
            places = ", ".join(str(child.place) for child in order.waits_for)
            text = f"gateway process {places} did not tell its {order.operation} in {_MOST_READ:g} s"
            self._answer(order, [Outcome(error=(Kind.UNAVAILABLE.value, text))])

    def _forget(self, child: _Child) -> None:
        """Nobody waits any more for a process that has ended."""
        self._children.discard(child)
        child.writer.close()
        self._give_up(child)
        if child.metrics:
            self._past = add_past(self._past, child.metrics)
        for number in list(self._orders):
            self._orders[number].waits_for.discard(child)
            self._finish(number)


def supervise(settings: Settings, thread: SignalThread) -> int:
    """Serves with several processes. Returns the exit status, as `run` of opgate.service.app does."""
    try:
        clean = asyncio.run(Supervisor(settings).run(thread))
    except OSError as error:
        logger.error("the server can't start: %s", error)
        return 1
    if clean:
        logger.info("every gateway process has stopped")
    return 0 if clean else 1
