"""A gateway process as the supervisor sees it."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import Any

from opgate.child_process import ChildProcess, tied
from opgate.service.processes.messages import Opening, packed

_MODULE = "opgate.service.processes.member"
# A process that has answered no ping for so many seconds gets no new connections, and nobody waits for it any more.
SILENT = 5


@dataclass(eq=False)
class Child:
    """A gateway process, and how far it has come."""

    place: int
    process: ChildProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    joined: bool = False  # whether it takes part in what all do
    listening_since: float = 0.0
    leaving: bool = False  # whether it finishes what it has accepted
    silent: int = 0  # pings in a row that it has not answered, one a second
    hung: bool = False  # whether it was ended because it was silent for too long
    metrics: bytes = b""  # that it told last

    @property
    def serves(self) -> bool:
        """Whether it takes new connections."""
        return bool(self.listening_since) and not self.leaving and self.silent < SILENT

    def send(self, *message: Any) -> None:
        """Sends a message."""
        self.writer.write(packed(message))


async def start(opening: Opening) -> Child:
    """Starts a process. It ends when the thread that called this ends. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    files = [file for names in opening.sockets.values() for file in names.values()]
    command = tied([sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())])
    try:
        process = ChildProcess(command, (theirs.fileno(), *files))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    writer.write(packed(opening))
    return Child(opening.place, process, reader, writer)
