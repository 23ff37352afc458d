"""Means of boxes that overlap, weighted by their scores, against NumPy: what MediaPipe's options describe as WEIGHTED."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from opgate.attach.attach import attach
from opgate.attach.compared.answers import iou
from opgate.attach.model.report import DEFAULT, SAID, AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import Make, png

#: The centres of BlazeFace's anchors in a picture of 128 x 128.
CENTRES = np.concatenate(
    [
        (np.stack(np.meshgrid(*[np.arange(side)] * 2), -1).reshape(-1, 2).repeat(repeat, 0) + 0.5) * 128 / side
        for side, repeat in ((16, 2), (8, 6))
    ]
)


def means(boxes: np.ndarray, scores: np.ndarray, overlap: float) -> list[tuple[np.ndarray, float]]:
    """The mean of each box and those that overlap it, the best first, and the score of the best."""
    found, left = [], [int(i) for i in np.argsort(-scores, kind="stable")]
    while left:
        together = [i for i in left if i == left[0] or iou(boxes[left[0], :4], boxes[i, :4]) > overlap]
        weights = scores[together].astype(np.float64)
        found.append((weights @ boxes[together] / weights.sum(), float(scores[left[0]])))
        left = [i for i in left if i not in together]
    return found


def scattered(path: Path) -> Path:
    """BlazeFace with another box and other points for each anchor."""
    model = onnx.load(networks.blazeface(path))
    (values,) = [tensor for tensor in model.graph.initializer if tensor.name == "regressors_values"]
    rng = np.random.default_rng(4)
    moved = numpy_helper.to_array(values) + rng.normal(0, 3, (896, 16)).astype(np.float32)
    values.CopyFrom(numpy_helper.from_array(moved, values.name))
    onnx.save(model, path)
    return path


def shades() -> np.ndarray:
    """Reds of all strengths."""
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[..., 0] = np.clip(np.add.outer(np.arange(128), np.arange(128)) + 90, 0, 255)
    return pixels


@pytest.mark.parametrize("post", ["blazeface", "blazeface nms:weighted iou:0.15", "blazeface nms:hard"])
def test_faces(made: Make, tmp_path: Path, post: str) -> None:
    file = scattered(tmp_path / "net.onnx")
    model = made(file, post=post, pre="stretch unit")
    pixels = shades()
    x = pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255
    numbers, logits = onnxruntime.InferenceSession(file).run(["regressors", "classificators"], {"x": x})
    numbers = numbers[0].astype(np.float64)
    numbers[:, :2] += CENTRES
    numbers[:, 4:] += np.tile(CENTRES, 6)
    corners = np.concatenate([numbers[:, :2] - numbers[:, 2:4] / 2, numbers[:, :2] + numbers[:, 2:4] / 2], 1)
    rows, scores = np.concatenate([corners, numbers[:, 4:]], 1), 1 / (1 + np.exp(-logits[0, :, 0].astype(np.float64)))
    kept = scores > 0.5
    wanted = means(rows[kept], scores[kept], 0.15 if "0.15" in post else 0.3)
    records = model.predict(png(pixels))[0]["predictions"]
    assert len(records) == len(wanted) > 5
    ours = np.array([[*record["box"], *np.ravel(record["keypoints"])] for record in records])
    theirs = np.array([np.concatenate([np.clip(row[:4], 0, 128), row[4:]]) for row, _ in wanted])
    hard = "hard" in post
    assert np.allclose(ours, theirs, atol=0.02) != hard
    np.testing.assert_allclose([record["score"] for record in records], [score for _, score in wanted], atol=1e-3)
    (fact,) = [fact for fact in model.attached.report.facts if fact.subject == "nms"]
    assert (fact.value, fact.origin) == ("hard" if hard else "weighted", SAID if "nms" in post else DEFAULT)
    file = {"data": ("picture.png", png(pixels), "image/png")}
    none, less = model.send(
        [{"files": file, "data": data} for data in ({"score_threshold": "1"}, {"iou_threshold": "1"})]
    )
    assert none.json()["predictions"] == [] and len(less.json()["predictions"]) > len(records)


def test_boxes_of_several_classes(made: Make, tmp_path: Path) -> None:
    file = networks.ssd(tmp_path / "net.onnx")
    said = {"pre": "stretch:64 unit cv-linear", "labels": ",".join(networks.NAMES)}
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[10:40, 8:44, 0], pixels[30:60, 30:60, 2] = 255, 230
    model = made(file, post="ssd nms:weighted iou:0.2", **said)
    records = model.predict(png(pixels))[0]["predictions"]
    x = pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255
    boxes, logits = onnxruntime.InferenceSession(file).run(["boxes", "scores"], {"x": x})
    scores = np.exp(logits[0]) / np.exp(logits[0]).sum(1, keepdims=True)
    best = scores[:, 1:].argmax(1)
    wanted = []
    for label, name in enumerate(networks.NAMES):
        kept = (best == label) & (scores[:, 1 + label] > 0.5)
        wanted += [(score, name, mean * 64) for mean, score in means(boxes[0][kept], scores[kept, 1 + label], 0.2)]
    wanted.sort(key=lambda each: -each[0])
    assert len(records) == len(wanted) > 3 and {record["label"] for record in records} == {"red", "blue"}
    for record, (score, name, mean) in zip(records, wanted, strict=True):
        assert record["label"] == name and record["score"] == pytest.approx(score, abs=1e-4)
        np.testing.assert_allclose(record["box"], np.clip(mean, 0, 64), atol=0.02)
    hard = made(file, "hard", post="ssd iou:0.2", **said)
    assert hard.predict(png(pixels))[0]["predictions"] != records and "nms" in hard.report


@pytest.mark.parametrize(
    ("post", "message"),
    [
        ("yolov8 nms:weighted", "--post: 'nms:weighted' means nothing to yolov8"),
        ("ssd nms:soft", "--post: expected nms:hard or nms:weighted, got 'nms:soft'"),
    ],
)
def test_words_of_means_that_are_refused(tmp_path: Path, post: str, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach(Wish(networks.ssd(tmp_path / "net.onnx"), post=post), "model")
