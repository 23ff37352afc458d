"""What bounds the ops that don't reach their aims in benchmarks/results/ops.md.

    python benchmarks/op_bounds.py --output benchmarks/results/op_bounds.md

Measures what the profiles can't show: a call of one element, memory that is new against memory that was written before,
and how many digits an exact Gelu keeps. Everything runs on one thread, in turn, and medians are reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtr
from torch.nn import functional

import opgate.torch
from benchmarks.ops import ONE_THREAD, processor

ROUNDS = 9


def microseconds(call: Callable[[], object], least: float = 0.02) -> float:
    """Returns the time of one call, from as many calls as take `least` seconds."""
    times = 1
    while True:
        start = time.perf_counter()
        for _ in range(times):
            call()
        if (took := time.perf_counter() - start) > least:
            return took / times * 1e6
        times *= 2


def medians(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median time of each call in microseconds. The calls take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(microseconds(call))
    return {name: statistics.median(times) for name, times in found.items()}


def small_calls() -> Iterator[str]:
    """One element, so that only the call is left."""
    yield "## Small calls"
    yield ""
    yield "| PyTorch, one element of f32 | opgate, us | PyTorch's own, us |"
    yield "|---|---|---|"
    x = torch.ones(1)
    pairs = {
        "ClampedRelu": (opgate.torch.clamped_relu, functional.relu6),
        "Swish": (opgate.torch.swish, functional.silu),
        "Gelu": (opgate.torch.gelu, functional.gelu),
    }
    for name, (ours, theirs) in pairs.items():
        found = medians({"ours": lambda ours=ours: ours(x), "theirs": lambda theirs=theirs: theirs(x)})  # type: ignore[misc]
        yield f"| {name} | {found['ours']:.2f} | {found['theirs']:.2f} |"
    yield ""
    yield (
        "PyTorch calls an op of a library on its stable ABI through a stack of boxed values, its own operators without "
        "one. This difference is most of what the elementwise rows of 1 K lose."
    )


def memory() -> Iterator[str]:
    """16 Mi elements, into memory that the call gets anew and into memory that is there."""
    yield "## Large tensors"
    yield ""
    yield "| 16 M elements of f32 | us |"
    yield "|---|---|"
    x = torch.randn(1 << 24)
    y = torch.empty_like(x)
    found = medians(
        {
            "opgate's ClampedRelu": lambda: opgate.torch.clamped_relu(x),
            "PyTorch's relu6": lambda: functional.relu6(x),
            "the same into a tensor that is there": lambda: torch.clamp(x, 0, 6, out=y),
            "a copy into a tensor that is there": lambda: y.copy_(x),
            "a new tensor, written once": lambda: torch.empty_like(x).fill_(0),
            "a tensor that is there, written once": lambda: y.fill_(0),
        }
    )
    yield from (f"| {name} | {microseconds:.0f} |" for name, microseconds in found.items())
    new, old = found["a new tensor, written once"], found["a tensor that is there, written once"]
    ours = found["opgate's ClampedRelu"]
    yield ""
    yield (
        "PyTorch gives large tensors back to the system, so each call gets pages that the kernel clears first: "
        f"{new - old:.0f} us of the {ours:.0f}, whoever computes. That leaves no room for an aim of 1.5. ONNX Runtime "
        "keeps its memory, and there the share of the memory's bandwidth in ops.md says what is left."
    )


def digits() -> Iterator[str]:
    """Relative errors of an exact Gelu for negative numbers, against SciPy in f64."""
    yield "## Exact Gelu"
    yield ""
    yield "| greatest relative error, f32 | opgate | PyTorch |"
    yield "|---|---|---|"
    for low in (-3, -5, -12):
        x = torch.linspace(low, -0.001, 200_001)
        wide = x.double().numpy()
        exact = wide * ndtr(wide)
        errors = [
            float(np.abs(gelu(x).double().numpy() / exact - 1).max()) for gelu in (opgate.torch.gelu, functional.gelu)
        ]
        yield f"| {low} to 0 | {errors[0]:.1e} | {errors[1]:.1e} |"
    x = torch.randn(1 << 16)
    found = medians({"ours": lambda: opgate.torch.gelu(x), "theirs": lambda: functional.gelu(x)})
    yield ""
    yield (
        f"64 K elements take {found['ours']:.0f} us, and {found['theirs']:.0f} us in PyTorch, which loses the digits "
        "where Gelu is small. Ours keeps them: its polynomial is longer, and it carries the rest of the exponent along."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file for the page")
    arguments = parser.parse_args()
    torch.set_num_threads(int(ONE_THREAD["OMP_NUM_THREADS"]))
    with torch.inference_mode():
        lines = [
            "# What bounds the ops below their aims",
            "",
            f"{processor()}, one thread, torch {torch.__version__}. Medians of {ROUNDS} rounds. Made by "
            "`python benchmarks/op_bounds.py`. The rows and their profiles are in [ops.md](ops.md).",
            "",
            *small_calls(),
            "",
            *memory(),
            "",
            *digits(),
        ]
    page = "\n".join(lines) + "\n"
    if arguments.output:
        arguments.output.write_text(page)
    print(page, end="")


if __name__ == "__main__":
    main()
