"""MultiClassNMS in NumPy: one walk over all candidates, the best first."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.detection_postprocess.reference import iou


def reference(
    boxes: Array,
    scores: Array,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_per_class: int,
    max_detections: int,
    class_agnostic: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """detections f32 [n, max_detections, 4], kept_scores f32, labels and indices i32 [n, max_detections], count i32
    [n], from boxes f32 [n, a, 4] (x1 y1 x2 y2) and scores f32 [n, c, a]. IoU in f64."""
    n, classes, _ = scores.shape
    detections = np.zeros((n, max_detections, 4), np.float32)
    kept_scores = np.zeros((n, max_detections), np.float32)
    labels, indices = (np.full((n, max_detections), -1, np.int32) for _ in "12")
    count = np.zeros(n, np.int32)
    for i in range(n):
        corners = boxes[i].astype(np.float64)
        kept: list[tuple[float, int, int]] = []  # -score, anchor, class: their order is the output's
        if class_agnostic:
            kept = _walk(corners, scores[i], range(classes), score_threshold, iou_threshold, max_per_class)
        else:
            for label in range(classes):
                kept += _walk(corners, scores[i], [label], score_threshold, iou_threshold, max_per_class)
        best = sorted(kept)[:max_detections]
        count[i] = len(best)
        for k, (score, anchor, label) in enumerate(best):
            detections[i, k], kept_scores[i, k] = boxes[i, anchor], -score
            labels[i, k], indices[i, k] = label, anchor
    return detections, kept_scores, labels, count, indices


def _walk(
    corners: Array, scores: Array, labels: range | list[int], threshold: float, iou_threshold: float, most: int
) -> list[tuple[float, int, int]]:
    """Those candidates of the classes that no better kept one suppresses, at most `most` of each class."""
    passed = [
        (-float(scores[label, a]), int(a), label)
        for label in labels
        for a in np.flatnonzero(scores[label] > np.float32(threshold))
    ]
    candidates = sorted(passed)
    anchors, classes = (np.array([candidate[k] for candidate in candidates], int) for k in (1, 2))
    kept: list[tuple[float, int, int]] = []
    numbers = dict.fromkeys(labels, 0)
    left = np.arange(len(candidates))
    while len(left):
        best, left = left[0], left[1:]
        if numbers[classes[best]] < most:
            kept.append(candidates[best])
            numbers[classes[best]] += 1
            left = left[~(iou(corners[anchors[best]], corners[anchors[left]]) > float(np.float32(iou_threshold)))]
    return kept
