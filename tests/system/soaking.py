"""A gateway under load while models are reloaded, workers are killed, and clients leave or dawdle. Every answer is checked.

`tests/system/test_soak.py` runs it for seconds, `benchmarks/soak.py` for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import time
import urllib.error
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.service.onnx_models import save, value
from tests.system.running import ROOT, Server, running

LARGE = 8 << 20  # elements of 4 bytes
#: A stopped worker holds its requests for so many seconds. A busy machine needs some of them for a picture.
RUN_TIMEOUT = 8.0
#: How much larger the share of its requests that one kind has sent may be than that of another: the load is the same from
#: beginning to end.
_AHEAD = 0.02
#: Seconds after a part until the memory is read. What clients left behind is gone by then, and freed memory given back.
_REST = 5.0
# The number of the system call `read`.
_READ = "0" if platform.machine() == "x86_64" else "63"
#: The ends of killed and of stopped workers.
_DIED = b" worker process "
_CONFIG = """backend: "onnxruntime" max_batch_size: 16 dynamic_batching { }
parameters { key: "isolation" value { string_value: "process" } }"""


@dataclass
class Report:
    """What came of a soak. `memory` has the time, the gateway's own megabytes, those that it shares with its workers, and
    the workers' own. `rests` has the gateway's own after each of several parts, when nothing is under way."""

    answers: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)  # requests of batches that were killed
    wrong: list[str] = field(default_factory=list)
    kills: int = 0
    reloads: int = 0
    unloads: int = 0
    left: int = 0
    memory: list[tuple[float, float, float, float]] = field(default_factory=list)
    rests: list[float] = field(default_factory=list)
    seconds: float = 0.0


def make_models(repository: Path) -> None:
    """Writes four isolated models: `tiny` doubles a number, `large` adds one to eight million, `pictures` decodes. `spare`
    is as `tiny`."""
    doubles = [helper.make_node("Add", ["x", "x"], ["y"])]
    for name in ("tiny", "spare"):
        save(repository, name, doubles, [value("x", "FP32", ["n", 1])], [value("y", "FP32", ["n", 1])], config=_CONFIG)
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    tensors = [value("x", "FP32", ["n", "m"])], [value("y", "FP32", ["n", "m"])]
    save(
        repository,
        "large",
        [helper.make_node("Add", ["x", "one"], ["y"])],
        *tensors,
        initializers=[one],
        config=_CONFIG,
    )
    shutil.copytree(ROOT / "model_repository" / "digit_preprocess", repository / "pictures")
    path = repository / "pictures" / "config.pbtxt"
    text = path.read_text().replace('name: "digit_preprocess"', "")
    path.write_text(text + 'parameters { key: "isolation" value { string_value: "process" } }\n')


class _Connection:
    """A connection of HTTP that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: bytes, body: bytes | memoryview, pause: float = 0.0) -> tuple[int, bytes]:
        """Returns the status and the body of the answer. With `pause` it reads that slowly."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(head)
        writer.write(body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        parts = []
        while length:
            if pause:
                await asyncio.sleep(pause)
            parts.append(await reader.read(min(length, 1 << 20)))
            if not parts[-1]:
                raise ConnectionError("the answer ends before its end")
            length -= len(parts[-1])
        return int(answer[9:12]), b"".join(parts)

    def leave(self) -> None:
        """Closes the connection, whatever is under way."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def binary_request(model: str, name: str, datatype: str, shape: list[int], outputs: list[str], size: int) -> bytes:
    """Returns the head of an infer request in HTTP, with the JSON of its body."""
    fields = {
        "inputs": [{"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}],
        "outputs": [{"name": output, "parameters": {"binary_data": True}} for output in outputs],
    }
    text = json.dumps(fields).encode()
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + size}\r\n\r\n"
    ).encode() + text


