from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values
from opgate.ops_build.ops.multi_class_nms.cases import error_cases as limits_errors


def clusters(n: int, classes: int, anchors: int, seed: int = 0) -> dict[str, Array]:
    """Boxes in clusters, so that much is suppressed; one score in eight is high."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 64, (n, 9, 2))[:, rng.integers(0, 9, anchors)] + rng.normal(0, 2, (n, anchors, 2))
    sides, angles = rng.uniform(4, 24, (n, anchors, 2)), rng.uniform(-4, 4, (n, anchors, 1))
    boxes = np.concatenate([centres, sides, angles], axis=2).astype(np.float32)
    return {"boxes": boxes, "scores": (rng.uniform(0, 1, (n, classes, anchors)) ** 4).astype(np.float32)}


def one(rows: list[list[float]]) -> dict[str, Array]:
    """One picture from an anchor a line: cx, cy, w, h, angle, then a score for each class."""
    values = np.array(rows, np.float32)
    return {"boxes": values[None, :, :5].copy(), "scores": values[None, :, 5:].transpose(0, 2, 1).copy()}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for n, classes, anchors in [(1, 1, 1), (1, 1, 7), (3, 3, 65), (2, 20, 70), (1, 2, 700), (5, 1, 33)]:
        inputs = clusters(n, classes, anchors)
        name = f"{n} x {classes} classes x {anchors} anchors"
        yield Case(name, inputs)
        yield Case(f"{name}, agnostic", inputs, {"class_agnostic": True, "clockwise": False})
        yield Case(f"{name}, best 5", inputs, {"max_detections": 5, "score_threshold": 0.1})
    clustered = clusters(2, 3, 120)
    for threshold in (0.1, 0.3, 0.9, 1.0):
        yield Case(f"iou_threshold {threshold}", clustered, {"iou_threshold": threshold})
    for score in (-1.0, 0.0, 0.5, 1.0):
        yield Case(f"score_threshold {score}", clustered, {"score_threshold": score, "max_detections": 400})
    for n, classes, anchors in [(0, 3, 5), (2, 0, 5), (2, 3, 0)]:
        yield Case(f"empty: {n} x {classes} classes x {anchors} anchors", clusters(n, classes, anchors))
    yield Case("max_detections 0", clustered, {"max_detections": 0})
    yield from label_cases()
    yield from boundary_cases()
    yield from error_cases()


def label_cases() -> Iterator[Case]:
    for n, anchors in [(1, 1), (2, 90), (2, 0)]:
        inputs = clusters(n, 1, anchors)
        labels = np.random.default_rng(1).choice([-(2**31), -3, 0, 7, 2**31 - 1], (n, anchors)).astype(np.int32)
        for agnostic in (False, True):
            more = {"class_agnostic": agnostic, "max_detections": 30}
            yield Case(f"labels of {n} x {anchors}, {agnostic}", inputs | {"box_labels": labels}, more)
        yield Case(f"one label of {n} x {anchors}", inputs | {"box_labels": np.full((n, anchors), 5, np.int32)})


def boundary_cases() -> Iterator[Case]:
    half = one([[2, 1, 4, 2, 0, 0.9], [1, 1, 2, 2, 0, 0.8], [0.5, 1, 1, 2, 0, 0.7]])
    yield Case("IoU equal to the threshold stays", half)
    # The IoU of each pair is 1/3, apart from the rounding of the boxes: floats can't decide.
    turns = np.random.default_rng(6).uniform(-4, 4, 60)
    kept = np.stack([0 * turns, 0 * turns, 0 * turns + 6, 0 * turns + 3, turns], axis=1)
    shifted = kept + np.stack([3 * np.cos(turns), 3 * np.sin(turns), *np.zeros((3, 60))], axis=1)
    pairs = np.stack([kept, shifted], axis=1).astype(np.float32)
    scores = np.tile(np.array([0.9, 0.8], np.float32), (60, 1, 1))
    yield Case("shifted by half of the width", {"boxes": pairs, "scores": scores}, {"iou_threshold": 1 / 3})
    same = one([[2, 2, 4, 4, 0.3, 0.5, 0.5], [50, 2, 4, 4, 0.3, 0.5, 0.5], [2, 2, 4, 4, 0.3, 0.5, 0.5]])
    for agnostic in (False, True):
        more = {"class_agnostic": agnostic}
        yield Case(f"equal scores, agnostic {agnostic}", same, more)
        yield Case(f"equal scores, best 3, agnostic {agnostic}", same, more | {"max_detections": 3})
    quarter = np.pi / 2
    turned = one(
        [[5, 5, 8, 4, 0, 0.9], [5, 5, 4, 8, quarter, 0.8], [5, 5, 8, 4, np.pi, 0.7], [5, 5, 8, 4, quarter, 0.6]]
    )
    yield Case("the same rectangle by other angles", turned, {"iou_threshold": 0.9})
    # The boxes lie in a row along a diagonal. Turned the other way they are side by side.
    row = [[4.0 * k, 4.0 * k, 9, 2, quarter / 2, 1 - 0.1 * k] for k in range(5)]
    for clockwise in (True, False):
        yield Case(f"a diagonal, clockwise {clockwise}", one(row), {"clockwise": clockwise, "iou_threshold": 0.15})
    octagon = one([[0, 0, 10, 10, 0, 0.9], [0, 0, 10, 10, quarter / 2, 0.8], [0.5, 0, 10, 10, quarter / 2, 0.7]])
    for threshold in (0.70, 0.71):  # the IoU of the first two is 0.7071
        yield Case(f"an octagon, {threshold}", octagon, {"iou_threshold": threshold})
    for angle in (0.0, 0.2, 1.0, quarter):
        inside = one([[0, 0, 10, 10, angle, 0.9], [0.5, 0.5, 7, 7, angle, 0.8], [0, 0, 2, 2, -angle, 0.7]])
        yield Case(f"one in another, turned by {angle:.1f}", inside, {"iou_threshold": 0.45})
        touch = one([[0, 0, 4, 4, 0, 0.9], [4, 0, 4, 4, 0, 0.8], [2, 2, 4, 4, angle, 0.7]])
        yield Case(f"boxes that touch, {angle:.1f}", touch, {"iou_threshold": 0.01})
        thin = one([[0, 0, 100, 0.01, angle, 0.9], [0, 0, 100, 0.01, angle + 1e-4, 0.8], [0, 0, 0.01, 90, angle, 0.7]])
        yield Case(f"thin boxes, {angle:.1f}", thin)
    flat = one(
        [[3, 3, 0, 0, 1, 0.9], [3, 3, 0, 0, 1, 0.8], [3, 3, 0, 9, 1, 0.7], [9, 9, -2, 2, 1, 0.6], [0, 0, 5, 5, 1, 0.5]]
    )
    yield Case("boxes without an area", flat, {"iou_threshold": 0.0})
    rng = np.random.default_rng(5)
    beside = rng.uniform([-3, -3, 0, 1, -4, 0.4], [3, 3, 0, 9, 4, 0.6], (60, 6))
    beside[::2, 2:4] = beside[::2, 3:1:-1]
    for threshold in (0.0, 1e-6):
        lines = one([[0, 0, 7, 5, 0.4, 0.9], *beside.tolist()])
        yield Case(f"boxes without a width, {threshold}", lines, {"iou_threshold": threshold})
    nan, inf = np.nan, np.inf
    odd = [[2.0, 2, 4, 4, 0, score] for score in (nan, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, inf, -inf)]
    for row_index, (column, value) in enumerate([(0, nan), (1, inf), (2, -inf), (3, nan), (4, nan), (4, inf)], 1):
        odd[row_index][column] = value
    yield Case("NaN and infinity", one(odd))
    yield Case("all scores but NaN", one(odd), {"score_threshold": -inf})
    edges = edge_values(np.float32, 4).tolist()
    for column, name in enumerate(["x", "y", "w", "h", "angle"]):
        rows = [[2.0, 2, 4, 4, 0, 1 - at / 100] for at in range(len(edges))]
        for at, value in enumerate(edges):
            rows[at][column] = value
        yield Case(f"edge values of {name}", one(rows), {"iou_threshold": 0.3})
    far = [[2e6, 0, 1024, 1024, 0.1, 0.9], [2e6 + 256, 0, 1024, 1024, 0.1, 0.8], [1e30, 0, 1e30, 1e30, 0.5, 0.7]]
    yield Case("huge coordinates", one([*far, [1e38, 1e38, 3e38, 3e38, 1e6, 0.6]]))


def error_cases() -> Iterator[Case]:
    inputs = clusters(1, 2, 5)
    for case in limits_errors():
        if case.attributes and "max_per_class" not in case.attributes:
            yield Case(case.name, inputs, case.attributes, error=case.error)
    labels = np.zeros((1, 5), np.int32)
    error = "input 'box_labels': expected scores of one class with it, c = 1, got c = 2"
    yield Case("labels and classes", inputs | {"box_labels": labels}, error=error)
    yield Case("other anchors", inputs | {"scores": np.zeros((1, 2, 6), np.float32)}, error="input 'scores'")
    yield Case("four numbers", inputs | {"boxes": np.zeros((1, 5, 4), np.float32)}, error="input 'boxes'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """8 pictures of 15 classes and 2,000 anchors."""
    return Case("8 x 15 x 2000", clusters(8, 15, 2000), {"max_detections": 500})
