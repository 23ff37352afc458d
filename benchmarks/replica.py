"""Measures what one gateway holds on one core: requests/s, latency, memory, its start; alone and on Ray Serve.

    python benchmarks/replica.py [--seconds 5] [--rounds 3] [--output benchmarks/results/replica.md]

The server has the first core, the load another one. docs/scaling.md reckons with the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.serve_overhead import machine
from opgate.load.grpc import GrpcClient
from opgate.load.http import HttpClient
from opgate.load.latencies import duration
from opgate.load.run import Measured, Plan, Run
from opgate.load.target_model import make_inputs
from tests.system.running import ROOT, Server, free_port

PICTURE = (ROOT / "docs" / "examples" / "digits.jpg").read_bytes()
MODELS: dict[str, bytes] = {"my_add": b"", "digit_detector": PICTURE}
CONCURRENCY = (1, 16)
IDLE = 5000
RAY = {
    "binary, Ray Serve": {},
    "binary, Ray Serve, HAProxy": {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
}


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Lets processes that are started meanwhile run on one core, and this one on the others."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, (cores - {core}) or cores)


async def load(address: str, model: str, plan: Plan) -> Measured:
    """Sends load to a model at http://HOST:PORT, or HOST:PORT of gRPC."""
    client = HttpClient(address) if address.startswith("http") else GrpcClient(address)
    try:
        spec = await client.model(model, "")
        client.prepare(make_inputs(spec, 1, MODELS[model] or {}, {}))
        await client.first()
        return await Run(client, plan).run()
    finally:
        await client.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_connections(server: Server) -> float:
    """Returns the kilobytes of memory that an open connection takes."""
    before = server.megabytes("VmRSS")
    opened = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(IDLE)]
    try:
        opened[-1].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        opened[-1].recv(100)
        return (server.megabytes("VmRSS") - before) * 1024 / IDLE
    finally:
        for connection in opened:
            connection.close()


@contextlib.contextmanager
def ray_serve(folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """Runs one replica on a cluster, and yields its address."""
    dashboard, port = free_port(), free_port()
    env = {**os.environ, **variables, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.deploy.ray_cluster", str(dashboard)]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        while process.stdout.readline() != "ready\n":
            pass
        document = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
        document |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
        document["applications"][0]["args"]["model_repository"] = str(ROOT / "model_repository")
        document["applications"][0]["deployments"][0]["autoscaling_config"] |= {"min_replicas": 1, "max_replicas": 1}
        file = folder / "serve.yaml"
        file.write_text(yaml.safe_dump(document))
        serve = [str(Path(sys.executable).with_name("serve")), "deploy", str(file)]
        subprocess.run([*serve, "--address", f"http://127.0.0.1:{dashboard}"], env=env, check=True, capture_output=True)
        address = f"http://127.0.0.1:{port}"
        for _ in range(120):
            try:
                urllib.request.urlopen(address + "/v2/health/ready").close()
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        process.stdin.close()
        process.wait(60)


def rows(address: str, wire: str, options: argparse.Namespace, pid: int | None = None) -> Iterator[list[str]]:
    """Yields a row of the table for each model and concurrency."""
    for model in MODELS:
        for concurrency in CONCURRENCY:
            measured, cpu = [], []
            for _ in range(options.rounds):
                before = cpu_seconds(pid) if pid else 0.0
                plan = Plan(options.seconds, 1.0, concurrency=concurrency)
                measured.append(asyncio.run(load(address, model, plan)))
                spent = (cpu_seconds(pid) if pid else 0.0) - before
                # The warm-up's requests cost too: it has the same rate.
                cpu.append(spent / (measured[-1].rate * (options.seconds + 1.0)))
            assert not any(each.failed for each in measured), measured[0].errors
            middle = [duration(statistics.median(m.latencies.percentile(p) for m in measured)) for p in (50, 99)]
            rate = statistics.median(each.rate for each in measured)
            print(f"{model} {wire} {concurrency}: {rate:,.0f}/s", file=sys.stderr, flush=True)
            cost = f"{statistics.median(cpu) * 1e6:,.0f} us" if pid else ""
            yield [model, wire, str(concurrency), f"{rate:,.0f}", *middle, cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "replica.md")
    options = parser.parse_args()
    table: list[list[str]] = []
    with on_core(0):
        began = time.perf_counter()
        server = Server(ROOT / "model_repository")
        started = time.perf_counter() - began
    memory = [server.megabytes("VmRSS")]
    index = json.loads(server.get("/v2"))
    table += rows(server.url, "binary", options, server.process.pid)
    table += rows(f"127.0.0.1:{server.grpc}", "gRPC", options, server.process.pid)
    memory.append(server.megabytes("VmRSS"))
    connection = idle_connections(server)
    assert server.stop() == 0
    for wire, variables in RAY.items():
        with contextlib.ExitStack() as stack:
            with on_core(0):
                address = stack.enter_context(ray_serve(ROOT / "build", variables))
            table += rows(address, wire, options)
    lines = [
        "# What one gateway holds on one core",
        "",
        f"Machine: {machine()}. {index['name']} {index['version']}.",
        "",
        f"Closed loop, medians of {options.rounds} rounds of {options.seconds:g} s. The server has one core, the load "
        "another one. The picture of digit_detector is docs/examples/digits.jpg, 960 x 640. With Ray Serve, its proxy, "
        "its other processes and the replica share that core; HAProxy is that of RAY_SERVE_ENABLE_HA_PROXY=1 and "
        "RAY_SERVE_THROUGHPUT_OPTIMIZED=1.",
        "",
        "| model | wire | concurrency | requests/s | p50 | p99 | CPU of a request |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        f"From its start to listening: {started:.1f} s, with the {len(list((ROOT / 'model_repository').iterdir()))} "
        f"models of `model_repository`. Memory: {memory[0]:.0f} MB then, {memory[1]:.0f} MB after the load. An open "
        f"connection of HTTP that waits: {connection:.1f} kB.",
        "",
        "Made by `python benchmarks/replica.py`.",
        "",
    ]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
