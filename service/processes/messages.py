"""The messages between the supervisor and the gateway processes: pickles with their length before them.

The processes are those of one user and run the same code, so they trust each other's pickles.

A process sends         ("loaded",), ("listening",), ("leaving",), ("run", number, operation, arguments),
                        ("did", order, outcome)
The supervisor sends    Opening, ("listen",), ("do", order, operation, arguments), ("done", number, outcomes, past),
                        ("adopt", place), ("release", place)
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opgate.service.errors import Kind, ServingError
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


@dataclass(frozen=True)
class Outcome:
    """What came of an operation in a process: its value, or the kind and the text of its error."""

    value: Any = None
    error: tuple[str, str] | None = None


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """Returns what an operation returned in every process. Raises ServingError if it failed in one."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if not errors:
        return [outcome.value for outcome in outcomes]
    kind, text = errors[0]
    where = "" if len(errors) == len(outcomes) else f"in {len(errors)} of {len(outcomes)} processes: "
    raise ServingError(Kind(kind), where + text)


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
