"""Answers as pictures: boxes drawn into the picture, and maps of classes."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from opgate.attach.attach import Wish, attach
from opgate.attach.report import AttachError
from tests.attach import networks
from tests.attach.conftest import Make, Model, png, squares

PICTURE = squares((96, 128), (32, 32), 1)


def answered(model: Model, data: bytes, accept: str = "image/*") -> httpx.Response:
    (answer,) = model.send([{"content": data, "headers": {"Content-Type": "image/png", "Accept": accept}}])
    return answer


def test_boxes_are_drawn(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"), name="colours", post="yolov8 score:0.9", draw=True)
    (found,) = model.predict(png(PICTURE))
    assert found["predictions"]
    answer = answered(model, png(PICTURE))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    drawn = np.asarray(Image.open(io.BytesIO(answer.content)), np.int64)
    assert drawn.shape == PICTURE.shape
    changed = np.abs(drawn - PICTURE).sum(2) > 120
    x1, y1, x2, y2 = (round(corner) for corner in found["predictions"][0]["box"])
    assert changed[y1:y2, x1].mean() > 0.8 and changed[y2 - 1, x1:x2].mean() > 0.8  # two sides of the first box
    assert not changed[80:].any()
    assert answered(model, png(PICTURE), "application/json").json()["predictions"] == found["predictions"]
    assert answered(model, b"no picture").status_code == 400


def test_a_map_of_classes_is_a_picture(made: Make, tmp_path: Path) -> None:
    model = made(networks.segmenter(tmp_path / "net.onnx"), name="map", draw=True)
    answer = answered(model, png(PICTURE))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    classes = model.run(png(PICTURE))["classes"][0]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(answer.content))), classes)


def test_nothing_can_be_drawn_of_labels(made: Make, tmp_path: Path) -> None:
    file = networks.classifier(tmp_path / "net.onnx")
    with pytest.raises(AttachError, match="--draw: the network gives neither boxes nor a map of classes"):
        made(file, post="classify:2", draw=True)
    assert attach(Wish(file, post="classify:2"), "m").beside == {}


def test_the_drawn_picture_has_the_threshold_of_the_request(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"), post="yolov8 score:0.5", draw=True)
    drawn = []
    for threshold in ("", "1"):
        data = {"score_threshold": threshold} if threshold else {}
        file = {"data": ("picture.png", png(PICTURE), "image/png")}
        (answer,) = model.send([{"files": file, "data": data, "headers": {"Accept": "image/*"}}])
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg"), answer.text
        pixels = np.asarray(Image.open(io.BytesIO(answer.content)), np.int64)
        drawn.append(bool((np.abs(pixels - PICTURE).sum(2) > 200).any()))
    assert drawn == [True, False]


def test_models_that_drew_what_was_replaced_are_removed(made: Make, tmp_path: Path) -> None:
    file = networks.yolov8(tmp_path / "net.onnx")
    folder = made(file, draw=True).folder.parent
    (folder / "other_draw").mkdir()
    assert {path.name for path in folder.iterdir()} == {"model", "model_draw", "model_picture", "other_draw"}
    (folder / "model_picture" / "config.pbtxt").write_text('name: "of somebody else"\n')
    made(file)
    assert {path.name for path in folder.iterdir()} == {"model", "model_picture", "other_draw"}
