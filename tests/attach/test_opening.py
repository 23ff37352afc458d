"""How the batch of a network for one picture is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from opgate.attach.attach import attach
from opgate.attach.model.wish import Wish
from opgate.attach.pictures.batch_opening import _BATCH as N
from opgate.attach.pictures.batch_opening import carrying
from opgate.attach.pictures.batching import UNPROVED
from tests.attach import networks
from tests.attach.conftest import Make, png


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        ([N, 3, 8, 8], [1, 3, -1], [-1, 3, 64]),
        ([N, 255, 80, 80], [1, 3, 85, 80, 80], [-1, 3, 85, 80, 80]),
        ([N, 64, 4, 4], [1, 1024], [-1, 1024]),
        ([N, 3, 80, 80, 85], [19200, 85], [-1, 85]),
        ([N, 3, 8, 8], [-1, 64], None),  # follows as it is
        ([N, 3, 8, 8], [0, 3, 64], None),
        ([16, N, 64], [16, 4, 16], [16, -1, 16]),  # heads of attention: steps, batch x heads
        ([4 * N, 16, 16], [1, 4, 16, 16], [-1, 4, 16, 16]),
        ([16, N, 4, 16], [16, 64], [-1, 64]),  # steps x batch
        ([16 * N, 64], [16, 1, 64], [16, -1, 64]),
        ([40, N, 2, 32], [40, 1, 64], [40, -1, 64]),
        ([3, 8, 8], [1, 192], None),  # no batch in it
        (None, [1, 192], None),
        ([N, None, 8], [1, 192], None),
        ([N, 3, 8, 8], [1, 100], None),  # it doesn't fit anyway
    ],
)
def test_where_a_shape_carries_the_batch(shape, target, expected) -> None:
    assert carrying(shape, target) == expected


def attention(path: Path) -> Path:
    """A network for one picture with a head of attention whose shapes have the batch in all places."""
    net = networks.Net(size=32, batch=1)
    rng = np.random.default_rng(0)
    weights = net.constant("patch", rng.standard_normal((8, 3, 8, 8)) / 8)
    net.add("Conv", ["x", weights], "patches", kernel_shape=[8, 8], strides=[8, 8])
    net.add("Reshape", ["patches", net.constant("flat", [1, 8, 16], np.int64)], "flattened")
    net.add("Transpose", ["flattened"], "steps", perm=[2, 0, 1])  # 16, 1, 8
    net.add("Reshape", ["steps", net.constant("heads", [16, 2, 4], np.int64)], "by_head")
    net.add("Transpose", ["by_head"], "q", perm=[1, 0, 2])
    net.add("Transpose", ["by_head"], "k", perm=[1, 2, 0])
    net.add("Softmax", [net.add("MatMul", ["q", "k"], "scores")], "weights", axis=-1)
    net.add("MatMul", ["weights", "q"], "mixed")
    net.add("Transpose", ["mixed"], "mixed_steps", perm=[1, 0, 2])
    net.add("Reshape", ["mixed_steps", net.constant("rows", [16, 8], np.int64)], "as_rows")
    net.add("MatMul", ["as_rows", net.constant("out", rng.standard_normal((8, 5)))], "projected")
    net.add("Reshape", ["projected", net.constant("back", [16, 1, 5], np.int64)], "steps_out")
    net.add("ReduceMean", ["steps_out"], "logits", axes=[0], keepdims=0)
    return net.save(path, {"logits": [5]})


def test_attention_of_one_picture_is_opened(tmp_path: Path) -> None:
    file = attention(tmp_path / "net.onnx")
    made = attach(Wish(file), "model")
    report = "\n".join(made.report.lines())
    assert "opened (4 Reshape)" in report and "max_batch_size: 8" in made.config and "bit for bit" in report


def test_states_of_zeros_are_taken_away(tmp_path: Path) -> None:
    net = networks.Net(size=32, batch=1)
    rng = np.random.default_rng(0)
    net.add("AveragePool", ["x"], "pooled", kernel_shape=[32, 4], strides=[32, 4])
    net.add("Squeeze", ["pooled", net.constant("two", [2], np.int64)], "row")
    net.add("Transpose", ["row"], "steps", perm=[2, 0, 1])  # 8, 1, 3
    weights = [net.constant(name, rng.standard_normal((1, 16, size))) for name, size in (("w", 3), ("r", 4))]
    state = net.constant("state", np.zeros((1, 1, 4)))
    net.nodes.append(
        onnx.helper.make_node("LSTM", ["steps", *weights, "", "", state, state], ["y", "last", ""], hidden_size=4)
    )
    net.add("Squeeze", ["last", net.constant("zero", [0], np.int64)], "logits")
    file = net.save(tmp_path / "net.onnx", {"logits": [4]})
    assert onnxruntime.InferenceSession(file).get_inputs()[0].shape[0] == 1
    made = attach(Wish(file), "model")
    assert "opened (1 LSTM)" in "\n".join(made.report.lines())


WHITE, BLACK = (np.full((64, 64, 3), level, np.uint8) for level in (255, 0))


def test_a_batch_of_which_nothing_is_proved_stays_closed(made: Make, tmp_path: Path) -> None:
    """No picture of a trial is as bright as this detector wants it: zeros together and alone prove nothing."""
    said = {"post": "end2end pixels", "pre": "stretch"}
    closed = made(networks.padded(tmp_path / "closed.onnx", above=2, batch=1), "closed", **said)
    assert f"batch: fixed at 1 picture: {UNPROVED}" in closed.report and "max_batch_size: 1\n" in closed.attached.config
    opened = made(networks.padded(tmp_path / "opened.onnx", above=2), "opened", **said)
    assert f"batch: open in the file as 'batch', and kept so; {UNPROVED}" in opened.report
    assert "max_batch_size: 8\n" in opened.attached.config
    other = made(networks.padded(tmp_path / "other.onnx", above=2, batch="unk__7"), "other", **said)
    assert "max_batch_size: 1\n" in other.attached.config


def test_pictures_that_mix_only_where_something_is_found(made: Make, tmp_path: Path) -> None:
    file = networks.padded(tmp_path / "net.onnx", batch=1, mixes=True)
    model = made(file, post="end2end pixels", pre="stretch")
    assert "max_batch_size: 1\n" in model.attached.config and "rows together give other results" in model.report
    answers = model.predict(png(WHITE), png(BLACK), png(WHITE))
    assert [len(answer["predictions"]) for answer in answers] == [2, 0, 2]


def test_examples_may_prove_a_batch(made: Make, tmp_path: Path) -> None:
    file = networks.padded(tmp_path / "net.onnx", above=0.9, batch=1, channel=0)
    model = onnx.load(file)
    model.graph.node.insert(0, onnx.helper.make_node("Conv", ["x", "only_red"], ["redness"]))
    kernel = np.tile(np.array([1, -0.5, -0.5], np.float32).reshape(1, 3, 1, 1), (3, 1, 1, 1))  # red, and not white
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "only_red"))
    next(node for node in model.graph.node if node.op_type == "Gather").input[0] = "redness"
    onnx.save(model, file)
    said = {"post": "end2end pixels", "pre": "stretch"}
    assert "max_batch_size: 1\n" in made(file, **said).attached.config
    red = np.zeros((50, 70, 3), np.uint8)
    red[..., 0] = 255
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "red.png").write_bytes(png(red))
    (tmp_path / "examples" / "black.png").write_bytes(png(BLACK))
    (tmp_path / "examples" / "broken.png").write_bytes(b"nothing")
    shown = made(file, "shown", examples=tmp_path / "examples", **said)
    assert "max_batch_size: 8\n" in shown.attached.config and "batch: opened" in shown.report
