"""The words of --pre and --post, the forms of labels, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from opgate.attach.attach import attach
from opgate.attach.model import labels, post
from opgate.attach.model.labels import listed
from opgate.attach.model.report import DEFAULT, FOUND, RAN, SAID, AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.attach.pictures import pre
from opgate.attach.pictures.facts import Network, read_network, sizes_in
from opgate.attach.pictures.pre_words import Pre
from opgate.service.repository.paths import read_labels
from tests.attach import networks


def network(*, size: int | None = 224, channels: int = 3, **changes: object) -> Network:
    values = {
        "path": Path("net.onnx"),
        "model": onnx.ModelProto(),
        "input": "x",
        "dtype": "f32",
        "layout": "NCHW",
        "channels": channels,
        "height": size,
        "width": size,
        "batch": None,
    }
    return Network(**{**values, **changes})  # type: ignore[arg-type]


def settled(words: str, kind: str = "classify", **changes: object) -> tuple[Pre, dict[str, str]]:
    report = Report()
    of = network(**changes)  # type: ignore[arg-type]
    found = pre.settle(words, kind, of, (of.height or 640, of.width or 640), report)
    return found, {fact.subject: fact.origin for fact in report.facts}


def test_a_classifier_has_the_usual_crop() -> None:
    found, origins = settled("")
    assert (found.fit, found.shorter_side, found.height, found.width) == ("crop", 256, 224, 224)
    assert found.filter == "pil_bilinear" and found.mean == (0.485, 0.456, 0.406)
    assert set(origins.values()) == {DEFAULT}


def test_a_place_without_a_size_has_that_of_the_network() -> None:
    found, _ = settled("stretch", "ctc", size=64)
    assert (found.fit, found.height, found.width, found.bucket) == ("stretch", 64, 64, 0)
    found, _ = settled("", "ctc", size=64)
    assert (found.fit, found.width, found.bucket) == ("fit_height", 64, 0)


def test_a_classifier_of_ultralytics_and_a_reader_of_paddle_have_their_own_ways() -> None:
    found, _ = settled("", metadata={"task": "classify"})
    assert (found.shorter_side, found.mean, found.filter) == (224, (), "pil_bilinear")
    found, _ = settled("height:48", "ctc", size=None, metadata={"character": "a\nb"})
    assert (found.order, found.narrowest, found.bucket) == ("BGR", 320, 32)


def test_words_replace_what_is_usual_and_leave_the_rest() -> None:
    found, origins = settled("letterbox-start:320x224 bgr", "yolov8", size=None)
    assert (found.fit, found.height, found.width, found.order, found.pad) == ("letterbox_start", 320, 224, "BGR", 114)
    assert (origins["place"], origins["colours"], origins["pad"]) == (SAID, SAID, DEFAULT)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("resize:232 crop:224 pil-bicubic", {"shorter_side": 232, "filter": "pil_bicubic"}),
        ("crop:224", {"shorter_side": 256, "fit": "crop"}),
        ("stretch", {"fit": "stretch", "height": 224, "width": 224, "shorter_side": 0}),
        ("stretch:224 half", {"fit": "stretch", "mean": (0.5,), "std": (0.5,), "scale": "unit"}),
        ("stretch:224 byte mean:104,117,123 std:1", {"scale": "byte", "mean": (104, 117, 123), "std": (1,)}),
        ("stretch:224 mean:0.4,0.4,0.4 std:0.2,0.2,0.2 pad:0", {"mean": (0.4,) * 3, "std": (0.2,) * 3, "pad": 0}),
        ("stretch:224 unit cv-area", {"mean": (), "std": (), "filter": "cv_area"}),
        ("stretch byte", {"scale": "byte", "mean": (), "std": ()}),
        ("mean:0.4", {"scale": "unit", "mean": (0.4,), "std": (1,)}),
        ("std:0.2", {"scale": "unit", "mean": (0,), "std": (0.2,)}),
        ("unit mean:0.5 std:0.2", {"scale": "unit", "mean": (0.5,), "std": (0.2,)}),
        ("pad:0 std:0.2 crop:224 mean:0.5 resize:232 unit", {"mean": (0.5,), "std": (0.2,), "shorter_side": 232}),
    ],
)
def test_words(words: str, expected: dict[str, object]) -> None:
    found, _ = settled(words)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_line_of_text_follows_the_picture() -> None:
    found, _ = settled("height:48 widest:1024 bucket:64", "ctc", size=None)
    assert (found.fit, found.height, found.width, found.bucket) == ("fit_height", 48, 1024, 64)


def test_a_grey_network_gets_grey_pictures_and_bytes_what_it_scales_itself() -> None:
    found, origins = settled("stretch:224", channels=1, scales=True)
    assert found.channels == 1 and found.scale == "byte" and found.mean == ()
    assert (origins["colours"], origins["range"]) == (FOUND, FOUND)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("leterbox:640", "what is 'leterbox:640'? Did you mean 'letterbox:640'? Expected words such as letterbox:…"),
        ("hieght", "what is 'hieght'? Did you mean 'height:…'?"),
        ("imagnet", "what is 'imagnet'? Did you mean 'imagenet'?"),
        ("cv-liner bgr", "what is 'cv-liner'? Did you mean 'cv-linear'?"),
        ("zzzz", "what is 'zzzz'? Expected words such as"),
        ("letterbox:640 stretch:640", "'letterbox:640' and 'stretch:640' both say the place"),
        ("letterbox:wide", "expected a size such as letterbox:640"),
        ("letterbox:640", "the height is 640, and the input 'x' has 224"),
        ("rgb bgr", "'rgb' and 'bgr' both say the colours"),
        ("grey", "grey has 1 channel, and the input 'x' has 3"),
        ("mean:1,2", "is beyond 0..1: add the word byte"),
        ("mean:0.1,0.2 std:1", "mean has 2 numbers: expected 1 or 3"),
        ("std:0", "a std is 0"),
        ("std:0.2,-0.2,0.2", "a std is -0.2: expected numbers above 0"),
        ("resize:256", "'resize:256' needs a crop"),
        ("resize:200 crop:224", "the shorter side of 200 is less than the crop"),
        ("pad:300", "expected pad:0 to pad:255"),
        ("resize:256 stretch", "'resize:256' belongs to 'crop:', and 'stretch' says another place"),
        ("letterbox resize:256", "'resize:256' belongs to 'crop:', and 'letterbox' says another place"),
        ("letterbox:224 bucket:3", "'bucket:3' belongs to 'height:', and 'letterbox:224' says another place"),
        ("narrowest:7 crop:224", "'narrowest:7' belongs to 'height:', and 'crop:224' says another place"),
        ("widest:10", "'widest:10' belongs to 'height:', which --pre doesn't say"),
        ("mean:0.5 half", "'half' and 'mean:0.5' both say the mean"),
        ("mean:nan", "expected numbers such as mean:0.5,0.5,0.5"),
        ("height:0", "expected height:1 to height:4096"),
    ],
)
def test_wrong_words(words: str, message: str) -> None:
    kind = "embed" if words == "resize:256" else "classify"
    with pytest.raises(AttachError, match=r"^--pre: ") as error:
        settled(words, kind)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("yolo8 score:0.5", "what is 'yolo8'? Did you mean 'yolov8'? Expected one of yolov8, yolov5"),
        ("clasify:5", "what is 'clasify'? Did you mean 'classify'?"),
        ("yolov8 scroe:0.5", "what is 'scroe:0.5'? Did you mean 'score:0.5'? Expected words of yolov8: output:"),
        ("classify sigmod", "what is 'sigmod'? Did you mean 'sigmoid'?"),
        ("", "what is ''?"),
        ("yolov8 score:2", "expected score:0 to score:1"),
        ("yolov8 fast", "what is 'fast'? Expected words of yolov8: output:"),
        ("yolov8 max:few", "expected a number such as max:1"),
        ("yolov8 max:0", "expected max:1 to max:10000"),
        ("ctc:a.txt beam:0", "expected beam:1 to beam:1000, got 'beam:0'"),
        ("ctc:a.txt beam:1001", "expected beam:1 to beam:1000"),
        ("yolov8 beam:3", "'beam:3' means nothing to yolov8"),
        ("yolov8 max:10001", "expected max:1 to max:10000"),
        ("end2end cxcywh", "'cxcywh' means nothing to end2end"),
        ("end2end sigmoid", "'sigmoid' means nothing to end2end"),
        ("end2end classes:2", "'classes:2' means nothing to end2end"),
        ("end2end iou:0.5 agnostic", "'agnostic' means nothing to end2end"),
        ("boxes xyxy", "'xyxy' means nothing to boxes"),
        ("yolov8 softmax", "'softmax' means nothing to yolov8"),
        ("yolov5 rows", "'rows' means nothing to yolov5"),
        ("yolox pixels", "'pixels' means nothing to yolox"),
        ("scrfd classes:2", "'classes:2' means nothing to scrfd"),
        ("ctc:a.txt sigmoid", "'sigmoid' means nothing to ctc"),
        ("segment softmax", "'softmax' means nothing to segment"),
        ("yolov8:5", "what stands behind the colon of 'yolov8:5' means nothing to yolov8"),
        ("detr agnostic", "'agnostic' goes with suppression: add a word such as iou:0.5"),
        ("detr xyxy cxcywh", "'xyxy' and 'cxcywh' both say the box form"),
        ("yolov8 normalized pixels", "'normalized' and 'pixels' both say the unit of boxes"),
        ("yolov8 agnostic per-class", "'agnostic' and 'per-class' both say the suppression"),
        ("classify sigmoid softmax", "'sigmoid' and 'softmax' both say the kind of scores"),
        ("ssd background-last background-first", "'background-last' and 'background-first' both say the background"),
        ("yolov8 score:0.3 score:0.5", "'score:0.3' and 'score:0.5' both say the score"),
        ("yolov8 score:0.3 lowest:0.4", "'lowest:0.4' is above the score threshold, 0.3"),
        ("yolov8 lowest:0.4", "'lowest:0.4' is above the score threshold, 0.25"),
        ("classify:3 max:2", "'max:2' is less than the 3 labels of an answer"),
        ("classify max:2", "'max:2' is less than the 5 labels of an answer"),
    ],
)
def test_wrong_heads(words: str, message: str) -> None:
    report = Report()
    with pytest.raises(AttachError, match=r"^--post: ") as error:
        post.read(words, report.said, "", report)
    assert message in str(error.value)


def test_a_misspelt_file_of_labels_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\n")
    for option, said, near in (
        ("--labels", str(tmp_path / "lables.txt"), "labels.txt"),
        ("--labels", "metdata", "metadata"),
        ("--post ctc:", str(tmp_path / "label.txt"), "labels.txt"),
    ):
        with pytest.raises(AttachError, match=rf"^{option}.* Did you mean '{near}'\?$"):
            labels.read(said, {}, "ctc", Report(), option)
    with pytest.raises(AttachError, match=r"with commas between them\.$"):
        labels.read("zzzz", {}, "classify", Report())


def test_a_head_and_its_words() -> None:
    report = Report()
    found = post.read("yolov8 score:0.4 lowest:0.1 iou:0.45 max:20 agnostic classes:2", report.said, "", report)
    assert (found.kind, found.score, found.lowest, found.iou) == ("yolov8", 0.4, 0.1, 0.45)
    assert (found.most, found.classes) == (20, 2)
    assert "agnostic" in found.words
    assert {fact.origin for fact in report.facts} == {SAID}


@pytest.mark.parametrize(
    "text",
    [
        "{0: 'cat', 1: 'dog'}",
        '["cat", "dog"]',
        '{"0": "cat", "1": "dog"}',
        '{"cat": 0, "dog": 1}',
        "cat\ndog",
        "cat, dog",
    ],
)
def test_forms_of_labels(text: str) -> None:
    assert listed(text) == ["cat", "dog"]


def test_forms_of_sizes() -> None:
    assert sizes_in("[320, 416]") == (320, 416) and sizes_in("640") == (640, 640)
    assert sizes_in("640 px") is None and sizes_in("") is None


def test_labels_come_from_the_metadata_a_file_or_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("cat\ndog\n")
    (tmp_path / "labels.json").write_text('{"0": "cat", "1": "dog"}')
    for said, metadata in [
        ("", {"names": "{0: 'cat', 1: 'dog'}"}),
        ("metadata", {"labels": "cat,dog"}),
        (str(file), {}),
        (str(tmp_path / "labels.json"), {}),
        ("cat,dog", {"names": "a,b,c"}),
    ]:
        assert labels.read(said, metadata, "classify", Report()) == ["cat", "dog"]
    assert labels.read("", {}, "classify", Report()) is None
    for said in ("metadata", "nowhere.txt"):
        with pytest.raises(AttachError, match=r"^--labels: "):
            labels.read(said, {}, "classify", Report())


def test_labels_must_be_as_many_as_classes() -> None:
    with pytest.raises(AttachError, match="expected 3 labels, one for each class of the output, got 2"):
        labels.fitted(["cat", "dog"], 3, "classify", 0, Report())
    with pytest.raises(AttachError, match="line break"):
        labels.fitted(["cat\nor dog"], 1, "classify", 0, Report())


def test_the_gateway_reads_the_labels_that_were_written(tmp_path: Path) -> None:
    """Also those that Unicode calls the end of a line."""
    written = ["", "a", "\u2028", "b\x0c", "\x1c", "c\x85d", " ", ""]
    assert labels.fitted(written, len(written), "ctc", 0, Report()) == written
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "labels.txt").write_text("".join(f"{label}\n" for label in written), encoding="utf-8")
    assert read_labels(tmp_path, tmp_path / "model", "labels.txt") == tuple(written)
    (tmp_path / "model" / "dos.txt").write_bytes(b"cat\r\ndog\r\n")
    assert read_labels(tmp_path, tmp_path / "model", "dos.txt") == ("cat", "dog")
    for label in ("a\rb", "a\r", "\n"):
        with pytest.raises(AttachError, match="--labels: a label with a line break"):
            labels.fitted([label], 1, "classify", 0, Report())


@pytest.mark.parametrize("word", ["unit", "half", "imagenet", "mean:3", "byte std:2"])
def test_a_network_of_bytes_gets_bytes(word: str) -> None:
    assert settled("stretch byte", dtype="u8", scales=True)[0].scale == "byte"
    with pytest.raises(AttachError, match=f"takes bytes .*'{word.rsplit(maxsplit=1)[-1]}' would change"):
        settled(f"stretch {word}", dtype="u8", scales=True)


@pytest.mark.parametrize(
    ("op", "constant", "scales"),
    [
        ("Mul", 2.0, False),
        ("Mul", 1 / 255, True),
        ("Mul", 58.0, False),
        ("Div", 2.0, False),
        ("Div", 255.0, True),
        ("Div", 58.0, True),
        ("Sub", 0.5, False),
        ("Sub", 1.0, False),
        ("Sub", 127.5, True),
        ("Add", -104.0, True),
    ],
)
def test_a_network_scales_bytes_by_constants_of_their_size(
    tmp_path: Path, op: str, constant: float, scales: bool
) -> None:
    net = networks.Net(size=32)
    net.add("GlobalAveragePool", [net.add(op, ["x", net.constant("c", constant)], "moved")], "out")
    file = net.save(tmp_path / "net.onnx", {"out": [3, 1, 1]})
    assert read_network(file, onnx.load(file), "", Report()).scales == scales


def test_characters_get_the_blank_and_the_space_that_they_lack() -> None:
    assert labels.fitted(["a", "b"], 3, "ctc", 0, Report()) == ["", "a", "b"]
    assert labels.fitted(["a", "b"], 4, "ctc", 0, Report()) == ["", "a", "b", " "]
    assert labels.fitted(["", "a", "b"], 3, "ctc", 0, Report()) == ["", "a", "b"]
    assert labels.fitted(["a", "b"], 3, "ctc", 2, Report()) == ["a", "b", ""]


def test_a_report_says_where_each_fact_comes_from() -> None:
    report = Report()
    report.found("input", "x", "NCHW")
    report.default("pad", 114)
    report.said("labels", np.int64(3))
    report.ran("scores", "logits")
    assert [line.split("  ")[0] for line in report.lines()] == ["input", "pad", "labels", "scores"]
    assert (
        RAN in report.lines()[3]
        and FOUND in report.lines()[0]
        and DEFAULT in report.lines()[1]
        and SAID in report.lines()[2]
    )


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("", "imagenet"),
        ("imagenet", "imagenet"),
        ("mean:0.485,0.456,0.406 std:0.229,0.224,0.225", "unit mean:0.485,0.456,0.406 std:0.229,0.224,0.225"),
        ("half", "unit mean:0.5 std:0.5"),
        ("byte", "byte"),
    ],
)
def test_the_range_is_told_in_the_words_for_it(words: str, value: str) -> None:
    report = Report()
    pre.settle(words, "classify", network(), (224, 224), report)
    (fact,) = [fact for fact in report.facts if fact.subject == "range"]
    assert (fact.value, fact.origin) == (value, SAID if words else DEFAULT)


def test_what_is_said_is_not_told_as_usual() -> None:
    report = Report()
    post.read("yolov8 score:0.4 agnostic", report.said, "", report)
    facts = {fact.subject: (fact.value, fact.origin, fact.why) for fact in report.facts}
    assert facts["score threshold"] == ("0.4", SAID, "a request may say 0.4 to 1")
    assert facts["suppression"] == ("across classes", SAID, "")
    assert facts["IoU threshold"] == ("0.7", DEFAULT, "usual for yolov8; a request may say 0 to 1")


def test_the_number_of_labels_is_said_by_nobody(tmp_path: Path) -> None:
    file = networks.classifier(tmp_path / "net.onnx")
    for said, origin in (("", DEFAULT), ("classify", DEFAULT), ("classify:3", SAID)):
        facts = attach(Wish(file, post=said), "model").report.facts
        assert [fact.origin for fact in facts if fact.subject == "labels at most"] == [origin]
