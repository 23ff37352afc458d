"""DetectionPostprocess and MultiClassNMS against ONNX's NonMaxSuppression, NMSRotated against Shapely, SoftNMS against
ensemble-boxes, TopKLabels, CornerPool and RoiAlignRotated against PyTorch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import shapely
import shapely.affinity
from hypothesis import given, settings
from hypothesis import strategies as st
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
        boxes, scores, labels, count, indices = run_op("DetectionPostprocess", {"head": head}, attributes)
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
                and (indices[i, count[i] :] == -1).all()
            )
            assert indices[i, : count[i]].tolist() == [a for *_, a in expected]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("classes", "anchors"), [(1, 700), (5, 100), (80, 40)])
def test_anchors_first_keeps_the_boxes_that_onnx_keeps(
    run_op: RunOp, classes: int, anchors: int, dtype: type[np.floating[Any]]
) -> None:
    head = head_in_clusters(np.random.default_rng(anchors), classes, anchors, True).astype(dtype)
    # Channels behind the classes are ignored.
    wide = np.concatenate([head, np.full((3, anchors), 0.99, dtype)]).T[None].copy()
    attributes = {"box_format": "xyxy", "layout": "anchors_first", "classes": classes, "max_detections": 4000}
    boxes, scores, labels, count, indices = run_op("DetectionPostprocess", {"head": wide}, attributes)
    expected = onnx_nms(head.astype(np.float32), 0.5, 0.25, 0)
    kept = slice(0, int(count[0]))
    assert [(s, c) for s, c, _ in expected] == list(zip(scores[0, kept], labels[0, kept], strict=True))
    np.testing.assert_array_equal(boxes[0, kept], head[:4, [a for *_, a in expected]].T)
    assert indices[0, kept].tolist() == [a for *_, a in expected]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("layout", ["channels_first", "anchors_first"])
def test_objectness_multiplies_the_classes(run_op: RunOp, layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    head = head_in_clusters(rng, 6, 700, True).astype(dtype)
    objectness = rng.uniform(0.3, 1, (1, 700)).astype(dtype)
    wide = np.concatenate([head[:4], objectness, head[4:]])[None]
    wide = wide.transpose(0, 2, 1).copy() if layout == "anchors_first" else wide
    attributes = {"box_format": "xyxy", "layout": layout, "objectness": True, "max_detections": 4000}
    boxes, scores, labels, count, indices = run_op("DetectionPostprocess", {"head": wide}, attributes)
    product = head.astype(np.float32)
    product[4:] *= objectness.astype(np.float32)
    expected = onnx_nms(product, 0.5, 0.25, 0)
    kept = slice(0, int(count[0]))
    assert len(expected) > 50
    assert [(s, c) for s, c, _ in expected] == list(zip(scores[0, kept], labels[0, kept], strict=True))
    np.testing.assert_array_equal(boxes[0, kept], product[:4, [a for *_, a in expected]].T)
    assert indices[0, kept].tolist() == [a for *_, a in expected]


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
        _, scores, labels, count, indices = run_op(
            "DetectionPostprocess", {"head": head}, {"score_threshold": threshold}
        )
        assert (count.tolist(), labels[0, 0], scores[0, 0]) == ([1], 1, 0.5)
        assert indices[0, :2].tolist() == [0, -1]


def nms_of(boxes: Array, scores: Array, most: int, iou: float, score: float) -> list[tuple[float, int, int]]:
    """Returns (score, class, anchor) of each box [a, 4] that ONNX keeps, by falling score, then by anchor and class."""
    chosen = nms_session(0).run(
        None,
        {
            "boxes": boxes[None, :, [1, 0, 3, 2]].copy(),
            "scores": scores[None],
            "most": np.int64([most]),
            "iou": np.float32([iou]),
            "score": np.float32([score]),
        },
    )[0]
    return sorted(((float(scores[c, a]), int(c), int(a)) for _, c, a in chosen), key=lambda b: (-b[0], b[2], b[1]))


# ONNX has no limit for each of several classes that suppress one another.
@pytest.mark.parametrize(("per_class", "agnostic"), [(3, False), (5000, False), (5000, True)])
@pytest.mark.parametrize(("classes", "anchors"), [(1, 10), (1, 700), (5, 100), (80, 40), (3, 1500)])
@pytest.mark.parametrize(("iou", "score"), [(0.5, 0.05), (0.3, 0.6)])
def test_nms_keeps_the_boxes_that_onnx_keeps(
    run_op: RunOp, classes: int, anchors: int, iou: float, score: float, per_class: int, agnostic: bool
) -> None:
    rng = np.random.default_rng(classes * anchors)
    heads = [head_in_clusters(rng, classes, anchors, True) for _ in range(2)]
    boxes = np.stack([head[:4].T for head in heads])
    scores = np.stack([head[4:] for head in heads])
    for limit in (7, 3000):
        attributes = {
            "iou_threshold": iou,
            "score_threshold": score,
            "max_per_class": per_class,
            "max_detections": limit,
            "class_agnostic": agnostic,
        }
        detections, kept_scores, labels, count, indices = run_op(
            "MultiClassNMS", {"boxes": boxes, "scores": scores}, attributes
        )
        for i in range(2):
            if agnostic:  # one class of all candidates, in the order of the op's ties
                flat = nms_of(boxes[i].repeat(classes, 0), scores[i].T.reshape(1, -1), per_class, iou, score)
                expected = [(s, at % classes, at // classes) for s, _, at in flat][:limit]
            else:
                expected = nms_of(boxes[i], scores[i], per_class, iou, score)[:limit]
            k = len(expected)
            assert count[i] == k
            assert list(zip(kept_scores[i, :k], labels[i, :k], indices[i, :k], strict=True)) == expected
            np.testing.assert_array_equal(detections[i, :k], boxes[i, indices[i, :k]])
            assert not detections[i, k:].any() and not kept_scores[i, k:].any()
            assert (labels[i, k:] == -1).all() and (indices[i, k:] == -1).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3000), st.integers(1, 200), st.sampled_from(["softmax", "sigmoid", "none"]),
       st.sampled_from(["float16", "float32"]), st.integers(0, 99))  # fmt: skip
def test_top_k_labels_are_those_of_torch(
    run_op: RunOp, n: int, c: int, k: int, activation: str, dtype: str, seed: int
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((n, c)) * 4).astype(dtype)
    scores, labels = run_op("TopKLabels", {"logits": logits}, {"k": k, "activation": activation})
    wide = torch.from_numpy(logits).double()
    activated = {"softmax": lambda x: torch.softmax(x, 1), "sigmoid": torch.sigmoid, "none": lambda x: x}[activation]
    used = min(k, c)
    expected = torch.topk(activated(wide), used, dim=1).values.numpy()
    np.testing.assert_allclose(scores[:, :used], expected, rtol=3e-6)
    # Stable: the lowest label first.
    order = torch.sort(wide, dim=1, descending=True, stable=True).indices[:, :used].numpy()
    np.testing.assert_array_equal(labels[:, :used], order)
    assert not scores[:, used:].any() and (labels[:, used:] == -1).all()


def test_top_k_of_a_million(run_op: RunOp) -> None:
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(3).standard_normal((1, 1_000_000)).astype(np.float32)
    scores, labels = run_op("TopKLabels", {"logits": logits}, {"k": 100})
    expected = torch.topk(torch.softmax(torch.from_numpy(logits).double(), 1), 100)
    np.testing.assert_allclose(scores, expected.values.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(logits[0, labels[0]], logits[0, expected.indices[0].numpy()])


@pytest.mark.parametrize(("method", "number"), [("linear", 1), ("gaussian", 2), ("naive", 3)])
@pytest.mark.parametrize("n", [1, 20, 400])
@pytest.mark.parametrize(("iou", "sigma", "least"), [(0.3, 0.5, 0.001), (0.6, 0.1, 0.2)])
def test_soft_nms_is_that_of_ensemble_boxes(
    run_op: RunOp, n: int, method: str, number: int, iou: float, sigma: float, least: float
) -> None:
    from ensemble_boxes.ensemble_boxes_nms import cpu_soft_nms_float  # it brings numba

    head = head_in_clusters(np.random.default_rng(n), 1, n, True)
    boxes, scores = head[:4].T.copy(), head[4] * np.float32(0.5) + np.float32(0.4)
    attributes = {"iou_threshold": iou, "sigma": sigma, "min_score": least, "method": method}
    detections, indices = run_op("SoftNMS", {"boxes": boxes, "scores": scores}, attributes)
    lowered = scores.astype(np.float64)  # in the order in which they are kept
    expected = cpu_soft_nms_float(boxes.astype(np.float64), lowered, iou, sigma, least, number)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(detections[:, 4], lowered[lowered > least], rtol=1e-6)
    np.testing.assert_array_equal(detections[:, :4], boxes[indices])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("mode", "axis", "flipped"), [("top", 2, True), ("bottom", 2, False), ("left", 3, True), ("right", 3, False)]
)
def test_corner_pool_is_torchs_cummax(run_op: RunOp, mode: str, axis: int, flipped: bool, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(axis)
    for shape in [(2, 3, 17, 40), (1, 1, 1, 5), (1, 2, 70, 600)]:
        x = rng.standard_normal(shape).astype(dtype)
        x[0, 0, 0, shape[3] // 2] = np.nan
        way = torch.from_numpy(x)
        maxima = torch.cummax(way.flip(axis) if flipped else way, axis).values
        expected = maxima.flip(axis) if flipped else maxima
        np.testing.assert_array_equal(run_op("CornerPool", {"x": x}, {"mode": mode})[0], expected.numpy())


def rectangle(box: Array, clockwise: bool) -> shapely.Polygon:
    cx, cy, w, h, angle = (float(number) for number in box)
    turned = shapely.affinity.rotate(shapely.box(-w / 2, -h / 2, w / 2, h / 2), angle, (0, 0), use_radians=True)
    return shapely.affinity.translate(turned if clockwise else shapely.affinity.scale(turned, 1, -1, 1, (0, 0)), cx, cy)


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize(
    ("classes", "anchors", "threshold"), [(1, 150, 0.3), (1, 150, 0.05), (4, 60, 0.7), (0, 120, 0.4)]
)
def test_rotated_boxes_are_suppressed_as_their_polygons_overlap(
    run_op: RunOp, classes: int, anchors: int, threshold: float, clockwise: bool
) -> None:
    """Without classes the boxes have labels."""
    rng = np.random.default_rng(anchors)
    centres = rng.uniform(0, 40, (anchors, 2))
    boxes = np.concatenate([centres, rng.uniform(2, 30, (anchors, 2)), rng.uniform(-9, 9, (anchors, 1))], 1).astype(
        np.float32
    )
    scores = rng.uniform(0, 1, (max(classes, 1), anchors)).astype(np.float32)
    labels = rng.integers(-2, 2, anchors).astype(np.int32)
    inputs = {"boxes": boxes[None], "scores": scores[None], "box_labels": None if classes else labels[None]}
    attributes = {"iou_threshold": threshold, "max_detections": 900, "clockwise": clockwise}
    _, kept_scores, kept_labels, count, indices = run_op("NMSRotated", inputs, attributes)

    polygons = [rectangle(box, clockwise) for box in boxes]
    kept: list[tuple[int, int]] = []
    for score, anchor, c in sorted((-scores[c, a], a, c) for c, a in np.argwhere(scores > 0.05)):
        label = c if classes else labels[anchor]
        one = polygons[anchor]
        shared = [
            one.intersection(polygons[a]).area / one.union(polygons[a]).area for a, other in kept if other == label
        ]
        assert all(abs(iou - threshold) > 1e-9 for iou in shared)
        if all(iou <= threshold for iou in shared):
            kept.append((anchor, label))
            assert kept_scores[0, len(kept) - 1] == -score
    assert count.tolist() == [len(kept)]
    assert list(zip(indices[0, : len(kept)], kept_labels[0, : len(kept)], strict=True)) == kept


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("size", "ratio"), [((7, 7), 2), ((1, 5), 1), ((4, 3), 3)])
def test_rotated_regions_agree_with_grid_sample(
    run_op: RunOp, size: tuple[int, int], ratio: int, aligned: bool, clockwise: bool
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(ratio)
    (n, c, h, w), count, scale = (3, 5, 20, 30), 40, 0.5
    image = rng.normal(0, 1, (n, c, h, w)).astype(np.float32)
    centres, sides = rng.uniform(0, [[w / scale], [h / scale]], (2, count)), rng.uniform(4, 70, (2, count))
    rois = np.stack([rng.integers(0, n, count), *centres, *sides, rng.uniform(-4, 4, count)], 1).astype(np.float32)
    attributes = {"output_height": size[0], "output_width": size[1], "spatial_scale": scale, "sampling_ratio": ratio}
    (output,) = run_op(
        "RoiAlignRotated", {"input": image, "rois": rois}, {**attributes, "aligned": aligned, "clockwise": clockwise}
    )

    cx, cy, width, height, angle = torch.from_numpy(rois[:, 1:]).double().T
    cx, cy, width, height = (value * scale for value in (cx, cy, width, height))
    angle = angle if clockwise else -angle
    cosine, sine, shift = torch.cos(angle), torch.sin(angle), 0 if aligned else 1
    # torch's coordinates go from -1 to 1 between the outer edges of the pixels.
    across = torch.stack([width * cosine / w, -height * sine / w, (2 * cx + shift) / w - 1], 1)
    down = torch.stack([width * sine / h, height * cosine / h, (2 * cy + shift) / h - 1], 1)
    dims = [count, c, size[0] * ratio, size[1] * ratio]
    grid = torch.nn.functional.affine_grid(torch.stack([across, down], 1), dims, align_corners=False)
    wide = torch.from_numpy(image).double().requires_grad_()
    maps = wide[rois[:, 0].astype(int)]
    samples = torch.nn.functional.grid_sample(maps, grid, padding_mode="border", align_corners=False)
    places = ((grid + 1) * torch.tensor([w, h]) - 1) / 2
    inside = ((places >= -1) & (places <= torch.tensor([w, h]))).all(-1)
    expected = torch.nn.functional.avg_pool2d(samples * inside[:, None], ratio)
    near_an_end = (torch.minimum((places + 1).abs(), (places - torch.tensor([w, h])).abs()) < 1e-4).any(-1)
    assert not near_an_end.any()
    np.testing.assert_allclose(output, expected.detach(), rtol=1e-4, atol=1e-4)

    upstream = rng.normal(0, 1, output.shape).astype(np.float32)
    (exact,) = torch.autograd.grad(expected, wide, torch.from_numpy(upstream).double())
    given = {"grad_output": upstream, "input": image, "rois": rois}
    own = {name: value for name, value in attributes.items() if not name.startswith("output")}
    (gradient,) = run_op("RoiAlignRotatedBackward", given, {**own, "aligned": aligned, "clockwise": clockwise})
    np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-3)
