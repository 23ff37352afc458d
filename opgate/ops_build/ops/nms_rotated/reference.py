"""NMSRotated in NumPy: one walk over all candidates, the best first, and the overlap of rectangles as polygons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgate.ops_build.case import Array


def reference(
    boxes: Array,
    scores: Array,
    box_labels: Array | None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool,
    clockwise: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """detections f32 [n, max_detections, 5], kept_scores f32, labels and indices i32 [n, max_detections], count i32
    [n], from boxes f32 [n, a, 5] (cx cy w h angle), scores f32 [n, c, a] and box_labels i32 [n, a]. IoU in f64."""
    n, classes, anchors = scores.shape
    detections = np.zeros((n, max_detections, 5), np.float32)
    kept_scores = np.zeros((n, max_detections), np.float32)
    labels, indices = (np.full((n, max_detections), -1, np.int32) for _ in "12")
    count = np.zeros(n, np.int32)
    for i in range(n):
        own = np.repeat(np.arange(classes)[:, None], anchors, axis=1) if box_labels is None else box_labels[i][None]
        where = np.argwhere(scores[i] > np.float32(score_threshold))
        passed = sorted((-float(scores[i, c, a]), int(a), int(c)) for c, a in where)
        overlap = cached_iou(boxes[i].astype(np.float64), clockwise)
        kept: list[tuple[int, int]] = []
        for score, a, c in passed:
            if len(kept) == max_detections:
                break
            others = [b for b, label in kept if class_agnostic or label == own[c, a]]
            if any(overlap(b, a) > float(np.float32(iou_threshold)) for b in others):
                continue
            k = len(kept)
            detections[i, k], kept_scores[i, k] = boxes[i, a], -score
            labels[i, k], indices[i, k] = own[c, a], a
            kept.append((a, int(own[c, a])))
        count[i] = len(kept)
    return detections, kept_scores, labels, count, indices


def cached_iou(boxes: Array, clockwise: bool) -> Callable[[int, int], float]:
    known: dict[tuple[int, int], float] = {}
    polygons = [corners(box, clockwise) if np.isfinite(box).all() else None for box in boxes]
    reach = np.hypot(*np.abs(boxes[:, 2:4].T)) / 2

    def iou(a: int, b: int) -> float:
        key = min(a, b), max(a, b)
        if key not in known:
            one, other = polygons[key[0]], polygons[key[1]]
            known[key] = 0.0
            near = one is not None and np.hypot(*(boxes[a, :2] - boxes[b, :2])) < reach[a] + reach[b]
            if near and one is not None and other is not None:
                areas = [float(np.prod(np.maximum(boxes[k, 2:4], 0))) for k in key]
                origin = complex(*boxes[b, :2])
                shared = min(area(clipped([p - origin for p in one], [p - origin for p in other])), *areas)
                union = sum(areas) - shared
                known[key] = shared / union if union > 0 else 0.0
        return known[key]

    return iou


def corners(box: Array, clockwise: bool) -> list[complex]:
    """The four corners x + yi, in the order in which the angle grows."""
    cx, cy, w, h, angle = box.tolist()
    angle = angle if clockwise else -angle
    turn = complex(np.cos(angle), np.sin(angle))
    right, down = max(w, 0) / 2, max(h, 0) / 2
    return [complex(cx, cy) + complex(x * right, y * down) * turn for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def clipped(polygon: list[complex], by: list[complex]) -> list[complex]:
    """The part of a convex polygon that is within another one."""
    for start, end in zip(by, by[1:] + by[:1], strict=True):
        sides = [((end - start).conjugate() * (point - start)).imag for point in polygon]
        points = []
        for here, there, s, t in zip(polygon, polygon[1:] + polygon[:1], sides, sides[1:] + sides[:1], strict=True):
            if s >= 0:
                points.append(here)
            if (s < 0) != (t < 0):
                points.append(here + (there - here) * (s / (s - t)))
        polygon = points
    return polygon


def area(polygon: list[complex]) -> float:
    if len(polygon) < 3:
        return 0.0
    moved = [point - polygon[0] for point in polygon]
    return max(0.0, sum((a.conjugate() * b).imag for a, b in zip(moved, moved[1:] + moved[:1], strict=True)) / 2)
