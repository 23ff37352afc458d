"""What a small request costs on a connection of HTTP, without sockets: processor time from its bytes to those of its
answer, with a model that doubles four floats. Prints a table, which is benchmarks/results/http_connection.md.

    python benchmarks/http_connection.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from uvicorn.server import ServerState

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serve_overhead import machine
from opgate.service.api.http_exchange import HttpService
from opgate.service.gateway import Gateway
from opgate.service.http.connection import HttpConnection, Shared
from opgate.service.settings import Settings
from opgate.service.wire.kserve_json import Decoder
from tests.service.onnx_models import batching, double

REPEATS, REQUESTS = 15, 2000
VALUES = [1.5, 2.25, 3.0, 4.0]


class Sink(asyncio.Transport):
    """A transport that counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += 1

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def post(body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST /v2/models/double/infer HTTP/1.1", b"Host: t", *headers, b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))


def bodies() -> tuple[bytes, bytes, int]:
    """Returns a body of JSON, one with binary data, and the length of the JSON of that."""
    tensor: dict[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
    plain = json.dumps({"inputs": [tensor | {"data": VALUES}]}).encode()
    asked = {"inputs": [tensor | {"parameters": {"binary_data_size": 16}}], "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    return plain, head + np.array(VALUES, np.float32).tobytes(), len(head)


async def microseconds(connection: HttpConnection, sink: Sink, request: bytes) -> float:
    """Returns the processor time of a request, the least of several repeats."""
    times = []
    for _ in range(REPEATS):
        begin = time.process_time_ns()
        for _ in range(REQUESTS):
            before = sink.written
            connection.data_received(request)
            while sink.written == before:  # noqa: ASYNC110  # the answer may be there already
                await asyncio.sleep(0)
        times.append((time.process_time_ns() - begin) / REQUESTS / 1000)
    return min(times)


async def application(*_: Any) -> None:
    raise RuntimeError("no request of this benchmark needs ASGI")


async def main() -> None:
    repository = Path(tempfile.mkdtemp())
    double(repository, "double", config=batching(max_batch_size=16))
    gateway = Gateway(Settings(model_repository=repository))
    gateway.catalog.load_all()
    state = ServerState()
    state.default_headers = [(b"date", b"Fri, 27 Nov 2026 06:28:18 GMT"), (b"x-content-type-options", b"nosniff")]
    connection, sink = HttpConnection(Shared(HttpService(gateway)), application, state), Sink()
    connection.connection_made(sink)
    plain, binary, length = bodies()
    of_binary = b"Inference-Header-Content-Length: %d" % length
    requests = {
        "JSON": post(plain),
        "binary data": post(binary, of_binary),
        "binary data, with a header for which no head is kept": post(binary, of_binary, b"X-Other: 1"),
    }
    print("# A small request on a connection of HTTP\n\n| request | µs of processor time |\n|---|---|")
    for name, request in requests.items():
        print(f"| {name} | {await microseconds(connection, sink, request):.0f} |", flush=True)
    decoder = Decoder(gateway.find("double").model.spec, gateway.limits)
    for name, body, head in (("JSON", plain, None), ("binary data", binary, length)):
        times = []
        for _ in range(REPEATS):
            begin = time.process_time_ns()
            for _ in range(REQUESTS):
                decoder.decode(body, head)
            times.append((time.process_time_ns() - begin) / REQUESTS / 1000)
        print(f"| decoding of {name} alone | {min(times):.1f} |", flush=True)
    print(f"\nMachine: {machine()}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
