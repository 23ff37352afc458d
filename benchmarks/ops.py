"""Each op at three sizes against the best of what a user would call instead, on one thread of the CPU.

    python benchmarks/ops.py [--only OP ...] [--rounds 11] [--profile] [--output benchmarks/results/ops.md]

All calls of a row take turns in one process, so that whatever else the machine does slows all of them alike. A ratio is
the median over the rounds of the other's time divided by the op's: above 1 the op is faster. The decomposition is the
op in standard ONNX operators. The share is how near the op comes to the machine's limit, which is measured first: how
fast torch copies memory, or multiplies matrices. A peer that isn't installed ends the benchmark. Writes a plot beside
the table. The aim is the ratio to the best peer that the op should reach. --profile says, for the rows below their
aims, in which functions the op spends its time (needs perf).
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks import op_works
from benchmarks.op_works import Array, Call, Work
from opgate.ops_build.adapters.torch.engine import case_arguments
from opgate.ops_build.adapters.torch.names import overload
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.decompose import decompose
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op, cpu_level, read_table

#: One thread for every library. They read this when they are loaded.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: The calls of a round take at least so long.
ROUND_SECONDS = 0.01
#: A work whose tensors are smaller than this stays in the caches, and the memory's bandwidth says nothing about it.
OUT_OF_CACHE = 32 << 20
#: The ratio to the best peer that an op should reach. That of all other ops is 1.
AIMS = {
    **dict.fromkeys(["ClampedRelu", "Gelu", "LeakyRelu", "Mish", "MyAdd", "Swish"], 1.5),
    **dict.fromkeys(["GeluBackward", "MishBackward", "SwishBackward", "LogMelSpectrogram"], 1.5),
    **dict.fromkeys(["MultiClassNMS", "MultiScaleDeformableAttention", "NMSRotated", "SoftNMS", "TopKLabels"], 3.0),
    "Asinh": 4.0,
    "BevPoolV2": 10.0,
    "DeformConv2d": 2.0,
    "GridCluster": 8.0,
    "ImagePreprocess": 2.0,
    "KNNQuery": 1.3,
    "Voxelize": 3.0,
}


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a work: microseconds and ratios, and in which functions the op spends which share of its time."""

    work: Work
    onnxruntime: float
    torch: float
    share: float | None
    ratios: Mapping[str, float]
    decomposition: float | None
    profile: tuple[tuple[float, str], ...] = ()

    @property
    def aim(self) -> float:
        return AIMS.get(self.work.op, 1.0)

    @property
    def best(self) -> tuple[str, float]:
        """The peer that is the fastest beside the op."""
        return min(self.ratios.items(), key=lambda item: item[1])


def works() -> Iterator[Work]:
    for module in sorted(pkgutil.iter_modules(op_works.__path__), key=lambda module: module.name):
        yield from importlib.import_module(f"benchmarks.op_works.{module.name}").works()


def session_call(model: Any, feeds: Mapping[str, Any], library: Path | None) -> Call:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if library:
        options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def types_of(op: Op, inputs: Mapping[str, Array]) -> dict[str, str]:
    """Returns the dtypes of the type variables that inputs have."""
    names = {dtype.numpy: dtype.name for dtype in DTYPES.values()}
    return {t.type: names[inputs[t.name].dtype] for t in op.inputs if t.type in op.type_variables and t.name in inputs}


def calls_of(work: Work, op: Op, library: Path) -> dict[str, tuple[str, Call]]:
    """Returns the engine and the call of everything that is measured for a work, by name. The op itself is
    "onnxruntime" and "torch"."""
    case = Case(work.size, work.inputs, work.attributes)
    types = {**types_of(op, work.inputs), **work.types}
    functions = list(functions_of(op))
    name, returned = functions[-1] if work.required_only else functions[0]
    function = overload(op, name)
    one = one_node_model(returned, case, types)
    arguments = case_arguments(op, case, types)
    positional = [arguments.pop(tensor.name, None) for tensor in op.inputs]
    calls: dict[str, tuple[str, Call]] = {
        "onnxruntime": ("onnxruntime", session_call(one.model, one.feeds, library)),
        "torch": ("torch", lambda: function(*positional, **arguments)),
    }
    decomposed = work.decomposed and "bf16" not in types.values()
    if decomposed and folder_of(op, [SOURCE / "ops"]).has_decomposition:
        decompose(one.model, [op], [SOURCE / "ops"])
        calls["decomposition"] = ("onnxruntime", session_call(one.model, one.feeds, None))
    tensors = dict(zip([tensor.name for tensor in op.inputs], positional, strict=True))
    for peer in work.peers:
        inputs = tensors if peer.engine == "torch" else work.inputs
        engine = "onnxruntime" if peer.engine == "library" else peer.engine
        calls[peer.name] = (engine, peer.make(inputs))
    return calls


