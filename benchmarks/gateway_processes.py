"""Measures one and two gateway processes on one port: requests/s, and requests per CPU second of the gateway.

    python benchmarks/gateway_processes.py [--seconds 3] [--rounds 5] [--output benchmarks/results/gateway_processes.md]

The load shares the cores with the gateway. For a model of 5 ms it takes next to nothing of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnxruntime as ort
import uvloop
from onnx import TensorProto, helper

from benchmarks.load import http_load
from benchmarks.replica import cpu_seconds
from benchmarks.serve_overhead import Case, binary_request, machine
from tests.service.onnx_models import double, save, value
from tests.system.running import ROOT, Server, running

CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 0\n'
WANTED_MS = 5.0
PICTURE = (1, 56, 56)
CONCURRENCY = 16
# How each gateway is started. Alone it has a thread for each core if nobody says something else.
GATEWAYS = {
    "one process, 1 thread": ("1", {"OPGATE_INTRA_OP_THREADS": "1"}),
    "one process": ("1", {}),
    "two processes": ("2", {}),
}
BASE, TWO = "one process, 1 thread", "two processes"


def convolutions(repository: Path, layers: int) -> Path:
    """Saves a model of convolutions and returns its file."""
    random = np.random.default_rng(0)
    kernels = []
    for name, channels in (("v", 1), ("w", 32)):
        weights = random.normal(0, 0.05, (32, channels, 3, 3)).astype(np.float32)
        kernels.append(helper.make_tensor(name, TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True))
    names = [f"t{i}" for i in range(layers + 1)]
    nodes = [helper.make_node("Conv", ["x", "v"], [names[0]], pads=[1] * 4)]
    nodes += [helper.make_node("Conv", [a, "w"], [b], pads=[1] * 4) for a, b in itertools.pairwise(names)]
    nodes.append(helper.make_node("GlobalAveragePool", [names[-1]], ["y"]))
    tensors = [value("x", "FP32", [1, *PICTURE])], [value("y", "FP32", [1, 32, 1, 1])]
    return save(repository, "model", nodes, *tensors, initializers=kernels, config=CONFIG) / "1" / "model.onnx"


def run_ms(file: Path) -> float:
    """Returns the milliseconds of the quickest run on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = {"x": np.ones((1, *PICTURE), np.float32)}
    times = []
    for _ in range(30):
        began = time.perf_counter()
        session.run(None, given)
        times.append((time.perf_counter() - began) * 1000)
    return min(times)


def make_models(repository: Path) -> tuple[list[Case], float]:
    """Saves the models. Returns them, and the milliseconds of a run of the second one."""
    tiny = double(repository, "tiny", config=CONFIG, shape=(1, 4)) / "1" / "model.onnx"
    with tempfile.TemporaryDirectory() as folder:
        layers = max(1, round(4 * WANTED_MS / run_ms(convolutions(Path(folder), 4))))
    model = convolutions(repository, layers)
    return [Case("tiny", (4,), tiny), Case("model", PICTURE, model)], run_ms(model)


def cpu_of(server: Server) -> float:
    """Returns the CPU seconds of a gateway and of its processes."""
    pids = [server.process.pid]
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    return sum(map(cpu_seconds, pids))


def measure(server: Server, case: Case, seconds: float) -> tuple[float, float]:
    """Returns requests/s, and requests per CPU second of the gateway."""
    expected = case.expected()
    before, began = cpu_of(server), time.perf_counter()
    load = http_load(server.http, binary_request(case), lambda body: body.endswith(expected), CONCURRENCY, seconds)
    rate = uvloop.run(load)
    return rate, rate * (time.perf_counter() - began) / (cpu_of(server) - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "gateway_processes.md")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cases, ms = make_models(Path(folder))
        servers = {
            name: stack.enter_context(running(Path(folder), "--workers", workers, env=env))
            for name, (workers, env) in GATEWAYS.items()
        }
        for case in cases:
            for server in servers.values():
                measure(server, case, 1)  # it learns what runs cost
            for _ in range(options.rounds):
                for name, server in servers.items():
                    rate, of_cpu = measure(server, case, options.seconds)
                    found.setdefault((case.name, name), []).append((rate, of_cpu))
                    print(f"{case.name}, {name}: {rate:,.0f}/s, {of_cpu:,.0f} per CPU second", file=sys.stderr)
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in found.items()}
    lines = [
        "# More than one gateway process",
        "",
        f"Machine: {machine()}, of which {len(os.sched_getaffinity(0))} may be used.",
        "",
        f"`opgate serve --workers 2` beside one process. Closed loop over HTTP with binary tensors, {CONCURRENCY} "
        f"connections, medians of {options.rounds} alternating rounds of {options.seconds:g} s. `tiny` has 16 bytes of "
        f"input; a run of `model` takes {ms:.1f} ms on one thread. The load shares the cores with the gateway: with "
        "`tiny` it takes about as much as a process, so that only the requests per CPU second of the gateway say "
        "something. Two processes have a thread each; one process has a thread for each core unless 1 is said.",
        "",
        f"| model | gateway | requests/s | by {BASE} | requests per CPU second | by {BASE} |",
        "|---|---|---|---|---|---|",
    ]
    for (model, name), (rate, of_cpu) in medians.items():
        base_rate, base_cpu = medians[model, BASE]
        row = (model, name, f"{rate:,.0f}", f"{rate / base_rate:.2f}", f"{of_cpu:,.0f}", f"{of_cpu / base_cpu:.2f}")
        lines.append(f"| {' | '.join(row)} |")
    faster = medians["model", TWO][0] / medians["model", BASE][0]
    kept = medians["tiny", TWO][1] / medians["tiny", BASE][1]
    lines += [
        "",
        f"Two processes answer {faster:.2f} times the requests of one for the model of {ms:.1f} ms (aim: 1.7), and "
        f"{kept:.2f} times as many per CPU second for the tiny one (aim: 1).",
        "",
        "Made by `python benchmarks/gateway_processes.py`.",
        "",
    ]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
