"""What a request may set: thresholds and how many of the best, of heads of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.attach.attach import attach
from opgate.attach.model.report import SAID, AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks, test_reading, test_text
from tests.attach.conftest import Make, Model, png, squares

WEIGHTS = np.array([[4, -4, 2], [1, 1, 1], [0, 0, 3]], np.float32)
RED = png(np.full((32, 32, 3), (255, 0, 0), np.uint8))


def said(model: Model, picture: bytes, *settings: dict[str, str]) -> list[Any]:
    """Returns the answers to a picture with each of the settings in the query of the URL, sent together."""
    headers = {"Content-Type": "image/png"}
    answers = model.send([{"content": picture, "headers": headers, "params": each} for each in settings])
    assert [answer.status_code for answer in answers] == [200] * len(settings), [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def wrong(model: Model, picture: bytes, setting: dict[str, str]) -> str:
    """Returns the error of a request with a setting. Another one at the same time is answered."""
    headers = {"Content-Type": "image/png"}
    answers = model.send([{"content": picture, "headers": headers, "params": each} for each in (setting, {})])
    assert [answer.status_code for answer in answers] == [400, 200]
    return str(answers[0].json()["error"])


def test_labels_of_a_classifier(made: Make, tmp_path: Path) -> None:
    """red 0.982, blue 0.881, green 0.018."""
    file = networks.scores(tmp_path / "net.onnx", WEIGHTS, "Sigmoid")
    model = made(file, pre="stretch unit", post="classify:2 max:3", labels=",".join(networks.NAMES))
    settings = [{}, {"top_k": "1"}, {"top_k": "3"}, {"score_threshold": "0.9"}, {"score_threshold": "1"}]
    settings += [{"top_k": "3", "score_threshold": "0.01"}, {"top_k": "1", "score_threshold": "0.5"}]
    answers = said(model, RED, *settings)
    labels = [[record["label"] for record in answer["predictions"]] for answer in answers]
    three = ["red", "blue", "green"]
    assert labels == [three[:2], three[:1], three, three[:1], [], three, three[:1]]
    for value in ("0", "4", "-1"):
        assert "top_k is not within 1 to 3" in wrong(model, RED, {"top_k": value})
    assert "score_threshold is not within 0 to 1" in wrong(model, RED, {"score_threshold": "1.01"})
    assert "INT32" in wrong(model, RED, {"top_k": "1.5"})
    assert "a request may say 1 to 3" in model.report


def test_a_score_of_a_classifier_may_be_low_by_default(made: Make, tmp_path: Path) -> None:
    file = networks.scores(tmp_path / "net.onnx", WEIGHTS, "Sigmoid")
    model = made(file, pre="stretch unit", post="classify score:0.5")
    usual, all_of_them = said(model, RED, {}, {"score_threshold": "0"})
    assert [record["label"] for record in usual["predictions"]] == [0, 2]
    assert [record["label"] for record in all_of_them["predictions"]] == [0, 2, 1]
    (fact,) = [fact for fact in model.attached.report.facts if fact.subject == "score threshold"]
    assert (fact.value, fact.origin) == ("0.5", SAID)


def test_boxes_of_a_detector(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"), post="yolov8 max:20")
    picture = png(squares(at=(30, 37)))
    all_of_them, two, both = (
        answer["predictions"]
        for answer in said(model, picture, {}, {"top_k": "2"}, {"top_k": "2", "score_threshold": "0.99"})
    )
    assert len(all_of_them) > 2 and two == all_of_them[:2]
    assert both == [record for record in two if record["score"] > 0.99]
    assert "top_k is not within 1 to 20" in wrong(model, picture, {"top_k": "21"})


@pytest.mark.parametrize("name", ["score_threshold", "iou_threshold"])
def test_a_threshold_is_a_number(made: Make, tmp_path: Path, name: str) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"))
    least = "0.25" if name == "score_threshold" else "0"
    assert f"{name} is not within {least} to 1" in wrong(model, png(squares()), {name: "NaN"})


@pytest.mark.parametrize("logits", [False, True], ids=["probabilities", "logits"])
@pytest.mark.parametrize("post", ["segment", "segment threshold:0.3"])
def test_a_map_of_one_class(made: Make, tmp_path: Path, logits: bool, post: str) -> None:
    file = networks.text_map(tmp_path / "net.onnx", size=64, paddle=False, logits=logits)
    model = made(file, pre="stretch:64 cv-linear unit mean:0.5 std:0.5", post=f"{post} {'sigmoid' if logits else ''}")
    shades = np.linspace(0, 255, 64).astype(np.uint8)
    picture = np.repeat(shades[None, :, None], 64, 0).repeat(3, 2)
    probabilities = 1 / (1 + np.exp(-(picture / 255.0 - 0.5) / 0.5 @ np.full(3, -4.0)))
    levels = [0.3 if "threshold" in post else 0.5, 0.1, 0.9, 0.0, 1.0]
    answers = said(model, png(picture), {}, *({"mask_threshold": str(level)} for level in levels[1:]))
    for answer, level in zip(answers, levels, strict=True):
        found = np.array(answer["outputs"]["classes"])
        sure = np.abs(probabilities - level) > 1e-3
        np.testing.assert_array_equal(found[sure], (probabilities > level)[sure])
    assert "mask_threshold is not within 0 to 1" in wrong(model, png(picture), {"mask_threshold": "2"})
    assert f"above {levels[0]:g}" in model.report


def test_a_map_of_several_classes_has_no_threshold(tmp_path: Path) -> None:
    file = networks.segmenter(tmp_path / "net.onnx")
    with pytest.raises(AttachError, match=r"--post: 'threshold' goes with a map of one class, and .* has none"):
        attach(Wish(file, post="segment threshold:0.3"), "model")
    assert not attach(Wish(file, post="segment"), "model").settings


@pytest.mark.parametrize("beam", ["", " beam:10"], ids=["best steps", "beam"])
def test_the_text_of_a_reader(made: Make, tmp_path: Path, beam: str) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=False)
    (tmp_path / "characters.txt").write_text("a\nb\nc\nd\ne\n")
    post = f"ctc:{tmp_path / 'characters.txt'} blank:0{beam}"
    model = made(file, pre="grey height:16 half bucket:8 pad:0", post=post)
    line = png(np.repeat(np.array([51, 0, 102, 153], np.uint8), 8)[None].repeat(16, 0))
    usual, none, all_of_them = said(model, line, {}, {"score_threshold": "1"}, {"score_threshold": "0.9"})
    assert [record["text"] for record in usual["predictions"]] == ["abc"]
    assert none["predictions"] == [] and all_of_them == usual
    least = made(file, "least", pre="grey height:16 half bucket:8 pad:0", post=f"{post} score:1")
    assert [len(answer["predictions"]) for answer in said(least, line, {}, {"score_threshold": "0"})] == [0, 1]


@pytest.mark.parametrize("size", [None, 96], ids=["any size", "one size"])
def test_regions_of_a_text_detector(made: Make, tmp_path: Path, size: int | None) -> None:
    file = networks.text_map(tmp_path / "net.onnx", size=size)
    pixels = test_text.lines(96, 96)
    pixels[80:90, 10:60] = 110  # text of a doubtful kind
    model = made(file, pre="" if size else "shortest:64", post="db score:0.7 lowest:0.4")
    sides = (96, 96)
    settings: list[dict[str, str]] = [{}, {"score_threshold": "0.9"}, {"score_threshold": "0.4"}]
    settings += [{"mask_threshold": "0.6"}, {"mask_threshold": "0.6", "score_threshold": "0.99"}]
    names = {"score_threshold": "box_threshold", "mask_threshold": "threshold"}
    answers = said(model, png(pixels), *settings)
    for answer, setting in zip(answers, settings, strict=True):
        own = {names[name]: float(value) for name, value in setting.items()}
        wanted = test_text.expected(file, pixels, sides, **{"box_threshold": 0.7, **own})
        if wanted:
            test_text.check(answer, wanted)
        assert len(answer["predictions"]) == len(wanted)
    assert len({len(answer["predictions"]) for answer in answers}) > 1
    assert "score_threshold is not within 0.4 to 1" in wrong(model, png(pixels), {"score_threshold": "0.39"})
    assert "mask_threshold is not within 0 to 1" in wrong(model, png(pixels), {"mask_threshold": "-0.1"})


def test_lines_that_are_found_and_read(made: Make, tmp_path: Path) -> None:
    detector, reader = test_reading.files(tmp_path)
    more = {"read": reader, "read_pre": test_reading.PRE, "labels": "a,b,c,d,e"}
    model = made(detector, pre="shortest:64", post=f"{test_reading.POST} lowest:0.2", **more)
    page = png(test_reading.page())
    settings = [{}, {"score_threshold": "1"}, {"box_threshold": "1"}, {"mask_threshold": "1"}, {"box_threshold": "0.2"}]
    usual, *none, least = (answer["predictions"] for answer in said(model, page, *settings))
    assert [record["text"] for record in usual] == ["aaba", "baab"] == [record["text"] for record in least]
    assert none == [[], [], []]
    for name in ("score_threshold", "box_threshold", "mask_threshold"):
        least_of = "0.2" if name == "box_threshold" else "0"
        assert f"{name} is not within {least_of} to 1" in wrong(model, page, {name: "1.5"})


def test_a_vector_has_no_settings(made: Make, tmp_path: Path) -> None:
    model = made(networks.classifier(tmp_path / "net.onnx", name="embedding"), pre="stretch:32 unit")
    (answer,) = model.send([{"content": RED, "headers": {"Content-Type": "image/png"}, "params": {"top_k": "1"}}])
    assert answer.status_code == 400 and "has no input 'top_k'" in answer.text
