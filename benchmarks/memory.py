"""Watches the memory of the gateway under a million tiny requests and ten thousand of 32 MB, or under gRPC.

    python benchmarks/memory.py [--tiny 1000000] [--large 10000] [--output benchmarks/results/memory.md]
    python benchmarks/memory.py --grpc [--tiny 1000000] [--connections 10000] [--output FILE]

With --grpc it sends a million tiny calls, and then calls on ten thousand connections, with h2load (Debian's
nghttp2-client). The report has the resident memory of the process over time, as a table and a picture. A leak would be
a line that rises.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import uvloop
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grpc_overhead import HEADERS, INFER, Server, framed, h2load
from benchmarks.load import http_load
from benchmarks.serve_overhead import Case, binary_request, machine
from tests.system.running import running

ROOT = Path(__file__).resolve().parent.parent
LARGE = 8 << 20  # elements of 4 bytes
Read = Callable[[], float]  # returns the megabytes of the process


def make_models(repository: Path) -> tuple[Case, Case]:
    """Writes a model that doubles 4 floats, and one that finds the largest of 8 million."""
    value, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graphs = {
        "tiny": ([helper.make_node("Add", ["x", "x"], ["y"])], 4, 4, []),
        "large": ([helper.make_node("ReduceMax", ["x", "axes"], ["y"])], LARGE, 1, [axes]),
    }
    cases = []
    for name, (nodes, size, out, constants) in graphs.items():
        inputs, outputs = [value("x", f32, ["batch", size])], [value("y", f32, ["batch", out])]
        graph = helper.make_graph(nodes, name, inputs, outputs, constants)
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, folder / "model.onnx")
        (repository / name / "config.pbtxt").write_text(
            'backend: "onnxruntime" max_batch_size: 16 dynamic_batching { }\n'
        )
        cases.append(Case(name, (size,), folder / "model.onnx"))
    return cases[0], cases[1]


async def load(
    case: Case, port: int, count: int, concurrency: int, memory: list[tuple[int, float]], read: Read
) -> float:
    """Sends `count` requests, and adds the memory after each part of them. Returns the seconds that it took."""
    expected, request = case.expected(), binary_request(case)
    done, began = 0, time.perf_counter()
    while done < count:
        seconds = 1.0
        rate = await http_load(port, request, lambda body: body.endswith(expected), concurrency, seconds)
        done += round(rate * seconds)
        memory.append((done, read()))
        print(f"\r{case.name}: {done:,} of {count:,}, {memory[-1][1]:.0f} MB", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return time.perf_counter() - began


def picture(title: str, points: list[tuple[int, float]]) -> str:
    """Returns a line of memory over requests as SVG."""
    width, height, left, bottom = 640, 220, 60, 36
    top = 1.2 * max(megabytes for _, megabytes in points)
    last = points[-1][0]

    def place(x: float, y: float) -> str:
        return f"{left + (width - left - 20) * x / last:.1f},{height - bottom - (height - bottom - 30) * y / top:.1f}"

    line = " ".join(place(x, y) for x, y in points)
    labels = "".join(
        f'<text x="{left - 8}" y="{place(0, y).split(",")[1]}" text-anchor="end" dy="4">{y:.0f} MB</text>'
        for y in (0, top / 2, top)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="18">{title}</text>{labels}'
        f'<polyline points="{place(0, top)} {place(0, 0)} {place(last, 0)}" fill="none" stroke="#888"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
        f'<text x="{width - 20}" y="{height - 12}" text-anchor="end">{last:,}</text></svg>\n'
    )


def grpc_runs(case: Case, port: int, connections: int, folder: Path) -> Callable[[], int]:
    """Returns a function that makes calls on so many new connections, and returns how many of what it counts."""
    one = Server("opgate", port, os.getpgid(0))
    body = framed(case)

    def run() -> int:
        count, streams = (50_000, 4) if connections < 100 else (2 * connections, 1)
        h2load(one, f"http://127.0.0.1:{port}{INFER}", body, HEADERS, count, connections, streams, folder)
        return count if connections < 100 else connections

    return run


def watch(what: str, count: int, run: Callable[[], int], memory: list[tuple[int, float]], read: Read) -> float:
    """Calls `run` until it has counted enough, and adds the memory after each call. Returns the seconds."""
    done, began = 0, time.perf_counter()
    while done < count:
        done += run()
        memory.append((done, read()))
        print(f"\r{done:,} of {count:,} {what}, {memory[-1][1]:.0f} MB", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = ROOT / "benchmarks" / "results"
    output = options.output or results / ("memory_grpc.md" if options.grpc else "memory.md")
    title = "# Memory over many calls of gRPC" if options.grpc else "# Memory over many requests"
    lines = [title, "", f"Machine: {machine()}.", ""]
    lines += ["Resident memory of the gateway's process in MB, read about once a second under load.", ""]
    lines += [
        "| what | seconds | at first | after a tenth | at half | at the end | most |",
        "|---|---|---|---|---|---|---|",
    ]
    pictures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny, large = make_models(folder / "repository")
        with running(folder / "repository") as server:
            read: Read = lambda: server.megabytes("VmRSS")  # noqa: E731

            def over_http(case: Case, count: int, concurrency: int) -> Callable[[list[tuple[int, float]]], float]:
                return lambda memory: uvloop.run(load(case, server.http, count, concurrency, memory, read))

            def over_grpc(what: str, count: int, connections: int) -> Callable[[list[tuple[int, float]]], float]:
                run = grpc_runs(tiny, server.grpc, connections, folder)
                return lambda memory: watch(what, count, run, memory, read)

            if options.grpc:
                parts = {
                    "calls": over_grpc("calls", options.tiny, 4),
                    "connections": over_grpc("connections, two calls each", options.connections, 500),
                }
            else:
                parts = {
                    "tiny": over_http(tiny, options.tiny, 16),
                    "large": over_http(large, options.large, 4),
                }
            units = {
                "calls": "calls of 16 bytes",
                "connections": "connections with two calls",
                "tiny": "requests of 16 bytes",
                "large": f"requests of {4 * LARGE:,} bytes",
            }
            for part, run in parts.items():
                memory = [(0, read())]
                seconds = run(memory)
                cells = [memory[0], memory[len(memory) // 10 or 1], memory[len(memory) // 2], memory[-1]]
                most = max(megabytes for _, megabytes in memory)
                row = " | ".join(f"{megabytes:.0f}" for _, megabytes in cells)
                what = f"{memory[-1][0]:,} {units[part]}"
                lines.append(f"| {what} | {seconds:.0f} | {row} | {most:.0f} |")
                file = output.with_name(f"{output.stem}_{part}.svg")
                file.write_text(picture(what, memory))
                pictures += ["", f"![{part}]({file.name})"]
    command = "python benchmarks/memory.py" + (" --grpc" if options.grpc else "")
    lines += [*pictures, "", f"Made by `{command}`.", ""]
    output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
