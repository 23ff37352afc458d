"""Heads of detectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.op_works import Array, Call, Inputs, Work, library_peer, onnx_call
from benchmarks.op_works.images import opencv

SCORE, IOU, MOST = 0.25, 0.5, 100


def boxes_of(head: Array) -> tuple[Array, Array]:
    """Returns the corners [1, a, 4] and the scores [1, c, a] of a head."""
    centre, half = head[:, :2], head[:, 2:4] / 2
    return np.concatenate([centre - half, centre + half], 1).transpose(0, 2, 1).copy(), head[:, 4:].copy()


def onnx_nms(inputs: Inputs) -> Call:
    """NonMaxSuppression alone: what the op does besides comes on top."""
    from onnx import helper, numpy_helper

    boxes, scores = boxes_of(inputs["head"])
    constants = {"most": np.array([MOST]), "iou": np.array([IOU], np.float32), "score": np.array([SCORE], np.float32)}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in constants.items()
    ]
    nodes.append(helper.make_node("NonMaxSuppression", ["boxes", "scores", *constants], ["y0"]))
    return onnx_call(nodes, {"boxes": boxes, "scores": scores}, "", 18, 1)


def opencv_nms(cv2: object, inputs: Inputs) -> Call:
    def call() -> object:
        boxes, scores = boxes_of(inputs["head"])
        labels = scores[0].argmax(0)
        best = scores[0].max(0)
        kept = best > SCORE
        corners = boxes[0][kept]
        corners[:, 2:] -= corners[:, :2]
        return cv2.dnn.NMSBoxesBatched(corners, best[kept], labels[kept], SCORE, IOU)  # type: ignore[attr-defined]

    return call


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for size, anchors in {"300 anchors": 300, "8400 anchors": 8_400, "25200 anchors": 25_200}.items():
        head = rng.random((1, 84, anchors), np.float32)
        head[:, 4:] **= 40
        head[:, :2] *= 640
        head[:, 2:4] *= 100
        yield Work(
            "DetectionPostprocess", f"{size}, {int((head[:, 4:] > SCORE).sum())} candidates", {"head": head},
            (
                library_peer("ONNX Runtime's NonMaxSuppression", "onnxruntime", onnx_nms),
                opencv("cv2.dnn.NMSBoxesBatched", opencv_nms),
            ),
        )  # fmt: skip
