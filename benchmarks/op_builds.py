"""Every op at a small and a large size, on one thread of ONNX Runtime and PyTorch: microseconds a call.

    python benchmarks/op_builds.py [--against FOLDER] [--only OP ...] [--rounds 15] [--output FILE]

Measures the libraries in build/ops. With --against, they take turns with the libraries of another build, round by
round, so that both suffer alike from whatever else the machine does. The table then has the median of the ratios.
Each library runs in a process of its own. Small calls show what the core and the adapters cost, large ones show the
kernels. "100 nodes" is a model of 100 equal nodes in a row: it shows what a node costs apart from the engine's cost of
a run.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from opgate.ops_build.op_table import snake_case

BUILT = Path(__file__).parents[1] / "build" / "ops"
ENGINES = ("onnxruntime", "torch")
#: A round of calls lasts at least so long.
ROUND_SECONDS = 0.02

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Work:
    """One op on one set of inputs, by name; `chain` nodes one after the other where it is more than 1."""

    op: str
    size: str
    inputs: dict[str, Array | None]
    outputs: int
    attributes: dict[str, Any] = field(default_factory=dict)
    chain: int = 1


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)

    def floats(*shape: int, dtype: Any = np.float32) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    for op, names in (("LeakyRelu", "x"), ("Mish", "x"), ("MyAdd", "ab"), ("MishBackward", ("grad_y", "x"))):
        for size, count, dtype in (
            ("8", 8, np.float32),
            ("1 M", 1 << 20, np.float32),
            ("64 K f16", 1 << 16, np.float16),
        ):
            yield Work(op, size, {name: floats(count, dtype=dtype) for name in names}, 1)
    yield Work("LeakyRelu", "8, 100 nodes", {"x": floats(8)}, 1, chain=100)
    for size, rows, columns in (("1 x 64", 1, 64), ("4096 x 1024", 4096, 1024)):
        inputs = {"x": floats(rows, columns), "weight": floats(columns), "residual": floats(rows, columns)}
        yield Work("RMSNorm", size, inputs, 2)
    for size, n in (("16", 16), ("4096", 4096)):
        inputs = {"xyz": floats(n, 3), "offset": np.array([n], np.int32)}
        yield Work("KNNQuery", size, inputs, 2, {"nsample": 8})
    for size, n in (("16", 16), ("200 K", 200_000)):
        yield Work("Voxelize", size, {"points": 30 * floats(n, 4), "size": np.full(3, 0.5, np.float32)}, 3)
    for size, side, to in (("8 x 8", 8, 4), ("1280 x 960", 1280, 640)):
        image = rng.integers(0, 256, (1, side * 3 // 4, side, 3), dtype=np.uint8)
        yield Work("ResizeNormalize", size, {"image": image}, 1, {"height": to, "width": to})
    for size, anchors in (("16 anchors", 16), ("8400 anchors", 8400)):
        head = rng.random((1, 84, anchors), dtype=np.float32)
        head[:, 4:] **= 40
        head[:, :4] *= 640
        yield Work("DetectionPostprocess", size, {"head": head}, 4)
    for size, side, boxes in (("16 x 16", 16, 1), ("1920 x 1080", 1920, 20)):
        corners = np.sort(rng.random((boxes, 2, 2)), axis=1).reshape(boxes, 4) * np.tile((side, side * 9 // 16), 2)
        inputs = {
            "image": rng.integers(0, 256, (side * 9 // 16, side, 3), dtype=np.uint8),
            "boxes": corners.astype(np.float32),
            "scores": rng.random(boxes, dtype=np.float32),
            "labels": np.arange(boxes, dtype=np.int32) % 5,
        }
        yield Work("DrawBoundingBoxes", size, inputs, 1, {"names": ["one", "two", "three", "four", "five"]})
    yield from pictures()


def pictures() -> Iterator[Work]:
    from PIL import Image

    for size, side in (("32 x 24", 32), ("1280 x 960", 1280)):
        x = np.linspace(0, 1, side)[None, :, None]
        y = np.linspace(0, 1, side * 3 // 4)[:, None, None]
        wave = 0.5 + 0.25 * np.sin(40 * x + [0, 1, 2]) + 0.25 * np.cos(30 * y)
        pixels = (255 * wave).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        data = np.frombuffer(buffer.getvalue(), np.uint8)
        yield Work("DecodeImage", size, {"data": data}, 1)
        yield Work("EncodeImage", size, {"image": pixels}, 1)
        ends = np.array([len(data)], np.int32)
        yield Work("ImagePreprocess", size, {"data": data, "ends": ends}, 3, {"height": side // 2, "width": side // 2})


# One process for each library and engine.


def onnxruntime_call(library: Path, work: Work) -> Callable[[], object]:
    import onnxruntime as ort
    from onnx import helper

    names = [name if array is not None else "" for name, array in work.inputs.items()]
    values = []
    for name, array in work.inputs.items():
        if array is not None:
            values.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            )
    attributes = {k: "\n".join(v) if isinstance(v, list) else v for k, v in work.attributes.items()}
    nodes = []
    for index in range(work.chain):
        outputs = [f"y{i}" if index == work.chain - 1 else f"h{index}" for i in range(work.outputs)]
        given = names if index == 0 else [f"h{index - 1}"]
        nodes.append(helper.make_node(work.op, given, outputs, domain="opgate", **attributes))
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(work.outputs)]
    graph = helper.make_graph(nodes, work.op, values, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {name: array for name, array in work.inputs.items() if array is not None}
    return lambda: session.run(None, feeds)


def torch_call(library: Path, work: Work) -> Callable[[], object]:
    import torch

    torch.set_num_threads(1)
    register = ctypes.CDLL(str(library)).opgate_torch_register
    register.restype = ctypes.c_char_p
    if error := register():
        raise RuntimeError(error.decode())
    call = getattr(torch.ops.opgate, snake_case(work.op)).default
    tensors = [None if array is None else torch.from_numpy(np.array(array)) for array in work.inputs.values()]
    if work.chain == 1:
        return lambda: call(*tensors, **work.attributes)

    def chain() -> object:
        value = tensors[0]
        for _ in range(work.chain):
            value = call(value)
        return value

    return chain


def serve(pipe: Connection, engine: str, library: Path) -> None:
    """Answers each (work, calls) with the seconds that so many calls took; None for a work that failed."""
    made: dict[tuple[str, str], Callable[[], object]] = {}
    while (asked := pipe.recv()) is not None:
        work, calls = asked
        key = (work.op, work.size)
        try:
            if key not in made:
                made[key] = {"onnxruntime": onnxruntime_call, "torch": torch_call}[engine](library, work)
            call = made[key]
            start = time.perf_counter()
            for _ in range(calls):
                call()
            pipe.send(time.perf_counter() - start)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


class Timer:
    """A process that runs the ops of one library in one engine."""

    def __init__(self, engine: str, library: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, engine, library), daemon=True)
        self._process.start()

    def seconds(self, work: Work, calls: int) -> float:
        """The time of `calls` calls."""
        self._pipe.send((work, calls))
        answer: float | str = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"{work.op} {work.size}: {answer}")
        return answer

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def compare(timers: list[Timer], work: Work, rounds: int) -> list[list[float]]:
    """For each timer the microseconds a call, round by round."""
    calls = 1
    while timers[0].seconds(work, calls) < ROUND_SECONDS and calls < 1 << 16:
        calls *= 2
    times: list[list[float]] = [[] for _ in timers]
    for turn in range(rounds + 1):
        for timer, found in zip(timers, times, strict=True):
            seconds = timer.seconds(work, calls)
            if turn:  # the first round warms up
                found.append(1e6 * seconds / calls)
    return times


def table(arguments: argparse.Namespace) -> Iterator[str]:
    against: Path | None = arguments.against
    other = " before | now / before |" if against else ""
    yield f"| op | size | engine | now, us |{other}"
    yield "|---" * (6 if against else 4) + "|"
    for engine in ENGINES:
        file = f"libopgate_{engine}.so"
        timers = [Timer(engine, folder / file) for folder in (BUILT, against) if folder and (folder / file).is_file()]
        for work in works():
            if arguments.only and work.op not in arguments.only:
                continue
            times = compare(timers, work, arguments.rounds)
            row = f"| {work.op} | {work.size} | {engine} | {statistics.median(times[0]):.2f} |"
            if len(times) == 2:
                ratio = statistics.median(now / before for now, before in zip(*times, strict=True))
                row += f" {statistics.median(times[1]):.2f} | {ratio:.2f} |"
            yield row
            print(row, file=sys.stderr, flush=True)
        for timer in timers:
            timer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="folder of another build's libraries")
    parser.add_argument("--only", nargs="+", metavar="OP", help="time these ops alone")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, help="file for the table, in Markdown")
    arguments = parser.parse_args()
    lines = [
        "# The ops, small and large",
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load average "
        f"{os.getloadavg()[0]:.1f} at the start. One thread, medians of {arguments.rounds} rounds. Made by "
        "`python benchmarks/op_builds.py`.",
        "",
        *table(arguments),
    ]
    text = "\n".join(lines) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
