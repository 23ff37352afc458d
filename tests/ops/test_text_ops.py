"""DBPostprocess against OpenCV, and against RapidOCR's own code; PerspectiveCrop against OpenCV's warpPerspective;
CTCBeamSearch against TensorFlow, and against the sum over all alignments."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise, product
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from opgate.ops_build.case import Array
from opgate.ops_build.ops.db_postprocess.cases import page
from tests.ops.conftest import RunOp
from tests.skips import need


def overlap(one: Array, other: Array) -> float:
    """The intersection over the union of two convex quads [4, 2]."""
    shared = cv2.intersectConvexConvex(one.astype(np.float32), other.astype(np.float32))[0]
    union = sum(cv2.contourArea(quad.astype(np.float32)) for quad in (one, other)) - shared
    return float(shared / union) if union > 0 else 0.0


def found(run_op: RunOp, maps: Array, **said: Any) -> list[tuple[Array, Array]]:
    """Quads [k, 4, 2] and scores [k] of each map of [n, h, w]."""
    quads, scores, count = run_op("DBPostprocess", {"probabilities": maps[:, None].astype(np.float32)}, said)
    return [(quads[i, :k], scores[i, :k]) for i, k in enumerate(count)]


def by_opencv(values: Array) -> list[tuple[Array, float]]:
    """The rectangles of least area around regions and the means in them, before they grow. No hole is a region."""
    mask = (values > 0.3).astype(np.uint8)
    quads = []
    for contour in cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]:
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < 3:
            continue
        quad = cv2.boxPoints(rectangle)
        turn = np.deg2rad(rectangle[2])
        beyond = max(abs(np.cos(turn)), abs(np.sin(turn))) / 2 + 1e-3
        distances = [
            [cv2.pointPolygonTest(quad, (float(x), float(y)), True) for x in range(values.shape[1])]
            for y in range(len(values))
        ]
        quads.append((quad, float(values[np.array(distances) > -beyond].mean())))
    return quads


@pytest.mark.parametrize("seed", range(4))
def test_rectangles_and_scores_are_those_of_opencv(run_op: RunOp, seed: int) -> None:
    values = page(60, 80, 6, seed)
    said = {"box_threshold": 0.0, "unclip_ratio": 0.0, "min_size": 3}
    ((quads, scores),) = found(run_op, values[None], **said)
    expected = [
        each for each in by_opencv(values) if min(np.linalg.norm(each[0] - np.roll(each[0], 1, 0), axis=1)) >= 5
    ]
    assert len(quads) == len(expected) > 1
    for quad, mean in expected:
        best = max(range(len(quads)), key=lambda i: overlap(quads[i], quad))
        assert cv2.contourArea(quads[best]) <= cv2.contourArea(quad) + 1e-2
        if overlap(quads[best], quad) > 0.999:  # otherwise there are two rectangles of the least area
            assert scores[best] == pytest.approx(mean, abs=2e-3)
    areas = sorted(cv2.contourArea(quad) for quad, _ in expected)
    np.testing.assert_allclose(sorted(cv2.contourArea(quad) for quad in quads), areas, rtol=1e-3)


@pytest.mark.parametrize("dilation", [False, True])
def test_regions_are_those_of_rapidocr(run_op: RunOp, dilation: bool) -> None:
    """RapidOCR rounds to whole pixels several times, so that a score near the threshold may be on the other side."""
    need("rapidocr_onnxruntime")
    from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess

    threshold, near = 0.3, 0.05
    post = DBPostProcess(box_thresh=threshold, unclip_ratio=1.6, use_dilation=dilation)
    total = 0
    for seed in range(8):
        values = gaussian_filter(page(200, 320, 10, seed), 1.5)
        said = {"box_threshold": threshold, "unclip_ratio": 1.6, "dilation": dilation}
        ((quads, scores),) = found(run_op, values[None], **said)
        theirs, their_scores = post(values[None, None], values.shape)
        total += len(theirs)
        ours = [(np.clip(quad, 0, [320, 200]), score) for quad, score in zip(quads, scores, strict=True)]
        others = list(zip(np.array(theirs), their_scores, strict=True))
        for some, rest in ((ours, others), (others, ours)):
            for quad, score in some:
                if score > threshold + near:
                    match, other = max(rest, key=lambda each: overlap(each[0], quad))
                    assert overlap(match, quad) > 0.8 and score == pytest.approx(other, abs=near)
    assert total > 40


def test_a_rectangle_grows_and_is_mapped_back(run_op: RunOp) -> None:
    values = np.zeros((1, 1, 40, 60), np.float32)
    values[..., 10:21, 15:46] = 0.8  # 30 x 10 from (15, 10)
    geometry = np.float32([[2, 0.5, 5, 4, 72, 30]])
    quads, scores, count = run_op(
        "DBPostprocess", {"probabilities": values, "geometry": geometry}, {"max_detections": 2}
    )
    more = 30 * 10 * 1.5 / 80
    x = np.clip(np.array([15 - more - 5, 45 + more - 5]) * 2, 0, 72)
    y = np.clip(np.array([10 - more - 4, 20 + more - 4]) / 2, 0, 30)
    corners = [[x[0], y[0]], [x[1], y[0]], [x[1], y[1]], [x[0], y[1]]]
    np.testing.assert_allclose(quads[0], [corners, np.zeros((4, 2))], rtol=1e-6)
    np.testing.assert_allclose(scores[0], [0.8, 0], rtol=1e-6)
    assert count.tolist() == [1]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    values=st.lists(
        st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0, float("nan"), float("inf"), -1.0]), min_size=1, max_size=4
    ),
    dilation=st.booleans(),
)
def test_quads_of_any_map_are_rectangles(run_op: RunOp, seed: int, size: Any, values: Any, dilation: bool) -> None:
    chosen = np.random.default_rng(seed).choice(np.float32(values), (1, *size))
    said = {"box_threshold": 0.0, "min_size": 1, "dilation": dilation, "max_detections": 50}
    ((quads, scores),) = found(run_op, chosen, **said)
    assert np.isfinite(quads).all() and ((scores >= 0) & (scores <= 1)).all()
    for quad in quads:
        sides = np.roll(quad, -1, 0) - quad
        for one, other in pairwise(sides):
            assert abs(one @ other) < 1e-2 * np.linalg.norm(one) * np.linalg.norm(other) + 1e-3
        assert cv2.contourArea(quad, oriented=True) > 0  # clockwise where y goes down


@pytest.mark.parametrize(("name", "flag"), [("cubic", cv2.INTER_CUBIC), ("linear", cv2.INTER_LINEAR)])
@pytest.mark.parametrize("degrees", [0, 12, -35, 80, 178])
def test_crops_are_those_of_opencv(run_op: RunOp, name: str, flag: int, degrees: float) -> None:
    """The values of OpenCV are rounded to bytes. Before OpenCV 5, its places are rounded, too."""
    rng = np.random.default_rng(2)
    image = np.clip(128 + 6 * (gaussian_filter(rng.uniform(0, 255, (160, 240, 3)), (3, 3, 0)) - 128), 0, 255)
    image = image.astype(np.uint8)
    turn = np.deg2rad(degrees)
    u, v = np.array([np.cos(turn), np.sin(turn)]) * 45, np.array([-np.sin(turn), np.cos(turn)]) * 14
    quad = np.float32([[120, 80] + i * u + j * v for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
    quad += np.float32([[-3, 1], [4, -2], [6, 3], [-1, 5]])
    w, h = (max(np.linalg.norm(quad[a] - quad[b]), np.linalg.norm(quad[c] - quad[d])) for a, b, c, d in SIDES)
    crops, widths = run_op(
        "PerspectiveCrop", {"image": image[None], "quads": quad[None]}, {"height": 48, "width": 300, "filter": name}
    )
    columns = int(np.ceil(48 * w / h))
    assert widths.tolist() == [columns] and crops.shape == (1, 3, 48, columns)
    natural = np.float32([[0, 0], [w, 0], [w, h], [0, h]])
    resized = np.array([[w / columns, 0, w / columns / 2 - 0.5], [0, h / 48, h / 48 / 2 - 0.5], [0, 0, 1]])
    matrix = cv2.getPerspectiveTransform(natural, quad) @ resized
    expected = cv2.warpPerspective(
        image, matrix, (columns, 48), flags=flag | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE
    )
    off = np.abs(crops[0].transpose(1, 2, 0) * 255 - expected)
    assert off.max() <= 1 if cv2.__version__ >= "5" else np.quantile(off, 0.98) < 3


SIDES = (0, 1, 2, 3), (0, 3, 1, 2)


@pytest.mark.parametrize("high", [False, True], ids=["lying", "turned"])
def test_crops_are_those_of_paddleocr(run_op: RunOp, high: bool) -> None:
    """PaddleOCR's get_rotate_crop_image with sides of whole pixels, then a resize."""
    rng = np.random.default_rng(3)
    image = np.clip(128 + 9 * (gaussian_filter(rng.uniform(0, 255, (200, 200, 3)), (5, 5, 0)) - 128), 0, 255)
    image = image.astype(np.uint8)
    w, h = (40, 120) if high else (120, 40)
    quad = np.float32([[30, 20], [30 + w, 20], [30 + w, 20 + h], [30, 20 + h]])
    matrix = cv2.getPerspectiveTransform(quad, np.float32([[0, 0], [w, 0], [w, h], [0, h]]))
    natural = cv2.warpPerspective(image, matrix, (w, h), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    if high:
        natural = np.rot90(natural)
    expected = cv2.resize(natural, (144, 48), interpolation=cv2.INTER_CUBIC)
    said = {"height": 48, "width": 200, "order": "BGR", "mean": [0.5] * 3, "std": [0.5] * 3}
    crops, widths = run_op("PerspectiveCrop", {"image": image[None], "quads": quad[None]}, said)
    assert widths.tolist() == [144]
    ours = ((crops[0] * 0.5 + 0.5) * 255).transpose(1, 2, 0)[..., ::-1]
    assert np.abs(ours - expected)[2:-2, 2:-2].max() < 2.5


def test_the_widest_crop_is_the_width_of_all(run_op: RunOp) -> None:
    image = np.full((2, 50, 90, 3), 200, np.uint8)
    quads = np.float32([[[0, 0], [w, 0], [w, 10], [0, 10]] for w in (10, 60, 25)])
    crops, widths = run_op(
        "PerspectiveCrop",
        {"image": image, "quads": quads, "index": np.int32([1, 0, 1])},
        {"height": 8, "width": 40},
    )
    assert widths.tolist() == [8, 40, 20] and crops.shape == (3, 3, 8, 40)
    for crop, width in zip(crops, widths, strict=True):
        np.testing.assert_allclose(crop[..., :width], 200 / 255, rtol=1e-5)
        assert not crop[..., width:].any()


@pytest.mark.parametrize(("t", "c"), [(6, 3), (20, 5), (40, 30), (80, 600)])
@pytest.mark.parametrize("width", [1, 2, 7, 60])
def test_texts_and_scores_of_a_beam_are_those_of_tensorflow(run_op: RunOp, t: int, c: int, width: int) -> None:
    """On steps that are as sure as a reader's. Among many texts of noise, TensorFlow's search extends none that another
    has displaced in the same step, and finds another text now and then. Its blank is the last class."""
    need("tensorflow")
    import tensorflow as tf

    rng = np.random.default_rng(t + width)
    logits = rng.normal(0, 2, (8, t, c)).astype(np.float32)
    best = np.where(rng.random((8, t, 1)) < 0.4, c - 1, rng.integers(c, size=(8, t, 1)))
    np.put_along_axis(logits, best, rng.uniform(4, 14, best.shape).astype(np.float32), 2)
    labels, count, score = run_op("CTCBeamSearch", {"logits": logits}, {"beam_width": width, "blank": c - 1})
    (theirs,), their_scores = tf.nn.ctc_beam_search_decoder(logits.transpose(1, 0, 2), np.full(8, t, np.int32), width)
    for row, text in enumerate(tf.sparse.to_dense(theirs, -1).numpy()):
        assert labels[row, : count[row]].tolist() == text[text >= 0].tolist()
    np.testing.assert_allclose(score, their_scores.numpy()[:, 0], rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    t=st.integers(0, 5),
    c=st.integers(1, 4),
    scale=st.sampled_from([0.5, 2.0, 9.0]),
    activation=st.sampled_from(["softmax", "none"]),
)
def test_a_wide_beam_finds_the_likeliest_text(
    run_op: RunOp, seed: int, t: int, c: int, scale: float, activation: str
) -> None:
    rng = np.random.default_rng(seed)
    logits, blank = rng.normal(0, scale, (1, t, c)).astype(np.float32), int(rng.integers(c))
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum(-1, keepdims=True)
    sums: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for path in product(range(c), repeat=t):
        text = tuple(label for label, _ in groupby(path) if label != blank)
        sums[text] += float(np.prod([probabilities[i, label] for i, label in enumerate(path)]))
    given_ = logits if activation == "softmax" else probabilities[None]
    said = {"beam_width": 1000, "blank": blank, "activation": activation}
    labels, count, score = run_op("CTCBeamSearch", {"logits": given_}, said)
    assert sums[tuple(labels[0, : count[0]].tolist())] == pytest.approx(max(sums.values()), rel=1e-5)
    assert np.exp(score[0]) == pytest.approx(max(sums.values()), rel=1e-4)
    assert (labels[0, count[0] :] == -1).all()


def test_alignments_together_outweigh_the_best_one(run_op: RunOp) -> None:
    """The blank twice is the best alignment, 0.36. The text of one class has three, 0.64."""
    probabilities = np.float32([[[0.6, 0.4], [0.6, 0.4]]])
    assert run_op("CTCGreedyDecode", {"logits": probabilities}, {"activation": "none"})[1].tolist() == [0]
    labels, count, score = run_op("CTCBeamSearch", {"logits": probabilities}, {"activation": "none"})
    assert labels.tolist() == [[1, -1]] and count.tolist() == [1]
    assert score[0] == pytest.approx(np.log(0.64), abs=1e-6)
