"""Ops that are written in Python against the same ops in C++ and C, on one thread of the CPU.

    python benchmarks/python_ops.py [--rounds 9] [--output benchmarks/results/python_ops.md]

Builds the op.py files of tests/ops_build/python_ops and calls each op of them in ONNX Runtime beside the op of the
table, in turns. The ratio is the median over the rounds of the time in C++ divided by that of the Python form: at 1
they are equally fast. Ops over rows have 1024 columns.

Then the loops of tests/ops_build/loop_ops beside the same loops in C (benchmarks/c_loops), what a call costs whose
kernel is a NumPy function, what an author writes for one op, and, where Triton is installed, the cubins of a kernel.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildOptions, out_of_tree
from opgate.ops_build.case import Case
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_table import Input, Op, read_table

TESTS = Path(__file__).parents[1] / "tests" / "ops_build"
FOLDER = TESTS / "python_ops"
SIZES = {"64 K": 1 << 16, "16 M": 1 << 24}
#: The columns of ops over rows.
COLUMNS = 1024
ROUND_SECONDS = 0.02


def call_of(
    op: Op, library: Path, inputs: dict[str, np.ndarray], attributes: Mapping[str, object] = {}
) -> Callable[[], object]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(library))
    one = one_node_model(op, Case("", inputs, attributes), dict.fromkeys(op.type_variables, "f32"))
    session = ort.InferenceSession(one.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    feeds = {name: placed(array, 0) for name, array in one.feeds.items()}
    for name, array in feeds.items():
        bound.bind_cpu_input(name, array)
    names = [output.name for output in session.get_outputs()]
    outputs = {name: placed(array, 2048) for name, array in zip(names, session.run(names, feeds), strict=True)}
    for name, array in outputs.items():
        bound.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def call() -> object:
        session.run_with_iobinding(bound)
        return feeds, outputs

    return call


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """Returns a copy of an array that begins so many bytes behind a page. Where an output begins as an input does, a
    load waits for a store 4096 bytes before it, and the time says where arrays lie."""
    page = 4096
    memory = np.empty(array.nbytes + 2 * page, np.uint8)
    begin = -memory.ctypes.data % page + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


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
            python, c, ratio = beside(rounds, calls)
            line = f"| {name} | {label} | {1e6 * python:.1f} | {1e6 * c:.1f} | {ratio:.2f} |"
            print(line, flush=True)
            yield line


def built(folder: Path, output: Path) -> tuple[dict[str, Op], Path]:
    """Builds the ops of a folder for this processor. Returns them with their library."""
    options = replace(out_of_tree(folder, output), engines=("onnxruntime",), cuda="", arch="native")
    build(options, lambda line: None)
    return {op.name: op for op in read_table(options.library())}, options.library()


def in_c(folder: Path) -> Path:
    """Writes the ops of the loops with kernels in C, and returns their folder."""
    for source in (Path(__file__).parent / "c_loops").glob("*.c"):
        name = source.stem
        text = (TESTS / "loop_ops" / name / "op.py").read_text()
        before, _, after = text.partition(f"@{name}.loop(")
        after = after[after.index(f"\n@{name}.") :]
        text = re.sub(r"<T: [^>]*>", "<T: f32>", before) + f'{name}.c_kernel("{name}")\n' + after
        (folder / "in_c" / name).mkdir(parents=True)
        (folder / "in_c" / name / "op.py").write_text(text)
        (folder / "in_c" / name / source.name).write_text(source.read_text())
    return folder / "in_c"


def beside(rounds: int, calls: list[Callable[[], object]]) -> tuple[float, float, float]:
    """Returns the median seconds of two calls, in turns, and the median of the second divided by the first."""
    times = max(1, int(ROUND_SECONDS / seconds(calls[0], 1)))
    found = [[seconds(call, times) for call in calls] for _ in range(rounds)]
    first, second = (statistics.median(each) for each in zip(*found, strict=True))
    return first, second, statistics.median(b / a for a, b in found)


def loops(rounds: int, folder: Path) -> Iterator[str]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal
    jobs = {
        "Nearest": ("2000 of 2000 x 32", [normal((2000, 32)), normal((2000, 32))], {}),
        "Repeated": ("200 K runs, 1.9 M values", [normal(200_000), rng.integers(0, 20, 200_000)], {"most": 10_000_000}),
        "CtcGreedy": ("20,000 frames of 80", [normal((20_000, 80))], {}),
    }
    python, python_library = built(TESTS / "loop_ops", folder / "python")
    c, c_library = built(in_c(folder), folder / "c")
    for name, (what, arrays, attributes) in jobs.items():
        calls = []
        for ops, library in ((python, python_library), (c, c_library)):
            op = ops[name]
            floats = [array.astype(np.float32) if array.dtype.kind == "f" else array for array in arrays]
            inputs = {tensor.name: array for tensor, array in zip(op.inputs, floats, strict=True)}
            calls.append(call_of(op, library, inputs, attributes))
        loop, in_c_too, ratio = beside(rounds, calls)
        line = f"| {name} | {what} | {1e6 * loop:.0f} | {1e6 * in_c_too:.0f} | {ratio:.2f} |"
        print(line, flush=True)
        yield line


def numpy_call(rounds: int, folder: Path) -> str:
    """Returns what a call of ClampAdd on four numbers costs: as a NumPy function, and compiled from a formula."""
    plain, plain_library = built(TESTS / "numpy_ops", folder / "numpy")
    (folder / "compiled" / "clamp_add").mkdir(parents=True)
    text = (TESTS / "numpy_ops" / "clamp_add" / "op.py").read_text() + "\n\nclamp_add.formula()\n"
    (folder / "compiled" / "clamp_add" / "op.py").write_text(text.replace(".astype(a.dtype)", ""))
    formula, formula_library = built(folder / "compiled", folder / "formula")
    inputs = {name: np.ones(4, np.float32) for name in "ab"}
    calls = [
        call_of(ops["ClampAdd"], library, inputs)
        for ops, library in ((plain, plain_library), (formula, formula_library))
    ]
    python, compiled, _ = beside(rounds, calls)
    return (
        f"A run of ClampAdd on four numbers in ONNX Runtime takes {1e6 * python:.1f} us if its kernel is a NumPy "
        f"function, and {1e6 * compiled:.1f} us compiled from a formula."
    )


def written() -> Iterator[str]:
    """Yields what an author writes for an op: files and lines that are not empty."""
    table = BuildOptions().ops[0] / "clamped_relu"
    forms = {
        "ClampedRelu of the table: C++, NumPy, cases": [
            table / f for f in ("clamped_relu.h", "reference.py", "cases.py")
        ],
        "ClampedRelu in op.py, a formula, with those cases": [FOLDER / "clamped_relu" / "op.py"],
        "ClampAdd in op.py, a NumPy function": [TESTS / "numpy_ops" / "clamp_add" / "op.py"],
        "ClampAdd in op.py, a formula, and a kernel in Triton": [TESTS / "triton_ops" / "clamp_add" / "op.py"],
        "Nearest in op.py, NumPy, cases and a loop": [TESTS / "loop_ops" / "nearest" / "op.py"],
    }
    for form, files in forms.items():
        lines = sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())
        yield f"| {form} | {len(files)} | {lines} |"


def cubins() -> Iterator[str]:
    try:
        import triton  # noqa: F401
    except ImportError:
        yield "Triton was not installed."
        return
    from opgate.ops_build.op_folder import OpFolder
    from opgate.ops_build.python_ops.triton_kernel import compiled

    yield "| kernel | dtype | compute capability | bytes, aligned | bytes, not aligned | shared memory | warps |"
    yield "|---|---|---|---|---|---|---|"
    for name in ("clamp_add", "row_softmax"):
        file = OpFolder(TESTS / "triton_ops" / name).op_file
        assert file is not None and file.python.triton_kernel is not None
        found = compiled(file.op, file.python.triton_kernel)
        for one in (each for each in found if each.aligned):
            other = next(
                each
                for each in found
                if not each.aligned and (each.types, each.architecture) == (one.types, one.architecture)
            )
            capability = f"{one.architecture // 10}.{one.architecture % 10}"
            sizes = f"{len(one.image)} | {len(other.image)}"
            yield f"| {name} | {', '.join(one.types.values())} | {capability} | {sizes} | {one.shared} | {one.warps} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="ops whose names have this")
    parser.add_argument("--library", type=Path, default=BuildOptions().library(), help="that of the table")
    arguments = parser.parse_args()
    library = arguments.library
    with tempfile.TemporaryDirectory() as folder:
        python, python_library = built(FOLDER, Path(folder) / "formulas")
        tables = [
            {name: op for name, op in table.items() if arguments.only in name}
            for table in (python, {op.name: op for op in read_table(library)})
        ]
        found = [*rows(arguments.rounds, tables[0], tables[1], (python_library, library))]
        in_loops = [*loops(arguments.rounds, Path(folder))]
        of_numpy = numpy_call(arguments.rounds, Path(folder))
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
        "",
        "## Loops",
        "",
        "| op | what | loop in Python, us | in C, us | ratio |",
        "|---|---|---|---|---|",
        *in_loops,
        "",
        "## A call of a NumPy function",
        "",
        of_numpy,
        "",
        "## What an author writes",
        "",
        "Lines that are not empty, for every engine. For one engine each, and without cases, such an op takes 4 lines "
        "as a PyOp of onnxruntime-extensions, 28 as a plugin in Python for TensorRT, and 32 as a kernel for Hugging "
        "Face's kernels, by their documentation.",
        "",
        "| form | files | lines |",
        "|---|---|---|",
        *written(),
        "",
        "## Cubins of kernels in Triton",
        "",
        *cubins(),
    ]
    if arguments.output:
        arguments.output.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
