"""Compares ImagePreprocess with Pillow, OpenCV and simplejpeg: how fast they turn JPEG bytes into the input of a model.

    python benchmarks/image_preprocess.py [--rounds 40] [--library build/ops/libopgate_onnxruntime.so]

Prints a table of medians. All candidates do the same work on one thread: decode, letterbox by bilinear interpolation,
scale to 0..1, store as f32 planes. A library that can decode at a reduced size has another row for that. A library that
isn't installed has no row. The candidates take turns in rounds, so that other work of the machine slows all of them
alike. For the batch, ONNX Runtime uses every core. The last rows compare the filters that equal Pillow's and OpenCV's
with those, and their letterboxes must be equal.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from PIL import Image

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import flat, scene
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_table import read_table

Work = Callable[[], object]
PAD = 114


def photograph(width: int, height: int) -> bytes:
    """Returns a JPEG of a photograph from scikit-image, or of a noisy scene that is about as hard to decode."""
    if importlib.util.find_spec("skimage"):
        from skimage import data

        image = Image.fromarray(data.rocket()).resize((width, height), Image.Resampling.BICUBIC)
    else:
        image = Image.fromarray(scene(width, height))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def session(library: Path, side: int, threads: int, **attributes: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(library.resolve()))
    op = next(op for op in read_table(library) if op.name == "ImagePreprocess")
    data, ends = flat([b""])
    case = Case("model", {"data": data, "ends": ends}, {"height": side, "width": side, **attributes})
    return ort.InferenceSession(one_node_model(op, case, {}, static=False).model.SerializeToString(), options)


def box(width: int, height: int, side: int) -> tuple[int, int, int, int]:
    ratio = min(side / width, side / height)
    scaled = (max(1, int(width * ratio + 0.5)), max(1, int(height * ratio + 0.5)))
    return *scaled, (side - scaled[0]) // 2, (side - scaled[1]) // 2


def with_pillow(encoded: bytes, side: int, draft: bool, resampling: int = Image.Resampling.BILINEAR) -> Array:
    image = Image.open(io.BytesIO(encoded))
    width, height, left, top = box(*image.size, side)
    if draft:
        image.draft("RGB", (width, height))
    canvas = Image.new("RGB", (side, side), (PAD, PAD, PAD))
    canvas.paste(image.resize((width, height), resampling), (left, top))
    return np.ascontiguousarray(np.asarray(canvas).transpose(2, 0, 1), np.float32) / 255


def opencv_tail(image: Array, width: int, height: int, side: int, interpolation: int = 1) -> Array:
    import cv2

    new_width, new_height, left, top = box(width, height, side)
    resized = cv2.resize(image, (new_width, new_height), interpolation=interpolation)
    borders = (top, side - new_height - top, left, side - new_width - left)
    padded = cv2.copyMakeBorder(resized, *borders, cv2.BORDER_CONSTANT, value=(PAD, PAD, PAD))
    blob: Array = cv2.dnn.blobFromImage(padded, 1 / 255, swapRB=True)
    return blob


def with_opencv(encoded: bytes, side: int, size: tuple[int, int], reduction: int, interpolation: int = 1) -> Array:
    import cv2

    flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags[reduction])
    return opencv_tail(image, *size, side, interpolation)


def with_simplejpeg(encoded: bytes, side: int, size: tuple[int, int], reduced: bool) -> Array:
    import simplejpeg

    width, height, *_ = box(*size, side)
    least = {"min_width": width, "min_height": height, "min_factor": 1} if reduced else {}
    return opencv_tail(simplejpeg.decode_jpeg(encoded, "BGR", **least), *size, side)


def candidates(library: Path, encoded: bytes, size: tuple[int, int], side: int) -> dict[str, Work]:
    one = session(library, side, 1)
    data, ends = flat([encoded])
    reduction = next(s for s in (4, 2, 1) if -(-size[0] // s) >= box(*size, side)[0])
    rows: dict[str, Work] = {
        "ImagePreprocess": lambda: one.run(None, {"data": data, "ends": ends}),
        "Pillow, draft": lambda: with_pillow(encoded, side, draft=True),
        "Pillow": lambda: with_pillow(encoded, side, draft=False),
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)
        rows[f"OpenCV, reduced by {reduction}"] = lambda: with_opencv(encoded, side, size, reduction)
        rows["OpenCV"] = lambda: with_opencv(encoded, side, size, 1)
        if importlib.util.find_spec("simplejpeg"):
            rows["simplejpeg, reduced + OpenCV"] = lambda: with_simplejpeg(encoded, side, size, True)
            rows["simplejpeg + OpenCV"] = lambda: with_simplejpeg(encoded, side, size, False)
    return rows


def filters(library: Path, encoded: bytes, size: tuple[int, int], side: int) -> dict[str, Work]:
    """Returns the filters of the op, each before what it equals. Raises AssertionError if they differ."""
    data, ends = flat([encoded])
    rows: dict[str, Work] = {}

    def add(name: str, other: str, candidate: Work) -> None:
        one = session(library, side, 1, filter=name)
        rows[f"filter {name}"] = lambda: one.run(None, {"data": data, "ends": ends})
        rows[other] = candidate
        difference = np.abs(one.run(["image"], {"data": data, "ends": ends})[0] - candidate()).max()
        assert difference * 255 < (1.01 if name == "cv_cubic" else 0.01), f"{name} and {other}"

    for kind in ("bilinear", "bicubic", "lanczos"):
        resampling = Image.Resampling[kind.upper()]
        add(f"pil_{kind}", f"Pillow, {kind}", lambda chosen=resampling: with_pillow(encoded, side, False, chosen))
    if importlib.util.find_spec("cv2"):
        import cv2

        for kind in ("linear", "area", "cubic", "lanczos4"):
            number = getattr(cv2, f"INTER_{kind.upper()}")
            add(f"cv_{kind}", f"OpenCV, {kind}", lambda chosen=number: with_opencv(encoded, side, size, 1, chosen))
    return rows


def medians(rows: dict[str, Work], rounds: int) -> dict[str, float]:
    """Returns the median time of each candidate in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(rounds + 2):
        for name, work in rows.items():
            start = time.perf_counter()
            work()
            if turn >= 2:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    built = Path(__file__).parents[1] / "build" / "ops" / "libopgate_onnxruntime.so"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--library", type=Path, default=built)
    arguments = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, onnxruntime {ort.__version__}"
    print(f"{machine}, median of {arguments.rounds} rounds\n")
    size = (1920, 1080)
    encoded = photograph(*size)
    print(f"| {size[0]} x {size[1]} JPEG of {len(encoded) // 1024} KB to | candidate | ms | times ours |")
    print("|---|---|---:|---:|")
    for side in (640, 320):
        result = medians(candidates(arguments.library, encoded, size, side), arguments.rounds)
        for name, value in result.items():
            print(f"| 3 x {side} x {side} | {name} | {value:.2f} | {value / result['ImagePreprocess']:.2f} |")
    all_cores, (data, ends) = session(arguments.library, 640, 0), flat([encoded] * 16)
    batch = medians({"batch": lambda: all_cores.run(None, {"data": data, "ends": ends})}, max(arguments.rounds // 4, 3))
    each = batch["batch"] / 16
    print(f"| 16 x 3 x 640 x 640 | ImagePreprocess, every core | {batch['batch']:.1f} | {each:.2f} ms each |")
    for side in (640, 224):
        result = medians(filters(arguments.library, encoded, size, side), arguments.rounds)
        ours = 1.0
        for name, value in result.items():
            ours = value if name.startswith("filter") else ours
            print(f"| 3 x {side} x {side} | {name} | {value:.2f} | {value / ours:.2f} |")


if __name__ == "__main__":
    main()
