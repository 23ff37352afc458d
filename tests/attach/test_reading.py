"""A detector of text and a reader of lines in one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import Make, png

PRE = "height:16 bucket:1 half"
#: A region is not grown, so that a line has no rim.
POST = "db unclip:0 text:0 blank:0"


def line(levels: list[int]) -> np.ndarray:
    """A line [16, 24 k] of k parts with these levels of grey in fifths. A level has the letter of its number, 0 is the
    blank."""
    return np.repeat(np.array(levels, np.uint8) * 51, 24)[None].repeat(16, 0)


def page() -> np.ndarray:
    """A bright page with a line, and below it one that runs downwards."""
    pixels = np.full((200, 240), 235, np.uint8)
    pixels[20:36, 30:150] = line([1, 0, 1, 2, 1])
    pixels[60:180, 90:106] = np.rot90(line([2, 1, 0, 1, 2]), -1)
    return np.repeat(pixels[..., None], 3, 2)


def files(folder: Path, **of_reader: Any) -> tuple[Path, Path]:
    detector = networks.text_map(folder / "detector.onnx")
    return detector, networks.lines(folder / "reader.onnx", **{"steps_first": False, "channels": 3, **of_reader})


@pytest.mark.parametrize(
    "of_reader", [{}, {"steps_first": True}, {"opset": 13}], ids=["rows first", "steps first", "another opset"]
)
def test_each_line_has_a_text(made: Make, tmp_path: Path, of_reader: dict[str, Any]) -> None:
    detector, reader = files(tmp_path, **of_reader)
    model = made(detector, pre="shortest:64", post=POST, read=reader, read_pre=PRE, labels="a,b,c,d,e")
    first, second = model.predict(png(page()))[0]["predictions"]
    assert first.keys() == {"text", "polygon", "score"}
    assert (first["text"], second["text"]) == ("aaba", "baab") and min(first["score"], second["score"]) > 0.8
    np.testing.assert_allclose(first["polygon"], [[30, 20], [149, 20], [149, 35], [30, 35]], atol=4)
    np.testing.assert_allclose(second["polygon"], [[90, 60], [105, 60], [105, 179], [90, 179]], atol=4)
    assert "max_batch_size: 1\n" in model.attached.config and "reader: characters" in model.report
    headers = {"Content-Type": "image/png"}
    bodies = [png(np.full((64, 64, 3), 255, np.uint8)), b"no picture", png(page())[:200], png(page())]
    answers = model.send([{"content": body, "headers": headers} for body in bodies])
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200]
    assert answers[0].json()["predictions"] == [] and len(answers[3].json()["predictions"]) == 2


def test_a_line_is_read_as_if_it_were_alone(made: Make, tmp_path: Path) -> None:
    """Also beside a longer one, and in a network of one width."""
    detector, reader = files(tmp_path)
    said = {"pre": "shortest:64", "post": POST, "labels": "a,b,c,d,e"}
    model = made(detector, read=reader, read_pre=PRE, **said)
    pixels = page()
    pixels[60:180] = 235
    alone = model.run(png(pixels))
    together = model.run(png(page()))
    for name in ("quads", "texts", "scores"):
        np.testing.assert_array_equal(alone[name][0, 0], together[name][0, 0])
    assert together["texts"].shape == (1, 2, 2048 // 8)
    fixed = networks.lines(tmp_path / "fixed.onnx", steps_first=False, channels=3, width=160)
    narrow = made(detector, "narrow", read=fixed, read_pre="height:16 half", **said)
    found = narrow.predict(png(page()))[0]["predictions"]
    assert [record["text"][:4] for record in found] == ["aaba", "baab"]  # the padding is a grey, too


def test_a_reader_may_search_a_beam(made: Make, tmp_path: Path) -> None:
    detector, reader = files(tmp_path)
    said = {"pre": "shortest:64", "read": reader, "read_pre": PRE, "labels": "a,b,c,d,e"}
    model = made(detector, post=f"{POST} beam:10", **said)
    assert [record["text"] for record in model.predict(png(page()))[0]["predictions"]] == ["aaba", "baab"]
    assert "reader: beam" in model.report
    with pytest.raises(AttachError, match="--post: the word beam: goes with --read"):
        attach(Wish(detector, pre="shortest:64", post="db beam:10"), "model")


def test_texts_of_a_low_score_are_left_out(made: Make, tmp_path: Path) -> None:
    detector, reader = files(tmp_path)
    said = {"pre": "shortest:64", "read": reader, "read_pre": PRE, "labels": "a,b,c,d,e"}
    model = made(detector, post="db unclip:0 text:1 blank:0", **said)
    assert model.predict(png(page()))[0]["predictions"] == []


def upside_down() -> np.ndarray:
    """The page with its first line turned by 180 degrees, and a third one that runs downwards, turned."""
    pixels = page()
    pixels[20:36, 30:150] = pixels[20:36, 30:150][::-1, ::-1]
    pixels[60:180, 140:156] = np.rot90(line([1, 2, 1, 0, 1]), -1)[..., None]
    return pixels


def test_lines_that_are_upside_down_are_turned(made: Make, tmp_path: Path) -> None:
    detector, reader = files(tmp_path)
    said: dict[str, Any] = {"pre": "shortest:64", "read": reader, "read_pre": PRE, "labels": "a,b,c,d,e"}
    more = {"turn": networks.direction(tmp_path / "direction.onnx"), "turn_pre": "height:16 widest:48 bucket:0 half"}
    model, plain = made(detector, post=POST, **said, **more), made(detector, "plain", post=POST, **said)
    for pixels, texts, without in (
        (page(), ["aaba", "baab"], ["aaba", "baab"]),
        (upside_down(), ["aaba", "baab", "aaba"], ["abaa", "baab", "abaa"]),
    ):
        answers = [each.predict(png(pixels))[0]["predictions"] for each in (model, plain)]
        assert [[record["text"] for record in records] for records in answers] == [texts, without]
        assert [record["polygon"] for record in answers[0]] == [record["polygon"] for record in answers[1]]
    picture = {"data": ("picture.png", png(upside_down()), "image/png")}
    never, wrong = model.send([{"files": picture, "data": {"turn_threshold": value}} for value in ("1", "1.1")])
    assert [record["text"] for record in never.json()["predictions"]] == ["abaa", "baab", "abaa"]
    assert wrong.status_code == 400 and "turn_threshold is not within 0 to 1" in wrong.text
    empty = png(np.full((64, 64, 3), 255, np.uint8))
    assert model.predict(empty)[0]["predictions"] == []
    assert "turner: upside down" in model.report and "turn threshold" in model.report
    sure = made(detector, "sure", post=f"{POST} turn:1", **said, **more)
    assert [record["text"] for record in sure.predict(png(upside_down()))[0]["predictions"]] == ["abaa", "baab", "abaa"]


def test_what_a_turner_refuses(tmp_path: Path) -> None:
    detector, reader = files(tmp_path)
    said: dict[str, Any] = {"post": POST, "read": reader, "read_pre": PRE, "labels": "a,b,c,d,e"}
    with pytest.raises(AttachError, match="--post: the word turn: goes with --turn"):
        attach(Wish(detector, **{**said, "post": f"{POST} turn:0.5"}), "model")
    turn = networks.scores(tmp_path / "three.onnx", np.ones((3, 3), np.float32))
    with pytest.raises(AttachError, match=r"--turn three.onnx: --turn-pre: it gets lines of text in colours"):
        attach(Wish(detector, **said, turn=turn, turn_pre="stretch:32"), "model")
    with pytest.raises(AttachError, match=r"--turn three.onnx: expected two classes, of upright lines .*, got 3"):
        attach(Wish(detector, **said, turn=turn, turn_pre="height:32 widest:32 bucket:0"), "model")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"labels": ""}, "--read reader.onnx: --post: .* which characters does it read?"),
        ({"read_pre": "height:24"}, "--read reader.onnx: --read-pre: the height is 24, and the input 'x' has 16"),
        ({"read_pre": "stretch:16x64"}, "--read reader.onnx: --read-pre: it gets lines of text in colours: say a word"),
        ({"labels": "a,b"}, "--read reader.onnx: --labels: expected 4 to 6 labels"),
        ({"max_batch_size": 2}, "--max-batch-size: the network takes one picture at a time: --read reads the lines"),
    ],
)
def test_what_a_reader_refuses(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    detector, reader = files(tmp_path)
    usual: dict[str, Any] = {"post": POST, "read": reader, "read_pre": PRE, "labels": "a,b,c,d,e"}
    with pytest.raises(AttachError, match=message):
        attach(Wish(detector, **{**usual, **said}), "model")


def test_a_reader_goes_with_a_detector_of_text(tmp_path: Path) -> None:
    _, reader = files(tmp_path)
    with pytest.raises(AttachError, match=r"--read: net.onnx finds no lines of text: a reader goes with the head db"):
        attach(Wish(networks.yolov8(tmp_path / "net.onnx"), read=reader, read_pre=PRE), "model")
    grey = networks.lines(tmp_path / "grey.onnx", steps_first=False)
    with pytest.raises(AttachError, match=r"--read grey.onnx: --read-pre: it gets lines of text in colours"):
        detector = networks.text_map(tmp_path / "detector.onnx")
        attach(Wish(detector, post=POST, read=grey, read_pre=PRE, labels="a,b,c,d,e"), "model")
