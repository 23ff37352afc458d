"""What a server of gRPC is given: its methods and its limits."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import ClassVar

from opgate.service.rpc.call import Call, Message, Received
from opgate.service.rpc.connection import Budget


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one message each way.

    `handler` gets a Call and the bytes of the message. It answers with `call.answer` or `call.fail`, at once or later.
    It may raise RpcError.
    """

    handler: Callable[[Call, Received], None]
    max_bytes: int | None = None  # of a message, if they are fewer than those of the server's options
    is_stream: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Stream:
    """A method of which at least one side sends a stream of messages.

    `handler` gets a Call and the messages of the client, and yields those for the client. It may raise RpcError. It is
    called with the first bytes of the call, or with its message where the client sends only one.
    """

    handler: Callable[[Call, AsyncIterator[Received]], AsyncGenerator[Message, None]]
    client_streams: bool = True
    max_bytes: int | None = None
    is_stream: ClassVar[bool] = True


Method = Unary | Stream


@dataclass(frozen=True)
class Options:
    """The limits of a server. Sizes are in bytes, times in seconds."""

    max_message_bytes: int = 64 << 20
    max_unpacked_bytes: int | None = None  # of a packed message when it is unpacked; None: max_message_bytes
    # Counts the messages and metadata of all calls that have not ended, and answers that wait. Others may count in it
    # too. The calls of one connection may have half of it. None: a gigabyte.
    budget: Budget | None = None
    max_header_bytes: int = 16 << 10
    max_streams: int = 10_000  # calls at once of a connection
    read_timeout: float = 60.0  # in which nothing comes of a message that has begun, or of a connection
    write_timeout: float = 60.0  # in which a client takes nothing of what is for it
    keepalive_time: float = 300.0  # in which nothing comes, until the client is asked for a sign of life
    keepalive_timeout: float = 20.0  # in which it must give that
    max_connection_idle: float = 7200.0  # until a connection without a call is closed
    tls: ssl.SSLContext | None = None
