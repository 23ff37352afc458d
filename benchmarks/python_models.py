"""Compares models in Python in the gateway with the same files in a real Triton, over gRPC.

    python benchmarks/python_models.py [--rounds 5] [--output benchmarks/results/python_models.md]

Both run the same `model.py` files with one instance each, and are measured in turn. Triton is installed into
build/peers as for benchmarks/serve_overhead.py. Memory is the Pss of all processes of a server, when all was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tritonclient.grpc as triton_grpc

from benchmarks import peers
from benchmarks.serve_overhead import free_port, machine
from opgate import triton

SECONDS = 1.5
CALLS, RESPONSES = 20, 200
HEAD = "import asyncio\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLER = f"""
def call(x):
    return pb_utils.InferenceRequest(
        model_name="echo", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)])

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            for _ in range({CALLS}):
                answer = call(r.inputs()[0].as_numpy()).exec()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", answer.output_tensors()[0].as_numpy())]))
        return found
"""
AT_ONCE = f"""
def call(x):
    return pb_utils.InferenceRequest(
        model_name="echo", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)])

class TritonPythonModel:
    async def execute(self, requests):
        found = []
        for r in requests:
            answers = await asyncio.gather(*[call(r.inputs()[0].as_numpy()).async_exec() for _ in range({CALLS})])
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", answers[0].output_tensors()[0].as_numpy())]))
        return found
