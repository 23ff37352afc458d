"""Detectors of text: what is served is what OpenCV and the op's reference compute around the network's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest

from opgate.attach.attach import attach
from opgate.attach.compared.answers import Found, of_function, of_server
from opgate.attach.model.report import DEFAULT, FOUND, SAID, AttachError
from opgate.attach.model.wish import Wish
from opgate.ops_build.ops.db_postprocess.reference import reference
from tests.attach import networks
from tests.attach.conftest import Make, png

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
RULES: dict[str, Any] = {
    "threshold": 0.3, "box_threshold": 0.6, "unclip_ratio": 1.5, "min_size": 3, "max_detections": 9, "dilation": False
}  # fmt: skip


def lines(height: int, width: int) -> np.ndarray:
    """A bright picture with two dark lines, of which one is turned."""
    pixels = np.full((height, width, 3), 230, np.uint8)
    pixels[10:20, 15 : width - 30] = 15
    turned = cv2.boxPoints(((width / 2, height * 0.6), (width / 2, 9), 12)).astype(np.int32)
    cv2.fillPoly(pixels, [turned], (20, 30, 40))
    return pixels


def sides(pixels: np.ndarray, shortest: int, longest: int = 1536) -> tuple[int, int]:
    """Height and width that PaddleOCR gives a picture."""
    height, width = pixels.shape[:2]
    ratio = min(max(1, shortest / min(height, width)), longest / max(height, width))
    return tuple(max(1, round(int(side * ratio) / 32)) * 32 for side in (height, width))  # type: ignore[return-value]


def expected(file: Path, pixels: np.ndarray, size: tuple[int, int], **said: Any) -> list[tuple[np.ndarray, float]]:
    """The polygons of a picture that is resized to height and width, and their scores."""
    resized = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)[..., ::-1] / 255
    x = ((resized - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)
    (values,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    h, w = pixels.shape[:2]
    geometry = np.float32([[w / size[1], h / size[0], 0, 0, w, h]])
    quads, scores, count = reference(values, geometry, None, None, **{**RULES, **said})
    return list(zip(quads[0, : count[0]], scores[0, : count[0]], strict=True))


def check(answer: dict[str, Any], wanted: list[tuple[np.ndarray, float]]) -> None:
    records = answer["predictions"]
    assert len(records) == len(wanted) > 0
    for record, (quad, score) in zip(records, wanted, strict=True):
        assert record.keys() == {"polygon", "score"}
        np.testing.assert_allclose(record["polygon"], quad, atol=0.02)
        assert record["score"] == pytest.approx(score, abs=1e-3)


def test_a_detector_of_paddleocr_is_found_out(made: Make, tmp_path: Path) -> None:
    file = networks.text_map(tmp_path / "net.onnx")
    model = made(file)
    for pixels in (lines(96, 128), lines(200, 90), lines(96, 400)):
        check(model.predict(png(pixels))[0], expected(file, pixels, sides(pixels, 736)))
    facts = {fact.subject: (fact.value, fact.origin) for fact in model.attached.report.facts}
    assert facts["head"] == ("db", FOUND) and facts["place"] == ("shortest:736 longest:1536", DEFAULT)
    assert facts["max_batch_size"] == ("1", DEFAULT) and "labels" not in facts
    bad, good = (
        {"content": data, "headers": {"Content-Type": "image/png"}} for data in (b"no picture", png(lines(64, 64)))
    )
    assert [answer.status_code for answer in model.send([bad, good])] == [400, 200]


def test_words_of_a_text_detector(made: Make, tmp_path: Path) -> None:
    file = networks.text_map(tmp_path / "net.onnx", paddle=False, logits=True)
    probable = networks.text_map(tmp_path / "probable.onnx")
    post = "db score:0.4 threshold:0.2 unclip:1.6 dilate max:9 sigmoid"
    model = made(file, pre="shortest:64 longest:160", post=post)
    pixels = lines(80, 300)
    said = {"threshold": 0.2, "box_threshold": 0.4, "unclip_ratio": 1.6, "dilation": True}
    check(model.predict(png(pixels))[0], expected(probable, pixels, sides(pixels, 64, 160), **said))
    facts = {fact.subject: fact.origin for fact in model.attached.report.facts}
    for subject in ("threshold", "score threshold", "unclip ratio", "regions at most", "dilation", "place", "size"):
        assert facts[subject] == SAID, subject


def test_pictures_of_one_size_are_read_together(made: Make, tmp_path: Path) -> None:
    file = networks.text_map(tmp_path / "net.onnx")
    model = made(file, pre="shortest:64", max_batch_size=3)
    pictures = [lines(96, 128), lines(96, 128)[::-1].copy(), lines(96, 130)]
    for answer, pixels in zip(model.predict(*map(png, pictures)), pictures, strict=True):
        check(answer, expected(file, pixels, sides(pixels, 64)))
    assert "an answer depends on the largest picture of its batch" in model.report


def test_a_text_detector_of_one_size(made: Make, tmp_path: Path) -> None:
    file = networks.text_map(tmp_path / "net.onnx", size=96)
    model = made(file, post="db")
    pixels = lines(96, 96)
    check(model.predict(png(pixels))[0], expected(file, pixels, (96, 96)))
    assert "letterbox-start:96" in model.report and "max_batch_size: 8\n" in model.attached.config


def test_a_map_of_one_class_is_text_or_a_segment(tmp_path: Path) -> None:
    file = networks.text_map(tmp_path / "net.onnx", paddle=False)
    with pytest.raises(AttachError, match=r"--post: .* fits segment \(.*a map of one class\) or db \(.*say which"):
        attach(Wish(file, pre="stretch:64"), "model")
    with pytest.raises(AttachError, match="--pre: the size of the input 'x' is open"):
        attach(Wish(file), "model")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pre": "shortest:64 longest:100"}, r"--pre: expected longest: and a multiple of 32, got 'longest:100'"),
        ({"pre": "stretch:64 longest:96"}, "'longest:96' belongs to 'shortest:', and 'stretch:64' says another place"),
        ({"post": "db unclip:11"}, "--post: expected unclip:0 to unclip:10, got 'unclip:11'"),
        ({"post": "db unclip:much"}, "--post: expected unclip:0 to unclip:10"),
        ({"post": "db", "labels": "a,b"}, "--labels: db finds regions of text, which have no labels"),
    ],
)
def test_what_a_text_detector_refuses(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach(Wish(networks.text_map(tmp_path / "net.onnx"), **said), "model")


def test_other_outputs_are_no_maps_of_text(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match=r"--post: db needs one output \[n, 1, h, w\]"):
        attach(Wish(networks.segmenter(tmp_path / "net.onnx"), post="db"), "model")
    small = networks.maps(tmp_path / "small.onnx", channels=1)
    with pytest.raises(AttachError, match="--post: db needs a map of the size of the picture, 64 x 64: got maps"):
        attach(Wish(small, post="db"), "model")


def test_polygons_are_compared_by_the_boxes_around_them() -> None:
    record = {"polygon": [[1, 2], [3, 2], [3, 4], [1, 4]], "score": 0.5}
    assert of_server({"predictions": [record]}).things == (Found((1.0, 2.0, 3.0, 4.0), "", 0.5),)
    read = Found((1.0, 2.0, 3.0, 4.0), "cat", 0.5)
    assert of_server({"predictions": [{**record, "text": "cat"}]}).things == (read,)
    for own in ([{**record, "text": "cat"}], [(record["polygon"], "cat", 0.5)]):
        assert of_function(own).things == (read,)
