"""What a run costs in a worker process: a hop beside a bare round trip of two eventfds, and runs of several sizes.

    python benchmarks/isolation.py [--rounds 7] [--output benchmarks/results/isolation.md]

A hop is the time of a run in a worker process less the time of the same run in this process. The bare round trip wakes
another process by an eventfd and is woken by it, in Python, with nothing between. All are measured in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save_model

sys.path.pop(0)  # this folder, whose grpc.py is not the package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_overhead import machine
from opgate.service.execution.session import Session, SessionOptions
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.opening import OnnxOpening
from opgate.service.isolation.session import ProcessSession

SIZES = {1: 2000, 1 << 10: 2000, 1 << 16: 1000, 1 << 20: 200, 1 << 23: 30}  # elements, and runs of a round


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

    def run(self) -> None:
        """Makes a round trip."""
        os.eventfd_write(self._rings, 1)
        os.eventfd_read(self._wakes)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


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
        there = ProcessSession("same", opening, 60)
        rows = []
        try:
            for size, count in SIZES.items():
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
                rows.append(f"| {4 * size:,} | {trip:.1f} | {own:.1f} | {theirs:.1f} | {(theirs - own) / trip:.2f} |")
                print(rows[-1], file=sys.stderr)
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
        "| bytes in, and out | bare round trip | in this process | in a worker process | hop / round trip |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Made by `python benchmarks/isolation.py`.",
        "",
    ]
    text = "\n".join(lines)
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
