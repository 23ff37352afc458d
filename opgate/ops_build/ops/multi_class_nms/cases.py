from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def clusters(n: int, classes: int, anchors: int, seed: int = 0) -> dict[str, Array]:
    """Boxes in clusters, so that much is suppressed; one score in eight is high."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 64, (n, 9, 2))[:, rng.integers(0, 9, anchors)] + rng.normal(0, 2, (n, anchors, 2))
    halves = rng.uniform(4, 12, (n, anchors, 2))
    boxes = np.concatenate([centres - halves, centres + halves], axis=2).astype(np.float32)
    return {"boxes": boxes, "scores": (rng.uniform(0, 1, (n, classes, anchors)) ** 4).astype(np.float32)}


def one(rows: list[list[float]]) -> dict[str, Array]:
    """One picture from an anchor a line: four corners, then a score for each class."""
    values = np.array(rows, np.float32)
    return {"boxes": values[None, :, :4].copy(), "scores": values[None, :, 4:].transpose(0, 2, 1).copy()}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for n, classes, anchors in [(1, 1, 1), (1, 1, 7), (3, 3, 65), (2, 80, 300), (1, 2, 3000), (5, 1, 33)]:
        inputs = clusters(n, classes, anchors)
        name = f"{n} x {classes} classes x {anchors} anchors"
        yield Case(name, inputs)
        yield Case(f"{name}, agnostic", inputs, {"class_agnostic": True})
        yield Case(f"{name}, best 5", inputs, {"max_detections": 5, "score_threshold": 0.1})
        yield Case(f"{name}, two of a class", inputs, {"max_per_class": 2})
        yield Case(f"{name}, two of a class, agnostic", inputs, {"max_per_class": 2, "class_agnostic": True})
    clustered = clusters(2, 3, 400)
    for threshold in (0.0, 0.3, 0.9, 1.0):
        yield Case(f"iou_threshold {threshold}", clustered, {"iou_threshold": threshold})
    for score in (-1.0, 0.0, 0.5, 1.0):
        yield Case(f"score_threshold {score}", clustered, {"score_threshold": score, "max_detections": 2000})
    for most in (0, 1, 5, 7):
        yield Case(f"max_per_class {most}", clustered, {"max_per_class": most, "max_detections": 13})
    yield Case("max_per_class equal to max_detections", clustered, {"max_per_class": 9, "max_detections": 9})
    for n, classes, anchors in [(0, 3, 5), (2, 0, 5), (2, 3, 0)]:
        yield Case(f"empty: {n} x {classes} classes x {anchors} anchors", clusters(n, classes, anchors))
    yield Case("max_detections 0", clustered, {"max_detections": 0})
    yield from boundary_cases()
    yield from error_cases()


def boundary_cases() -> Iterator[Case]:
    half = one([[0, 0, 4, 2, 0.9], [0, 0, 2, 2, 0.8], [0, 0, 1, 2, 0.7]])
    yield Case("IoU equal to the threshold stays", half)
    same = one([[0, 0, 4, 4, 0.5, 0.5], [50, 0, 54, 4, 0.5, 0.5], [0, 0, 4, 4, 0.5, 0.5]])
    for agnostic in (False, True):
        yield Case(f"equal scores, agnostic {agnostic}", same, {"class_agnostic": agnostic})
        yield Case(
            f"equal scores, best 3, agnostic {agnostic}", same, {"max_detections": 3, "class_agnostic": agnostic}
        )
        yield Case(f"one of a class, agnostic {agnostic}", same, {"max_per_class": 1, "class_agnostic": agnostic})
    # The second box is over the limit of its class, so it doesn't suppress the third, which is of another class.
    limit = one([[0, 0, 4, 4, 0.9, 0], [20, 0, 24, 4, 0.8, 0], [20, 0, 24, 4, 0, 0.7]])
    yield Case("a box over the limit suppresses nothing", limit, {"max_per_class": 1, "class_agnostic": True})
    zeros = one([[1, 1, 4, 4, 0.0], [20, 1, 24, 4, -0.0], [40, 1, 44, 4, 0.0]])
    yield Case("zeros of both signs", zeros, {"score_threshold": -0.5})
    threshold = one([[0, 0, 4, 4, 0.25], [9, 9, 12, 12, np.nextafter(np.float32(0.25), 1)]])
    yield Case("a score equal to the threshold", threshold, {"score_threshold": 0.25})
    flat = one([[3, 3, 3, 3, 0.9], [3, 3, 3, 3, 0.8], [3, 3, 3, 9, 0.7], [9, 9, 2, 2, 0.6], [0, 0, 5, 5, 0.5]])
    yield Case("boxes without an area", flat, {"iou_threshold": 0.0})
    nan, inf = np.nan, np.inf
    odd = one(
        [
            [0, 0, 4, 4, nan],
            [0, 0, 4, 4, 0.9],
            [nan, 0, 4, 4, 0.8],
            [0, 0, inf, 4, 0.7],
            [-inf, 0, inf, 4, inf],
            [0, 0, 4, 4, -inf],
        ]
    )
    yield Case("NaN and infinity", odd)
    yield Case("all scores but NaN", odd, {"score_threshold": -np.inf})
    far = one([[2e9, 0, 2e9 + 1024, 1024, 0.9], [2e9 + 256, 0, 2e9 + 1280, 1024, 0.8], [1e30, 0, 2e30, 1e30, 0.7]])
    yield Case("huge coordinates", far)


def error_cases() -> Iterator[Case]:
    inputs = clusters(1, 2, 5)
    for name, value, pattern in [
        ("iou_threshold", -0.1, r"attribute 'iou_threshold': expected 0\.\.1, got -0\.1"),
        ("iou_threshold", 1.5, r"attribute 'iou_threshold': expected 0\.\.1, got 1\.5"),
        ("max_per_class", -1, "attribute 'max_per_class': expected 0 or more, got -1"),
        ("max_detections", -1, "-1"),
        ("max_detections", 2**40, "attribute 'max_detections': expected at most 2147483647, got 1099511627776"),
        ("score_threshold", float("nan"), "attribute 'score_threshold': expected a number, got nan"),
    ]:
        yield Case(f"{name} {value}", inputs, {name: value}, error=pattern)
    yield Case("other anchors", inputs | {"scores": np.zeros((1, 2, 6), np.float32)}, error="input 'scores'")
    yield Case("three corners", inputs | {"boxes": np.zeros((1, 5, 3), np.float32)}, error="input 'boxes'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """16 pictures of 80 classes and 8400 anchors."""
    return Case("16 x 80 x 8400", clusters(16, 80, 8400))
