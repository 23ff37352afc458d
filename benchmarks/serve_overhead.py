"""Compares the requests/s of the gateway over HTTP with those of Triton, MLServer, LitServe, an app by hand, and no
server. benchmarks/grpc_overhead.py compares gRPC.

    python benchmarks/serve_overhead.py [--seconds 2] [--rounds 5] [--output benchmarks/results/serve_overhead.md]

The benchmark makes two models: `tiny` (doubles 4 floats) and `cnn` (3x224x224, 600 KB of input). The servers run on one
core and the load on another. The servers take turns in short rounds, so that other work of the machine slows all of
them alike. The report has the medians over the rounds. The peers are installed into build/peers; if one is missing, the
benchmark fails.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import uvloop
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peers
from benchmarks.load import http_load
from opgate import triton
from tests.system.running import free_port

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
            f"""name: "{name}" backend: "onnxruntime" max_batch_size: 16 dynamic_batching {{ }}
            input [ {{ name: "x" data_type: TYPE_FP32 dims: {list(dims)} }} ]
            output [ {{ name: "y" data_type: TYPE_FP32 dims: {[4] if name == "tiny" else [10]} }} ]
            parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}\n""",
            encoding="utf-8",
        )
        cases.append(Case(name, dims, folder / "model.onnx"))
    return cases


def http_request(path: str, body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    """Returns an HTTP/1.1 request, head and body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def binary_request(case: Case) -> bytes:
    """Returns a KServe request with binary tensors."""
    array = case.input()
    tensor = {"name": "x", "shape": array.shape, "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    message = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    head = json.dumps(message).encode()
    headers = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(head)}\r\n"
    return http_request(f"/v2/models/{case.name}/infer", head + array.tobytes(), headers)


def json_request(case: Case) -> bytes:
    """Returns a KServe request with tensors in JSON."""
    array = case.input()
    tensor = {"name": "x", "shape": array.shape, "datatype": "FP32", "data": array.reshape(-1).tolist()}
    return http_request(f"/v2/models/{case.name}/infer", json.dumps({"inputs": [tensor]}).encode())


@dataclass(frozen=True)
class Candidate:
    """A server and a way to ask it. `load` returns the requests/s for a case, a concurrency and some seconds."""

    name: str
    wire: str
    load: Callable[[Case, int, float], float]
    groups: tuple[int, ...]  # the process groups of the server


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


