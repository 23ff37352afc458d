from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

GEOMETRY = np.array([[2.5, 2.5, 0, 12, 640, 427], [0.5, 0.5, 8, 0, 20, 32], [1, 1, 0, 0, 0, 0]], np.float32)


ANCHORS_FIRST = {"layout": "anchors_first"}
OBJECTNESS = {"objectness": True}


def anchors_first(head: Array) -> Array:
    """A head [n, channels, anchors] as [n, anchors, channels]."""
    return head.transpose(0, 2, 1).copy()


def random_head(n: int, classes: int, anchors: int, seed: int = 0) -> Array:
    """Boxes in clusters, so that much is suppressed; one score in eight is high."""
    rng = np.random.default_rng(seed)
    head = np.empty((n, 4 + classes, anchors), np.float32)
    centres = rng.uniform(0, 64, (n, 2, 9))[:, :, rng.integers(0, 9, anchors)]
    head[:, :2] = centres + rng.normal(0, 2, (n, 2, anchors))
    head[:, 2:4] = rng.uniform(8, 24, (n, 2, anchors))
    head[:, 4:] = rng.uniform(0, 1, (n, classes, anchors)) ** 4
    return head


def head_of(rows: list[list[float]]) -> Array:
    """One row of a batch from an anchor a line."""
    return np.array(rows, np.float32).T[None].copy()


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for case in [*float_cases(types["T"]), *boundary_cases(types["T"]), *error_cases()]:
        head = np.asarray(case.inputs["head"]).astype(types["T"])
        yield replace(case, inputs={**case.inputs, "head": head})


def float_cases(dtype: np.dtype[Any]) -> Iterator[Case]:
    """Cases whose heads are still f32."""
    for n, classes, anchors in [(1, 1, 1), (1, 1, 7), (3, 3, 65), (2, 80, 300), (1, 2, 5000)]:
        head = random_head(n, classes, anchors)
        name = f"{n} x {classes} classes x {anchors} anchors"
        yield Case(name, {"head": head})
        yield Case(f"{name}, geometry", {"head": head, "geometry": GEOMETRY[:n]})
        yield Case(f"{name}, best 5", {"head": head}, {"max_detections": 5, "score_threshold": 0.1})
        yield Case(f"{name}, xyxy", {"head": np.sort(head, axis=1)}, {"box_format": "xyxy"})
    clustered = random_head(2, 3, 400)
    for threshold in (0.0, 0.3, 0.9, 1.0):
        yield Case(f"iou_threshold {threshold}", {"head": clustered}, {"iou_threshold": threshold})
    many = random_head(4, 3, 400)
    own = {"head": many, "iou_thresholds": np.array([0.9, 0.1, 0.5, np.nan], np.float32)}
    yield Case("an iou_threshold for each row", own)
    yield Case("an iou_threshold for each row, geometry", {**own, "geometry": np.tile(GEOMETRY[:2], (2, 1))})
    yield Case("an iou_threshold for each row, agnostic", own, {"class_agnostic": True, "max_detections": 7})
    for score in (-1.0, 0.0, 0.5, 1.0):
        attributes = {"score_threshold": score, "max_detections": 2000}
        yield Case(f"score_threshold {score}", {"head": clustered}, attributes)
    for classes in (0, 1, 2):
        for agnostic in (False, True):
            attributes = {"classes": classes, "class_agnostic": agnostic, "score_threshold": 0.1}
            yield Case(f"{attributes}", {"head": clustered, "geometry": GEOMETRY[:2]}, attributes)
    for n, classes, anchors in [(0, 3, 5), (2, 0, 5), (2, 3, 0)]:
        head = np.zeros((n, 4 + classes, anchors), np.float32)
        yield Case(f"empty: {n} x {classes} classes x {anchors} anchors", {"head": head})
    yield Case("max_detections 0", {"head": clustered}, {"max_detections": 0})
    for n, classes, anchors in [(1, 1, 1), (3, 3, 65), (2, 80, 300), (2, 12, 96), (1, 2, 5000)]:
        head = anchors_first(random_head(n, classes, anchors))
        name = f"anchors first: {n} x {classes} classes x {anchors} anchors"
        yield Case(name, {"head": head}, ANCHORS_FIRST)
        every: dict[str, Any] = {
            **ANCHORS_FIRST,
            "classes": max(1, classes - 1),
            "class_agnostic": True,
            "score_threshold": 0.1,
        }
        yield Case(f"{name}, a channel ignored, geometry", {"head": head, "geometry": GEOMETRY[:n]}, every)
    yield from objectness_cases()
    for n, classes, anchors in [(0, 3, 5), (2, 0, 5), (2, 3, 0)]:
        head = np.ones((n, anchors, 4 + classes), np.float32)
        yield Case(f"anchors first, empty: {n} x {classes} classes x {anchors} anchors", {"head": head}, ANCHORS_FIRST)


