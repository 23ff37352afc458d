"""Compares gRPC servers: the gateway, Triton, and grpcio's two servers, with the same models.

    python benchmarks/grpc_overhead.py [--rounds 3] [--output benchmarks/results/grpc.md]
    python benchmarks/grpc_overhead.py --profile [--output benchmarks/results/grpc_profile.md]

It needs h2load (Debian's nghttp2-client), which costs little itself and so shows what a server can do, and
perf_analyzer, Triton's own load generator, which is installed into build/peers and needs libb64 (Debian's libb64-0d).
The servers run on one core and the load on another. They take turns in short rounds, so that other work of the machine
slows all of them alike. The report has the medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import uvloop

from benchmarks import peers
from benchmarks.load import grpc_load
from benchmarks.request_profile import shares, tool
from benchmarks.serve_overhead import (
    Case,
    Run,
    binary_request,
    free_port,
    machine,
    make_models,
    opgate_process,
    server,
    triton_process,
)

ROOT = Path(__file__).resolve().parent.parent
# The libraries of the profile, in the order of the table.
LIBRARIES = ("Python", "kernel", "ONNX Runtime", "NumPy", "nghttp2", "uvloop", "libc", "other")
INFER = "/inference.GRPCInferenceService/ModelInfer"
HEADERS = ["content-type: application/grpc", "te: trailers"]
CONCURRENCIES = (1, 16, 256)
# Requests of a run of h2load, by model and concurrency.
REQUESTS = {"tiny": {1: 4000, 16: 16000, 256: 20000}, "cnn": {1: 500, 16: 1200, 256: 1500}}


@dataclass(frozen=True)
class Server:
    """A server under test: its port of gRPC, the one of HTTP if the HTTP of it is measured too, its process group."""

    name: str
    grpc: int
    group: int
    http: int = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Lets the server run until the block ends. The others are stopped."""
        os.killpg(self.group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGSTOP)


@dataclass(frozen=True)
class Measured:
    """Requests/s, percentiles of the microseconds of a request, and CPU microseconds of the server for a request."""

    rate: float
    p50: float
    p99: float
    cpu: float = 0.0


