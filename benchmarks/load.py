"""Load for the benchmarks: connections that send the same request again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

# Says whether the body of an answer is right.
Check = Callable[[bytes], bool]


class Client(asyncio.Protocol):
    """One connection that sends the same request again and again.

    It checks the status of every answer, and the data of every 1000th.
    """

    def __init__(self, request: bytes, right: Check, done: asyncio.Future[None]) -> None:
        self._request = request
        self._right = right
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._size = 0
        self.count = 0
        self.stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        if not self._size:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return
            at = data.lower().find(b"content-length: ") + 16
            self._size = end + 4 + int(data[at : data.index(b"\r\n", at)])
        if len(data) < self._size:
            self._held = data
            return
        if not data.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(RuntimeError(data[:300].decode("latin-1")))
            return
        if self.count % 1000 == 0 and not self._right(data[data.find(b"\r\n\r\n") + 4 :]):
            self._done.set_exception(RuntimeError("a wrong answer"))
            return
        self._held, self._size = b"", 0
        self.count += 1
        if not self.stopping:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done() and not self.stopping:
            self._done.set_exception(RuntimeError("the server closed a connection"))


async def http_load(port: int, request: bytes, right: Check, concurrency: int, seconds: float) -> float:
    """Returns the requests/s of a server under the same request on several connections."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    clients = [Client(request, right, failed) for _ in range(concurrency)]
    connections = [await loop.create_connection(lambda c=c: c, "127.0.0.1", port) for c in clients]
    begin, before = time.perf_counter(), sum(c.count for c in clients)
    await asyncio.wait([failed], timeout=seconds)
    if failed.done():
        failed.result()
    rate = (sum(c.count for c in clients) - before) / (time.perf_counter() - begin)
    for client, (transport, _) in zip(clients, connections, strict=True):
        client.stopping = True
        transport.close()
    failed.cancel()
    return rate


async def grpc_load(
    port: int, model: str, array: np.ndarray, expected: bytes, concurrency: int, seconds: float
) -> float:
    """Returns the calls/s of a server under the same call on one channel."""
    import grpc
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=array.shape)
    data = message.SerializeToString()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    ) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")  # takes and returns bytes
        answer = service_pb2.ModelInferResponse.FromString(await call(data))
        if answer.raw_output_contents[0] != expected:
            raise RuntimeError("a wrong answer")
        end = time.perf_counter() + seconds

        async def one() -> int:
            count = 0
            while time.perf_counter() < end:
                await call(data)
                count += 1
            return count

        begin = time.perf_counter()
        counts = await asyncio.gather(*(one() for _ in range(concurrency)))
        return sum(counts) / (time.perf_counter() - begin)
