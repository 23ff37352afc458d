"""The messages between the supervisor and the gateway processes: pickles with their length before them.

The processes are those of one user and run the same code, so they trust each other's pickles.

A process sends         ("loaded",), ("listening",), ("leaving",), ("run", number, operation, arguments),
                        ("ready", order, outcome), ("did", order, outcome), ("pong",)
The supervisor sends    Opening, ("listen",), ("do", order, operation, arguments), ("decided", order, error),
                        ("done", number, outcomes, past), ("adopt", place), ("release", place), ("ping",)
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate.service.core.errors import Kind, ServingError
from opgate.service.settings import Settings

_LENGTH = struct.Struct("=Q")


@dataclass(frozen=True)
class Opening:
    """What a gateway process gets first. `place` is its number among all, from 1 on."""

    settings: Settings
    place: int
    deaths: int  # of the processes that had its place before
    # By place, the file descriptors of the sockets for "http" and "grpc". A process listens on those of its own place.
    sockets: Mapping[int, Mapping[str, int]]
    temporary: Path  # the folder for temporary files


@dataclass(frozen=True)
class Outcome:
    """What came of an operation in a process: its value, or the kind and the text of its error."""

    value: Any = None
    error: tuple[str, str] | None = None


def error_of(outcomes: Sequence[Outcome]) -> tuple[str, str] | None:
    """Returns the kind and the text of the error of an operation that failed in some process, None if it didn't."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if not errors:
        return None
    kind, text = errors[0]
    return kind, text if len(errors) == len(outcomes) else f"in {len(errors)} of {len(outcomes)} processes: {text}"


def values_of(outcomes: Sequence[Outcome]) -> list[Any]:
    """Returns what an operation returned in every process. Raises ServingError if it failed in one."""
    if (error := error_of(outcomes)) is not None:
        raise ServingError(Kind(error[0]), error[1])
    return [outcome.value for outcome in outcomes]


def packed(message: Any) -> bytes:
    """Returns the bytes of a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def receive(connection: socket.socket) -> Any:
    """Returns the first message, before there is an event loop. Raises EOFError if the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(connection.fileno(), size - len(data))
        if not more:
            raise EOFError("the supervisor has gone")
        data += more
    return data


async def read(reader: asyncio.StreamReader) -> Any:
    """Returns the next message, None when the other side has gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