def cpu_seconds(group: int) -> float:
    """Returns the CPU time that the processes of a group have used."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def h2load(
    one: Server, url: str, body: bytes, headers: list[str], count: int, connections: int, streams: int, folder: Path
) -> Measured:
    """Measures with h2load. Without `streams` it speaks HTTP/1.1."""
    data, log = folder / "body", folder / "log"
    data.write_bytes(body)
    log.unlink(missing_ok=True)
    command = ["h2load", "-n", str(count), "-c", str(connections), "-d", str(data), f"--log-file={log}"]
    command += ["-m", str(streams)] if streams else ["--h1"]
    command += [part for header in headers for part in ("-H", header)]
    before = cpu_seconds(one.group)
    finished = subprocess.run([*command, url], capture_output=True, text=True)
    cpu = cpu_seconds(one.group) - before
    if f"{count} succeeded" not in finished.stdout or "0 failed" not in finished.stdout:
        raise RuntimeError(f"{one.name}: {finished.stdout}{finished.stderr}")
    rate = float(finished.stdout.partition("finished in ")[2].split(", ")[1].split()[0])
    times = np.array([int(line.split("\t")[2]) for line in log.read_text().splitlines()])
    return Measured(rate, *np.percentile(times, (50, 99)), cpu / count * 1e6)


def framed(case: Case) -> bytes:
    """Returns the message of a call with the framing of gRPC."""
    from tritonclient.grpc import service_pb2

    array = case.input()
    message = service_pb2.ModelInferRequest(model_name=case.name, raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=array.shape)
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def calls(one: Server, case: Case, concurrency: int, folder: Path) -> Measured:
    """Measures calls of gRPC with h2load: concurrency 16 is four connections with four calls each."""
    connections = min(concurrency, 4)
    url = f"http://127.0.0.1:{one.grpc}{INFER}"
    count = REQUESTS[case.name][concurrency]
    return h2load(one, url, framed(case), HEADERS, count, connections, concurrency // connections, folder)


def perf_analyzer(one: Server, case: Case, concurrency: int, folder: Path) -> Measured:
    """Measures with perf_analyzer over one connection."""
    program, libraries = peers.perf_analyzer()
    result = folder / "result.csv"
    result.unlink(missing_ok=True)
    command = [str(program), "-m", case.name, "-u", f"127.0.0.1:{one.grpc}", "-i", "grpc", "-f", str(result)]
    command += ["--concurrency-range", str(concurrency), "--async" if concurrency > 1 else "--sync"]
    command += ["--measurement-interval", "1000", "--max-trials", "3", "--stability-percentage", "999"]
    env = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    finished = subprocess.run(command, capture_output=True, text=True, env=env)
    if finished.returncode or not result.is_file():
        raise RuntimeError(
            f"perf_analyzer against {one.name} ({finished.returncode}): {finished.stdout}{finished.stderr}"
        )
    with result.open() as file:
        row = next(csv.DictReader(file))
    return Measured(float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]))


def over_http(one: Server, case: Case, concurrency: int, folder: Path) -> Measured:
    """Measures the same request with binary tensors over HTTP/1.1 with h2load, on as many connections."""
    head, _, body = binary_request(case).partition(b"\r\n\r\n")
    path, *lines = head.decode().split("\r\n")
    headers = [line for line in lines if not line.lower().startswith(("host", "content-length"))]
    url = f"http://127.0.0.1:{one.http}{path.split()[1]}"
    return h2load(one, url, body, headers, REQUESTS[case.name][concurrency], concurrency, 0, folder)


LOADS = {"h2load": calls, "perf_analyzer": perf_analyzer, "HTTP": over_http}
Results = dict[tuple[str, str, int, str], list[Measured]]


def measure(servers: list[Server], cases: list[Case], rounds: int, folder: Path) -> Results:
    """Returns what was measured, by load generator, model, concurrency and server."""
    results: Results = {}
    for one in servers:
        with one.running():
            for case in cases:  # the answers are right
                uvloop.run(grpc_load(one.grpc, case.name, case.input(), case.expected(), 4, 0.5))
    for turn in range(rounds):
        for load, function in LOADS.items():
            for case in cases:
                for concurrency in CONCURRENCIES:
                    for one in servers:
                        if load == "HTTP" and not one.http:
                            continue
                        told = (
                            f"round {turn + 1} of {rounds}: {load}, {case.name}, concurrency {concurrency}, {one.name}"
                        )
                        print(told, file=sys.stderr, flush=True)
                        with one.running():
                            found = function(one, case, concurrency, folder)
                        results.setdefault((load, case.name, concurrency, one.name), []).append(found)
    return results


def median(values: list[Measured]) -> Measured:
    """Returns the median of each number."""
    return Measured(
        *(statistics.median(getattr(value, name) for value in values) for name in ("rate", "p50", "p99", "cpu"))
    )


def report(results: Results, servers: list[Server], cases: list[Case], rounds: int) -> str:
    """Returns the results as Markdown."""
    lines = ["# gRPC servers", "", f"Machine: {machine()}.", ""]
    lines += [
        f"Medians of {rounds} interleaved rounds. All servers run on one core, the load on the other; the models have "
        "one thread. Times are of a request, in microseconds. CPU is what the server's processes use for a request. "
        "`grpcio asyncio` and `grpcio threads` are its two servers with protobuf's classes and ONNX Runtime "
        "(`benchmarks/peers/grpcio_server.py`).",
    ]
    for load, text in (
        ("h2load", "h2load: 16 is four connections with four calls each, 256 is four with 64"),
        ("perf_analyzer", "perf_analyzer 2.50: one connection; it takes its whole core, so it bounds the fast servers"),
    ):
        for case in cases:
            size = 4 * int(np.prod(case.dims))
            lines += ["", f"## {case.name}, {size:,} bytes of input, {text}", ""]
            lines += [
                "| server | concurrency | calls/s | of Triton | p50 | p99 | CPU a call |",
                "|---|---|---|---|---|---|---|",
            ]
            for concurrency in CONCURRENCIES:
                for one in servers:
                    got = median(results[load, case.name, concurrency, one.name])
                    triton = median(results[load, case.name, concurrency, "Triton"])
                    cpu = f"{got.cpu:,.0f}" if got.cpu else ""
                    cells = [one.name, str(concurrency), f"{got.rate:,.0f}", f"{got.rate / triton.rate:.2f}"]
                    lines.append("| " + " | ".join([*cells, f"{got.p50:,.0f}", f"{got.p99:,.0f}", cpu]) + " |")
    lines += ["", "## The gateway's gRPC beside its HTTP/1.1 with binary tensors, both with h2load", ""]
    lines += ["| model | concurrency | gRPC calls/s | HTTP requests/s | gRPC / HTTP | CPU a call | CPU a request |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for case in cases:
        for concurrency in CONCURRENCIES:
            rpc = median(results["h2load", case.name, concurrency, "opgate"])
            http = median(results["HTTP", case.name, concurrency, "opgate"])
            cells = [
                case.name,
                str(concurrency),
                f"{rpc.rate:,.0f}",
                f"{http.rate:,.0f}",
                f"{rpc.rate / http.rate:.2f}",
            ]
            lines.append("| " + " | ".join([*cells, f"{rpc.cpu:,.0f}", f"{http.cpu:,.0f}"]) + " |")
    return "\n".join([*lines, "", "Made by `python benchmarks/grpc_overhead.py`.", ""])


def profile(one: Server, cases: list[Case], folder: Path) -> str:
    """Returns where the server's CPU time goes at concurrency 16, by library, for gRPC and for HTTP, as Markdown."""
    rows = []
    for case in cases:
        for name, load in (("gRPC", calls), ("HTTP", over_http)):
            print(f"profile: {case.name}, {name}", file=sys.stderr, flush=True)
            samples = folder / "perf.data"
            with one.running():
                load(one, case, 16, folder)  # warms up
                got = load(one, case, 16, folder)
                with tool("perf", "record", "-o", str(samples), "-p", str(one.group)):
                    load(one, case, 16, folder)
            found = shares(samples)
            own = symbols(samples)
            cells = [f"{found.get(library, 0):.0f}" for library in LIBRARIES]
            rows.append([case.name, name, f"{got.cpu:,.0f}", *cells, f"{own.get('memmove', 0):.0f}"])
    head = ["model", "wire", "CPU us a call", *LIBRARIES, "copies (of these)"]
    lines = ["# Where the time of a call of gRPC goes", "", f"Machine: {machine()}.", ""]
    lines += [
        "The gateway on one core, h2load on the other, concurrency 16. The shares are percents of the CPU time, by"
    ]
    lines += ["library, as `perf record` samples it. `copies` is the part in libc's memmove.", ""]
    lines += ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join([*lines, "", "Made by `python benchmarks/grpc_overhead.py --profile`.", ""])