@contextlib.contextmanager
def server(command: list[str], ready: str | int, core: int, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Runs a server process on one core until the block ends, and yields its process group. It is stopped at first.

    `ready` is a URL that answers when the server is ready, or its port.

    Raises RuntimeError if it doesn't get ready."""
    environment = env or {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    os.sched_setaffinity(process.pid, {core})  # before the process starts its threads, which inherit it
    try:
        for _ in range(300):
            try:
                if isinstance(ready, int):
                    socket.create_connection(("127.0.0.1", ready), 1).close()
                else:
                    urllib.request.urlopen(ready, timeout=1).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{command} ended with {process.returncode}") from None
                time.sleep(0.1)
        else:
            raise RuntimeError(f"{command} is not ready after 30 s")
        os.killpg(process.pid, signal.SIGSTOP)
        yield process.pid
    finally:
        # Some servers have processes of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def servers(cases: list[Case], repository: Path, core: int) -> Iterator[list[Candidate]]:
    """Runs all servers on one core until the block ends, and yields the ways to ask them."""
    with contextlib.ExitStack() as stack:

        def run(command: list[str], ready: str | int, env: Mapping[str, str] | None = None) -> int:
            return stack.enter_context(server(command, ready, core, env))

        yield [
            *_opgate(repository, run),
            *_triton(repository, run),
            *_mlserver(cases, repository, run),
            *_litserve(cases, run),
            *_handwritten(cases, run),
            *_empty(run),
        ]


Run = Callable[..., int]


def _kserve(name: str, http: int, group: int) -> list[Candidate]:
    def binary(case: Case, concurrency: int, seconds: float) -> float:
        expected = case.expected()
        right = lambda body: body.endswith(expected)  # noqa: E731
        return uvloop.run(http_load(http, binary_request(case), right, concurrency, seconds))

    def text(case: Case, concurrency: int, seconds: float) -> float:
        return uvloop.run(http_load(http, json_request(case), _right_json(case), concurrency, seconds))

    wires = {"binary": binary, "JSON": text}
    return [Candidate(name, wire, load, (group,)) for wire, load in wires.items()]


def _right_json(case: Case) -> Callable[[bytes], bool]:
    expected = np.frombuffer(case.expected(), np.float32)
    return lambda body: np.allclose(json.loads(body)["outputs"][0]["data"], expected, rtol=1e-5)


def opgate_process(repository: Path, run: Run) -> tuple[int, int, int]:
    """Runs the gateway. Returns its ports of HTTP and gRPC, and its process group."""
    http, rpc = free_port(), free_port()
    serve = (
        "import sys; from opgate.service.run import run; from opgate.service.settings import Settings; "
        f"s = Settings(model_repository={str(repository)!r}, http_port={http}, grpc_port={rpc}, log_level='warning'); "
        "sys.exit(run(s))"
    )
    return http, rpc, run([sys.executable, "-P", "-c", serve], f"http://127.0.0.1:{http}/v2/health/ready")


def _opgate(repository: Path, run: Run) -> list[Candidate]:
    http, _, group = opgate_process(repository, run)
    return _kserve("opgate", http, group)


def triton_process(repository: Path, run: Run) -> tuple[int, int, int]:
    """Runs Triton. Returns its ports of HTTP and gRPC, and its process group."""
    installed = triton.install(peers.FOLDER / "triton", lambda line: print(line, file=sys.stderr, flush=True))
    http, rpc = free_port(), free_port()
    quiet = ["--allow-metrics=false", "--disable-auto-complete-config", "--log-info=false"]
    command = triton.command(installed, repository, http, rpc, quiet)
    ready = f"http://127.0.0.1:{http}/v2/health/ready"
    return http, rpc, run(command, ready, triton.environment(installed, repository))


def _triton(repository: Path, run: Run) -> list[Candidate]:
    http, _, group = triton_process(repository, run)
    return _kserve("Triton", http, group)


def _mlserver(cases: list[Case], repository: Path, run: Run) -> list[Candidate]:
    http, rpc, metrics = free_port(), free_port(), free_port()
    folder = repository.parent / "mlserver"
    for case in cases:
        model = folder / case.name
        model.mkdir(parents=True)
        settings = {
            "name": case.name,
            "implementation": "mlserver_model.OnnxModel",
            "parameters": {"uri": str(case.path)},
        }
        (model / "model-settings.json").write_text(json.dumps(settings))
    ports = {"http_port": http, "grpc_port": rpc, "metrics_port": metrics, "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **ports}))
    python = peers.environment("mlserver", ["mlserver==1.7.1", "onnxruntime"])
    command = [str(python.with_name("mlserver")), "start", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks" / "peers")}
    group = run(command, f"http://127.0.0.1:{http}/v2/health/ready", env)

    def text(case: Case, concurrency: int, seconds: float) -> float:
        return uvloop.run(http_load(http, json_request(case), _right_json(case), concurrency, seconds))

    return [Candidate("MLServer", "JSON", text, (group,))]


def _litserve(cases: list[Case], run: Run) -> list[Candidate]:
    python = peers.environment("litserve", ["litserve==0.2.19", "onnxruntime"])
    ports, groups = {}, []
    for case in cases:
        ports[case.name] = free_port()
        command = [str(python), str(ROOT / "benchmarks" / "peers" / "litserve_app.py"), str(ports[case.name])]
        command += [str(case.path), *map(str, case.dims)]
        groups.append(run(command, f"http://127.0.0.1:{ports[case.name]}/health"))

    def load(case: Case, concurrency: int, seconds: float) -> float:
        expected = base64.b64encode(case.expected()).decode()
        body = json.dumps({"x": base64.b64encode(case.input().tobytes()).decode()}).encode()
        right = lambda body: json.loads(body)["y"] == expected  # noqa: E731
        return uvloop.run(http_load(ports[case.name], http_request("/predict", body), right, concurrency, seconds))

    return [Candidate("LitServe", "base64", load, tuple(groups))]


def _handwritten(cases: list[Case], run: Run) -> list[Candidate]:
    ports, groups = {}, []
    for case in cases:
        ports[case.name] = free_port()
        command = [sys.executable, "benchmarks/handwritten_app.py", str(case.path), str(ports[case.name])]
        command += [str(size) for size in case.dims]
        groups.append(run(command, f"http://127.0.0.1:{ports[case.name]}/openapi.json"))

    def load(case: Case, concurrency: int, seconds: float) -> float:
        expected = case.expected()
        request = http_request("/infer", case.input().tobytes(), "Content-Type: application/octet-stream\r\n")
        return uvloop.run(http_load(ports[case.name], request, lambda body: body == expected, concurrency, seconds))

    return [Candidate("by hand", "raw", load, tuple(groups))]


def _empty(run: Run) -> list[Candidate]:
    port = free_port()
    group = run([sys.executable, "benchmarks/empty_server.py", str(port)], port)

    def load(case: Case, concurrency: int, seconds: float) -> float:
        return uvloop.run(http_load(port, binary_request(case), lambda body: body == b"ok", concurrency, seconds))

    return [Candidate("nothing", "binary", load, (group,))]


def measure(cases: list[Case], repository: Path, cores: tuple[int, int], seconds: float, rounds: int) -> dict:
    """Returns the medians of requests/s by model, concurrency, candidate and wire."""
    results: dict[tuple[str, int, str, str], list[float]] = {}
    with servers(cases, repository, cores[0]) as candidates:
        for round_ in range(-1, rounds):  # the first round warms up and is not counted
            for case in cases:
                for concurrency in CONCURRENCIES:
                    for candidate in candidates:
                        print(
                            f"round {round_ + 1} of {rounds}: {case.name}, {candidate.name} {candidate.wire}, "
                            f"concurrency {concurrency}",
                            file=sys.stderr,
                            flush=True,
                        )
                        # The others don't run meanwhile: some are busy even without a request.
                        for group in candidate.groups:
                            os.killpg(group, signal.SIGCONT)
                        rate = candidate.load(case, concurrency, seconds)
                        for group in candidate.groups:
                            os.killpg(group, signal.SIGSTOP)
                        if round_ >= 0:
                            key = (case.name, concurrency, candidate.name, candidate.wire)
                            results.setdefault(key, []).append(rate)
                    os.sched_setaffinity(0, {cores[0]})
                    rate = engine_rate(case, min(seconds, 0.5))
                    os.sched_setaffinity(0, {cores[1]})
                    if round_ >= 0:
                        results.setdefault((case.name, concurrency, "onnxruntime", "none"), []).append(rate)
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
        f"Requests/s, medians of {rounds} interleaved rounds of {seconds:g} s each; all servers on one core, load on "
        "the other, all models with one thread. `onnxruntime` is `session.run` in a loop on the server's core, no "
        "server. `nothing` reads the request and answers two bytes, on uvloop: the network, the system calls and the "
        "waking of the other core.",
    ]
    for case in cases:
        names = list(dict.fromkeys(key[2:] for key in medians if key[0] == case.name))
        lines += ["", f"## {case.name}: {4 * int(np.prod(case.dims)):,} bytes of input", ""]
        lines += ["| server | wire | " + " | ".join(f"concurrency {c}" for c in CONCURRENCIES) + " |"]
        lines += ["|---|---|" + "---|" * len(CONCURRENCIES)]
        for name, wire in names:
            rates = " | ".join(f"{medians[case.name, c, name, wire]:,.0f}" for c in CONCURRENCIES)
            lines.append(f"| {name} | {wire} | {rates} |")
    lines += ["", "| ratio | aim | " + " | ".join(f"concurrency {c}" for c in CONCURRENCIES) + " |"]
    lines += ["|---|---|" + "---|" * len(CONCURRENCIES)]
    for title, aim, model, one, other in RATIOS:
        cells = " | ".join(f"{medians[model, c, *one] / medians[model, c, *other]:.2f}" for c in CONCURRENCIES)
        lines.append(f"| {title} | {aim} | {cells} |")
    added = 1e6 / medians["tiny", 1, "opgate", "binary"] - 1e6 / medians["tiny", 1, "onnxruntime", "none"]
    lines += [
        "",
        f"Added to ONNX Runtime alone at concurrency 1, tiny, binary: {added:.0f} us a request (aim: under 100).",
    ]
    lines += ["", "Made by `python benchmarks/serve_overhead.py`.", ""]
    return "\n".join(lines)


RATIOS = (
    ("tiny, binary: opgate / Triton", "3", "tiny", ("opgate", "binary"), ("Triton", "binary")),
    ("tiny, binary: opgate / nothing", "", "tiny", ("opgate", "binary"), ("nothing", "binary")),
    ("cnn, binary: opgate / nothing", "", "cnn", ("opgate", "binary"), ("nothing", "binary")),
    ("cnn, binary: opgate / Triton", "", "cnn", ("opgate", "binary"), ("Triton", "binary")),
    ("cnn, binary: opgate / onnxruntime", "0.65", "cnn", ("opgate", "binary"), ("onnxruntime", "none")),
    ("cnn, JSON: opgate / MLServer", "3", "cnn", ("opgate", "JSON"), ("MLServer", "JSON")),
    ("cnn, JSON: opgate / Triton", "", "cnn", ("opgate", "JSON"), ("Triton", "JSON")),
    ("tiny, JSON: opgate / MLServer", "", "tiny", ("opgate", "JSON"), ("MLServer", "JSON")),
)


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
        repository = Path(folder) / "repository"
        cases = make_models(repository)
        medians = measure(cases, repository, cores, options.seconds, options.rounds)
    text = report(medians, cases, options.seconds, options.rounds, machine())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