def objectness_cases() -> Iterator[Case]:
    """The first probability is the objectness."""
    for n, classes, anchors in [(1, 1, 1), (2, 3, 65), (3, 80, 300), (1, 2, 5000), (2, 0, 5), (2, 3, 0)]:
        head = random_head(n, 1 + classes, anchors, seed=7)
        head[:, 4] **= 0.25
        name = f"objectness: {n} x {classes} classes x {anchors} anchors"
        yield Case(name, {"head": head}, OBJECTNESS)
        some = {**OBJECTNESS, "classes": max(1, classes - 1), "class_agnostic": True, "score_threshold": 0.1}
        if classes:
            yield Case(f"{name}, a channel ignored, geometry", {"head": head, "geometry": GEOMETRY[:n]}, some)
            first = anchors_first(head)
            yield Case(f"{name}, anchors first, a channel ignored", {"head": first}, {**some, **ANCHORS_FIRST})
        yield Case(f"{name}, anchors first", {"head": anchors_first(head)}, {**OBJECTNESS, **ANCHORS_FIRST})
    # -2 x -0.5 is a good score, and 4 x 0.2 too; NaN x 0.9, 0 x infinity and 0.9 x 0.25 are none.
    signs = head_of(
        [
            [0, 0, 4, 4, -2, -0.5],
            [9, 0, 14, 4, np.nan, 0.9],
            [20, 0, 24, 4, 0, np.inf],
            [30, 0, 34, 4, 4, 0.2],
            [40, 0, 44, 4, 0.9, 0.25],
        ]
    )
    for layout, head in (("channels_first", signs), ("anchors_first", anchors_first(signs))):
        odd = {**OBJECTNESS, "box_format": "xyxy", "layout": layout}
        yield Case(f"objectness of every kind, {layout}", {"head": head}, odd)
        yield Case(
            f"objectness of every kind, {layout}, threshold -1", {"head": head}, {**odd, "score_threshold": -1.0}
        )


