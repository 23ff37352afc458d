"""WeightedNMS in NumPy, as V. Bazarevsky et al. describe it in "BlazeFace: Sub-millisecond Neural Face Detection on
Mobile GPUs", 2019, in place of suppression: the mean of the boxes that overlap, weighted by their scores."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.detection_postprocess.reference import iou


def reference(
    boxes: Array,
    scores: Array,
    iou_thresholds: Array | None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool,
) -> tuple[Array, Array, Array, Array]:
    """detections f32 [n, max_detections, d], kept_scores f32 and labels i32 [n, max_detections], count i32 [n], from
    boxes f32 [n, a, d], scores f32 [n, c, a] and iou_thresholds f32 [n]. Computed in f64."""
    n, _, numbers = boxes.shape
    detections = np.zeros((n, max_detections, numbers), np.float32)
    kept_scores = np.zeros((n, max_detections), np.float32)
    labels, count = np.full((n, max_detections), -1, np.int32), np.zeros(n, np.int32)
    for i in range(n):
        threshold = float(np.float32(iou_threshold) if iou_thresholds is None else iou_thresholds[i])
        passed = np.argwhere(scores[i] > np.float32(score_threshold))
        left = sorted((-float(scores[i, c, a]), int(a), int(c)) for c, a in passed)
        while left and count[i] < max_detections:
            score, anchor, label = left[0]
            values = boxes[i, [a for _, a, _ in left]].astype(np.float64)
            overlaps = iou(boxes[i, anchor, :4].astype(np.float64), values[:, :4])
            together = (overlaps > threshold) & [class_agnostic or c == label for *_, c in left]
            together[0] = True
            weights = -np.array([s for s, *_ in left])[together]
            with np.errstate(invalid="ignore"):
                detections[i, count[i]] = weights @ values[together] / weights.sum()
            kept_scores[i, count[i]], labels[i, count[i]] = -score, label
            count[i] += 1
            left = [one for one, gone in zip(left, together, strict=True) if not gone]
    return detections, kept_scores, labels, count