class Soak:
    """One run. The clients of a kind share the number of its requests."""

    def __init__(self, server: Server, seed: int = 0) -> None:
        self.report = Report()
        self._server = server
        self._random = random.Random(seed)
        self._shares: list[float] = []  # of the requests of each kind that were sent

    async def run(self, tiny: int, pictures: int, large: int, parts: int, tell: Callable[[str], None]) -> Report:
        """Sends so many requests of each kind. If they come in several equal parts, a rest is after each. Returns when all
        are answered."""
        self._began = time.monotonic()
        self._pictures = await self._known_pictures()
        for part in range(parts):
            self._ended = asyncio.Event()
            self._shares.clear()
            beside = [
                asyncio.create_task(work)
                for work in (
                    self._reload(),
                    self._unload(),
                    self._kill(),
                    self._leave(),
                    self._dawdle(),
                    self._watch(tell),
                )
            ]
            kinds = ((8, tiny, self._tiny), (3, pictures, self._picture), (2, large, self._large))
            await asyncio.gather(
                *(
                    client
                    for clients, count, ask in kinds
                    for client in self._clients(clients, range(count * part // parts, count * (part + 1) // parts), ask)
                )
            )
            self._ended.set()
            await asyncio.gather(*beside)
            await self._all_run()
            if parts > 1:
                await asyncio.sleep(_REST)
                self.report.rests.append(self._server.megabytes("RssAnon"))
        self.report.seconds = time.monotonic() - self._began
        return self.report

    def _clients(
        self, count: int, requests: range, ask: Callable[[_Connection, int], Awaitable[None]]
    ) -> list[Awaitable[None]]:
        left = iter(enumerate(requests))
        place = len(self._shares)
        self._shares.append(0.0)

        async def client() -> None:
            connection = _Connection(self._server.http)
            for done, number in left:
                self._shares[place] = done / len(requests)
                while self._shares[place] > min(self._shares) + _AHEAD:  # noqa: ASYNC110  # shares change all the time
                    await asyncio.sleep(0.01)
                await ask(connection, number)
            self._shares[place] = 1.0
            connection.leave()

        return [client() for _ in range(count)]

    def _judge(self, kind: str, status: int, body: bytes, expected: bool) -> None:
        self.report.answers[kind] += 1
        if status == 500 and _DIED in body:
            self.report.died[kind] += 1
        elif status != 200 or not expected:
            self.report.wrong.append(f"{kind}: {status} {body[:200]!r}")

    async def _tiny(self, connection: _Connection, number: int) -> None:
        x = np.array([number], np.float32)
        head = binary_request("tiny", "x", "FP32", [1, 1], ["y"], 4)
        status, body = await connection.ask(head, x.tobytes())
        self._judge("tiny", status, body, body.endswith((2 * x).tobytes()))

    async def _picture(self, connection: _Connection, number: int) -> None:
        head, data, answer = self._pictures[number % len(self._pictures)]
        status, body = await connection.ask(head, data)
        self._judge("picture", status, body, body == answer)

    async def _large(self, connection: _Connection, number: int) -> None:
        x = np.full(LARGE, number, np.float32)
        x[:: 1 << 16] = np.arange(len(x[:: 1 << 16]))
        head = binary_request("large", "x", "FP32", [1, LARGE], ["y"], x.nbytes)
        status, body = await connection.ask(head, memoryview(x).cast("B"))
        found = np.frombuffer(body, np.float32, offset=len(body) - x.nbytes) if status == 200 else x
        x += 1
        self._judge("large", status, body, np.array_equal(found, x))

    async def _known_pictures(self) -> list[tuple[bytes, bytes, bytes]]:
        """Returns requests for pictures with their answers, which the gateway gives before anything goes wrong."""
        from io import BytesIO

        from PIL import Image

        generator = np.random.default_rng(0)
        found = []
        for side in (64, 200, 333, 500):
            buffer = BytesIO()
            Image.fromarray(generator.integers(0, 255, (side, side // 2, 3), np.uint8)).save(buffer, "JPEG")
            data = buffer.getvalue()
            head = binary_request("pictures", "data", "UINT8", [1, len(data)], ["image", "geometry"], len(data))
            status, answer = await _Connection(self._server.http).ask(head, data)
            assert status == 200, answer
            found.append((head, data, answer))
        return found

    async def _pause(self, seconds: float) -> bool:
        """Waits. Returns whether the run goes on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return not self._ended.is_set()

    async def _reload(self) -> None:
        connection = _Connection(self._server.http)
        while await self._pause(self._random.uniform(0.5, 2)):
            name = self._random.choice(["tiny", "pictures", "large"])
            folder = Path(self._folder) / name
            (folder / "changed").write_text(str(self.report.reloads))  # otherwise nothing would be loaded
            self.report.reloads += await self._change(connection, "load", name)
        connection.leave()

    async def _unload(self) -> None:
        """Unloads a model and loads it again. It answers while it is loaded."""
        connection = _Connection(self._server.http)
        head = binary_request("spare", "x", "FP32", [1, 1], ["y"], 4)
        x = np.array([3], np.float32)
        while await self._pause(self._random.uniform(0.2, 1)):
            status, body = await connection.ask(head, x.tobytes())
            self._judge("spare", status, body, body.endswith((2 * x).tobytes()))
            self.report.unloads += await self._change(connection, "unload", "spare")
            while not await self._change(connection, "load", "spare"):
                pass
        connection.leave()

    async def _change(self, connection: _Connection, change: str, model: str) -> bool:
        """Returns whether a model was loaded or unloaded. A worker may be killed while it starts."""
        head = f"POST /v2/repository/models/{model}/{change} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"
        status, body = await connection.ask(head.encode(), b"")
        if status != 200 and _DIED not in body:
            raise AssertionError(f"{status} {body[:200]!r}")
        return status == 200

    async def _kill(self) -> None:
        """Ends or stops a worker. Between two of them each model answers, because one whose workers only die is refused
        for a while, however fast the machine is."""
        before: Counter[str] = Counter()
        while await self._pause(self._random.uniform(0.5, 2)):
            answered = self.report.answers - self.report.died
            if any(answered[kind] <= before[kind] for kind in ("tiny", "picture", "large", "spare")):
                continue
            before = answered
            number = self._random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP])
            workers = self.workers()
            if number == signal.SIGSTOP:
                # While it opens its model it may take minutes, so nobody would end it.
                workers = [worker for worker in workers if _waits(worker)]
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(workers), number)
                    self.report.kills += 1

    async def _leave(self) -> None:
        """Clients that leave in the midst of a request, or before its answer."""
        while await self._pause(0.1):
            connection = _Connection(self._server.http)
            head, data, _ = self._random.choice(self._pictures)
            asking = asyncio.create_task(connection.ask(head, data[: self._random.choice([10, len(data)])]))
            await asyncio.sleep(self._random.uniform(0, 0.05))
            connection.leave()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            self.report.left += 1

    async def _dawdle(self) -> None:
        """A client that reads slowly."""
        x = np.arange(1 << 20, dtype=np.float32)
        head = binary_request("large", "x", "FP32", [1, x.size], ["y"], x.nbytes)
        connection = _Connection(self._server.http)
        while not self._ended.is_set():
            status, body = await connection.ask(head, x.tobytes(), pause=0.05)
            self._judge("slow", status, body, body.endswith((x + 1).tobytes()))

    async def _all_run(self) -> None:
        """Lets stopped workers go on, and waits until every model is ready and nothing is under way."""
        for worker in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)
        while await asyncio.to_thread(self._busy):  # noqa: ASYNC110  # the gateway tells nobody when it rests
            await asyncio.sleep(0.1)

    def _busy(self) -> bool:
        """Returns whether a request is under way or a model is not ready."""
        lines = self._server.get("/metrics").splitlines()
        running = next(float(line.split()[1]) for line in lines if line.startswith("opgate_running_requests "))
        try:
            self._server.get("/v2/health/ready")
        except urllib.error.HTTPError:
            return True
        return running > 0

    async def _watch(self, tell: Callable[[str], None]) -> None:
        going = True
        while going:
            own, shared = (self._server.megabytes(kind) for kind in ("RssAnon", "RssShmem"))
            workers = sum(map(_megabytes, self.workers()))
            self.report.memory.append((time.monotonic() - self._began, own, shared, workers))
            going = await self._pause(1.0)
            tell(f"{dict(self.report.answers)}, {own:.0f} MB, {shared:.0f} MB shared and {workers:.0f} MB of workers")

    @property
    def _folder(self) -> str:
        arguments = self._server.process.args
        assert isinstance(arguments, list)
        return str(arguments[arguments.index("--model-repository") + 1])

    def workers(self) -> list[int]:
        """Returns the worker processes."""
        listed = Path(f"/proc/{self._server.process.pid}/task").glob("*/children")
        found = []
        for path in listed:
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in path.read_text().split()]
        return found


def _waits(process: int) -> bool:
    """Returns whether a worker sleeps until it is asked something, so that it has opened its model."""
    folder = Path(f"/proc/{process}")
    try:
        state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        return state == "S" and (folder / "syscall").read_text().split()[0] == _READ
    except OSError:
        return False


def _megabytes(process: int) -> float:
    """Returns the memory that a process has for itself."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def soak(
    repository: Path,
    library: Path,
    tiny: int,
    pictures: int,
    large: int,
    parts: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Runs a gateway with the models in `repository`, and sends so many requests of each kind, in equal parts."""
    make_models(repository)
    env = {"OPGATE_OPS_PATH": str(library.parent), "OPGATE_RUN_TIMEOUT": str(RUN_TIMEOUT)}
    options = ["--model-control-mode", "explicit", "--load-model", "*"]
    with running(repository, *options, env=env) as server:
        return asyncio.run(Soak(server).run(tiny, pictures, large, parts, tell))
