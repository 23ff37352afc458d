"""How the batch of a network for one picture is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from opgate.attach.attach import Wish, attach
from opgate.attach.opening import _BATCH as N
from opgate.attach.opening import carrying
from tests.attach import networks


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
