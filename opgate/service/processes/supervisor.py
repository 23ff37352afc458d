"""Starts several gateway processes on one port, replaces one that dies, and lets them do together what clients ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from opgate.child_process import cause_of_death, wait_before_start
from opgate.cpu import usable_cores
from opgate.service.listening import bind_shared, listen
from opgate.service.processes.child import SILENT, Child, start
from opgate.service.processes.messages import Opening, read
from opgate.service.processes.orders import Orders
from opgate.service.settings import Settings
from opgate.service.signals import SignalThread

logger = logging.getLogger("opgate.processes")

# Limits in bytes on all requests together. Each process gets its share of them.
SHARED = ("max_held_bytes", "response_cache_byte_size", "model_memory")
# A process that served for so many seconds did not die of its start.
_HEALTHY = 30.0


def share_of(settings: Settings) -> Settings:
    """Returns the settings of one of the processes. Three bodies must have room in each."""
    shares = {name: getattr(settings, name) // settings.workers for name in SHARED}
    shares["max_held_bytes"] = max(shares["max_held_bytes"], min(settings.max_held_bytes, 3 * settings.max_body_bytes))
    return settings.model_copy(update=shares)


class Supervisor:
    """The gateway processes. Everything happens on the event loop."""

    def __init__(self, settings: Settings, temporary: Path) -> None:
        self._settings = settings
        self._temporary = temporary
        self._children: set[Child] = set()
        self._orders = Orders(self._children)
        self._deaths = [0] * (settings.workers + 1)  # by place
        self._failures = [0] * (settings.workers + 1)  # deaths in a row, by place
        self._following: set[asyncio.Task[None]] = set()
        # By place. They stay open when the process of the place dies: another one takes the connections meanwhile.
        self._sockets: dict[int, dict[str, socket.socket]] = {}
        self._takers: dict[int, Child] = {}  # by place, the process that takes the connections
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
        self._orders.close()
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
                pinging = asyncio.create_task(self._ping(child, name))
                await self._obey(child)
                status = await asyncio.to_thread(child.process.wait)
                pinging.cancel()
                self._children.discard(child)
                child.writer.close()
                self._give_up(child)
                self._orders.forget(child)
                cause = f"{name} was ended because it hung" if child.hung else cause_of_death(status, name)
                listening_since = child.listening_since
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

    async def _start(self, place: int) -> Child:
        files = {
            each: {name: bound.fileno() for name, bound in sockets.items()} for each, sockets in self._sockets.items()
        }
        child = await start(Opening(share_of(self._settings), place, self._deaths[place], files, self._temporary))
        self._children.add(child)
        if self._stopping:
            self._stop()
        return child

    async def _obey(self, child: Child) -> None:
        """Does what a process says, until it ends."""
        while (message := await read(child.reader)) is not None:
            match message:
                case ("pong",):
                    self._heard(child)
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
                    self._orders.run(child, number, operation, arguments)
                case ("ready", order, outcome):
                    self._orders.ready(child, order, outcome)
                case ("did", order, outcome):
                    self._orders.did(child, order, outcome)

    async def _ping(self, child: Child, name: str) -> None:
        """Asks a process once a second whether its event loop still runs, and ends it if that hangs for longer than a
        run may take.

        Pings are counted and not seconds, because this process may have been stopped too.
        """
        while True:
            await asyncio.sleep(1.0)
            if not child.joined or self._stopping:
                continue
            if child.silent == SILENT:
                logger.warning("%s has not answered for %d s: others take its new connections", name, SILENT)
                self._give_up(child)
                self._orders.give_up(child)
            if child.silent >= max(SILENT, self._settings.run_timeout):
                text = "%s has not answered for %d s (OPGATE_RUN_TIMEOUT): it is ended"
                logger.error(text, name, child.silent)
                child.hung = True
                child.process.kill()
                return
            child.silent += 1
            child.send("ping")

    def _heard(self, child: Child) -> None:
        """Lets a process that answers again take the connections of its place."""
        was_silent = child.silent >= SILENT
        child.silent = 0
        if was_silent and child.serves:
            logger.info("gateway process %d of %d answers again", child.place, self._settings.workers)
            self._take_over(child)

    def _join(self, child: Child) -> None:
        """Lets a process do what the others have done and do now. Then it listens, the first ones at the same time."""
        self._orders.join(child)
        joined = [each for each in self._children if each.joined]
        if self._served:
            child.send("listen")
        elif len(joined) == self._settings.workers:
            for each in joined:
                each.send("listen")

    def _take_over(self, child: Child) -> None:
        """Lets a process that listens take the connections of its place, and of those where nobody does."""
        taker = self._takers.get(child.place)
        if taker is not None and taker is not child:
            taker.send("release", child.place)
        self._takers[child.place] = child
        if self._served:
            self._share_out()

    def _give_up(self, child: Child) -> None:
        """Lets others take the connections that a process takes."""
        self._takers = {place: taker for place, taker in self._takers.items() if taker is not child}
        if self._served and not self._stopping:
            self._share_out()

    def _share_out(self) -> None:
        """Finds a process for the connections of each place where nobody takes them."""
        able = [child for child in self._children if child.serves]
        for place in self._sockets:
            if place not in self._takers and able:
                taker = min(able, key=lambda child: list(self._takers.values()).count(child))
                self._takers[place] = taker
                taker.send("adopt", place)

    def _tell_listening(self, child: Child) -> None:
        settings = self._settings
        count = sum(bool(each.listening_since) for each in self._children)
        if self._served:
            logger.info("gateway process %d of %d listens again", child.place, settings.workers)
        elif count == settings.workers:
            self._served = True
            told = {"host": settings.http_host, **self._ports, "processes": settings.workers}
            logger.info("listening", extra=told)


def supervise(settings: Settings, thread: SignalThread, temporary: Path) -> int:
    """Serves with several processes, whose temporary files lie in the folder `temporary`.

    Returns the exit status, as `run` of opgate.service.run does.
    """
    try:
        clean = asyncio.run(Supervisor(settings, temporary).run(thread))
    except OSError as error:
        logger.error("the server can't start: %s", error)
        return 1
    if clean:
        logger.info("every gateway process has stopped")
    return 0 if clean else 1
