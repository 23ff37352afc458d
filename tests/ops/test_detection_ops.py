"""DetectionPostprocess against ONNX's NonMaxSuppression."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp


@cache
def nms_session(centre: int) -> ort.InferenceSession:
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, None, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, None, None]),
        helper.make_tensor_value_info("most", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("iou", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, [1]),
    ]
    node = helper.make_node("NonMaxSuppression", [i.name for i in inputs], ["chosen"], center_point_box=centre)
    graph = helper.make_graph(
        [node], "nms", inputs, [helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def onnx_nms(head: Array, iou: float, score: float, centre: int) -> list[tuple[float, int, int]]:
    """Returns (score, class, anchor) of each box that ONNX keeps, sorted by falling score, then by anchor and class."""
    boxes = head[:4].T[None]
    if not centre:
        boxes = boxes[..., [1, 0, 3, 2]]
    chosen = nms_session(centre).run(
        None,
        {
            "boxes": np.ascontiguousarray(boxes),
            "scores": np.ascontiguousarray(head[None, 4:]),
            "most": np.int64([head.shape[1]]),
            "iou": np.float32([iou]),
            "score": np.float32([score]),
        },
    )[0]
    kept = [(float(head[4 + c, a]), int(c), int(a)) for _, c, a in chosen]
    return sorted(kept, key=lambda box: (-box[0], box[2], box[1]))


def head_in_clusters(rng: np.random.Generator, classes: int, anchors: int, corners: bool) -> Array:
    centres = rng.uniform(0, 200, (2, 12))[:, rng.integers(0, 12, anchors)] + rng.normal(0, 4, (2, anchors))
    sizes = rng.uniform(10, 60, (2, anchors))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2] if corners else [centres, sizes])
    return np.concatenate([boxes, rng.uniform(0, 1, (classes, anchors))]).astype(np.float32)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("classes", "anchors"), [(1, 10), (1, 700), (5, 100), (80, 40), (3, 3000)])
@pytest.mark.parametrize(("iou", "score"), [(0.5, 0.25), (0.3, 0.0), (0.8, 0.6)])
def test_keeps_the_boxes_that_onnx_keeps(
    run_op: RunOp, classes: int, anchors: int, iou: float, score: float, corners: bool
) -> None:
    rng = np.random.default_rng(classes * anchors)
    head = np.stack([head_in_clusters(rng, classes, anchors, corners) for _ in range(2)])
    for limit in (7, 4000):
        attributes = {
            "iou_threshold": iou,
            "score_threshold": score,
            "max_detections": limit,
            "box_format": "xyxy" if corners else "cxcywh",
        }
        boxes, scores, labels, count = run_op("DetectionPostprocess", {"head": head}, attributes)
        for i in range(2):
            expected = onnx_nms(head[i], iou, score, int(not corners))[:limit]
            assert count[i] == len(expected)
            assert [(s, c) for s, c, _ in expected] == list(
                zip(scores[i, : count[i]], labels[i, : count[i]], strict=True)
            )
            source = head[i, :4, [a for *_, a in expected]]
            if not corners:
                source = np.concatenate([source[:, :2] - source[:, 2:] / 2, source[:, :2] + source[:, 2:] / 2], axis=1)
            np.testing.assert_allclose(boxes[i, : count[i]], source, rtol=1e-6, atol=1e-4)
            assert (
                not boxes[i, count[i] :].any()
                and not scores[i, count[i] :].any()
                and (labels[i, count[i] :] == -1).all()
            )


def test_the_limit_cuts_the_same_order(run_op: RunOp) -> None:
    head = head_in_clusters(np.random.default_rng(1), 4, 900, False)[None]
    unlimited = run_op("DetectionPostprocess", {"head": head}, {"max_detections": 2000})
    for limit in (0, 1, 2, 50):
        limited = run_op("DetectionPostprocess", {"head": head}, {"max_detections": limit})
        for first_rows, all_rows in zip(limited[:3], unlimited[:3], strict=True):
            np.testing.assert_array_equal(first_rows, all_rows[:, :limit])
        assert limited[3].tolist() == [min(limit, int(unlimited[3][0]))]


def test_boxes_come_back_in_source_pixels(run_op: RunOp) -> None:
    head = np.float32([[[50], [40], [20], [10], [0.9]]])
    geometry = np.float32([[2, 3, 10, 5, 95, 200]])
    boxes = run_op("DetectionPostprocess", {"head": head, "geometry": geometry})[0]
    assert boxes[0, 0].tolist() == [60, 90, 95, 120]  # x2 = (60 - 10) * 2 = 100 is clipped to 95


def test_nan_is_no_candidate(run_op: RunOp) -> None:
    head = np.float32([[[50], [40], [20], [10], [np.nan], [0.5]]])
    for threshold in (-1.0, 0.25):
        _, scores, labels, count = run_op("DetectionPostprocess", {"head": head}, {"score_threshold": threshold})
        assert (count.tolist(), labels[0, 0], scores[0, 0]) == ([1], 1, 0.5)
