"""SoftNMS in NumPy, in f64: N. Bodla et al., "Soft-NMS - Improving Object Detection With One Line of Code", 2017."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.detection_postprocess.reference import iou


def reference(
    boxes: Array, scores: Array, *, iou_threshold: float, sigma: float, min_score: float, method: str
) -> tuple[Array, Array]:
    """detections f32 [k, 5] (corners and lowered score) and indices i64 [k], in the order in which they are kept."""
    corners, score = boxes.astype(np.float64), scores.astype(np.float64)
    alive = ~np.isnan(score) & (score > -np.inf)
    kept: list[int] = []
    while alive.any():
        best = int(np.argmax(np.where(alive, score, -np.inf)))  # the first one
        kept.append(best)
        alive[best] = False
        overlap = iou(corners[best], corners)
        with np.errstate(invalid="ignore"):
            if method == "gaussian":
                weight = np.exp(-(overlap**2) / np.float64(np.float32(sigma)))
            else:
                over = overlap >= np.float64(np.float32(iou_threshold))
                weight = np.where(over, 1 - overlap if method == "linear" else 0.0, 1.0)
            weight = np.where(np.isnan(overlap), 1.0, weight)
            score = np.where(alive, score * weight, score)
            alive &= score >= np.float32(min_score)
    rows = np.concatenate([boxes[kept], score[kept, None].astype(np.float32)], axis=1).reshape(-1, 5)
    return rows.astype(np.float32), np.array(kept, np.int64)
