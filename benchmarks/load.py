"""Load for the benchmarks: connections that send the same request again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from opgate.load.connection import Connection

# Says whether the body of an answer is right.
Check = Callable[[bytes], bool]


class Client:
    """One connection that sends the same request again and again.

    It checks the status of every answer, and the data of every 1000th.
    """

    def __init__(self, request: bytes, right: Check, done: asyncio.Future[None]) -> None:
        self._request = request
        self._right = right
        self._done = done
        self.connection = Connection(self._answered, self._lost)
        self.count = 0
        self.stopping = False
        self.idle = asyncio.Event()  # set when it stops and has its last answer

    def send(self) -> None:
        """Sends the first request."""
        self.connection.send(self._request)

    def _answered(self, connection: Connection) -> None:
        if connection.status != 200:
            self._fail(f"HTTP {connection.status}: {connection.body[:300].decode('latin-1')}")
            return
        if self.count % 1000 == 0 and not self._right(connection.body):
            self._fail("a wrong answer")
            return
        self.count += 1
        if self.stopping:
            self.idle.set()
        else:
            connection.send(self._request)

    def _lost(self, connection: Connection, reason: str) -> None:
        if not self.stopping:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(reason))


async def http_load(port: int, request: bytes, right: Check, concurrency: int, seconds: float) -> float:
    """Returns the requests/s of a server under the same request on several connections."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    clients = [Client(request, right, failed) for _ in range(concurrency)]
    for client in clients:
        await loop.create_connection(lambda c=client: c.connection, "127.0.0.1", port)
        client.send()
    begin, before = time.perf_counter(), sum(c.count for c in clients)
    await asyncio.wait([failed], timeout=seconds)
    if failed.done():
        failed.result()
    rate = (sum(c.count for c in clients) - before) / (time.perf_counter() - begin)
    for client in clients:
        client.stopping = True
    # With requests under way at the end, the next connection to Triton 2.51 got a wrong answer or was closed.
    await asyncio.wait_for(asyncio.gather(*(client.idle.wait() for client in clients)), 30)
    for client in clients:
        client.connection.close()
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
