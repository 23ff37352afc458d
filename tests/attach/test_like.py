"""What a function of the user may return, how answers are compared, and the page of those that disagree."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from opgate.attach.compared.answers import Found, Told, agreement, iou, of_function, of_server
from opgate.attach.compared.comparison import compare, function_of
from opgate.attach.model.attached import Compared
from opgate.attach.model.examples import PICTURES, Example, files, lines, rows
from opgate.attach.model.report import AttachError
from opgate.attach.model.serving import Served
from tests.attach import networks
from tests.attach.conftest import Make, png, squares

BOX = (1.0, 2.0, 3.0, 4.0)


def compared_with(like: str, examples: Path, served: Served, folder: Path, library: Path) -> Compared:
    return compare(like, function_of(like), files(examples, PICTURES), served, folder, library)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([{"box": [1, 2, 3, 4], "label": "cat", "score": 0.5}], Found(BOX, "cat", 0.5)),
        ([{"bbox": np.array([1, 2, 3, 4]), "class": "cat", "confidence": np.float32(0.5)}], Found(BOX, "cat", 0.5)),
        ([((1, 2, 3, 4), "cat", 0.5)], Found(BOX, "cat", 0.5)),
        ([("cat", 0.5, [1, 2, 3, 4])], Found(BOX, "cat", 0.5)),
        ([[1, 2, 3, 4, 0.5, 7]], Found(BOX, "7", 0.5)),
        (np.array([[1, 2, 3, 4, 0.5, 7.0]]), Found(BOX, "7", 0.5)),
        ([[1, 2, 3, 4]], Found(BOX, "", None)),
        ([{"start": 0.5, "end": 2, "note": "C4"}], Found((0.5, 0, 2, 1), "C4", None)),
        ([(0.5, 2.0)], Found((0.5, 0, 2, 1), "", None)),
        ([(0.5, 2.0, "cat")], Found((0.5, 0, 2, 1), "cat", None)),
        ("cat", Found(None, "cat", None)),
        (("cat", 0.5), Found(None, "cat", 0.5)),
        ({"label": "cat", "score": 0.5}, Found(None, "cat", 0.5)),
        ({"text": "cat", "score": 0.5}, Found(None, "cat", 0.5)),
        ([("cat", 0.5), ("dog", 0.25)], Found(None, "cat", 0.5)),
        (["cat", "dog"], Found(None, "cat", None)),
        ({"dog": 0.1, "cat": 0.9}, Found(None, "cat", 0.9)),
        ([{"cat": 0.9}], Found(None, "cat", 0.9)),
        ([("cat", 1)], Found(None, "cat", 1.0)),
        ([{"box": [1, 2, 3, 4], "label": None, "score": 0.5}], Found(BOX, "", 0.5)),
        ([[[[1, 2], [3, 2], [3, 4], [1, 4]], "cat", 0.5]], Found(BOX, "cat", 0.5)),
        ([[[[1, 2], [3, 2], [3, 4], [1, 4]], "cat", "0.5"]], Found(BOX, "cat", 0.5)),
        ([{"box": [[1, 2], [3, 2], [3, 4], [1, 4]], "label": "cat"}], Found(BOX, "cat", None)),
    ],
)
def test_forms_of_answers(answer: object, expected: Found) -> None:
    assert of_function(answer).things[0] == expected


def test_other_forms_of_answers() -> None:
    assert of_function(None).things == () and of_function([]).things == ()
    assert of_function(np.arange(8.0)).vector == tuple(map(float, range(8)))
    bad_score, bad_box = {"label": "cat", "score": "much"}, {"label": "cat", "box": [1, 2, 3]}
    for wrong in (object(), [object()], [(1, 2, 3, 4, 5, 6, 7)], [bad_score], [bad_box], {"score": 0.9}, {}):
        with pytest.raises(AttachError, match=r"^--like: "):
            of_function(wrong)


def test_answers_of_the_server() -> None:
    record = {"box": [1, 2, 3, 4], "label": "cat", "score": 0.5}
    assert of_server({"predictions": [record]}).things == (Found(BOX, "cat", 0.5),)
    assert of_server({"predictions": [{"text": "abc", "score": 0.5}]}).text == "abc"
    assert of_server({"outputs": {"embedding": [0.5, 0.5], "status": [0]}}).vector == (0.5, 0.5)
    assert of_server({"predictions": []}).things == ()


def test_boxes_match_from_half_on() -> None:
    assert iou((0, 0, 4, 2), (0, 0, 2, 2)) == 0.5 and iou((0, 0, 1, 1), (2, 2, 3, 3)) == 0
    ours = Told((Found((0, 0, 4, 2), "a", 0.9), Found((10, 0, 14, 2), "b", 0.8)))
    theirs = Told((Found((10, 0, 14, 3), "c", 0.7), Found((0, 0, 4, 2), "a", 0.9), Found((50, 0, 60, 2), "a", 0.5)))
    found = agreement(ours, theirs)
    assert (found.ours, found.theirs, found.matched, found.labels) == (2, 3, 2, 1)
    assert found.iou == pytest.approx((1 + 8 / 12) / 2) and found.score == pytest.approx(0.1) and not found.equal
    assert agreement(ours, ours).equal and agreement(Told(), Told()).equal


def test_labels_texts_and_vectors_are_compared() -> None:
    cat, dog = (Told((Found(None, name, 0.5),)) for name in ("cat", "dog"))
    assert agreement(cat, cat).equal and not agreement(cat, dog).equal
    assert agreement(Told(vector=(1, 0)), Told(vector=(2, 0))).equal
    assert not agreement(Told(vector=(1, 0)), Told(vector=(0, 1))).equal
    for nothing in (None, []):
        assert not agreement(Told(vector=(1, 0)), of_function(nothing)).equal
        assert not agreement(cat, of_function(nothing)).equal
    assert not agreement(cat, Told(vector=(1, 0))).equal


def test_values_are_compared_as_numbers() -> None:
    """The direction of one number says nothing. Values may have labels."""
    ours = of_server({"predictions": [{"label": "a", "value": 3.0}, {"label": "b", "value": -1.0}]})
    assert agreement(ours, of_function(np.array([[3.0, -1.001]]), vector=True)).equal
    assert not agreement(ours, of_function([6.0, -2.0], vector=True)).equal
    for number, equal in ((3.001, True), (300.0, False), (-3.0, False), (float("nan"), False)):
        one = of_server({"predictions": [{"value": 3.0}]})
        assert agreement(one, of_function(number, vector=True)).equal == equal
    assert not agreement(ours, of_function(3.0, vector=True)).equal


def test_a_row_of_one_column_is_a_dict(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\nhello\n")
    (tmp_path / "mine.py").write_text("def answer(given):\n    return given\n")
    call = function_of(f"{tmp_path / 'mine.py'}:answer")
    assert [call(each) for each in rows(tmp_path / "rows.csv", ["text"], ["text"])] == [{"text": "hello"}]
    assert [call(each) for each in lines(tmp_path / "rows.csv", ["text"])] == ["text", "hello"]


def test_boxes_without_labels_agree_with_any() -> None:
    ours = Told((Found(BOX, "cat", 0.5),))
    for theirs in ([{"box": BOX, "score": 0.5}], [(BOX, 0.5)], [{"box": BOX, "label": None}]):
        assert agreement(ours, of_function(theirs)).equal and agreement(of_function(theirs), ours).equal
    assert not agreement(ours, of_function([{"box": BOX, "label": "dog"}])).equal


def test_a_model_is_compared_with_a_function(made: Make, library: Path, tmp_path: Path, monkeypatch) -> None:
    model = made(networks.classifier(tmp_path / "net.onnx"), pre="stretch:32 unit", labels=",".join(networks.NAMES))
    examples = tmp_path / "examples"
    examples.mkdir()
    for channel, name in enumerate(("a", "b", "c")):
        (examples / f"{name}.png").write_bytes(png(squares((64, 64), (0, 0), channel)))
    (examples / "broken.png").write_bytes(b"nothing")
    (examples / "notes.txt").write_text("no picture")
    code = (
        "import io\nimport numpy as np\nfrom PIL import Image\n"
        "def label(data: bytes):\n"
        "    means = np.asarray(Image.open(io.BytesIO(data))).reshape(-1, 3).mean(0)\n"
        "    return ['red', 'green', 'purple'][means.argmax()]\n"
        "def by_path(file):\n    return label(open(file, 'rb').read())\n"
        "def no_number(file):\n    return {'label': 'red', 'score': 'much'}\n"
    )
    (tmp_path / "own_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("label", "by_path"):
        compared = compared_with(f"own_code:{name}", examples, Served(model.folder, library), model.folder, library)
        text = "\n".join(compared.lines)
        assert "2 of 3 agree" in text and "CPU time of each" in text
        assert "broken.png: the served model refuses it" in text and "c.png: 'blue' and 'purple'" in text
    with pytest.raises(AttachError, match=r"expected a number for a score, got 'much' .* for a.png"):
        compared_with("own_code:no_number", examples, Served(model.folder, library), model.folder, library)
    page = compared.page
    assert page.count("data:image/jpeg;base64,") == 2 and "purple" in page and "a.png" in page
    sys.modules.pop("own_code")


def test_vectors_of_other_lengths_do_not_agree(made: Make, library: Path, tmp_path: Path, monkeypatch) -> None:
    model = made(networks.classifier(tmp_path / "net.onnx", name="embedding"), pre="stretch:32 unit")
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "a.png").write_bytes(png(squares((32, 32), (0, 0), 1)))
    (tmp_path / "vectors.py").write_text(
        "import io\nimport numpy as np\nfrom PIL import Image\n"
        "def same(data: bytes):\n    return np.asarray(Image.open(io.BytesIO(data))).reshape(-1, 3).mean(0)\n"
        "def in_rows(data: bytes):\n    return same(data)[None]\n"
        "def short(data: bytes):\n    return [0.5, 0.5]\n"
        "def six(data: bytes):\n    return np.ones(6)\n"
        "def long(data: bytes):\n    return np.ones(512)\n"
        "def none(data: bytes):\n    return []\n"
        "def zeros(data: bytes):\n    return [0, 0, 0]\n"
        "def label(data: bytes):\n    return 'green'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, told in (
        ("same", "a.png: equal, 1 - cosine"),
        ("in_rows", "a.png: equal, 1 - cosine"),
        ("short", "a.png: different: vectors of 3 and 2 numbers"),
        ("six", "a.png: different: vectors of 3 and 6 numbers"),
        ("long", "a.png: different: vectors of 3 and 512 numbers"),
        ("none", "a.png: different: vectors of 3 and 0 numbers"),
        ("zeros", "a.png: different, 1 - cosine 1.0e+00"),
    ):
        compared = compared_with(f"vectors:{name}", examples, Served(model.folder, library), model.folder, library)
        text = "\n".join(compared.lines)
        assert told in text and f"{int('equal' in told)} of 1 agree" in text
    message = r"^--like: the model answers with a vector, and your function with labels or a text, for a.png"
    with pytest.raises(AttachError, match=message):
        compared_with("vectors:label", examples, Served(model.folder, library), model.folder, library)
    sys.modules.pop("vectors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own_code", "expected module:function or file.py:function"),
        ("./no_such.py:f", "no_such.py:f: FileNotFoundError"),
        ("no_such_module:f", "No module named"),
        ("json:no_such", "has no attribute"),
        ("json:__name__", "is no function"),
    ],
)
def test_functions_that_are_none(text: str, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        function_of(text)


def test_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "own_file.py").write_text("def label(data: bytes):\n    return str(len(data))\n")
    (tmp_path / "picture").write_bytes(b"four")
    assert function_of(f"{tmp_path / 'own_file.py'}:label")(Example("picture", b"four", tmp_path / "picture")) == "4"
