"""The side of `opgate load` that speaks HTTP/1.1: connections that send the same bytes again and again."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import orjson
from google.protobuf import json_format

from opgate.load.connection import Connection
from opgate.load.run import Answered
from opgate.load.sequences import Sequences, Turn
from opgate.load.target_model import ASK_SECONDS, FIRST_SECONDS, Input, LoadError, RefusedError, one_line, read_model
from opgate.service.core.spec import ModelSpec
from opgate.service.core.triton_messages import model_config_pb2, service_pb2

#: As many connections are opened at once.
_MOST_OPENING = 64


class HttpClient:
    """Sends requests to one server. It opens a connection whenever a request is due and none is idle."""

    wire = "HTTP"

    def __init__(self, url: str) -> None:
        """Raises LoadError if the URL is not one of HTTP or HTTPS."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LoadError(f"--url: expected http://HOST:PORT, got '{url}'")
        self.name = url
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._address = parts.hostname  # after the first connection, the IP address
        self._port = port or (443 if self._tls else 80)
        self._netloc, self._prefix = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[float] = deque()  # the due times of requests that have no connection yet
        self._path = ""
        self.serves_sequences = False
        self._request = b""
        self._by_place: dict[tuple[bool, bool], tuple[bytes, bytes]] = {}  # what surrounds the id in a request
        self._sequences: Sequences | None = None
        self._on_answer: Answered = lambda due, error: None

    async def model(self, name: str, version: str) -> ModelSpec:
        """Asks for the metadata and the config of a model. Raises LoadError."""
        path = f"{self._prefix}/v2/models/{quote(name)}" + (f"/versions/{quote(version)}" if version else "")
        status, body = await self._ask(self._head("GET", path))
        if status != 200:
            raise LoadError(f"{self.name} has no model '{name}' to load: {_error(status, body)}")
        status, config = await self._ask(self._head("GET", f"{path}/config"))
        self._path = f"{path}/infer"
        try:
            metadata = json_format.Parse(body, service_pb2.ModelMetadataResponse(), ignore_unknown_fields=True)
            message = None
            if status == 200:
                message = json_format.Parse(config, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise LoadError(f"{self.name} describes model '{name}' in no form of KServe v2: {error}") from None
        self.serves_sequences = message is not None and message.HasField("sequence_batching")
        return read_model(metadata, message)

    def prepare(self, inputs: Sequence[Input], sequence_length: int = 0) -> None:
        """Makes the bytes of the request, or of each kind of place in a sequence. It asks for all outputs as binary
        tensors."""
        stated = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype.name,
                "shape": tensor.array.shape,
                "parameters": {"binary_data_size": len(tensor.content)},
            }
            for tensor in inputs
        ]
        tail = b"".join(tensor.content for tensor in inputs)

        def request(parameters: Mapping[str, Any]) -> bytes:
            head = orjson.dumps({"inputs": stated, "parameters": {"binary_data_output": True, **parameters}})
            headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": len(head)}
            return self._head("POST", self._path, {**headers, "Content-Length": len(head) + len(tail)}) + head + tail

        if not sequence_length:
            self._request = request({})
            return
        self._sequences, mark = Sequences(sequence_length), 10**15
        for start in (False, True):
            for end in (False, True):
                whole = request({"sequence_id": mark, "sequence_start": start, "sequence_end": end})
                before, _, after = whole.partition(b"%d" % mark)
                self._by_place[start, end] = (before, after)
        turn = Sequences(1).take()
        self._request = self._of_turn(turn)

    def _of_turn(self, turn: Turn) -> bytes:
        before, after = self._by_place[turn.start, turn.end]
        return b"%b%d%b" % (before, turn.id, after)

    async def first(self) -> tuple[str, set[str]]:
        """Sends one request. Returns its error, empty if there is none, and the names of the outputs.

        Raises RefusedError if the server says that the request is wrong.
        """
        status, body = await self._ask(self._request, FIRST_SECONDS)
        if status != 200:
            if 400 <= status < 500 and status != 429:
                raise RefusedError(_error(status, body))
            return _error(status, body), set()
        try:
            answer, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))
            return "", {output["name"] for output in answer["outputs"]}
        except (ValueError, KeyError, TypeError):
            raise LoadError(f"the first answer is not one of KServe v2: {one_line(body)}") from None

    def start(self, answered: Answered) -> None:
        """Says what is called with each answer: when its request was due, and its error or None."""
        self._on_answer = answered
        if self._sequences is not None:
            self._sequences = Sequences(self._sequences.length)

    def send(self, due: float) -> None:
        """Sends the request on an idle connection, or on the next one that is free or new."""
        if self._idle:
            self._send_on(self._idle.pop(), due)
        else:
            self._waiting.append(due)
            self._open_more()

    def end_sequences(self) -> int:
        """Makes the next request of each sequence that waits its last one. Returns how many are to be sent for it."""
        return 0 if self._sequences is None else self._sequences.end()

    def drop(self) -> None:
        """Gives up the requests under way. Nothing is called for them."""
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        for connection in self._open.difference(self._idle):
            self._open.discard(connection)
            connection.abort()

    async def close(self) -> None:
        """Gives up the requests under way and closes all connections."""
        self.drop()
        self._open.clear()
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)

    def _send_on(self, connection: Connection, due: float) -> None:
        connection.due = due
        if self._sequences is None:
            connection.send(self._request)
        else:
            connection.turn = self._sequences.take()
            connection.send(self._of_turn(connection.turn))

    def _told(self, connection: Connection, error: str | None) -> None:
        """Lets the sequence of a request go on, before its answer makes the next one due."""
        if self._sequences is not None:
            self._sequences.answered(connection.turn, error)

    def _open_more(self) -> None:
        """Opens a connection for each request that waits, but not too many at once: that would cost both sides more
        than the requests."""
        while len(self._opening) < min(_MOST_OPENING, len(self._waiting)):
            task = asyncio.get_running_loop().create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opened)

    async def _open_one(self) -> None:
        try:
            connection = await self._connect(self._answered, self._lost)
            if connection.ended:
                raise ConnectionError(connection.ended)
        except OSError as error:
            await asyncio.sleep(0.1)  # a closed loop sends its next request at once
            if self._waiting:
                self._on_answer(self._waiting.popleft(), f"no connection: {_reason(error)}")
            return
        self._open.add(connection)
        self._free(connection)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._open_more()

    def _free(self, connection: Connection) -> None:
        if self._waiting:
            self._send_on(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    async def _connect(
        self, answered: Callable[[Connection], None], lost: Callable[[Connection, str], None]
    ) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(answered, lost),
            self._address,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
        return connection

    def _answered(self, connection: Connection) -> None:
        status = connection.status
        error = None if status == 200 else _error(status, connection.body)
        due = connection.due
        self._told(connection, error)
        if connection.kept_alive:
            self._free(connection)
        else:
            self._open.discard(connection)
            connection.close()
            self._open_more()
        self._on_answer(due, error)

    def _lost(self, connection: Connection, reason: str) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        elif connection in self._open:
            self._open.discard(connection)
            self._told(connection, reason)
            self._open_more()
            self._on_answer(connection.due, f"no answer: {reason}")
        self._open.discard(connection)

    def _head(self, method: str, path: str, headers: Mapping[str, Any] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._netloc}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def _ask(self, request: bytes, seconds: float = ASK_SECONDS) -> tuple[int, bytes]:
        """Sends a request on a connection of its own and returns the status and the body. Raises LoadError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def lost(_: Connection, reason: str) -> None:
            if not done.done():
                done.set_exception(OSError(reason))

        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect(lambda _: done.set_result(None), lost)
                self._address = connection.address
                connection.send(request)
                await done
        except TimeoutError:
            raise LoadError(f"no answer from {self.name} in {seconds:g} s") from None
        except OSError as error:
            raise LoadError(f"no answer from {self.name} ({_reason(error)}): is a server running there?") from None
        connection.close()
        return connection.status, connection.body


def _reason(error: OSError) -> str:
    """Returns why there is no connection, without the addresses that were tried."""
    return error.strerror or str(error)


def _error(status: int, body: bytes) -> str:
    """Returns the text of an error answer: the `error` in its JSON, or the beginning of its body."""
    try:
        text = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        text = body
    return f"HTTP {status}: {one_line(text)}"
