"""What it costs that each custom op measures its calls. Prints a table, which is benchmarks/results/op_times.md.

    python benchmarks/op_times.py --before FOLDER [--rounds 15] [--seconds 2] [--output benchmarks/results/op_times.md]

FOLDER is a checkout of opgate before ops were measured, with its op library in build/ops and its compiled modules. A
gateway of each serves my_add on one core, and the load runs on another. They take turns in short rounds, so that other
work of the machine slows both alike. The report has the medians over the rounds, and the median of the ratios of both
in a round: of requests/s, and of the processor time of the gateway for a request, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_overhead import machine

ROOT = Path(__file__).resolve().parent.parent
CONCURRENCIES = (1, 16)
SERVER_CORE, LOAD_CORE = "0", "1"


def cost_of_a_call(threads: int) -> float:
    """Returns the nanoseconds of measuring a call, while so many threads call the same node."""
    source = ROOT / "opgate/ops_build"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "op_times"
        files = [str(ROOT / "benchmarks/op_times.cpp"), str(source / "op_call/op_times.cpp")]
        subprocess.run(["g++", "-std=c++20", "-O3", "-pthread", f"-I{source}", *files, "-o", str(program)], check=True)
        return float(subprocess.run([program, str(threads)], check=True, capture_output=True).stdout)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str]]:
    """Runs the gateway of a checkout with my_add. Yields its process and its address."""
    options = ["--model-control-mode=explicit", "--load-model=my_add", "--http-port=0", "--no-grpc"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPGATE_OPS_PATH": str(folder / "build/ops")}
    command = ["taskset", "-c", SERVER_CORE, sys.executable, "-m", "opgate", "serve", *options]
    command += ["--model-repository", str(ROOT / "model_repository")]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                record = json.loads(line)
                if record["message"] == "listening":
                    yield process.pid, f"http://127.0.0.1:{record['http_port']}"
                    break
            else:
                raise RuntimeError(f"the gateway of {folder} did not start")
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def processor_seconds(process: int) -> float:
    """Returns the processor time that all threads of a process have taken."""
    ns = sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return ns / 1e9


def measured(gateway: tuple[int, str], concurrency: int, seconds: float) -> tuple[float, float]:
    """Returns the requests/s that a gateway answers, and the microseconds of its processor time for each."""
    process, url = gateway
    load = [sys.executable, "-m", "opgate", "load", "my_add", "--url", url, "--json", "--warm-up", "0"]
    load += ["--concurrency", str(concurrency), "--duration", str(seconds)]
    begin = processor_seconds(process)
    done = subprocess.run(["taskset", "-c", LOAD_CORE, *load], check=True, capture_output=True, cwd=ROOT)
    took = processor_seconds(process) - begin
    found = json.loads(done.stdout)
    return float(found["requests_per_second"]), took / found["answers"] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    lines = [
        "# What it costs that ops measure their calls",
        "",
        "| threads that call a node | ns a call |",
        "|---|---|",
        *(f"| {threads} | {cost_of_a_call(threads):.0f} |" for threads in (1, 2)),
        "",
        "The clock is read twice, and two numbers are added to. Threads that call one node at once share these.",
        "",
        "| my_add over HTTP | before | now | now / before |",
        "|---|---|---|---|",
    ]
    with serving(asked.before.resolve()) as before, serving(ROOT) as now:
        for concurrency in CONCURRENCIES:
            found: dict[tuple[int, str], list[tuple[float, float]]] = {before: [], now: []}
            for i in range(asked.rounds):
                for gateway in (before, now) if i % 2 else (now, before):
                    found[gateway].append(measured(gateway, concurrency, asked.seconds))
            for column, what in enumerate(("requests/s", "us of processor time a request")):
                then, today = ([round[column] for round in found[gateway]] for gateway in (before, now))
                ratios = sorted(b / a for a, b in zip(then, today, strict=True))
                quarter = len(ratios) // 4
                middle = f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})"
                medians = f"{statistics.median(then):,.1f} | {statistics.median(today):,.1f}"
                lines.append(f"| {what}, {concurrency} at once | {medians} | {middle} |")
    lines += [
        "",
        f"Medians of {asked.rounds} rounds of {asked.seconds:g} s, in which both took turns; in brackets, half of the "
        "ratios lie between these. The gateway has one core, and the load another.",
        "",
        f"Machine: {machine()}",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.output is not None:
        asked.output.write_text(text)


if __name__ == "__main__":
    main()
