from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import scene
from opgate.ops_build.ops.draw_bounding_boxes.cases import NAMES, SCORES

POLYGONS = np.array(
    [
        [[30, 40], [90, 47], [88, 70], [28, 63]],
        [[30.5, 20.49], [120.5, 20], [120, 99.5], [31, 99]],
        [[-20, -20], [25, -10], [25, 25], [-20, 25]],
        [[140, 100], [400, 180], [380, 300], [120, 220]],
        [[60, 3], [100, 3], [100, 50], [60, 50]],
        [[10, 60], [10, 60], [10, 60], [10, 60]],
    ],
    np.float32,
)
LABELS = np.array([0, 1, 2, 19, 5, 3], np.int32)
LETTERS = ["", *map(chr, range(32, 127)), "Ω"]
TEXTS = np.array(
    [[41, 70, 77, 77, 80], [-1, 18, -1, 96, 5000], [0, 0, 0, 0, 0], [34, -1, -1, -1, -1], [35, 1, 36, 0, -9], [96] * 5],
    np.int32,
)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    picture = scene(160, 120)
    shapes: dict[str, Array] = {"image": picture, "polygons": POLYGONS}
    every = {**shapes, "scores": SCORES, "labels": LABELS}
    yield Case("polygons only", shapes)
    yield Case("scores", {**shapes, "scores": SCORES})
    yield Case("labels", {**shapes, "labels": LABELS})
    yield Case("labels and scores", every, {"names": NAMES})
    texts = {**shapes, "texts": TEXTS}
    yield Case("texts", texts, {"names": LETTERS})
    yield Case("texts and scores", {**texts, "scores": SCORES}, {"names": LETTERS})
    yield Case("texts and labels", {**texts, "labels": np.array([4, -1, 0, 9, -7, 1], np.int32)}, {"names": LETTERS})
    yield Case("texts without names", {**texts, "scores": SCORES})
    yield Case("texts of no letter", {**shapes, "texts": np.zeros((6, 0), np.int32)}, {"names": LETTERS})
    for thickness in (1, 2, 3, 7, 40, 1000):
        yield Case(f"thickness {thickness}", every, {"names": NAMES, "thickness": thickness})
    for count in (-3, 0, 1, 4, 100):
        yield Case(f"count {count}", {**every, "count": np.array([count], np.int32)}, {"names": NAMES})
    for size in [(1, 1), (3, 200), (200, 3), (900, 500)]:
        yield Case(f"{size[0]} x {size[1]}", {**texts, "image": scene(*size)}, {"names": LETTERS})
    rng = np.random.default_rng(2)
    for p in (0, 1, 2, 3, 7):
        corners = rng.uniform(-10, 140, (9, p, 2)).astype(np.float32)
        yield Case(f"{p} corners", {"image": picture, "polygons": corners, "labels": np.arange(9, dtype=np.int32)})
    yield Case("no polygons", {"image": picture, "polygons": np.zeros((0, 4, 2), np.float32)})
    yield Case("no pixels", {**every, "image": np.zeros((0, 5, 3), np.uint8)})
    odd = POLYGONS.copy()
    odd[0, 1, 0], odd[1, 3, 1], odd[2, 0, 0] = np.nan, np.inf, -3e38
    odd[3] = 1e9
    odd[4] = [[-3e38, 20], [3e38, 20], [3e38, 25], [-3e38, 25]]
    yield Case("odd corners", {**every, "polygons": odd})
    yield Case("odd scores", {**every, "scores": np.array([np.nan, np.inf, -np.inf, -0.1, 7.0, 0.5], np.float32)})
    for thickness in (-1, 1001):
        pattern = rf"attribute 'thickness': expected 0 .* to 1000, got {thickness}"
        yield Case(f"thickness {thickness}", every, {"thickness": thickness}, error=pattern)
    yield Case("three numbers", {**every, "polygons": np.zeros((6, 4, 3), np.float32)}, error="input 'polygons'")
    yield Case("another k", {**every, "scores": SCORES[:2]}, error="input 'scores'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """100 lines of text in a picture of 1080p."""
    rng = np.random.default_rng(3)
    corner, size = rng.uniform(0, 900, (100, 1, 2)), rng.uniform(20, 300, (100, 1, 2))
    polygons = corner + size * np.array([[0, 0], [1, 0.1], [1, 0.4], [0, 0.3]])
    texts = rng.integers(1, 96, (100, 20)).astype(np.int32)
    image = np.resize(np.arange(251, dtype=np.uint8), (1080, 1920, 3))
    inputs: dict[str, Array] = {"image": image, "polygons": polygons.astype(np.float32), "texts": texts}
    return Case("100 lines, 1080p", inputs, {"names": LETTERS})
