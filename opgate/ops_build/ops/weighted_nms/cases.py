from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values
from opgate.ops_build.ops.multi_class_nms.cases import error_cases as limits_errors

#: A mean is computed in f64, in any order, and rounded to f32.
TOLERANCE = {"detections": (1e-6, 1e-6), "kept_scores": (0.0, 0.0), "labels": (0.0, 0.0), "count": (0.0, 0.0)}


def clusters(n: int, classes: int, anchors: int, numbers: int = 4, seed: int = 0) -> dict[str, Array]:
    """Boxes in clusters, so that most are means of several, with more numbers behind them; half of the scores are
    high."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 64, (n, 9, 2))[:, rng.integers(0, 9, anchors)] + rng.normal(0, 2, (n, anchors, 2))
    halves = rng.uniform(4, 12, (n, anchors, 2))
    more = rng.normal(0, 50, (n, anchors, numbers - 4))
    boxes = np.concatenate([centres - halves, centres + halves, more], axis=2).astype(np.float32)
    return {"boxes": boxes, "scores": rng.uniform(0, 1, (n, classes, anchors)).astype(np.float32)}


def one(rows: list[list[float]]) -> dict[str, Array]:
    """One picture from an anchor a line: x1, y1, x2, y2, then a score for each class."""
    values = np.array(rows, np.float32)
    return {"boxes": values[None, :, :4].copy(), "scores": values[None, :, 4:].transpose(0, 2, 1).copy()}


def case(name: str, inputs: dict[str, Array], **attributes: Any) -> Case:
    return Case(name, inputs, attributes, TOLERANCE)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for n, classes, anchors, numbers in [(1, 1, 1, 4), (1, 1, 7, 5), (3, 3, 65, 4), (2, 20, 70, 6), (5, 1, 896, 16)]:
        inputs = clusters(n, classes, anchors, numbers)
        name = f"{n} x {classes} classes x {anchors} anchors of {numbers} numbers"
        yield case(name, inputs)
        yield case(f"{name}, agnostic", inputs, class_agnostic=True)
        yield case(f"{name}, best 5", inputs, max_detections=5, score_threshold=0.1)
    clustered = clusters(4, 3, 120, 7)
    for threshold in (0.0, 0.1, 0.6, 1.0):
        yield case(f"iou_threshold {threshold}", clustered, iou_threshold=threshold)
    own = clustered | {"iou_thresholds": np.array([0.9, 0.1, 0.5, np.nan], np.float32)}
    yield case("an iou_threshold for each picture", own)
    yield case("an iou_threshold for each picture, agnostic", own, class_agnostic=True, max_detections=7)
    for score in (0.0, 0.9, 1.0):
        yield case(f"score_threshold {score}", clustered, score_threshold=score, max_detections=400)
    for n, classes, anchors in [(0, 3, 5), (2, 0, 5), (2, 3, 0)]:
        yield case(f"empty: {n} x {classes} classes x {anchors} anchors", clusters(n, classes, anchors))
    yield case("max_detections 0", clustered, max_detections=0)
    yield from boundary_cases()
    yield from error_cases()


def boundary_cases() -> Iterator[Case]:
    yield case("the example", one([[0, 0, 4, 2, 0.9], [1, 0, 5, 2, 0.6], [9, 0, 13, 2, 0.8]]))
    half = one([[0, 0, 4, 2, 0.9], [0, 0, 2, 2, 0.8], [0, 0, 1, 2, 0.7]])
    yield case("IoU equal to the threshold stays", half, iou_threshold=0.5)
    # The second overlaps the first, and the third the second alone.
    row = one([[0, 0, 4, 4, 0.9], [2, 0, 6, 4, 0.8], [4, 0, 8, 4, 0.7]])
    yield case("overlaps are those with the best box", row)
    same = one([[0, 0, 4, 4, 0.75, 0.75], [50, 0, 54, 4, 0.75, 0.75], [0, 0, 4, 4, 0.75, 0.75]])
    for agnostic in (False, True):
        yield case(f"equal scores, agnostic {agnostic}", same, class_agnostic=agnostic)
        yield case(f"equal scores, best 3, agnostic {agnostic}", same, class_agnostic=agnostic, max_detections=3)
    flat = [[3, 3, 3, 3, 0.9], [3, 3, 3, 3, 0.8], [3, 3, 3, 9, 0.7], [9, 9, 2, 2, 0.6], [0, 0, 5, 5, 0.55]]
    yield case("boxes without an area", one(flat), iou_threshold=0.0)
    nan, inf = np.nan, np.inf
    odd = [[0.0, 0, 4, 4, score] for score in (nan, 0.95, 0.9, 0.85, 0.8, -inf)]
    for at, (column, value) in enumerate([(0, nan), (2, inf), (1, -inf)], 1):
        odd[at][column] = value
    yield case("NaN and infinity", one(odd))
    yield case("an infinite score", one([[1, 0, 4, 4, inf], [1, 0, 4, 5, 0.9], [9, 9, 12, 12, 0.8]]))
    edges = edge_values(np.float32, 4).tolist()
    for column, name in enumerate(["x1", "y1", "x2", "y2"]):
        rows = [[0.0, 0, 4, 4, 1 - at / 100] for at in range(len(edges))]
        for at, value in enumerate(edges):
            rows[at][column] = value
        yield case(f"edge values of {name}", one(rows))
    far = [[2e9, 0, 2e9 + 1024, 1024, 0.9], [2e9 + 256, 0, 2e9 + 1280, 1024, 0.8], [1e30, 0, 2e30, 1e30, 0.7]]
    yield case("huge coordinates", one(far))


def error_cases() -> Iterator[Case]:
    inputs = clusters(1, 2, 5)
    for limit in limits_errors():
        if limit.attributes and "max_per_class" not in limit.attributes:
            yield Case(limit.name, inputs, limit.attributes, error=limit.error)
    error = r"attribute 'score_threshold': expected 0 or more, got -0\.5"
    yield Case("score_threshold -0.5", inputs, {"score_threshold": -0.5}, error=error)
    yield Case("other anchors", inputs | {"scores": np.zeros((1, 2, 6), np.float32)}, error="input 'scores'")
    error = "input 'boxes': expected d >= 4, got 3"
    yield Case("three numbers", inputs | {"boxes": np.zeros((1, 5, 3), np.float32)}, error=error)
    yield Case("two thresholds", inputs | {"iou_thresholds": np.zeros(2, np.float32)}, error="input 'iou_thresholds'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 pictures of BlazeFace, with a point six times."""
    return case("64 x 896 x 16", clusters(64, 1, 896, 16))
