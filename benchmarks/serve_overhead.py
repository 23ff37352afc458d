"""Compares the requests/s of the gateway with those of onnxruntime alone and of an app written by hand.

    python benchmarks/serve_overhead.py [--seconds 2] [--rounds 5] [--output benchmarks/results/serve_overhead.md]

The benchmark makes two models: `tiny` (doubles 4 floats) and `cnn` (3x224x224, 600 KB of input). The servers run on one
core and the load on another. The servers take turns in short rounds, so that other work of the machine slows all of
them alike. The report has the medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import uvloop
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
CONCURRENCIES = (1, 16)


@dataclass(frozen=True)
class Case:
    """A model. Every request to it has the same input."""

    name: str
    dims: tuple[int, ...]
    path: Path

    def input(self) -> np.ndarray:
        return np.random.default_rng(0).random((1, *self.dims), dtype=np.float32)

    def expected(self) -> bytes:
        session = ort.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        return session.run(["y"], {"x": self.input()})[0].tobytes()


def make_models(repository: Path) -> list[Case]:
    """Writes the two models and their configs, which leave batching to the gateway (`dynamic_batching {}`)."""
    value = helper.make_tensor_value_info
    random = np.random.default_rng(0)
    f32 = TensorProto.FLOAT
    tiny = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "tiny",
        [value("x", f32, ["batch", 4])],
        [value("y", f32, ["batch", 4])],
    )
    weights = [
        helper.make_tensor("w", f32, [8, 3, 3, 3], random.standard_normal(216).astype(np.float32)),
        helper.make_tensor("v", f32, [8, 10], random.standard_normal(80).astype(np.float32)),
        helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3]),
    ]
    cnn = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("ReduceMean", ["r", "axes"], ["p"], keepdims=0),
            helper.make_node("MatMul", ["p", "v"], ["y"]),
        ],
        "cnn",
        [value("x", f32, ["batch", 3, 224, 224])],
        [value("y", f32, ["batch", 10])],
        weights,
    )
    cases = []
    for name, graph, dims in (("tiny", tiny, (4,)), ("cnn", cnn, (3, 224, 224))):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        (repository / name / "config.pbtxt").write_text(
            'backend: "onnxruntime"\nmax_batch_size: 16\ndynamic_batching {}\n', encoding="utf-8"
        )
        cases.append(Case(name, dims, folder / "model.onnx"))
    return cases


class Client(asyncio.Protocol):
    """One connection that sends the same request again and again.

    It checks the status of every answer, and the data of every 1000th.
    """

    def __init__(self, request: bytes, expected: bytes, done: asyncio.Future[None]) -> None:
        self._request = request
        self._expected = expected
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
        if self.count % 1000 == 0 and not data.endswith(self._expected):
            self._done.set_exception(RuntimeError("a wrong answer"))
            return
        self._held, self._size = b"", 0
        self.count += 1
        if not self.stopping:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done() and not self.stopping:
            self._done.set_exception(RuntimeError("the server closed a connection"))


async def _load(port: int, request: bytes, expected: bytes, concurrency: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    clients = [Client(request, expected, failed) for _ in range(concurrency)]
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


async def _grpc_load(port: int, case: Case, concurrency: int, seconds: float) -> float:
    import grpc
    from tritonclient.grpc import service_pb2

    array = case.input()
    message = service_pb2.ModelInferRequest(model_name=case.name, raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=array.shape)
    data, expected = message.SerializeToString(), case.expected()
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


def http_request(path: str, head: bytes, array: np.ndarray) -> bytes:
    """Returns an HTTP/1.1 request, head and body."""
    body = head + array.tobytes()
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n" if head else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n{extra}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def triton_head(array: np.ndarray) -> bytes:
    """Returns the JSON part of a binary infer request."""
    tensor = {"name": "x", "shape": array.shape, "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    message = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    return json.dumps(message).encode()


def engine_rate(case: Case, seconds: float) -> float:
    """Measures the runs/s of onnxruntime in this process, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(case.path), options, providers=["CPUExecutionProvider"])
    feeds = {"x": case.input()}
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            session.run(["y"], feeds)
        count += 10
    return count / (time.perf_counter() - begin)


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def server(command: list[str], ready: str, core: int) -> Iterator[None]:
    """Runs a server process on one core until the block ends."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    os.sched_setaffinity(process.pid, {core})  # before the process starts its threads, which inherit it
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(ready, timeout=1).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{command} ended with {process.returncode}") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def measure(cases: list[Case], repository: Path, cores: tuple[int, int], seconds: float, rounds: int) -> dict:
    """Returns the medians of requests/s by model, concurrency and candidate."""
    results: dict[tuple[str, int, str], list[float]] = {}
    http, rpc = free_port(), free_port()
    serve = (
        "import sys; from service.app import run; from service.settings import Settings; "
        f"s = Settings(model_repository={str(repository)!r}, http_port={http}, grpc_port={rpc}, log_level='warning'); "
        "sys.exit(run(s))"
    )
    with contextlib.ExitStack() as stack:
        ports = {}
        for case in cases:
            ports[case.name] = free_port()
            command = [sys.executable, "benchmarks/handwritten_app.py", str(case.path), str(ports[case.name])]
            command += [str(size) for size in case.dims]
            stack.enter_context(server(command, f"http://127.0.0.1:{ports[case.name]}/openapi.json", cores[0]))
        stack.enter_context(server([sys.executable, "-c", serve], f"http://127.0.0.1:{http}/v2/health/ready", cores[0]))
        for round_ in range(-1, rounds):  # the first round warms up and is not counted
            for case in cases:
                array, expected = case.input(), case.expected()
                raw = http_request("/infer", b"", array)
                triton = http_request(f"/v2/models/{case.name}/infer", triton_head(array), array)
                for concurrency in CONCURRENCIES:
                    rates = {"hand-written": uvloop.run(_load(ports[case.name], raw, expected, concurrency, seconds))}
                    rates["opgate HTTP"] = uvloop.run(_load(http, triton, expected, concurrency, seconds))
                    rates["opgate gRPC"] = uvloop.run(_grpc_load(rpc, case, concurrency, seconds))
                    os.sched_setaffinity(0, {cores[0]})
                    rates["onnxruntime"] = engine_rate(case, min(seconds, 0.5))
                    os.sched_setaffinity(0, {cores[1]})
                    if round_ >= 0:
                        for candidate, rate in rates.items():
                            results.setdefault((case.name, concurrency, candidate), []).append(rate)
    return {key: statistics.median(values) for key, values in results.items()}


def machine() -> str:
    """Returns one line about the machine that this ran on."""
    model = platform.processor() or "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, onnxruntime {ort.__version__}, "
        f"load average {os.getloadavg()[0]:.1f} at the end"
    )


def report(medians: dict, cases: list[Case], seconds: float, rounds: int, note: str) -> str:
    """Returns the results as Markdown."""
    lines = [
        "# What serving costs",
        "",
        f"Machine: {note}.",
        "",
        f"Requests/s, medians of {rounds} interleaved rounds of {seconds:g} s each; server on one core, load on the "
        "other, all models with one thread. `onnxruntime` is `session.run` in a loop on the server's core, no server.",
        "",
        "| model | concurrency | onnxruntime | hand-written | opgate HTTP | opgate gRPC | HTTP / hand-written |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        for concurrency in CONCURRENCIES:
            row = [
                medians[case.name, concurrency, w]
                for w in ("onnxruntime", "hand-written", "opgate HTTP", "opgate gRPC")
            ]
            cells = " | ".join(f"{rate:,.0f}" for rate in row)
            lines.append(f"| {case.name} | {concurrency} | {cells} | {row[2] / row[1]:.2f} |")
    lines += ["", "Made by `python benchmarks/serve_overhead.py`.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "serve_overhead.md")
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[-1])
    os.sched_setaffinity(0, {cores[1]})
    with tempfile.TemporaryDirectory() as folder:
        cases = make_models(Path(folder))
        medians = measure(cases, Path(folder), cores, options.seconds, options.rounds)
    text = report(medians, cases, options.seconds, options.rounds, machine())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
