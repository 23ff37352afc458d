"""Networks that tell what a file is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from tests.attach.conftest import Make


def network(path: Path, width: int | None = 12, number: int = TensorProto.INT32) -> Path:
    """Counts the bytes below 10, those up to 255, and the padding of a file: their shares are the probabilities."""
    nodes = [
        helper.make_node("Cast", ["bytes"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Less", ["x", "ten"], ["low"]),
        helper.make_node("Less", ["x", "pad"], ["inside"]),
        helper.make_node("Cast", ["low"], ["low.f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["inside"], ["inside.f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["low.f"], ["a"], axes=[1], keepdims=1),
        helper.make_node("ReduceMean", ["inside.f"], ["ab"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["ab", "a"], ["b"]),
        helper.make_node("Sub", ["one", "ab"], ["c"]),
        helper.make_node("Concat", ["a", "b", "c"], ["shares"], axis=1),
    ]
    constants = [numpy_helper.from_array(np.float32(x), name) for name, x in (("ten", 10), ("pad", 256), ("one", 1))]
    taken = helper.make_tensor_value_info("bytes", number, ["files", width or "width"])
    given = helper.make_tensor_value_info("shares", TensorProto.FLOAT, ["files", 3])
    graph = helper.make_graph(nodes, "net", [taken], [given], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.mark.parametrize("number", [TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT])
def test_the_ends_of_a_file_become_labels(made: Make, tmp_path: Path, number: int) -> None:
    model = made(network(tmp_path / "net.onnx", number=number), pre="head:8 tail:4", labels="low,high,none")
    files = [b"", b"abc", bytes(range(20)), b"\1" * 100]
    answers = model.send([{"content": file, "headers": {"Content-Type": "font/woff2"}} for file in files])
    scores = [{each["label"]: each["score"] for each in answer.json()["predictions"]} for answer in answers]
    expected = [(0, 0, 12), (0, 6, 6), (8, 4, 0), (12, 0, 0)]
    for found, (low, high, none) in zip(scores, expected, strict=True):
        assert found == pytest.approx({"low": low / 12, "high": high / 12, "none": none / 12})


def test_a_file_that_is_too_short_costs_no_other_its_answer(made: Make, tmp_path: Path) -> None:
    model = made(network(tmp_path / "net.onnx"), pre="head:12 least:3 strip")
    sent = [{"content": file, "headers": {"Content-Type": "text/plain"}} for file in (b"abcd", b"  a\n", b"efgh")]
    good, short, other = model.send(sent)
    assert (good.status_code, short.status_code, other.status_code) == (200, 400, 200)
    assert "shorter than 3 bytes without white space" in short.json()["error"]


def test_a_file_of_magika_beside_the_network_says_all(made: Make, tmp_path: Path) -> None:
    config = {
        "beg_size": 8, "end_size": 4, "block_size": 16, "padding_token": 256, "min_file_size_for_dl": 2,
        "target_labels_space": ["low", "high", "none"],
    }  # fmt: skip
    (tmp_path / "config.min.json").write_text(json.dumps(config))
    model = made(network(tmp_path / "net.onnx"))
    (answer,) = model.send([{"content": b"  abc", "headers": {"Content-Type": "application/pdf"}}])
    assert answer.json()["predictions"][0] == {"label": "high", "score": pytest.approx(0.5833333)}
    assert "config.min.json" in model.report


@pytest.mark.parametrize("option", ["draw", "read"])
def test_options_of_pictures(tmp_path: Path, option: str) -> None:
    file = network(tmp_path / "net.onnx")
    said: dict[str, Any] = {option: True if option == "draw" else file}
    with pytest.raises(AttachError, match=f"--{option} goes with pictures"):
        attach(Wish(file, pre="head:12", **said), "model")


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        ("head:8", r"takes 12 bytes: expected head:N and tail:M with that sum, got 8"),
        ("head:8 tail:4 striped", "what is 'striped'. Did you mean 'strip'"),
        ("head:8 head:4", "'head:8' and 'head:4' both say the head"),
        ("head:x", "expected head:1 to head:67108864, got 'head:x'"),
        ("head:12 block:3 least:13", "'least': expected 0 to head, 12"),
    ],
)
def test_what_is_said_wrongly(library: Path, tmp_path: Path, pre: str, message: str) -> None:
    from opgate.attach.model.attached import write
    from opgate.onnx_tools.sessions import SessionError

    with pytest.raises((AttachError, SessionError), match=message):
        write(attach(Wish(network(tmp_path / "net.onnx"), pre=pre), "m"), tmp_path / "m", library, "", overwrite=False)
