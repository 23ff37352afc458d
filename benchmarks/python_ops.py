"""Ops that are written in Python against the same ops in C++, on one thread of the CPU.

    python benchmarks/python_ops.py [--rounds 9] [--output benchmarks/results/python_ops.md]

Builds the op.py files of tests/ops_build/python_ops and calls each op of them in ONNX Runtime beside the op of the
table, in turns. The ratio is the median over the rounds of the time in C++ divided by that of the Python form: at 1
they are equally fast.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildOptions, out_of_tree
from opgate.ops_build.case import Case
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_table import Op, read_table

FOLDER = Path(__file__).parents[1] / "tests" / "ops_build" / "python_ops"
SIZES = {"64 K": 1 << 16, "16 M": 1 << 24}
ROUND_SECONDS = 0.02


def call_of(op: Op, library: Path, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(library))
    one = one_node_model(op, Case("", inputs), dict.fromkeys(op.type_variables, "f32"))
    session = ort.InferenceSession(one.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    for name, array in one.feeds.items():
        bound.bind_cpu_input(name, array)
    outputs = {output.name: np.empty_like(next(iter(one.feeds.values()))) for output in session.get_outputs()}
    for name, array in outputs.items():
        bound.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def call() -> object:
        session.run_with_iobinding(bound)
        return outputs

    return call


def seconds(call: Callable[[], object], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def rows(rounds: int, ours: dict[str, Op], theirs: dict[str, Op], libraries: tuple[Path, Path]) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for name in sorted(ours.keys() & theirs.keys()):
        for label, count in SIZES.items():
            inputs = {t.name: (3 * rng.standard_normal(count)).astype(np.float32) for t in ours[name].inputs}
            names = [t.name for t in theirs[name].inputs]
            if set(names) != set(inputs):
                inputs |= {n: rng.standard_normal(count).astype(np.float32) for n in names if n not in inputs}
            calls = [
                call_of(op, library, {t.name: inputs[t.name] for t in op.inputs})
                for op, library in zip((ours[name], theirs[name]), libraries, strict=True)
            ]
            times = max(1, int(ROUND_SECONDS / seconds(calls[0], 1)))
            found = [[seconds(call, times) for call in calls] for _ in range(rounds)]
            python, cpp = (statistics.median(each) for each in zip(*found, strict=True))
            ratio = statistics.median(b / a for a, b in found)
            line = f"| {name} | {label} | {1e6 * python:.1f} | {1e6 * cpp:.1f} | {ratio:.2f} |"
            print(line, flush=True)
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    library = BuildOptions().library()
    with tempfile.TemporaryDirectory() as folder:
        options = replace(
            out_of_tree(FOLDER, Path(folder)), engines=("onnxruntime",), cuda="", arch="native", domain="python_ops"
        )
        build(options, lambda line: None)
        tables = [{op.name: op for op in read_table(path)} for path in (options.library(), library)]
        found = [*rows(arguments.rounds, tables[0], tables[1], (options.library(), library))]
    page = [
        "# Ops in Python and in C++",
        "",
        f"{platform.machine()}, one thread, f32, onnxruntime {ort.__version__}, load average {os.getloadavg()[0]:.1f} "
        f"at the end. Medians of {arguments.rounds} rounds.",
        "",
        "Made by `python benchmarks/python_ops.py`, which says what the columns mean.",
        "",
        "| op | elements | op.py, us | C++, us | ratio |",
        "|---|---|---|---|---|",
        *found,
    ]
    if arguments.output:
        arguments.output.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
