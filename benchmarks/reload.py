"""Loads new versions of a model while requests come at a steady rate, and counts what went wrong.

    python benchmarks/reload.py [--rate 200] [--versions 20] [--seconds 60] [--output benchmarks/results/reload.md]

Half of the requests ask for the latest version, half for one that must serve at that time. Version k of the model
multiplies by k, so each answer tells which version computed it. The gateway keeps the two latest versions.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from onnx import TensorProto, helper

from benchmarks.serve_overhead import machine
from opgate.load.latencies import duration
from tests.system.running import ROOT, running

CONFIG = "max_batch_size: 64 dynamic_batching { } version_policy { latest { num_versions: 2 } }"


@dataclass
class Counts:
    """What came of the requests of one protocol."""

    latencies: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def write_version(folder: Path, version: int) -> None:
    """Writes a version that multiplies by its number. The weights make the file a megabyte."""
    weights = np.full((4, 65536), version, np.float32)
    nodes = [
        helper.make_node("ReduceMax", ["weights"], ["factor"], keepdims=0),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    constant = helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)
    graph = helper.make_graph(nodes, "times", [x], [y], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "times" / str(version)
    path.mkdir(parents=True)
    onnx.save(model, path / "model.onnx")
    (path.parent / "config.pbtxt").write_text(CONFIG)


class Loaded:
    """The versions that serve for sure: the latest two whose loading has been answered."""

    def __init__(self) -> None:
        self.latest = 1
        self.loading = 1  # the highest that may serve


async def ask(client: Any, module: Any, loaded: Loaded, counts: Counts, due: float, chance: random.Random) -> None:
    """Sends a request and checks its answer."""
    least = loaded.latest
    version = str(least) if chance.random() < 0.5 else ""
    given = module.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    try:
        result = await client.infer("times", [given], model_version=version)
    except Exception as error:
        counts.failed.append(str(error))
        return
    counts.latencies.append(time.monotonic() - due)
    got = int(result.as_numpy("y")[0, 0])
    fits = got == int(version) if version else least <= got <= loaded.loading
    if not fits:
        counts.wrong.append(f"asked for '{version}' between {least} and {loaded.loading}, got {got}")


async def send(client: Any, module: Any, loaded: Loaded, counts: Counts, rate: float, end: float) -> None:
    """Sends requests at random times, so many a second."""
    chance = random.Random(0)
    due = time.monotonic()
    tasks = []
    while due < end:
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(ask(client, module, loaded, counts, due, chance)))
    await asyncio.gather(*tasks)


async def measure(
    server: Any, folder: Path, rate: float, versions: int, seconds: float
) -> tuple[Counts, Counts, list[float]]:
    """Returns what came of the requests over HTTP and over gRPC, and the seconds of each load."""
    loaded, counts, loads = Loaded(), (Counts(), Counts()), []
    async with (
        http_aio.InferenceServerClient(f"127.0.0.1:{server.http}", conn_limit=64) as http,
        grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc}") as grpc,
    ):
        begin = time.monotonic()
        sending = [
            asyncio.create_task(send(client, module, loaded, of, rate / 2, begin + seconds))
            for client, module, of in ((http, http_aio, counts[0]), (grpc, grpc_aio, counts[1]))
        ]
        for k in range(versions):
            await asyncio.sleep(max(0.0, begin + k * seconds / versions - time.monotonic()))
            write_version(folder, loaded.latest + 1)
            loaded.loading = loaded.latest + 1
            started = time.monotonic()
            await (http if k % 2 else grpc).load_model("times")
            loads.append(time.monotonic() - started)
            loaded.latest += 1
        await asyncio.gather(*sending)
    return *counts, loads


def percentile(values: list[float], part: float) -> str:
    """Returns a percentile of durations as text."""
    return duration(float(np.percentile(values, part)))


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/reload.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_version(folder, 1)
        with running(folder, "--model-control-mode=explicit", "--load-model=times") as server:
            http, grpc, loads = asyncio.run(measure(server, folder, options.rate, options.versions, options.seconds))
    command = f"python benchmarks/reload.py --rate {options.rate:g} --versions {options.versions}"
    typical, slowest = duration(float(np.median(loads))), duration(max(loads))
    lines = [
        "# New versions under load",
        "",
        f"`{command} --seconds {options.seconds:g}` on {machine()}. {options.versions} versions were loaded in",
        f"{options.seconds:g} s, one in {typical} (median), the slowest in {slowest}.",
        "",
        "| protocol | requests | failed | answered by another version | p50 | p99 | slowest |",
        "|---|---|---|---|---|---|---|",
    ]
    for protocol, counts in (("HTTP", http), ("gRPC", grpc)):
        total = len(counts.latencies) + len(counts.failed)
        times = " | ".join(percentile(counts.latencies, part) for part in (50, 99, 100))
        lines.append(f"| {protocol} | {total} | {len(counts.failed)} | {len(counts.wrong)} | {times} |")
    text = "\n".join(lines) + "\n"
    options.output.write_text(text)
    print(text)
    for problem in (http.failed + grpc.failed + http.wrong + grpc.wrong)[:5]:
        print(problem)
    sys.exit(bool(http.failed or grpc.failed or http.wrong or grpc.wrong))


if __name__ == "__main__":
    main()
