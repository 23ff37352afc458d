"""Ops that are written in Python against the same ops in C++, on one thread of the CPU.

    python benchmarks/python_ops.py [--rounds 9] [--output benchmarks/results/python_ops.md]

Builds the op.py files of tests/ops_build/python_ops and calls each op of them in ONNX Runtime beside the op of the
table, in turns. The ratio is the median over the rounds of the time in C++ divided by that of the Python form: at 1
they are equally fast. Ops over rows have 1024 columns.
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
from opgate.ops_build.op_table import Input, Op, read_table

FOLDER = Path(__file__).parents[1] / "tests" / "ops_build" / "python_ops"
SIZES = {"64 K": 1 << 16, "16 M": 1 << 24}
#: The columns of ops over rows.
COLUMNS = 1024
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
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, one.feeds), strict=True))
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


def shape_of(tensor: Input, count: int) -> tuple[int, ...]:
    """Returns the shape of an input with `count` elements, or of one with one for each column."""
    if [dim["kind"] for dim in tensor.dims] == ["ellipsis"]:
        return (count,)
    return (count // COLUMNS, COLUMNS) if tensor.dims[0]["kind"] == "ellipsis" else (COLUMNS,)


def rows(rounds: int, ours: dict[str, Op], theirs: dict[str, Op], libraries: tuple[Path, Path]) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for name in sorted(ours.keys() & theirs.keys()):
        for label, count in SIZES.items():
            tensors = {t.name: t for t in (*ours[name].inputs, *theirs[name].inputs)}
            tensors = {n: t for n, t in tensors.items() if n not in ("residual", "grad_sum")}
            inputs = {n: (3 * rng.standard_normal(shape_of(t, count))).astype(np.float32) for n, t in tensors.items()}
            cpp = replace(theirs[name], outputs=theirs[name].outputs[: len(ours[name].outputs)])
            calls = [
                call_of(op, library, {t.name: inputs[t.name] for t in op.inputs if t.name in inputs})
                for op, library in zip((ours[name], cpp), libraries, strict=True)
            ]
            times = max(1, int(ROUND_SECONDS / seconds(calls[0], 1)))
            found = [[seconds(call, times) for call in calls] for _ in range(rounds)]
            python, c = (statistics.median(each) for each in zip(*found, strict=True))
            ratio = statistics.median(b / a for a, b in found)
            line = f"| {name} | {label} | {1e6 * python:.1f} | {1e6 * c:.1f} | {ratio:.2f} |"
            print(line, flush=True)
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="ops whose names have this")
    parser.add_argument("--library", type=Path, default=BuildOptions().library(), help="that of the table")
    arguments = parser.parse_args()
    library = arguments.library
    with tempfile.TemporaryDirectory() as folder:
        options = replace(
            out_of_tree(FOLDER, Path(folder)), engines=("onnxruntime",), cuda="", arch="native", domain="python_ops"
        )
        build(options, lambda line: None)
        tables = [
            {op.name: op for op in read_table(path) if arguments.only in op.name}
            for path in (options.library(), library)
        ]
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
