"""gRPC over HTTP/2 without sockets: the types of connection_module.cpp."""

from collections.abc import Sequence

class ProtocolError(ValueError):
    """The client does not speak gRPC over HTTP/2. The text is "not HTTP/2" if its first bytes are no HTTP/2 at all."""

class Budget:
    """The bytes that requests and answers may take, over all connections that share it."""

    def __init__(self, limit: int, /) -> None: ...
    @property
    def used(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def most(self) -> int:
        """The bytes that one request may hold. The rest is for small requests."""
    def hold(self, bytes: int, small: bool = False, /) -> bool:
        """Counts bytes, also where there is no room for them. Returns whether there was.

        Those of `small` requests have room up to the limit, others up to `most`.
        """

    def let_go(self, bytes: int, /) -> None:
        """Counts bytes no more that `hold` has counted."""

_Pairs = Sequence[tuple[str, str]] | None
_Message = bytes | list[bytes | memoryview]

class Connection:
    """A gRPC connection of a server, without its socket.

    `methods` maps the path of a method to twice its number, plus 1 if its client sends a stream of messages.
    """

    def __new__(
        cls,
        methods: dict[str, int],
        budget: Budget,
        max_message_bytes: int,
        max_header_bytes: int,
        max_streams: int,
        max_held_bytes: int,
    ) -> Connection: ...
    def receive(self, data: bytes | bytearray | memoryview, /) -> list[tuple]:  # type: ignore[type-arg]
        """Reads bytes of the client. Returns the events that follow from them, as tuples:

        (CALL, stream, method, timeout_us, message, compressed, encoding, metadata): a unary call;
        (OPEN, stream, method, timeout_us, encoding, metadata): a call with a stream of messages;
        (MESSAGE, stream, message, compressed), (END, stream): of such a stream;
        (GONE, stream): the client cancelled a call;
        (REFUSED, stream, status, text, path): a call that the connection answered itself.

        Raises ProtocolError. Then what `output` still returns is for the client, and the connection must be closed.
        """

    def sweep(self, most_in: int, most_out: int, /) -> list[tuple]:  # type: ignore[type-arg]
        """Ends the calls whose message or answer has not gone on in the last calls of this method, 0: none.

        Returns events as `receive` does.
        """

    def begin(self, stream: int, metadata: _Pairs, encoding: str, /) -> None: ...
    def send(self, stream: int, message: _Message, compressed: bool, /) -> None: ...
    def end(self, stream: int, status: int, text: str, trailers: _Pairs, initial: _Pairs, /) -> None:
        """Ends a call with a status. Raises ValueError, as `begin` and `answer` do, for metadata that can't be sent."""

    def answer(
        self, stream: int, message: _Message, trailers: _Pairs, initial: _Pairs, compressed: bool, encoding: str, /
    ) -> None:
        """Sends the only message of a call and ends it."""

    def consume(self, stream: int, size: int, /) -> None:
        """Says that a message of a stream was taken."""

    def hold(self, stream: int, size: int, /) -> bool:
        """Counts bytes in the budget until the call ends, less if negative. Returns whether it has room."""

    def go_away(self, last: bool, /) -> None:
        """Tells the client to make no new calls. With `last`, those that it makes all the same are refused."""

    def ping(self) -> None: ...
    def close(self) -> None:
        """Gives up all calls, after the socket was closed."""

    def output(self, most: int, /) -> list[bytes | memoryview]:
        """Returns bytes for the client, in parts: all that may be sent, or a little more than `most`."""

    def waiting(self, stream: int, /) -> int:
        """Returns the bytes of a call's messages that were not sent."""

    @property
    def calls(self) -> int: ...
    @property
    def unsent(self) -> int: ...
    @property
    def wants_write(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def done(self) -> bool: ...
    @property
    def failure(self) -> str: ...
