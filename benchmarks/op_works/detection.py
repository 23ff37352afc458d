"""Heads of detectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.op_works import Array, Call, Inputs, Work, library_peer, onnx_call, torch_peer
from benchmarks.op_works.images import opencv

SCORE, IOU, MOST = 0.25, 0.5, 100


def boxes_of(head: Array) -> tuple[Array, Array]:
    """Returns the corners [1, a, 4] and the scores [1, c, a] of a head."""
    centre, half = head[:, :2], head[:, 2:4] / 2
    return np.concatenate([centre - half, centre + half], 1).transpose(0, 2, 1).copy(), head[:, 4:].copy()


def onnx_nms(inputs: Inputs) -> Call:
    """NonMaxSuppression alone: what the op does besides comes on top."""
    from onnx import helper, numpy_helper

    boxes, scores = boxes_of(inputs["head"]) if "head" in inputs else (inputs["boxes"], inputs["scores"])
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


def opencv_soft_nms(cv2: object, inputs: Inputs) -> Call:
    boxes = inputs["boxes"].copy()
    boxes[:, 2:] -= boxes[:, :2]
    rectangles, scores = boxes.astype(int).tolist(), inputs["scores"].tolist()
    return lambda: cv2.dnn.softNMSBoxes(rectangles, scores, 0.001, 0.3)  # type: ignore[attr-defined]


def best_classes(logits: Tensor) -> object:
    return torch.softmax(logits, 1).topk(5)


def corner_pool(x: Tensor) -> Tensor:
    return x.flip(2).cummax(2).values.flip(2)


def other_works() -> Iterator[Work]:
    rng = np.random.default_rng(1)
    types = {"T": "f32"}
    for size, anchors in {"300 boxes": 300, "8400 boxes": 8_400, "25200 boxes": 25_200}.items():
        corners = 640 * rng.random((1, anchors, 2), np.float32)
        boxes = np.concatenate([corners, corners + 100 * rng.random((1, anchors, 2), np.float32)], 2)
        scores = rng.random((1, 80, anchors), np.float32) ** 40
        yield Work(
            "MultiClassNMS", f"{size}, 80 classes", {"boxes": boxes, "scores": scores},
            (library_peer("ONNX Runtime's NonMaxSuppression", "onnxruntime", onnx_nms),),
            {"score_threshold": SCORE, "iou_threshold": IOU, "max_per_class": MOST},
        )  # fmt: skip
    for size, count in {"100 boxes": 100, "1000 boxes": 1_000, "5000 boxes": 5_000}.items():
        corners = 640 * rng.random((count, 2), np.float32)
        boxes = np.concatenate([corners, corners + 100 * rng.random((count, 2), np.float32)], 1)
        scores = rng.random(count, np.float32)
        yield Work(
            "SoftNMS", size, {"boxes": boxes, "scores": scores},
            (opencv("cv2.dnn.softNMSBoxes", opencv_soft_nms),),
        )  # fmt: skip
    for size, shape in {"1 x 1000": (1, 1_000), "256 x 1000": (256, 1_000), "1 x 1 M": (1, 1_000_000)}.items():
        yield Work(
            "TopKLabels", f"{size} f32", {"logits": rng.standard_normal(shape, np.float32)}, types=types,
            peers=(
                torch_peer("torch.softmax and topk", best_classes, "logits"),
                torch_peer("torch.softmax and topk", best_classes, "logits", compiled=True),
            ),
        )  # fmt: skip
    for size, shape in {"1 x 16 x 16 x 16": (1, 16, 16, 16), "1 x 128 x 64 x 64": (1, 128, 64, 64),
                        "4 x 256 x 128 x 128": (4, 256, 128, 128)}.items():  # fmt: skip
        yield Work(
            "CornerPool", f"{size} f32", {"x": rng.standard_normal(shape, np.float32)}, types=types,
            attributes={"mode": "top"}, peers=(torch_peer("flip, cummax and flip", corner_pool, "x"),),
        )  # fmt: skip


def works() -> Iterator[Work]:
    yield from other_works()
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