def seconds_of(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - start


def interleaved(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of one call, by name and round."""
    times = {}
    for name, call in calls.items():
        call()
        times[name] = 1
        while seconds_of(call, times[name]) < ROUND_SECONDS:
            times[name] *= 2
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(seconds_of(calls[name], times[name]) / times[name])
    return found


def measure(work: Work, op: Op, library: Path, rounds: int, limits: tuple[float, float], with_profile: bool) -> Row:
    calls = calls_of(work, op, library)
    outputs = [np.asarray(output) for output in calls["onnxruntime"][1]()]  # type: ignore[attr-defined]
    found = interleaved({name: call for name, (_, call) in calls.items()}, rounds)

    def ratio(name: str) -> float:
        ours = found[calls[name][0]]
        return statistics.median(other / own for other, own in zip(found[name], ours, strict=True))

    own = min(statistics.median(found["onnxruntime"]), statistics.median(found["torch"]))
    moved = work.moved
    if moved is None:
        moved = sum(array.nbytes for array in (*work.inputs.values(), *outputs))
    share = None
    if work.flops is not None:
        share = work.flops / own / limits[1]
    elif moved > OUT_OF_CACHE:
        share = moved / own / limits[0]
    row = Row(
        work,
        1e6 * statistics.median(found["onnxruntime"]),
        1e6 * statistics.median(found["torch"]),
        share,
        {peer.name: ratio(peer.name) for peer in work.peers},
        ratio("decomposition") if "decomposition" in calls else None,
    )
    best, reached = row.best
    return replace(row, profile=profile(calls[calls[best][0]][1])) if with_profile and reached < row.aim else row


def profile(call: Call, seconds: float = 1.5) -> tuple[tuple[float, str], ...]:
    """Returns in which functions a call spends 5% of its time or more: the share and the function, by perf."""
    with tempfile.TemporaryDirectory() as folder:
        record = [
            "perf",
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            "1999",
            "-o",
            f"{folder}/data",
            "-p",
            str(os.getpid()),
        ]
        recording = subprocess.Popen(record, stderr=subprocess.DEVNULL)
        time.sleep(0.2)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            call()
        recording.send_signal(signal.SIGINT)
        recording.wait()
        report = ["perf", "report", "-i", f"{folder}/data", "--stdio", "--no-children", "-F", "overhead,symbol"]
        lines = subprocess.run([*report, "--percent-limit", "5"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *([0-9.]+)%  \[.\] (.*?) *$", lines, re.MULTILINE)
    return tuple((float(share) / 100, short(name)) for share, name in found)


def short(function: str) -> str:
    """Returns the name of a C++ function without namespaces, types of arguments and arguments of templates."""
    name = re.sub(r"\(anonymous namespace\)::|\boperator\(\)|\bopgate::|\bops::", "", function)
    while (bare := re.sub(r"<[^<>]*>|\([^()]*\)( const)?", "", name)) != name:
        name = bare
    return name.split(" ")[-1].strip(":").replace("::::", "::")


def limits_of_machine() -> tuple[float, float]:
    """Returns the bytes per second that a copy reads and writes, and the operations per second of a product of two
    matrices, on one thread."""
    source, target = torch.ones(1 << 26), torch.empty(1 << 26)
    a = torch.ones(1024, 1024)
    copies = [seconds_of(lambda: target.copy_(source), 1) for _ in range(9)]
    products = [seconds_of(lambda: a @ a, 1) for _ in range(9)]
    return 2 * source.nbytes / statistics.median(copies), 2 * 1024**3 / statistics.median(products)


def check_peers(all_works: list[Work]) -> dict[str, str]:
    """Returns the versions of the packages of all peers. Ends the benchmark if one is missing."""
    versions, missing = {}, []
    for package in sorted(
        {"numpy", "onnxruntime", "torch"} | {peer.package for work in all_works for peer in work.peers}
    ):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        sys.exit(
            f"benchmarks/ops.py: not installed: {', '.join(missing)}. pip install '.[cpu,torch,bench]' brings them"
        )
    return versions


def processor() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def table(rows: list[Row]) -> Iterator[str]:
    yield "| op | size | ONNX Runtime, us | torch, us | share | best peer | ratio | aim | other peers | decomposition |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        best, ratio = row.best
        others = ", ".join(f"{name} {value:.2f}" for name, value in row.ratios.items() if name != best)
        share = "" if row.share is None else f"{row.share:.0%}"
        decomposition = "" if row.decomposition is None else f"{row.decomposition:.2f}"
        yield (
            f"| {row.work.op} | {row.work.size} | {row.onnxruntime:.1f} | {row.torch:.1f} | {share} | {best} "
            f"| **{ratio:.2f}** | {row.aim:g} | {others} | {decomposition} |"
        )


def profiles(rows: list[Row]) -> Iterator[str]:
    """Yields the lines about the rows below their aims."""
    below = [row for row in rows if row.best[1] < row.aim]
    yield f"{len(rows) - len(below)} of {len(rows)} rows reach their aims."
    if any(row.profile for row in below):
        yield ""
        yield "Where the op spends its time in the rows below their aims, by perf:"
        yield ""
        yield "| op | size | ratio | aim | functions |"
        yield "|---|---|---|---|---|"
        for row in below:
            functions = ", ".join(f"{share:.0%} {name}" for share, name in row.profile)
            yield f"| {row.work.op} | {row.work.size} | {row.best[1]:.2f} | {row.aim:g} | {functions} |"


def plot(rows: list[Row], file: Path) -> None:
    import matplotlib.pyplot as plt

    plt.switch_backend("svg")
    figure, axes = plt.subplots(figsize=(9, 0.22 * len(rows) + 1.2), layout="constrained")
    labels = [f"{row.work.op} {row.work.size}" for row in rows]
    ratios = [row.best[1] for row in rows]
    axes.barh(
        range(len(rows)), [ratio - 1 for ratio in ratios], left=1, color=["#2a7" if r >= 1 else "#c54" for r in ratios]
    )
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("the best peer's time divided by the op's: to the right of 1 the op is faster")
    axes.margins(y=0.005)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="OP", help="measure these ops alone")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--profile", action="store_true", help="profile the op in the rows below their aims")
    parser.add_argument("--output", type=Path, help="file for the table in Markdown; the plot lies beside it")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != count for name, count in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    torch.set_num_threads(1)
    library = BuildOptions().library()
    importlib.import_module("opgate.torch")
    table_of_ops = {op.name: op for op in read_table(library)}
    chosen = [work for work in works() if not arguments.only or work.op in arguments.only]
    versions = check_peers(chosen)
    limits = limits_of_machine()
    rows: list[Row] = []

    def page() -> str:
        named = ", ".join(f"{name} {number}" for name, number in versions.items())
        done = "" if len(rows) == len(chosen) else f" It stopped after {len(rows)} of {len(chosen)} rows."
        lines = [
            "# The ops against what a user would call instead",
            "",
            f"{processor()}, {os.cpu_count()} cores, one thread, kernels for {cpu_level(library)}, Python "
            f"{platform.python_version()}, {named}. Load average {os.getloadavg()[0]:.1f} at the end. Medians of "
            f"{arguments.rounds} rounds.{done}",
            "",
            f"A copy of memory moves {limits[0] / 1e9:.1f} GB/s, a product of matrices makes {limits[1] / 1e9:.0f} "
            "GFLOP/s.",
            "",
            f"Made by `python {shlex.join(sys.argv)}`, which says what the columns mean.",
            "",
            *([f"![ratios]({arguments.output.with_suffix('.svg').name})", ""] if arguments.output else []),
            *table(rows),
            "",
            *profiles(rows),
        ]
        return "\n".join(lines) + "\n"

    try:
        with torch.inference_mode():
            for work in chosen:
                rows.append(measure(work, table_of_ops[work.op], library, arguments.rounds, limits, arguments.profile))
                torch.compiler.reset()
                name, ratio = rows[-1].best
                print(
                    f"{len(rows)}/{len(chosen)} {work.op} {work.size}: {ratio:.2f} of {name}",
                    file=sys.stderr,
                    flush=True,
                )
                if arguments.output:
                    arguments.output.write_text(page())
    except KeyboardInterrupt:
        print(f"stopped after {len(rows)} of {len(chosen)} rows", file=sys.stderr)
    if arguments.output:
        plot(rows, arguments.output.with_suffix(".svg"))
    print(page(), end="")


if __name__ == "__main__":
    main()