"""
STREAM = f"""
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for _ in range({RESPONSES}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """backend: "python" instance_group { kind: KIND_CPU }
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def save(repository: Path) -> None:
    """Writes the models."""
    for name, source in {"echo": ECHO, "caller": CALLER, "at_once": AT_ONCE, "stream": STREAM}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(HEAD + source)
        decoupled = "model_transaction_policy { decoupled: true }" if name == "stream" else ""
        (repository / name / "config.pbtxt").write_text(CONFIG + decoupled)


def asked(size: int) -> list[Any]:
    """Returns the inputs of a request of so many elements."""
    tensor = triton_grpc.InferInput("x", [size], "FP32")
    tensor.set_data_from_numpy(np.ones(size, np.float32))
    return [tensor]


class Client:
    """One client of a server, with one connection."""

    def __init__(self, port: int) -> None:
        self._client = triton_grpc.InferenceServerClient(f"127.0.0.1:{port}")

    def infer(self, model: str, size: int = 4) -> None:
        """Sends a request and waits for its answer."""
        self._client.infer(model, asked(size))

    def several(self, count: int = 16) -> None:
        """Sends requests at once, and waits for their answers."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(count):
            self._client.async_infer("echo", asked(4), lambda result, error: answers.put(error))
        errors = [answers.get(timeout=60) for _ in range(count)]
        if any(errors):
            raise RuntimeError(next(filter(None, errors)))

    def stream(self) -> float:
        """Takes all responses of a stream. Returns the seconds until the first one."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: answers.put(error))
        began = time.perf_counter()
        self._client.async_stream_infer("stream", asked(4))
        first = 0.0
        for _ in range(RESPONSES):
            if (error := answers.get(timeout=60)) is not None:
                raise RuntimeError(error)
            first = first or time.perf_counter() - began
        self._client.stop_stream()
        return first


def rate(work: Callable[[], object], count: int) -> float:
    """Returns how many of `count` things in a call happen in a second."""
    work()
    began, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < SECONDS:
        work()
        calls += 1
    return calls * count / passed


ROWS: dict[str, Callable[[Client], float]] = {
    "requests/s of 4 numbers, one after the other": lambda client: rate(lambda: client.infer("echo"), 1),
    "requests/s of 4 numbers, 16 at once": lambda client: rate(client.several, 16),
    "requests/s of 4 MiB": lambda client: rate(lambda: client.infer("echo", 1 << 20), 1),
    "calls/s between models, one after the other": lambda client: rate(lambda: client.infer("caller"), CALLS),
    f"calls/s between models, {CALLS} at once": lambda client: rate(lambda: client.infer("at_once"), CALLS),
    "responses/s of a stream": lambda client: rate(client.stream, RESPONSES),
    "first response of a stream, 1/s": lambda client: 1 / statistics.median(client.stream() for _ in range(20)),
}


@contextlib.contextmanager
def server(command: list[str], http: int, env: Mapping[str, str]) -> Iterator[int]:
    """Runs a server until the block ends, and yields its number when it is ready."""
    with subprocess.Popen(command, env=dict(env), stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=5).close()
                    break
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}")
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def servers(repository: Path) -> Iterator[dict[str, tuple[Client, int]]]:
    """Runs both. Yields a client of each, and the number of its process."""
    installed = triton.install(peers.FOLDER / "triton", lambda line: print(line, file=sys.stderr, flush=True))
    ports = [free_port() for _ in range(4)]
    ours = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository), "--allow-python-models"]
    ours += ["--http-port", str(ports[0]), "--grpc-port", str(ports[1])]
    quiet = ["--allow-metrics=false", "--disable-auto-complete-config", "--log-info=false"]
    theirs = triton.command(installed, repository, ports[2], ports[3], quiet)
    with (
        server(ours, ports[0], os.environ) as gateway,
        server(theirs, ports[2], triton.environment(installed, repository)) as other,
    ):
        yield {"gateway": (Client(ports[1]), gateway), "Triton": (Client(ports[3]), other)}


def children(pid: int) -> list[int]:
    """Returns the processes that a process has begun."""
    files = [Path(f"/proc/{pid}/task/{task.name}/children") for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for file in files for child in file.read_text().split()]


def pss(pid: int) -> float:
    """Returns the MiB of memory of a process and of all that it has begun. What several share counts once."""
    own = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(own.split()[1]) / 1024 + sum(map(pss, children(pid)))


def use(pid: int) -> np.ndarray:
    """Returns the microseconds of processor time of a process and of all that it has begun, and their context switches:
    three numbers."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    below = sum((use(child) for child in children(pid)), np.zeros(3))
    return np.array([ticks * 1e6 / os.sysconf("SC_CLK_TCK"), below[:2].sum(), switches + below[2]])


def main() -> None:
    """Measures, and prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    used: dict[tuple[str, str], list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        with servers(Path(folder)) as both:
            for number in range(options.rounds):
                for row, measure in ROWS.items():
                    for server, (client, pid) in list(both.items())[:: 1 if number % 2 else -1]:
                        before, began = use(pid), time.perf_counter()
                        rate_of_row = measure(client)
                        things = rate_of_row * (time.perf_counter() - began)
                        found.setdefault((row, server), []).append(rate_of_row)
                        used.setdefault((row, server), []).append((use(pid) - before) / things)
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            memory = {server: pss(pid) for server, (_, pid) in both.items()}
    head = f"`python benchmarks/python_models.py` on {machine()}. Medians of {options.rounds} rounds."
    lines = [
        "# Models in Python",
        "",
        head,
        "",
        "| what | gateway | Triton | gateway over Triton |",
        "|---|---|---|---|",
    ]
    for row in ROWS:
        ours, theirs = (statistics.median(found[row, server]) for server in ("gateway", "Triton"))
        lines.append(f"| {row} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
    ours, theirs = memory["gateway"], memory["Triton"]
    lines.append(f"| memory of all processes, MiB | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
    lines += [
        "",
        "What a request, a call or a response takes of the server's own process, of the processes of its models, in "
        "microseconds of processor time, and how often one of their threads goes to sleep or gives way:",
        "",
        "| what | gateway | its models | switches | Triton | its models | switches |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if not row.startswith("first"):
            cells = [np.median(used[row, server], axis=0) for server in ("gateway", "Triton")]
            texts = [f"{value:,.{places}f}" for cell in cells for value, places in zip(cell, (0, 0, 1), strict=True)]
            lines.append(f"| {row.split('/s ')[0]}{row.partition('/s')[2]} | " + " | ".join(texts) + " |")
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
