"""Several Triton servers as one: balanced by load, tried again where one is gone, watched.

Every server serves the same models. Inference changes nothing on a server, so a call that a server may not have
answered is safe to send to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from opgate.service.core.errors import Kind, ServingError, internal
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.core.triton_messages import service_pb2 as messages

logger = logging.getLogger("opgate.triton")

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the least time that a connection may take to come about.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Channels to the same server would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
]
_PROBE_SECONDS, _PROBE_TIMEOUT = 1.0, 2.0
# After so many probes in a row that a server didn't answer, its calls go to others.
_MAX_SILENT = 2
# After so many calls in a row that a server didn't answer in time, it gets none for a while.
_MAX_LATE, _REST_SECONDS = 3, 5.0
_CONFIG_TIMEOUT = 3.0
_KINDS = {
    grpc.StatusCode.INVALID_ARGUMENT: Kind.INVALID,
    grpc.StatusCode.UNIMPLEMENTED: Kind.UNSUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Kind.OVERLOADED,
}
# The server has not run the request: it lacks the model, or it is not there any more.
_NOT_RUN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED)
# What Triton says with UNAVAILABLE if the queue of the model is full, and if the request waited too long in it.
_QUEUE_FULL, _EXPIRED = "maximum queue size", "timeout expired"


class GoneError(Exception):
    """A server has become silent, and its calls were given up. The message says how that was noticed."""


class Server:
    """One server of a pool."""

    def __init__(self, url: str, replaceable: Callable[[], bool]) -> None:
        """`replaceable` says whether another server can take its calls."""
        channel = grpc.aio.insecure_channel(url, options=_OPTIONS)
        self.url = url
        self.turn = 0  # when it got its last call, as a number that grows
        self.calls: Counter[str] = Counter()  # ended calls, by the code of gRPC
        self.down = ""  # why it gets no calls
        self._channel, self._replaceable = channel, replaceable
        self._infer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_INFER)
        self._stub = GRPCInferenceServiceStub(channel)
        self._running: set[grpc.aio.Call] = set()  # calls that have no answer yet
        self._given_up: set[grpc.aio.Call] = set()
        self._silent = 0  # probes in a row without any answer
        self._late = 0  # calls in a row that it didn't answer in time
        self._rests_until = 0.0
        self._doubt = asyncio.Event()
        self._watch = asyncio.create_task(self._probe())

    async def infer(self, message: bytes, seconds: float) -> bytes:
        """Sends a ModelInferRequest and returns the ModelInferResponse, both as bytes.

        Raises grpc.aio.AioRpcError, or GoneError if the server is silent.
        """
        call = self._infer(message, timeout=seconds)
        self._running.add(call)
        code = "CANCELLED"
        try:
            answer: bytes = await call
            code = "OK"
            self._late = 0
            return answer
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.code() not in (*_NOT_RUN, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._late = 0
            raise
        except asyncio.CancelledError:
            if call in self._given_up:
                raise GoneError(self.down) from None
            raise
        finally:
            self._running.discard(call)
            self._given_up.discard(call)
            self.calls[code] += 1

    @property
    def running(self) -> int:
        """The number of calls that have no answer yet."""
        return len(self._running)

    def is_connected(self) -> bool:
        """Returns whether the connection stands."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    def doubt(self, reason: str) -> None:
        """Prefers other servers until this one says that it is alive."""
        if not self.down:
            logger.warning("Triton server %s gets no requests: %s", self.url, reason)
        self.down = reason
        self._doubt.set()

    def was_late(self) -> None:
        """Lets it rest if it was late several times in a row."""
        self._late += 1
        if self._late >= _MAX_LATE:
            self._late = _MAX_LATE - 1
            self._rests_until = time.monotonic() + _REST_SECONDS
            self.doubt(f"it did not answer {_MAX_LATE} calls in time")

    async def _probe(self) -> None:
        """Asks again and again whether it is alive, at once if there is doubt."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), _PROBE_SECONDS)
            self._doubt.clear()
            reason, silent = await self._ask()
            # Calls on a connection that has closed fail by themselves, and a server that stops still answers them.
            self._silent = self._silent + 1 if silent else 0
            if self._silent >= _MAX_SILENT and self._replaceable():
                self._give_up()
            if (rest := self._rests_until - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            elif reason:
                self.doubt(reason)
                self._doubt.clear()
                await asyncio.sleep(_PROBE_SECONDS / 4)
            elif self.down:
                logger.info("Triton server %s gets requests again", self.url)
                self.down = ""

    async def _ask(self) -> tuple[str, bool]:
        """Returns why it gets no calls, nothing if it is alive, and whether no answer came at all."""
        try:
            alive = (await self._stub.ServerLive(messages.ServerLiveRequest(), timeout=_PROBE_TIMEOUT)).live
            return "" if alive else "it says that it is not alive", False
        except grpc.aio.AioRpcError as error:
            return _text(error), error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        except Exception as error:  # it must be asked again, whatever it answered
            return f"{type(error).__name__}: {error}", False

    def _give_up(self) -> None:
        """Ends the calls that it has, so that other servers get them."""
        for call in list(self._running):
            self._given_up.add(call)
            call.cancel()

    async def close(self) -> None:
        """Ends the connection."""
        self._watch.cancel()
        await self._channel.close()


class TritonPool:
    """The servers that run the models of a gateway. All but `wait` and `config` need a running event loop."""

    def __init__(self, urls: Sequence[str]) -> None:
        """`urls` are the addresses of their gRPC, such as 127.0.0.1:8001, at least one, and no two the same."""
        self.urls = tuple(urls)
        self._asked_first = self.urls
        self._turns = itertools.count(1)
        self.retries = 0  # calls that another server got
        self.servers: tuple[Server, ...] = ()

    def wait(self, seconds: float) -> None:
        """Waits until one server is alive. Raises ServingError (UNAVAILABLE) if none is."""
        end = time.monotonic() + seconds
        while True:
            reasons = [_not_live(url) for url in self.urls]
            if not all(reasons):
                alive = [url for url, reason in zip(self.urls, reasons, strict=True) if not reason]
                self._asked_first = (*alive, *(url for url in self.urls if url not in alive))
                return
            if time.monotonic() > end:
                text = "; ".join(f"{url}: {reason}" for url, reason in zip(self.urls, reasons, strict=True))
                raise ServingError(Kind.UNAVAILABLE, f"no Triton server answers after {seconds:g} s: {text}")
            time.sleep(0.25)

    def config(self, name: str, version: str) -> ModelConfig:
        """Returns the config of a model as the first server that has it completed it.

        Raises ServingError (UNAVAILABLE) with the reason of each server.
        """
        reasons = []
        for url in self._asked_first:
            try:
                with grpc.insecure_channel(url) as channel:
                    request = messages.ModelConfigRequest(name=name, version=version)
                    answer = GRPCInferenceServiceStub(channel).ModelConfig(request, timeout=_CONFIG_TIMEOUT)
                    config: ModelConfig = answer.config
                    return config
            except grpc.RpcError as error:
                reasons.append(f"{url}: {_text(error)}")
        raise ServingError(Kind.UNAVAILABLE, f"no Triton server serves it: {'; '.join(reasons)}")

    def start(self) -> None:
        """Begins to watch the servers. Does nothing if it has begun."""
        if not self.servers:
            self.servers = tuple(Server(url, self._one_is_up) for url in self.urls)

    def _one_is_up(self) -> bool:
        return not all(server.down for server in self.servers)

    def down(self) -> str:
        """Returns why no server can be used, nothing if one can."""
        if not self.servers or self._one_is_up():
            return ""
        return "no Triton server is there: " + "; ".join(f"{server.url}: {server.down}" for server in self.servers)

    async def infer(self, message: bytes, seconds: float) -> bytes:
        """Sends a ModelInferRequest to the server with the fewest calls, and to another one if that one is gone.

        Raises ServingError: DEADLINE if no answer came in these seconds, UNAVAILABLE if no server is there, OVERLOADED
        if the queue of the model is full, else what the server says.
        """
        self.start()
        end = time.monotonic() + seconds
        tried: list[Server] = []
        reason = full = ""
        while (server := self._next(tried, bool(full))) is not None:
            if tried:
                self.retries += 1
            tried.append(server)
            try:
                return await server.infer(message, max(0.001, end - time.monotonic()))
            except GoneError as error:
                reason = str(error)
            except grpc.aio.AioRpcError as error:
                text = _text(error)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    if len(tried) == 1:
                        server.was_late()
                    raise ServingError(Kind.DEADLINE, f"Triton did not answer in {seconds:g} s") from None
                if error.code() not in _NOT_RUN:
                    raise _serving_error(error) from None
                if _EXPIRED in text:
                    raise ServingError(Kind.DEADLINE, text) from None
                if _QUEUE_FULL in text:
                    full = text
                reason = text
                # While the connection stands, the server says so of one model, and the others are not concerned.
                if not server.is_connected():
                    server.doubt(text)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # nobody waits for the answer of another server
                raise asyncio.CancelledError
        if full:
            raise ServingError(Kind.OVERLOADED, full)
        raise ServingError(Kind.UNAVAILABLE, self.down() or reason)

    def _next(self, tried: Sequence[Server], full: bool) -> Server | None:
        """Returns the server with the fewest calls that was not tried.

        One that is in doubt is the last resort, and none if the queue of another is full.
        """
        left = [server for server in self.servers if server not in tried and not (full and server.down)]
        chosen = min(left, key=lambda server: (bool(server.down), server.running, server.turn), default=None)
        if chosen is not None:
            chosen.turn = next(self._turns)
        return chosen

    async def close(self) -> None:
        """Ends the connections."""
        for server in self.servers:
            await server.close()


def _not_live(url: str) -> str:
    """Returns why a server is not alive, nothing if it is."""
    try:
        with grpc.insecure_channel(url) as channel:
            live = GRPCInferenceServiceStub(channel).ServerLive(messages.ServerLiveRequest(), timeout=_PROBE_TIMEOUT)
            return "" if live.live else "it says that it is not alive"
    except grpc.RpcError as error:
        return _text(error)


def _text(error: grpc.RpcError) -> str:
    return str(error.details() or error.code().name)


def _serving_error(error: grpc.aio.AioRpcError) -> ServingError:
    kind = _KINDS.get(error.code())
    return internal(_text(error)) if kind is None else ServingError(kind, _text(error))