def symbols(data: Path) -> dict[str, float]:
    """Returns the share of the samples of `perf record` in libc's memmove."""
    command = ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "--sort", "symbol", "--stdio"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines() if "memmove" in line]
    return {"memmove": sum(float(words[0].rstrip("%")) for words in lines)}


def start(repository: Path, cases: list[Case], run: Run) -> list[Server]:
    """Starts the servers."""
    http, rpc, group = opgate_process(repository, run)
    servers = [Server("opgate", rpc, group, http)]
    http, rpc, group = triton_process(repository, run)
    servers.append(Server("Triton", rpc, group))
    for name, mode in (("grpcio asyncio", "aio"), ("grpcio threads", "threads")):
        port = free_port()
        models = [f"{case.name}={case.path}" for case in cases]
        program = str(ROOT / "benchmarks" / "peers" / "grpcio_server.py")
        group = run([sys.executable, "-P", program, mode, str(port), *models], port)
        servers.append(Server(name, port, group))
    return servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="only where the gateway's time goes; needs perf")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    output = options.output or ROOT / "benchmarks" / "results" / ("grpc_profile.md" if options.profile else "grpc.md")
    if not options.profile:
        peers.perf_analyzer()
    usable = sorted(os.sched_getaffinity(0))
    core = usable[0]
    os.sched_setaffinity(0, {usable[-1]})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        repository = folder / "repository"
        cases = make_models(repository)

        def run(command: list[str], ready: str | int, env: dict[str, str] | None = None) -> int:
            return stack.enter_context(server(command, ready, core, env))

        if options.profile:
            http, rpc, group = opgate_process(repository, run)
            text = profile(Server("opgate", rpc, group, http), cases, folder)
        else:
            servers = start(repository, cases, run)
            text = report(measure(servers, cases, options.rounds, folder), servers, cases, options.rounds)
    output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
