"""Which class of a reader of lines is CTC's blank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from opgate.attach.attach import attach
from opgate.attach.model.attached import Attached
from opgate.attach.model.report import FOUND, RAN, SAID, AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import png

#: Levels of which pictures are near to the first, or to the last.
FIRST, LAST = (0.4, 2, 3, 4, 5, 6), (2, 3, 4, 5, 6, 0.4)


def reader(
    folder: Path, levels: Sequence[float], characters: Sequence[str], blank: str = "", examples: Path | None = None
) -> Attached:
    file = networks.lines(folder / "net.onnx", steps_first=False, levels=levels)
    (folder / "characters.txt").write_text("".join(f"{character}\n" for character in characters))
    post = f"ctc:{folder / 'characters.txt'} {blank}"
    return attach(Wish(file, pre="grey height:16 unit", post=post, examples=examples), "model")


def blank_of(attached: Attached) -> tuple[str, str]:
    (fact,) = [fact for fact in attached.report.facts if fact.subject == "blank"]
    return fact.value, fact.origin


def test_a_run_shows_that_the_class_before_the_characters_is_the_blank(tmp_path: Path) -> None:
    attached = reader(tmp_path, FIRST, "abcde")
    assert blank_of(attached) == ("0", RAN) and attached.labels == ["", "a", "b", "c", "d", "e"]
    said = reader(tmp_path, FIRST, "abcde", "blank:5")
    assert blank_of(said) == ("5", SAID) and said.labels == ["a", "b", "c", "d", "e", ""]


def test_the_examples_count(tmp_path: Path) -> None:
    """Plain pictures are nearest to the first class, and those of the folder to the third."""
    (tmp_path / "examples").mkdir()
    for name in "abcdefgh":
        (tmp_path / "examples" / f"{name}.png").write_bytes(png(np.full((16, 16), 128, np.uint8)))
    levels = (0.0, 9, 0.5, 9, 1.0, 9)
    with pytest.raises(AttachError, match=r"say blank:2 \(it wins \d+% .* and of --examples\) or blank:0 "):
        reader(tmp_path, levels, "abcde", examples=tmp_path / "examples")


@pytest.mark.parametrize(
    ("levels", "characters", "message"),
    [
        (LAST, "abcde", r"5 characters for the 6 classes .*: say blank:5 \(.*it wins 100% .*\) or blank:0 \("),
        (LAST, "abcdef", r"6 characters for the 6 classes .*: say blank:5 \(.*it wins 100% .*\) or blank:0 \("),
        (FIRST, "abcdef", r"6 characters for the 6 classes .*: say blank:0 \(.*it wins 100% .*\) or blank:5 \("),
    ],
)
def test_what_nothing_tells_is_asked(tmp_path: Path, levels: Sequence[float], characters: str, message: str) -> None:
    with pytest.raises(AttachError, match=rf"^--post: which class is the blank\? There are {message}"):
        reader(tmp_path, levels, characters)


def test_a_list_with_the_blank_tells_its_place(tmp_path: Path) -> None:
    assert blank_of(reader(tmp_path, FIRST, ["a", "b", "c", "d", "e", "<blank>"])) == ("5", FOUND)
    assert blank_of(reader(tmp_path, LAST, ["", "a", "b", "c", "d", "e"])) == ("0", FOUND)


def test_a_file_of_paddle_has_its_blank_first(tmp_path: Path) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=False, levels=LAST)
    attached = attach(
        Wish(networks.with_metadata(file, character="a\nb\nc\nd"), pre="grey height:16 unit", post="ctc"), "model"
    )
    assert blank_of(attached) == ("0", FOUND) and attached.labels == ["", "a", "b", "c", "d", " "]


def test_what_scores_are_may_be_said(tmp_path: Path) -> None:
    for word, value in (("softmax", "logits"), ("probabilities", "probabilities")):
        attached = reader(tmp_path, FIRST, "abcde", f"blank:0 {word}")
        (fact,) = [fact for fact in attached.report.facts if fact.subject == "scores"]
        assert (fact.value, fact.origin) == (value, SAID)
        (op,) = [node for node in attached.model.graph.node if node.op_type == "CTCGreedyDecode"]
        (activation,) = [each.s for each in op.attribute if each.name == "activation"]
        assert activation == (b"softmax" if word == "softmax" else b"none")
