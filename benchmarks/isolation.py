"""What a run costs in a worker process: a hop beside a bare round trip of two eventfds, and runs of several sizes.

    python benchmarks/isolation.py [--rounds 7] [--output benchmarks/results/isolation.md]

A hop is the time of a run in a worker process less the time of the same run in this process. The bare round trip wakes
another process by an eventfd and is woken by it, in Python, with nothing between. All are measured in turn, with a core
for each process, and the small runs with both processes on one core too: there a wake takes less, and each process runs
with the caches of the other. Left alone, the scheduler of Linux puts one pair on one core and another pair on two, so
that their times can't be compared. The profile at the end says where the time of the smallest run goes.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, save_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_overhead import machine
from opgate.service.execution.session import Session, SessionOptions
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.file_session import ProcessSession
from opgate.service.isolation.opening import OnnxOpening, Runner
from opgate.service.isolation.worker_end import Link
from opgate.service.isolation.worker_session import WorkerLimits

SIZES = {1: 2000, 1 << 10: 2000, 1 << 16: 1000, 1 << 20: 200, 1 << 23: 30}  # elements, and runs of a round


APART, TOGETHER = "a core each", "one core"


def place(placement: str, *others: int) -> None:
    """Puts this process on the first core, and the other processes on the last or on the first."""
    cores = sorted(os.sched_getaffinity(os.getppid()))
    ours, theirs = [cores[0]], [cores[-1] if placement == APART else cores[0]]
    for process, allowed in ((os.getpid(), ours), *((other, theirs) for other in others)):
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), allowed)


def save_same(path: Path) -> None:
    """Writes a model that returns its input."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def answer(wakes: int, rings: int) -> None:
    """Rings whenever it is woken."""
    while os.eventfd_read(wakes) < 1 << 32:
        os.eventfd_write(rings, 1)


class Bare:
    """Another process that answers by an eventfd."""

    def __init__(self) -> None:
        self._rings, self._wakes = os.eventfd(0), os.eventfd(0)
        self._process = multiprocessing.get_context("fork").Process(target=answer, args=(self._rings, self._wakes))
        self._process.start()
        self.pid: int = self._process.pid or 0

    def run(self) -> None:
        """Makes a round trip."""
        os.eventfd_write(self._rings, 1)
        os.eventfd_read(self._wakes)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


class Stamped:
    """Opens the model in a worker that notes how long a run takes there. Without `runs` it answers as it did first."""

    files = ()
    confinement = Confinement()

    def __init__(self, opening: OnnxOpening, times: Path, runs: bool) -> None:
        self._opening, self._times, self._runs = opening, times, runs

    def open(self, link: Link) -> Runner:
        """Opens the model."""
        runner = self._opening.open(link)
        file = os.open(self._times, os.O_RDWR)
        return _Timed(runner, mmap.mmap(file, 8), self._runs)


class _Timed:
    def __init__(self, runner: Runner, times: mmap.mmap, runs: bool) -> None:
        self._runner, self._times, self._runs = runner, times, runs
        self._last: bytes | None = None

    def description(self) -> dict[str, Any]:
        return self._runner.description()

    def answer(self, question: Any, data: bytes) -> list[Any]:
        return self._runner.answer(question, data)

    def again(self, data: bytes) -> bytes | None:
        began = time.perf_counter_ns()
        if self._runs or self._last is None:
            self._last = self._runner.again(data)
        self._times[:] = (time.perf_counter_ns() - began).to_bytes(8, "little")
        return self._last


def profile(opening: OnnxOpening, here: Session, bare: Bare, rounds: int) -> list[str]:
    """Returns a table of where the time of a run on four bytes goes, with a core for each process."""
    x = {"x": np.ones(1, np.float32)}
    with tempfile.NamedTemporaryFile() as file:
        os.truncate(file.name, 8)
        times = mmap.mmap(file.fileno(), 8)
        running, idle = (
            ProcessSession("same", Stamped(opening, Path(file.name), runs), WorkerLimits(60)) for runs in (True, False)
        )
        found: list[tuple[float, float, float, float, float]] = []
        place(APART, bare.pid, running.pid, idle.pid)
        try:
            for _ in range(rounds):
                inside: list[int] = []

                def run(inside: list[int] = inside) -> None:
                    running.run(["y"], x)
                    inside.append(int.from_bytes(times, "little"))

                with_run = microseconds(run, 2000)
                without = microseconds(lambda: idle.run(["y"], x), 2000)
                own = microseconds(lambda: here.run(["y"], x), 2000)
                found.append((microseconds(bare.run, 2000), own, with_run, without, statistics.median(inside) / 1000))
        finally:
            running.close()
            idle.close()
    trip, own, with_run, without, inside_run = (statistics.median(column) for column in zip(*found, strict=True))
    lines = [
        "| part of a run on 4 bytes in a worker process | microseconds | round trips |",
        "|---|---|---|",
    ]
    parts = {
        "bare round trip": trip,
        "both wakes, and the code around the run on both sides: a worker that answers without a run": without,
        "the run in this process": own,
        "the same run in the worker, which wakes for each": inside_run,
        "all of it": with_run,
    }
    return lines + [f"| {name} | {value:.1f} | {value / trip:.2f} |" for name, value in parts.items()]


def microseconds(run: Callable[[], object], count: int) -> float:
    """Returns the median time of a run."""
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def main() -> None:
    """Measures, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    bare = Bare()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save_same(path)
        here = Session(path, SessionOptions())
        opening = OnnxOpening("same", path, SessionOptions(), Confinement(), json_log=False)
        there = ProcessSession("same", opening, WorkerLimits(60))
        rows = []
        try:
            for placement, size in [(APART, size) for size in SIZES] + [(TOGETHER, size) for size in list(SIZES)[:2]]:
                place(placement, there.pid, bare.pid)
                count = SIZES[size]
                x = np.ones(size, np.float32)
                found: list[tuple[float, float, float]] = []
                for _ in range(arguments.rounds):
                    found.append(
                        (
                            microseconds(bare.run, count),
                            microseconds(lambda x=x: here.run(["y"], {"x": x}), count),  # type: ignore[misc]
                            microseconds(lambda x=x: there.run(["y"], {"x": x}), count),  # type: ignore[misc]
                        )
                    )
                trip, own, theirs = (statistics.median(column) for column in zip(*found, strict=True))
                cells = f"{trip:.1f} | {own:.1f} | {theirs:.1f} | {(theirs - own) / trip:.2f}"
                rows.append(f"| {placement} | {4 * size:,} | {cells} |")
                print(rows[-1], file=sys.stderr)
            parts = profile(opening, here, bare, arguments.rounds)
        finally:
            there.close()
            bare.close()
    lines = [
        "# A run in a worker process",
        "",
        f"Machine: {machine()}",
        "",
        "Medians in microseconds of a model that returns its input. A hop is the difference of the last two times.",
        "",
        "| processes on | bytes in, and out | bare round trip | in this process | in a worker | hop / round trip |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Where the time goes, with a core for each process. The parts are medians of their own, so they don't add up. "
        "The run in this process is one of many in a row: what runs after other code takes longer.",
        "",
        *parts,
        "",
        "Made by `python benchmarks/isolation.py`.",
        "",
    ]
    text = "\n".join(lines)
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    from benchmarks import isolation  # workers unpickle classes of this name

    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    isolation.main()
