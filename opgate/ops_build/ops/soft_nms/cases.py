from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

METHODS = ("gaussian", "linear", "naive")


def clusters(n: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 200, (12, 2))[rng.integers(0, 12, n)] + rng.normal(0, 4, (n, 2))
    halves = rng.uniform(5, 25, (n, 2))
    boxes = np.concatenate([centres - halves, centres + halves], axis=1).astype(np.float32)
    return {"boxes": boxes, "scores": rng.uniform(0, 1, n).astype(np.float32)}


def rows(values: list[list[float]]) -> dict[str, Array]:
    """Boxes and scores from a box a line."""
    table = np.array(values, np.float32)
    return {"boxes": table[:, :4].copy(), "scores": table[:, 4].copy()}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for method in METHODS:
        for n in (0, 1, 2, 33, 150, 700):
            yield Case(f"{n} boxes, {method}", clusters(n), {"method": method})
        for threshold in (0.0, 0.5, 1.0):
            attributes = {"method": method, "iou_threshold": threshold}
            yield Case(f"iou_threshold {threshold}, {method}", clusters(80), attributes)
        for least in (-1.0, 0.0, 0.3, 0.9, 5.0, float("inf"), -float("inf")):
            attributes = {"method": method, "min_score": least}
            yield Case(f"min_score {least}, {method}", clusters(80), attributes)
        yield from odd_cases(method)
    for sigma in (1e-3, 0.1, 4.0, 1e6):
        yield Case(f"sigma {sigma}", clusters(80), {"sigma": sigma})
    yield from error_cases()


def odd_cases(method: str) -> Iterator[Case]:
    attributes = {"method": method}
    same = rows([[0, 0, 4, 4, 0.5]] * 5 + [[50, 0, 54, 4, 0.5]] * 2)
    yield Case(f"equal boxes and scores, {method}", same, attributes)
    half = rows([[0, 0, 4, 2, 0.9], [0, 0, 2, 2, 0.8], [0, 0, 1, 2, 0.7]])
    yield Case(f"IoU equal to the threshold, {method}", half, attributes | {"iou_threshold": 0.5})
    flat = rows([[3, 3, 3, 3, 0.9], [3, 3, 3, 3, 0.8], [3, 3, 3, 9, 0.7], [9, 9, 2, 2, 0.6], [0, 0, 5, 5, 0.5]])
    yield Case(f"boxes without an area, {method}", flat, attributes)
    nan, inf = np.nan, np.inf
    odd = rows([[0, 0, 4, 4, nan], [0, 0, 4, 4, 0.9], [nan, 0, 4, 4, 0.8], [0, 0, inf, 4, 0.7], [-inf, 0, inf, 4, 0.6],
                [0, 0, 4, 4, -inf], [0, 0, 4, 5, inf], [0, 0, 4, 3, 0.3]])  # fmt: skip
    yield Case(f"NaN and infinity, {method}", odd, attributes)
    yield Case(f"no score is a number, {method}", rows([[0, 0, 4, 4, nan], [0, 0, 9, 9, -inf]]), attributes)
    low = rows([[0, 0, 4, 4, 1e-5], [50, 0, 54, 4, 1e-6]])
    yield Case(f"the best is below min_score, {method}", low, attributes)
    negative = rows([[0, 0, 4, 4, -0.1], [0, 0, 4, 5, -0.5], [60, 0, 64, 5, -0.4]])
    yield Case(f"negative scores, {method}", negative, attributes | {"min_score": -0.3})
    far = rows([[2e9, 0, 2e9 + 1024, 1024, 0.9], [2e9 + 256, 0, 2e9 + 1280, 1024, 0.8], [1e30, 0, 2e30, 1e30, 0.7]])
    yield Case(f"huge coordinates, {method}", far, attributes)


def error_cases() -> Iterator[Case]:
    inputs = clusters(5)
    for name, value, pattern in [
        ("iou_threshold", -0.1, r"attribute 'iou_threshold': expected 0\.\.1, got -0\.1"),
        ("iou_threshold", float("nan"), "attribute 'iou_threshold': expected 0"),
        ("sigma", 0.0, "attribute 'sigma': expected a positive finite number, got 0"),
        ("sigma", float("inf"), "attribute 'sigma': expected a positive finite number, got inf"),
        ("min_score", float("nan"), "attribute 'min_score': expected a number, got nan"),
        ("method", "soft", "attribute 'method'"),
    ]:
        yield Case(f"{name} {value}", inputs, {name: value}, error=pattern)
    yield Case("too few scores", inputs | {"scores": np.zeros(4, np.float32)}, error="input 'scores'")
    yield Case("five columns", inputs | {"boxes": np.zeros((5, 5), np.float32)}, error="input 'boxes'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """Five thousand boxes."""
    return Case("5000 boxes", clusters(5000))
