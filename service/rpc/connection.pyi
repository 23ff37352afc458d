"""gRPC over HTTP/2 without sockets: the types of connection_module.cpp."""

from collections.abc import Sequence

class ProtocolError(ValueError):
    """The client does not speak gRPC over HTTP/2. The text is "not HTTP/2" if its first bytes are no HTTP/2 at all."""

class Budget:
    """The bytes that messages may take while they are read, over all connections that share it."""

    def __init__(self, limit: int, /) -> None: ...
    @property
    def used(self) -> int: ...

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

    def begin(self, stream: int, metadata: Sequence[tuple[str, str]] | None, encoding: str, /) -> None: ...
    def send(self, stream: int, message: bytes, compressed: bool, /) -> None: ...
    def end(self, stream: int, status: int, text: str, metadata: Sequence[tuple[str, str]] | None, /) -> None: ...
    def answer(
        self,
        stream: int,
        message: bytes,
        trailers: Sequence[tuple[str, str]] | None,
        compressed: bool,
        encoding: str,
        /,
    ) -> None: ...
    def consume(self, stream: int, size: int, /) -> None: ...
    def go_away(self, last: bool, /) -> None: ...
    def output(self, most: int, /) -> bytes: ...
    def waiting(self, stream: int, /) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def unsent(self) -> int: ...
    @property
    def done(self) -> bool: ...
