"""DetectionPostprocess in NumPy: each class on its own, then the best of all classes."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(
    head: Array,
    geometry: Array | None,
    iou_thresholds: Array | None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    box_format: str,
    class_agnostic: bool,
    classes: int,
    layout: str,
    objectness: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """Boxes f32 [n, max_detections, 4], scores f32 and labels i32 [n, max_detections], count i32 [n], indices i32
    [n, max_detections]."""
    head = head.astype(np.float32)
    if layout == "anchors_first":
        head = head.transpose(0, 2, 1)
    first = 5 if objectness else 4
    n, channels, _ = head.shape
    boxes = np.zeros((n, max_detections, 4), np.float32)
    scores = np.zeros((n, max_detections), np.float32)
    labels = np.full((n, max_detections), -1, np.int32)
    count = np.zeros(n, np.int32)
    indices = labels.copy()
    for i in range(n):
        corners = _corners(head[i, :4].T.astype(np.float64), box_format)
        with np.errstate(invalid="ignore"):
            probabilities = head[i, first:] * head[i, 4] if objectness else head[i, first:]
        threshold = np.float32(iou_threshold) if iou_thresholds is None else iou_thresholds[i]
        labels_of = list(range(classes or channels - first))
        kept: list[tuple[float, int, int]] = []  # -score, anchor, class: their order is the output's
        for together in [labels_of] if class_agnostic else [[label] for label in labels_of]:
            candidates = sorted(
                (-float(probabilities[label, a]), int(a), label)
                for label in together
                for a in np.flatnonzero(probabilities[label] > np.float32(score_threshold))
            )
            kept += _greedy(corners, candidates, float(threshold))
        best = sorted(kept)[:max_detections]
        count[i] = len(best)
        for k, (score, anchor, label) in enumerate(best):
            scores[i, k], labels[i, k], indices[i, k] = -score, label, anchor
            boxes[i, k] = corners[anchor] if geometry is None else _to_source(corners[anchor], geometry[i])
    return boxes, scores, labels, count, indices


def _corners(boxes: Array, box_format: str) -> Array:
    """f64 [a, 4], x1 y1 x2 y2."""
    if box_format == "xyxy":
        return boxes
    centre, size = boxes[:, :2], boxes[:, 2:]
    with np.errstate(invalid="ignore"):
        return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def _greedy(corners: Array, candidates: list[tuple[float, int, int]], threshold: float) -> list[tuple[float, int, int]]:
    """Those of the candidates, the best first, that no better one of them suppresses."""
    kept: list[tuple[float, int, int]] = []
    anchors, left = np.array([anchor for _, anchor, _ in candidates], int), np.arange(len(candidates))
    while len(left):
        best, left = left[0], left[1:]
        kept.append(candidates[best])
        left = left[~(iou(corners[anchors[best]], corners[anchors[left]]) > threshold)]
    return kept


def iou(one: Array, others: Array) -> Array:
    """Intersection over union of a box and others, corners f64 [4] and [a, 4]: 0 for an empty union, NaN for boxes
    that aren't finite."""

    def area(low: Array, high: Array) -> Array:
        sides = high - low
        sides = np.where(sides < 0, 0, sides)
        product: Array = sides[..., 0] * sides[..., 1]
        return product

    with np.errstate(invalid="ignore", divide="ignore"):
        shared = area(np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:]))
        union = area(one[:2], one[2:]) + area(others[:, :2], others[:, 2:]) - shared
        return np.where(union == 0, 0, shared / union)


def _to_source(box: Array, geometry: Array) -> Array:
    scale, shift, size = (np.tile(geometry[i : i + 2].astype(np.float64), 2) for i in (0, 2, 4))
    with np.errstate(invalid="ignore"):
        corners = (box - shift) * scale
        return np.where(corners < 0, 0, np.where(corners > size, size, corners))
