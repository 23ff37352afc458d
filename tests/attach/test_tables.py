"""Models of tables: what scikit-learn's converters write, made here with the same operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgate.attach.attach import attach
from opgate.attach.model import graph
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from tests.attach.conftest import Make, Model

ML = "ai.onnx.ml"
_STRINGS, _FLOATS = TensorProto.STRING, TensorProto.FLOAT


def saved(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any] = ()
) -> Path:
    graph = helper.make_graph(nodes, "table", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def value(name: str, number: int, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, number, list(shape))


def classifier(path: Path, classes: Sequence[str] | Sequence[int], *, zipped: bool = True, columns: int = 3) -> Path:
    """A linear classifier of `columns` numbers, as LogisticRegression is converted: label and a map of probabilities."""
    count = len(classes)
    rng = np.random.default_rng(1)
    words = isinstance(classes[0], str)
    labels = {"classlabels_strings": list(classes)} if words else {"classlabels_ints": list(classes)}
    linear = helper.make_node(
        "LinearClassifier", ["X"], ["label", "scores"], domain=ML, post_transform="SOFTMAX",
        coefficients=rng.standard_normal(count * columns).tolist(), intercepts=[0.1] * count, **labels,
    )  # fmt: skip
    zip_map = {"classlabels_strings": list(classes)} if words else {"classlabels_int64s": list(classes)}
    nodes = [linear]
    outputs = [value("label", _STRINGS if words else TensorProto.INT64, None), value("scores", _FLOATS, None, count)]
    if zipped:
        nodes.append(helper.make_node("ZipMap", ["scores"], ["probabilities"], domain=ML, **zip_map))
        kind = helper.make_map_type_proto(
            _STRINGS if words else TensorProto.INT64, helper.make_tensor_type_proto(_FLOATS, [])
        )
        outputs[1] = helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind))
    return saved(path, nodes, [value("X", _FLOATS, None, columns)], outputs)


def mixed(path: Path) -> Path:
    """Columns of numbers and words: [age, income] and a one of several cities, to one of two classes."""
    weights = numpy_helper.from_array(np.array([[0.1, -2], [0.2, 1], [1, 0], [-1, 2]], np.float32).T.copy().T, "w")
    nodes = [
        helper.make_node("OneHotEncoder", ["city"], ["cities"], domain=ML, cats_strings=["Paris", "Rome"], zeros=1),
        helper.make_node("Reshape", ["cities", "flat"], ["city_columns"]),
        helper.make_node("Concat", ["age", "income", "city_columns"], ["row"], axis=1),
        helper.make_node("MatMul", ["row", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    inputs = [value("age", _FLOATS, None, 1), value("income", _FLOATS, None, 1), value("city", _STRINGS, None, 1)]
    flat = numpy_helper.from_array(np.array([-1, 2]), "flat")
    return saved(path, nodes, inputs, [value("probabilities", _FLOATS, None, 2)], [weights, flat])


def records(model: Model, body: Any, media: str = "application/json") -> Any:
    sent: dict[str, Any] = {"json": body} if media == "application/json" else {"content": body}
    (answer,) = model.send([{**sent, "headers": {"Content-Type": media}}])
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("classes", [["no", "maybe", "yes"], [3, 1, 2]])
def test_a_map_of_classes_becomes_labels_and_scores(made: Make, tmp_path: Path, classes: list[Any]) -> None:
    model = made(classifier(tmp_path / "net.onnx", classes))
    predictions = records(model, {"X": [0.5, -1, 2]})["predictions"]
    plain = made(classifier(tmp_path / "plain.onnx", classes, zipped=False), "plain")
    assert predictions == records(plain, {"X": [0.5, -1, 2]})["predictions"]
    assert sorted(each["label"] for each in predictions) == sorted(map(str, classes))
    scores = [each["score"] for each in predictions]
    assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1)
    original = onnx.load(tmp_path / "plain.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    label, given = session.run(None, {"X": np.array([[0.5, -1, 2]], np.float32)})
    assert predictions[0]["label"] == str(label[0]) and scores[0] == pytest.approx(given.max())
    assert "its ZipMap is left out" in model.report and "bit for bit" in model.report


def test_a_file_without_standard_operators(made: Make, tmp_path: Path) -> None:
    file = classifier(tmp_path / "net.onnx", ["a", "b"], zipped=False)
    model = onnx.load(file)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(ML, 1))
    onnx.save(model, file)
    assert len(records(made(file), {"X": [1, 2, 3]})["predictions"]) == 2


def test_rows_are_objects_arrays_of_them_or_a_csv(made: Make, tmp_path: Path) -> None:
    model = made(mixed(tmp_path / "net.onnx"), labels="no,yes")
    rows = [{"age": 40.5, "income": 3, "city": "Rome"}, {"age": 2, "income": 1.5, "city": "Oslo, Norway"}]
    alone = [records(model, row) for row in rows]
    assert records(model, rows) == {"results": alone}
    text = 'city,age,income\nRome,40.5,3\n"Oslo, Norway",2,1.5\n\n'
    assert records(model, text.encode(), "text/csv") == {"results": alone}
    assert records(model, ("\ufeff" + text).encode(), "text/csv; charset=utf-8") == {"results": alone}
    (answer,) = model.send(
        [{"content": text.encode(), "headers": {"Content-Type": "text/csv"}, "params": {"top_k": 1}}]
    )
    assert [len(each["predictions"]) for each in answer.json()["results"]] == [1, 1]
    x = np.array([40.5, 3, 0, 1]) @ np.array([[0.1, -2], [0.2, 1], [1, 0], [-1, 2]])
    expected = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    scores = {each["label"]: each["score"] for each in alone[0]["predictions"]}
    assert [scores["no"], scores["yes"]] == pytest.approx(expected, abs=1e-6)


def test_a_row_that_can_not_be_read_costs_no_other_its_answer(made: Make, tmp_path: Path) -> None:
    model = made(mixed(tmp_path / "net.onnx"), labels="no,yes")
    good = {"age": 1, "income": 2, "city": "Rome"}
    found = records(model, [good, {"age": "old", "income": 2, "city": "Rome"}, {"age": 1}, good])["results"]
    assert found[0] == found[3] and "predictions" in found[0]
    assert "input 'age': expected FP32" in found[1]["error"] and "'income'" in found[2]["error"]


@pytest.mark.parametrize(
    ("body", "media", "message"),
    [
        (b"", "text/csv", "got an empty CSV"),
        (b"age,size\n1,2", "text/csv", "has no input 'size'"),
        (b"age,income,city\n1,2", "text/csv", "row 2 of the CSV has 2 values, and its first row has 3 names"),
        (b'age,income,city\n1,2,"Rome', "text/csv", "the CSV can't be read"),
        (b"age\n\xff", "text/csv", "the CSV can't be read"),
        (b"age,income,age\n1,2,3", "text/csv", "the CSV has the column 'age' twice"),
        (b"[1]", "application/json", "expected a JSON object, or an array of objects, got an array with 1"),
        (b'[{"age": 1}', "application/json", "the body is no JSON"),
        (b"age", "text/plain", "Content-Type: expected text/csv"),
    ],
)
def test_bodies_that_are_no_rows(made: Make, tmp_path: Path, body: bytes, media: str, message: str) -> None:
    model = made(mixed(tmp_path / "net.onnx"), labels="no,yes")
    (answer,) = model.send([{"content": body, "headers": {"Content-Type": media}}])
    assert answer.status_code in (400, 415) and message in answer.json()["error"], answer.text


def test_an_empty_cell_is_nan_for_numbers(made: Make, tmp_path: Path) -> None:
    nodes = [helper.make_node("IsNaN", ["x"], ["missing"]), helper.make_node("Cast", ["missing"], ["y"], to=_FLOATS)]
    file = saved(tmp_path / "net.onnx", nodes, [value("x", _FLOATS, None, 1)], [value("y", _FLOATS, None, 1)])
    model = made(file, pre="columns")
    found = records(model, b'x\n""\n3\n', "text/csv")["results"]
    assert [each["predictions"] for each in found] == [[{"value": 1.0}], [{"value": 0.0}]]


def test_numbers_of_a_csv_have_many_forms(made: Make, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["whole"], ["wide"], to=_FLOATS),
        helper.make_node("Concat", ["x", "wide"], ["y"], axis=1),
    ]
    inputs = [value("x", _FLOATS, None, 1), value("whole", TensorProto.INT64, None, 1)]
    model = made(
        saved(tmp_path / "net.onnx", nodes, inputs, [value("y", _FLOATS, None, 2)]), pre="columns", post="value"
    )
    text = b"x,whole\n.5,2\n+1,3.0\n1.,-4\n2e3,05\nnan,6\n-inf,7\n"
    found = [[each["value"] for each in row["predictions"]] for row in records(model, text, "text/csv")["results"]]
    assert found[:4] == [[0.5, 2], [1, 3], [1, -4], [2000, 5]]
    assert [row[1] for row in found[4:]] == [6, 7]
    wrong = b'x,whole\n"1,5",2\n0x10,2\n1,2.5\n1,\n'
    errors = [each["error"] for each in records(model, wrong, "text/csv")["results"]]
    for error, part in zip(errors, ('"1,5"', '"0x10"', "2.5", "whole"), strict=True):
        assert part in error and "JSON is" not in error and "not valid JSON" not in error, error


def test_columns_of_one_input_get_names(made: Make, tmp_path: Path) -> None:
    file = classifier(tmp_path / "net.onnx", ["a", "b"])
    model = made(file, pre="columns:width (cm),height,b")
    plain = made(file, "plain")
    named = records(model, {"width (cm)": 1, "height": 2, "b": 3})
    assert named["predictions"] == records(plain, {"X": [1, 2, 3]})["predictions"]


def test_columns_may_have_the_names_of_what_is_answered(made: Make, tmp_path: Path) -> None:
    """A client sees the names of the columns, and the answers of `/predict` are as ever."""
    file = mixed(tmp_path / "net.onnx")
    given = {"age": 1.5, "income": -2.0, "city": "Rome"}
    plain = records(made(file, "plain", labels="no,yes"), given)["predictions"]
    proto = onnx.load(file)
    new = {"age": "scores", "income": "status", "city": "top_k"}
    graph.rename(proto, lambda name: new.get(name, name))
    onnx.save(proto, file)
    model = made(file, labels="no,yes")
    renamed = {new[name]: value for name, value in given.items()}
    assert records(model, renamed)["predictions"] == plain
    assert records(model, [renamed, renamed])["results"][0]["predictions"] == plain
    assert "network/" not in (model.folder / "config.pbtxt").read_text()
    limited = records(model, {**renamed, "answer_top_k": 1})["predictions"]
    assert limited == plain[:1]
    (refused,) = model.send([{"json": {**renamed, "answer_top_k": 99}}])
    assert refused.status_code == 400 and "answer_top_k is not within" in refused.text


def test_columns_may_have_the_names_of_tensors_in_the_file(made: Make, tmp_path: Path) -> None:
    file = classifier(tmp_path / "net.onnx", ["a", "b"])
    plain = records(made(file, "plain"), {"X": [1, 2, 3]})["predictions"]
    model = made(file, pre="columns:scores,label,X")
    assert records(model, {"scores": 1, "label": 2, "X": 3})["predictions"] == plain
    csv = records(model, b"X,label,scores\n3,2,1\n", "text/csv")["results"]
    assert csv[0]["predictions"] == plain


def test_a_value_has_a_record(made: Make, tmp_path: Path) -> None:
    node = helper.make_node(
        "LinearRegressor", ["X"], ["y"], domain=ML, coefficients=[1.0, 2.0, -1.0, 0.5], intercepts=[1.0, 0.0], targets=2
    )
    file = saved(tmp_path / "net.onnx", [node], [value("X", _FLOATS, None, 2)], [value("y", _FLOATS, None, 2)])
    model = made(file, post="value", labels="price,rent")
    expected = [{"label": "price", "value": 6.0}, {"label": "rent", "value": 0.0}]
    assert records(model, {"X": [1, 2]})["predictions"] == expected
    assert records(made(file, "plain", post="value"), {"X": [1, 2]})["predictions"] == [{"value": 6.0}, {"value": 0.0}]


def test_texts_are_in_lower_case_without_a_locale_of_america(made: Make, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["text", "flat"], ["texts"]),
        helper.make_node("StringNormalizer", ["texts"], ["lower"], case_change_action="LOWER", locale="en_US.UTF-8"),
        helper.make_node("LabelEncoder", ["lower"], ["number"], domain=ML, classes_strings=["übel", "gut"]),
        helper.make_node("Cast", ["number"], ["y"], to=_FLOATS),
    ]
    flat = numpy_helper.from_array(np.array([-1]), "flat")
    inputs, outputs = [value("text", _STRINGS, None, 1)], [value("y", _FLOATS, None)]
    model = made(saved(tmp_path / "net.onnx", nodes, inputs, outputs, [flat]))
    assert records(model, {"text": "ÜBEL"})["predictions"] == [{"value": 0.0}]
    assert records(model, {"text": "GUT"})["predictions"] == [{"value": 1.0}]
    assert "C.UTF-8" in model.report


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pre": "columns:a,b"}, "columns: has 2 names, and the network takes X"),
        ({"pre": "columns:a,,b"}, "expected different names"),
        ({"pre": "columns:a,b,a"}, "expected different names"),
        ({"post": "yolov8"}, "--post: yolov8 doesn't go with what this network takes: expected one of classify"),
        ({"labels": "a,b,c"}, "expected 2 labels, one for each class of the output, got 3"),
    ],
)
def test_what_is_said_wrongly(tmp_path: Path, said: dict[str, str], message: str) -> None:
    file = classifier(tmp_path / "net.onnx", ["a", "b"])
    with pytest.raises(AttachError, match=message):
        attach(Wish(file, **said), "model")
