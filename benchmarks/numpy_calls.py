"""What a call of an op on NumPy arrays costs: beside NumPy's own add, and beside a session of ONNX Runtime.

    python benchmarks/numpy_calls.py [--rounds 7] [--output benchmarks/results/numpy_calls.md]

The op is MyAdd, 2a + b, on one thread. A session has one node of the same op. For large arrays it prints the bytes
that are read and written in a second, and the memory that Python allocates in a call: the output alone, if nothing is
copied.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import opgate
import opgate.numpy
from benchmarks.serve_overhead import machine

SIZES = {4: 20_000, 1 << 10: 20_000, 1 << 16: 5_000, 1 << 20: 200, 1 << 24: 20}  # elements, and calls of a round

COLUMNS = (
    "elements",
    "`numpy.add`, us",
    "`opgate.numpy.my_add`, us",
    "a session, us",
    "of NumPy's time",
    "of the session's time",
    "NumPy, GB/s",
    "`opgate.numpy`, GB/s",
    "session, GB/s",
    "bytes beside the output",
)


def session_of_one_node() -> ort.InferenceSession:
    """Returns a session that computes 2a + b on one thread."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "aby"]
    graph = helper.make_graph(
        [helper.make_node("MyAdd", ["a", "b"], ["y"], domain="opgate")], "one", tensors[:2], tensors[2:]
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(opgate.op_library()))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def microseconds(call: Callable[[], object], count: int) -> float:
    """Returns the mean time of a call."""
    began = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - began) / count / 1000


def allocated(call: Callable[[], object]) -> int:
    """Returns the most bytes that Python and NumPy hold during a call beyond those from before."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    """Measures, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    session = session_of_one_node()
    opgate.numpy.set_num_threads(1)
    rows = []
    for size, count in SIZES.items():
        a, b = np.ones(size, np.float32), np.ones(size, np.float32)
        feeds = {"a": a, "b": b}
        calls: tuple[Callable[[], object], ...] = (
            lambda a=a, b=b: np.add(a, b),  # type: ignore[misc]
            lambda a=a, b=b: opgate.numpy.my_add(a, b),  # type: ignore[misc]
            lambda feeds=feeds: session.run(None, feeds),  # type: ignore[misc]
        )
        for call in calls:
            call()
        rounds = [[microseconds(call, count) for call in calls] for _ in range(arguments.rounds)]
        times = [statistics.median(column) for column in zip(*rounds, strict=True)]
        rates = [3 * a.nbytes / time / 1e3 for time in times]  # two arrays read, one written
        extra = allocated(calls[1]) - a.nbytes
        cells = [f"{size:,}", *(f"{each:,.1f}" for each in times)]
        cells += [f"{times[1] / times[0]:.2f}", f"{times[1] / times[2]:.2f}"]
        cells += [*(f"{rate:.1f}" for rate in rates), f"{extra:,}"]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr)
    lines = [
        "# Calls on NumPy arrays",
        "",
        f"Machine: {machine()}",
        "",
        f"2a + b of f32 on one thread, medians of {arguments.rounds} rounds. NumPy only adds. `opgate.numpy` and the",
        f"session of ONNX Runtime {ort.__version__} run the same kernel. GB/s are the bytes of two arrays read and one",
        "written. The last column has the bytes that a call allocates beside its output.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    text = "\n".join(lines)
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