def boundary_cases(dtype: np.dtype[Any]) -> Iterator[Case]:
    xyxy = {"box_format": "xyxy"}
    half = head_of([[0, 0, 4, 2, 0.9], [0, 0, 2, 2, 0.8], [0, 0, 1, 2, 0.7]])
    yield Case("IoU equal to the threshold stays", {"head": half}, xyxy)
    same = head_of([[0, 0, 4, 4, 0.5, 0.5], [50, 0, 54, 4, 0.5, 0.5], [0, 0, 4, 4, 0.5, 0.5]])
    yield Case("equal scores", {"head": same}, xyxy)
    yield Case("equal scores, best 3", {"head": same}, {**xyxy, "max_detections": 3})
    zeros = head_of([[1, 1, 4, 4, 0.0], [20, 1, 24, 4, -0.0], [40, 1, 44, 4, 0.0]])
    yield Case("zeros of both signs", {"head": zeros}, {**xyxy, "score_threshold": -0.5})
    threshold = head_of([[0, 0, 4, 4, 0.25], [9, 9, 12, 12, np.nextafter(dtype.type(0.25), dtype.type(1))]])
    yield Case("a score equal to the threshold", {"head": threshold}, xyxy)
    flat = head_of([[3, 3, 3, 3, 0.9], [3, 3, 3, 3, 0.8], [3, 3, 3, 9, 0.7], [9, 9, 2, 2, 0.6], [0, 0, 5, 5, 0.5]])
    yield Case("boxes without an area", {"head": flat}, {**xyxy, "iou_threshold": 0.0})
    nan, inf = np.nan, np.inf
    odd = head_of(
        [
            [0, 0, 4, 4, nan],
            [0, 0, 4, 4, 0.9],
            [nan, 0, 4, 4, 0.8],
            [0, 0, inf, 4, 0.7],
            [-inf, 0, inf, 4, inf],
            [0, 0, 4, 4, -inf],
        ]
    )
    yield Case("NaN and infinity", {"head": odd}, xyxy)
    yield Case("NaN and infinity, anchors first", {"head": anchors_first(odd)}, {**xyxy, **ANCHORS_FIRST})
    yield Case("equal scores, anchors first", {"head": anchors_first(same)}, {**xyxy, **ANCHORS_FIRST})
    yield Case("NaN and infinity, geometry", {"head": odd, "geometry": GEOMETRY[:1]}, xyxy)
    outside = head_of([[-50, -50, -40, -40, 0.9], [-10, 5, 900, 20, 0.8], [700, 700, 800, 800, 0.7]])
    yield Case("clipped to the picture", {"head": outside, "geometry": GEOMETRY[:1]}, xyxy)


def error_cases() -> Iterator[Case]:
    head = random_head(1, 2, 5)
    for name, value, pattern in [
        ("iou_threshold", -0.1, r"attribute 'iou_threshold': expected 0\.\.1, got -0\.1"),
        ("iou_threshold", 1.5, r"attribute 'iou_threshold': expected 0\.\.1, got 1\.5"),
        ("max_detections", -1, "-1"),
        ("max_detections", 2**40, "attribute 'max_detections': expected at most 2147483647, got 1099511627776"),
        ("score_threshold", float("nan"), "attribute 'score_threshold': expected a number, got nan"),
        ("box_format", "xywh", "attribute 'box_format'"),
        ("layout", "last", "attribute 'layout'"),
        ("classes", -1, "attribute 'classes': expected 0 .*, got -1"),
        ("classes", 3, "attribute 'classes': expected at most 2, as head has 6 channels, got 3"),
    ]:
        yield Case(f"{name} {value}", {"head": head}, {name: value}, error=pattern)
    yield Case("three channels", {"head": np.zeros((1, 3, 5), np.float32)}, error="input 'head': .* got c = 3")
    error = r"input 'head': expected \[n,anchors,channels\] .* got channels = 3"
    yield Case("three channels, anchors first", {"head": np.zeros((1, 5, 3), np.float32)}, ANCHORS_FIRST, error=error)
    error = r"input 'head': expected \[n,c,a\] with c >= 5 \(four box channels, objectness, then .* got c = 4"
    yield Case("four channels", {"head": np.zeros((1, 4, 5), np.float32)}, OBJECTNESS, error=error)
    error = "attribute 'classes': expected at most 1, as head has 6 channels with the objectness, got 2"
    yield Case("classes 2 with objectness", {"head": head}, {**OBJECTNESS, "classes": 2}, error=error)
    error = "attribute 'classes': expected at most 2, as head has 6 channels, got 3"
    yield Case("classes 3, anchors first", {"head": anchors_first(head)}, {**ANCHORS_FIRST, "classes": 3}, error=error)
    yield Case("another n", {"head": head, "geometry": GEOMETRY}, error="input 'geometry'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """16 heads of 80 classes and 8400 anchors."""
    return Case("16 x 80 x 8400", {"head": random_head(16, 80, 8400).astype(types["T"])})
