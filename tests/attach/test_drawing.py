"""Answers as pictures: boxes drawn into the picture, and maps of classes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from PIL import Image

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks, test_reading, test_text
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


def changed(model: Model, pixels: np.ndarray) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Returns the records of a picture, and which pixels of it are changed where they are drawn."""
    (found,) = model.predict(png(pixels))
    answer = answered(model, png(pixels))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg"), answer.text
    drawn = np.asarray(Image.open(io.BytesIO(answer.content)), np.int64)
    return found["predictions"], np.abs(drawn - pixels).sum(2) > 150


def outlined(pixels: np.ndarray, records: list[dict[str, Any]]) -> float:
    """Returns which share of the sides of the records' polygons is changed, one pixel wide."""
    canvas = np.zeros((*pixels.shape[:2], 3), np.uint8)
    for record in records:
        cv2.polylines(canvas, [np.round(record["polygon"]).astype(np.int32)], True, (1, 1, 1))
    return float(pixels[canvas[..., 0] > 0].mean())


def test_lines_of_text_are_drawn_with_their_texts(made: Make, tmp_path: Path) -> None:
    detector, reader = test_reading.files(tmp_path)
    more: dict[str, Any] = {"read": reader, "read_pre": test_reading.PRE, "labels": "a,b,c,d,e"}
    model = made(detector, "reader", pre="shortest:64", post=test_reading.POST, draw=True, **more)
    page = np.pad(test_reading.page(), ((40, 0), (0, 0), (0, 0)), constant_values=235)
    records, marked = changed(model, page)
    assert [record["text"] for record in records] == ["aaba", "baab"]
    assert outlined(marked, records) > 0.9
    left, top = np.min(records[0]["polygon"], 0).astype(int)
    tag = marked[top - 10 : top, left : left + (4 + 1 + 3) * 6]  # "aaba 97%" in letters of 5 x 8 pixels
    assert tag.mean() > 0.6 and not marked[: top - 14].any()
    records, marked = changed(model, np.full((64, 64, 3), 235, np.uint8))
    assert records == [] and not marked.any()
    assert answered(model, b"no picture").status_code == 400


def test_regions_of_text_are_drawn(made: Make, tmp_path: Path) -> None:
    model = made(networks.text_map(tmp_path / "net.onnx"), "regions", pre="shortest:64", post="db", draw=True)
    records, marked = changed(model, test_text.lines(160, 200))
    assert len(records) == 2 and outlined(marked, records) > 0.9


def test_rotated_boxes_are_drawn(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8_obb(tmp_path / "net.onnx", 0.4), "turned", post="obb score:0.9", draw=True)
    records, marked = changed(model, PICTURE)
    assert records and outlined(marked, records) > 0.9
    file = {"data": ("picture.png", png(PICTURE), "image/png")}
    (answer,) = model.send([{"files": file, "data": {"top_k": "1"}, "headers": {"Accept": "image/*"}}])
    assert answer.headers["content-type"] == "image/jpeg"


def test_nothing_can_be_drawn_of_labels(made: Make, tmp_path: Path) -> None:
    file = networks.classifier(tmp_path / "net.onnx")
    with pytest.raises(AttachError, match="--draw: the network gives neither boxes, polygons nor a map of classes"):
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
