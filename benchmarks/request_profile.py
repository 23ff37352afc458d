"""Reports where the time of a binary request goes: CPU time by library, system calls, copies, allocations, page faults.

    python benchmarks/request_profile.py [--seconds 4] [--output benchmarks/results/request_profile.md]

It needs perf (Debian's linux-perf) and g++. The gateway runs on one core and the load on another. `nothing` is a server
that reads the request and answers two bytes: the cost of the network alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_overhead import CONCURRENCIES, Candidate, Case, _empty, _opgate, machine, make_models, server

ROOT = Path(__file__).resolve().parent.parent
# What is measured of each request, with its number of decimals.
DECIMALS = {
    "requests/s": 0,
    "CPU us outside the kernel": 0,
    "CPU us in the kernel": 0,
    "page faults": 1,
    "thread switches": 1,
    "system calls": 1,
}
# How the libraries of the table are called. The others are added up.
LIBRARIES = {
    "[kernel.kallsyms]": "kernel",
    "libpython": "Python",
    "python": "Python",
    "onnxruntime": "ONNX Runtime",
    "_multiarray_umath": "NumPy",
    "loop.cpython": "uvloop",
    "libnghttp2": "nghttp2",
    "libc.so": "libc",
}


@dataclass
class Usage:
    """What the threads of a process have used so far: CPU seconds, page faults, switches to another thread."""

    user: float
    system: float
    faults: int
    switches: int


def usage(pid: int) -> Usage:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                switches += int(line.split()[1])
    return Usage(int(fields[11]) / ticks, int(fields[12]) / ticks, int(fields[7]), switches)


@contextlib.contextmanager
def tool(*command: str) -> Iterator[None]:
    """Runs a tool that watches a process until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def system_calls(text: str) -> Counter[str]:
    """Returns the number of calls by name in what `perf trace -s` writes, over all threads."""
    calls: Counter[str] = Counter()
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[1].isdigit() and "%" in words[-1]:
            calls[words[0]] += int(words[1])
    return calls


def shares(data: Path) -> dict[str, float]:
    """Returns the share of the samples of `perf record` by library."""
    command = ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "--sort", "dso", "--stdio"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].endswith("%"):
            name = next((name for start, name in LIBRARIES.items() if words[1].startswith(start)), "other")
            found[name] += float(words[0][:-1])  # type: ignore[assignment]
    return dict(found)


@contextlib.contextmanager
def running(group: int) -> Iterator[None]:
    """Lets a server run until the block ends."""
    os.killpg(group, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGSTOP)


def profile(candidate: Candidate, case: Case, concurrency: int, seconds: float, folder: Path) -> dict[str, float | str]:
    """Returns the row of one server, model and concurrency."""
    (group,) = candidate.groups
    with running(group):
        candidate.load(case, concurrency, seconds)  # warms up
        before = usage(group)
        requests = candidate.load(case, concurrency, seconds) * seconds
        after = usage(group)
        row: dict[str, float | str] = {
            "requests/s": requests / seconds,
            "CPU us outside the kernel": (after.user - before.user) / requests * 1e6,
            "CPU us in the kernel": (after.system - before.system) / requests * 1e6,
            "page faults": (after.faults - before.faults) / requests,
            "thread switches": (after.switches - before.switches) / requests,
        }
        samples = folder / "perf.data"
        with tool("perf", "record", "-o", str(samples), "-p", str(group)):
            candidate.load(case, concurrency, seconds)
        row |= {name: round(share) for name, share in shares(samples).items()}
        trace = folder / "trace.txt"
        with tool("perf", "trace", "-s", "-p", str(group), "-o", str(trace)):
            requests = candidate.load(case, concurrency, seconds) * seconds
        calls = system_calls(trace.read_text())
    row["system calls"] = sum(calls.values()) / requests
    row["calls"] = ", ".join(
        f"{name} {count / requests:.1f}" for name, count in calls.most_common(6) if count / requests >= 0.05
    )
    return row


def counted(repository: Path, cases: list[Case], core: int, seconds: float, folder: Path) -> list[list[str]]:
    """Returns the rows of allocations and copies a request."""
    library, counts = folder / "counting.so", folder / "counts"
    source = ROOT / "benchmarks" / "counting.cpp"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-std=c++17", "-o", library, source, "-ldl"], check=True)
    counts.write_bytes(bytes(32))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": str(library),
        "OPGATE_COUNTS": str(counts),
    }
    rows = []
    with contextlib.ExitStack() as stack:
        run = lambda command, ready: stack.enter_context(server(command, ready, core, env))  # noqa: E731
        candidate = _opgate(repository, run)[0]
        (group,) = candidate.groups
        with running(group):
            for case in cases:
                for concurrency in CONCURRENCIES:
                    candidate.load(case, concurrency, seconds)
                    before = struct.unpack("<4Q", counts.read_bytes())
                    requests = candidate.load(case, concurrency, seconds) * seconds
                    after = struct.unpack("<4Q", counts.read_bytes())
                    number, size, copies, copied = ((b - a) / requests for a, b in zip(before, after, strict=True))
                    cells = [f"{number:.0f}", f"{size / 1e3:.0f}", f"{copies:.1f}", f"{copied / 1e3:.0f}"]
                    rows.append([case.name, str(concurrency), *cells])
    return rows


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Returns a table in Markdown."""
    return ["", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "request_profile.md")
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    core = usable[0]
    os.sched_setaffinity(0, {usable[-1]})
    names = [*dict.fromkeys(LIBRARIES.values()), "other"]
    time_rows, share_rows, call_rows = [], [], []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cases = make_models(folder / "repository")

        def run(command: list[str], ready: str | int) -> int:
            return stack.enter_context(server(command, ready, core))

        candidates = [_opgate(folder / "repository", run)[0], *_empty(run)]
        for case in cases:
            for concurrency in CONCURRENCIES:
                for candidate in candidates:
                    print(f"{case.name}, {candidate.name}, concurrency {concurrency}", file=sys.stderr, flush=True)
                    row = profile(candidate, case, concurrency, options.seconds, folder)
                    key = [case.name, str(concurrency), candidate.name]
                    time_rows.append([*key, *(f"{row[name]:,.{digits}f}" for name, digits in DECIMALS.items())])
                    share_rows.append([*key, *(str(row.get(name, 0)) for name in names)])
                    call_rows.append([*key, str(row["calls"])])
        print("allocations and copies", file=sys.stderr, flush=True)
        counts = counted(folder / "repository", cases, core, options.seconds, folder)
    lines = ["# Where the time of a request goes", "", f"Machine: {machine()}.", ""]
    lines += [
        "Binary requests over HTTP: `tiny` has 16 bytes of input and `cnn` 602,112. `nothing` is a server that reads "
        "the request and answers two bytes. All figures are for one request, except the first.",
    ]
    key = ["model", "concurrency", "server"]
    lines += table([*key, *DECIMALS], time_rows)
    lines += ["", "Samples by library, in percent:", *table([*key, *names], share_rows)]
    lines += ["", "System calls:", *table([*key, "calls"], call_rows)]
    lines += [
        "",
        "Allocations of the gateway, each object of Python counted (`PYTHONMALLOC=malloc`), and copies of 32 KB and "
        "more outside the kernel:",
    ]
    lines += table(["model", "concurrency", "allocations", "allocated KB", "large copies", "copied KB"], counts)
    lines += ["", "Made by `python benchmarks/request_profile.py`.", ""]
    text = "\n".join(lines)
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
