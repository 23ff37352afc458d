"""What a connection, its requests and the gateway that it belongs to ask of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from opgate.service.http.held_bytes import HeldBytes
from opgate.service.http.parser import Head
from opgate.service.rpc.connection import Budget


@dataclass(frozen=True, slots=True)
class Options:
    """The limits of connections. Times are in seconds."""

    max_header_bytes: int
    keep_alive_timeout: float  # without a request
    body_timeout: float  # without a byte of a body that was promised
    write_timeout: float  # in which the client takes nothing of an answer


class Connection(Protocol):
    """A connection, as a request sees it."""

    counted: HeldBytes
    client: tuple[str, int] | None  # its address
    server: tuple[str, int] | None
    scheme: str

    @property
    def transport(self) -> asyncio.Transport:
        """What writes. A request writes its answer there."""

    @property
    def peer(self) -> str:
        """The address of the client, "" if there is none."""

    def default_headers(self) -> bytes:
        """Returns the headers that every answer has."""

    def is_last_answer(self) -> bool:
        """Returns whether the connection closes after the answer that is written now, because the gateway stops."""

    async def writable(self) -> None:
        """Waits until the client takes something, or the connection is lost."""

    def pause_reading(self) -> None:
        """Reads nothing until `resume_reading`."""

    def resume_reading(self) -> None:
        """Reads again."""

    def count_body(self, size: int) -> None:
        """Counts bytes of a body that have come. Refuses the rest if there is no room for them."""

    def on_answered(self) -> None:
        """Goes on to the next request: the answer has been written."""


class Cycle(Protocol):
    """A request of a connection, and its answer."""

    keep_alive: bool  # whether the connection stays open after the answer
    arrived: bool  # whether all of the request has come

    @property
    def begun(self) -> bool:
        """Whether the answer has begun."""

    @property
    def answered(self) -> bool:
        """Whether the answer has been written."""

    def feed(self, data: bytes) -> None:
        """Takes a part of the body."""

    def complete(self) -> None:
        """Is called when the request has come."""

    def buffer(self) -> tuple[memoryview, int] | None:
        """Returns memory for the body and how many bytes of it are there already, None if `feed` takes all parts."""

    def filled(self) -> None:
        """Is called when that memory is full, before `complete`."""

    def lost(self) -> None:
        """Is called when the connection is lost."""

    def refuse_body(self, size: int) -> bool:
        """Answers that there is no room for the `size` bytes of the body that have come. Returns whether it did."""

    def too_slow(self, seconds: float) -> None:
        """Is called when nothing of the body has come for so long. Then the connection is lost."""


class DirectCycle(Cycle, Protocol):
    """A request that needs no ASGI. It is not chunked."""

    length: int  # of the body


class Service(Protocol):
    """The gateway, as its connections see it."""

    options: Options
    budget: Budget

    @property
    def draining(self) -> bool:
        """Whether the gateway stops."""

    @property
    def grace_ends(self) -> float:
        """Until when new requests are answered while it stops, by the event loop's clock."""

    @property
    def stop_ends(self) -> float:
        """When the stop must have ended."""

    def direct(self, head: Head) -> Callable[[Connection], DirectCycle] | None:
        """Returns what makes the cycle of a request that needs no ASGI, None if it needs it.

        What it returns must fit every request with the same head.
        """

    def no_room(self, size: int) -> tuple[int, str]:
        """Returns the status and the text for a request that holds so many bytes more than there is room for."""

    def refusal(self, peer: str, status: int, message: str) -> tuple[bytes, bytes]:
        """Tells the journal of data that can't be read as a request. Returns the headers and the body of the answer."""
