"""One of several gateway processes: its side of the connection to the supervisor.

`python -m opgate.service.processes.member` is started by the supervisor with the file descriptor of that connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opgate.service import app
from opgate.service.all_processes import CHANGES_MODELS, AllProcesses, perform
from opgate.service.core.errors import Kind, ServingError, kind_of, of_system
from opgate.service.listening import Listen
from opgate.service.native import process
from opgate.service.processes.messages import Opening, Outcome, packed, read, receive, values_of
from opgate.service.signals import end_process
from opgate.service.telemetry import logs

if TYPE_CHECKING:
    from opgate.service.gateway import Gateway

logger = logging.getLogger("opgate.processes")


class Member(AllProcesses):
    """A gateway process among several. It runs operations in all of them."""

    def __init__(self, connection: socket.socket, opening: Opening) -> None:
        self._connection = connection
        self.opening = opening
        self._sockets: dict[int, dict[str, socket.socket]] = {}
        for place, files in opening.sockets.items():
            self._sockets[place] = {name: socket.socket(fileno=file) for name, file in files.items()}
            for bound in self._sockets[place].values():
                bound.set_inheritable(False)
        own = self._sockets.pop(opening.place, {})
        self.http, self.grpc = own.get("http"), own.get("grpc")
        self._listeners: Mapping[str, Listen] = {}
        self._adopted: dict[int, list[asyncio.AbstractServer]] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[list[Outcome]]] = {}
        self._doing: set[asyncio.Task[None]] = set()
        self._decisions: dict[int, asyncio.Future[tuple[str, str] | None]] = {}  # by order, of those that wait for one
        self._past = b""
        self._catching_up = asyncio.Lock()
        self._listen = asyncio.Event()

    async def join(self, gateway: Gateway) -> None:
        """Tells the supervisor that the models are loaded. Returns when this process has done what others have done
        before, and shall listen."""
        self._gateway = gateway
        gateway.all_processes = self
        gateway.deaths = self.opening.deaths
        self._connection.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        self._following = asyncio.create_task(self._follow(reader))
        self._send("loaded")
        await self._listen.wait()
        await asyncio.gather(*self._doing)

    def listening(self, listeners: Mapping[str, Listen]) -> None:
        """Tells the supervisor that this process serves. `listeners` let it listen on further sockets of a protocol."""
        self._listeners = listeners
        self._send("listening")

    def leave(self) -> None:
        """Leaves the sockets to the other processes, because this one stops."""
        self._send("leaving")
        for sockets in self._sockets.values():
            for bound in sockets.values():
                bound.close()
        self._sockets.clear()

    async def _adopt(self, place: int) -> None:
        """Takes the connections of a process that has died, until `release`."""
        servers = self._adopted.setdefault(place, [])
        for name, bound in self._sockets.get(place, {}).items():
            try:
                servers.append(await self._listeners[name](bound.dup()))
            except OSError as error:  # there are no file descriptors left
                logger.error("the connections of gateway process %d wait until it serves again: %s", place, error)

    def _release(self, place: int) -> None:
        for server in self._adopted.pop(place, ()):
            server.close()

    def past(self) -> bytes:
        """Returns the counters of processes that have died, as the last answer to `metrics` brought them."""
        return self._past

    async def run(self, operation: str, *arguments: Any) -> list[Any]:
        """Asks the supervisor to run an operation in every process."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send("run", number, operation, arguments)
        try:
            return values_of(await answer)
        finally:
            del self._asked[number]

    def _send(self, *message: Any) -> None:
        self._writer.write(packed(message))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while (message := await read(reader)) is not None:
            match message:
                case ("do", order, operation, arguments):
                    task = asyncio.create_task(self._do(order, operation, arguments))
                    self._doing.add(task)
                    task.add_done_callback(self._doing.discard)
                case ("decided", order, error):
                    self._decisions[order].set_result(error)
                case ("done", number, outcomes, past):
                    self._past = past
                    if number in self._asked and not self._asked[number].done():
                        self._asked[number].set_result(outcomes)
                case ("ping",):
                    self._send("pong")
                case ("adopt", place):
                    await self._adopt(place)
                case ("release", place):
                    self._release(place)
                case ("listen",):
                    self._listen.set()
        logger.error("the supervisor has gone")
        end_process(1)

    async def _agree(self, order: int, value: Sequence[str], error: ServingError | None) -> ServingError | None:
        """Tells what would come of an operation here, and returns the error that holds in all processes instead."""
        decision = self._decisions[order] = asyncio.get_running_loop().create_future()
        self._send("ready", order, Outcome(value) if error is None else _failed(error))
        try:
            decided = await decision
        finally:
            del self._decisions[order]
        return None if decided is None else ServingError(Kind(decided[0]), decided[1])

    async def _perform(self, order: int, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Runs an operation. Loads that others ran before come first, one after the other. The others run side by side:
        those of the same models take turns in the order in which they came, which is the same in every process."""
        if operation in CHANGES_MODELS:
            async with self._catching_up:
                if not order:
                    return await perform(self._gateway, operation, arguments)
        return await perform(self._gateway, operation, arguments, partial(self._agree, order))

    async def _do(self, order: int, operation: str, arguments: tuple[Any, ...]) -> None:
        """Runs an operation and tells what came of it. `order` is 0 if others ran it before this process began."""
        try:
            outcome = Outcome(await self._perform(order, operation, arguments))
        except Exception as error:
            if not isinstance(error, ServingError):
                logger.exception("%s failed", operation)
            outcome = _failed(error)
        if order:
            self._send("did", order, outcome)
        elif outcome.error is not None:
            logger.error("what clients changed before can't be done again (%s): %s", operation, outcome.error[1])


def _failed(error: Exception) -> Outcome:
    if isinstance(error, OSError):
        error = of_system(error)
    text = error.message if isinstance(error, ServingError) else f"{type(error).__name__}: {error}"
    return Outcome(error=(kind_of(error).value, text))


def main(arguments: list[str]) -> int:
    """Runs a gateway process until the supervisor ends it. Returns the exit status."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    opening: Opening = receive(connection)
    tempfile.tempdir = str(opening.temporary)
    make = logging.getLogRecordFactory()

    def record(*details: Any, **more: Any) -> logging.LogRecord:
        made = make(*details, **more)
        made.gateway_process = opening.place
        return made

    logging.setLogRecordFactory(record)
    settings = opening.settings
    log_settings = logs.configure(settings.log_level, settings.log_format)
    process.watch_crashes(settings.log_format == "json")
    return app.run(settings, log_settings, Member(connection, opening))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
