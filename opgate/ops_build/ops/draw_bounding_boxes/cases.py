from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import scene

BOXES = np.array(
    [
        [30, 40, 90, 80],
        [30.5, 20.49, 120.5, 99.5],
        [-20, -20, 25, 25],
        [140, 100, 400, 300],
        [60, 3, 100, 50],
        [10, 60, 10, 60],
    ],
    np.float32,
)
LABELS = np.array([0, 1, 2, 19, 5, 3], np.int32)
SCORES = np.array([0.876, 0.5, 0.005, 1.0, 0.0, 0.995], np.float32)
NAMES = ["zero", "the one", "Ⅱ größer", "", "4", "".join(map(chr, range(32, 127)))]


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    picture = scene(160, 120)
    everything = {"image": picture, "boxes": BOXES, "scores": SCORES, "labels": LABELS}
    yield Case("boxes only", {"image": picture, "boxes": BOXES})
    yield Case("scores", {"image": picture, "boxes": BOXES, "scores": SCORES})
    yield Case("labels", {"image": picture, "boxes": BOXES, "labels": LABELS})
    yield Case("scores and labels", everything)
    yield Case("names", everything, {"names": NAMES})
    for thickness in (1, 2, 3, 7, 40, 1000):
        yield Case(f"thickness {thickness}", everything, {"names": NAMES, "thickness": thickness})
    for count in (-3, 0, 1, 4, 100):
        yield Case(f"count {count}", {**everything, "count": np.array([count], np.int32)}, {"names": NAMES})
    for size in [(1, 1), (3, 200), (200, 3), (1000, 500), (1920, 1080)]:
        yield Case(f"{size[0]} x {size[1]}", {**everything, "image": scene(*size)}, {"names": NAMES})
    many = np.random.default_rng(2).uniform(0, 64, (300, 4)).astype(np.float32)
    many[:, 2:] += many[:, :2]
    yield Case("300 boxes", {"image": scene(64, 64), "boxes": many, "labels": np.arange(300, dtype=np.int32)})
    yield Case("no boxes", {"image": picture, "boxes": np.zeros((0, 4), np.float32)})
    yield Case("no pixels", {**everything, "image": np.zeros((0, 5, 3), np.uint8)})
    odd = np.array(
        [
            [np.nan, 0, 9, 9],
            [0, 0, np.inf, 9],
            [50, 50, 40, 60],
            [-3e38, -3e38, 3e38, 3e38],
            [1e9, 0, 2e9, 9],
            [5, 5, 20, 20],
        ],
        np.float32,
    )
    yield Case("odd boxes", {**everything, "boxes": odd})
    yield Case(
        "labels below 0 are not drawn",
        {**everything, "labels": np.array([-1, 0, -1, 2**31 - 1, -(2**31), 15], np.int32)},
    )
    yield Case("odd scores", {**everything, "scores": np.array([np.nan, np.inf, -np.inf, -0.1, 7.0, 0.5], np.float32)})
    for thickness in (-1, 1001):
        pattern = rf"attribute 'thickness': expected 0 .* to 1000, got {thickness}"
        yield Case(f"thickness {thickness}", everything, {"thickness": thickness}, error=pattern)
    yield Case("four channels", {"image": np.zeros((4, 4, 4), np.uint8), "boxes": BOXES}, error="input 'image'")
    yield Case("another k", {**everything, "scores": SCORES[:2]}, error="input 'scores'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """100 boxes with labels and scores in a picture of 1080p."""
    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 900, (100, 4)).astype(np.float32)
    boxes[:, 2:] = boxes[:, :2] + rng.uniform(20, 300, (100, 2)).astype(np.float32)
    labels, scores = np.arange(100, dtype=np.int32) % 6, rng.uniform(0, 1, 100).astype(np.float32)
    image = np.resize(np.arange(251, dtype=np.uint8), (1080, 1920, 3))
    inputs: dict[str, Array] = {"image": image, "boxes": boxes, "scores": scores, "labels": labels}
    return Case("100 boxes, 1080p", inputs, {"names": NAMES})
