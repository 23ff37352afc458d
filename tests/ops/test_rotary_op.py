"""RotaryEmbedding against ONNX Runtime's own operator of this name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def onnxruntime(inputs: dict[str, Array], attributes: dict[str, Any]) -> Array:
    element = ELEMENTS[inputs["x"].dtype.name]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "position_ids" else element, array.shape)
        for name, array in inputs.items()
    ]
    node = helper.make_node("RotaryEmbedding", list(inputs), ["y"], **attributes)
    y = helper.make_tensor_value_info("y", element, None)
    model = helper.make_model(
        helper.make_graph([node], "rotary", infos, [y]), opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, inputs)
    return np.asarray(result)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", [None, 64])
@pytest.mark.parametrize(("flat", "rotated"), [(False, 0), (True, 0), (False, 8)])
def test_it_is_onnx_s_operator(
    run_op: RunOp, dtype: Any, interleaved: bool, positions: int | None, flat: bool, rotated: int
) -> None:
    rng = np.random.default_rng(3)
    batch, heads, sequence, size = 2, 3, 17, 32
    rows = (batch, sequence) if positions is None else (positions,)
    angles = rng.uniform(-4, 4, (*rows, (rotated or size) // 2))
    x = rng.standard_normal((batch, sequence, heads * size) if flat else (batch, heads, sequence, size))
    inputs = {
        "x": x.astype(dtype),
        "cos_cache": np.cos(angles).astype(dtype),
        "sin_cache": np.sin(angles).astype(dtype),
    }
    if positions is not None:
        inputs["position_ids"] = rng.integers(0, positions, (batch, sequence))
    attributes = {"interleaved": int(interleaved), "rotary_embedding_dim": rotated} | (
        {"num_heads": heads} if flat or rotated else {}
    )
    (y,) = run_op("RotaryEmbedding", inputs, attributes)
    tolerance = 2e-6 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(y, onnxruntime(inputs, attributes), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_that_of_torch(interleaved: bool) -> None:
    """Also the second derivative, and under the transforms and the compiler."""
    torch, ops = pytest.importorskip("torch"), pytest.importorskip("opgate.torch")
    generator = torch.Generator().manual_seed(0)
    x, upstream, direction = (torch.randn(2, 3, 5, 8, generator=generator).requires_grad_() for _ in range(3))
    angles = torch.randn(2, 5, 4, generator=generator)
    cos, sin = angles.cos(), angles.sin()

    def plain(x: Any) -> Any:
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
        c, s = cos[:, None], sin[:, None]
        turned = (c * a - s * b, s * a + c * b)
        return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)

    def rotated(x: Any) -> Any:
        return ops.rotary_embedding(x, cos, sin, interleaved=interleaved)

    found = []
    for function in (rotated, plain):
        (first,) = torch.autograd.grad(function(x), x, upstream, create_graph=True)
        found.append((first, *torch.autograd.grad(first, upstream, direction)))
    torch.testing.assert_close(*found)
    square = lambda x: rotated(x).square().sum()  # noqa: E731 (whose gradient is 2 x)
    torch.testing.assert_close(torch.func.grad(square)(x.detach()), 2 * x.detach())
    batch = torch.randn(4, 2, 3, 5, 8, generator=generator)
    torch.testing.assert_close(torch.vmap(torch.func.grad(square))(batch), 2 * batch)
    (compiled,) = torch.autograd.grad(torch.compile(square, backend="aot_eager")(x), x)
    torch.testing.assert_close(compiled, 2 * x.detach())
    with pytest.raises(NotImplementedError, match=r"by its input 'cos_cache': its gradient\.py gives none"):
        ops.rotary_embedding(x, cos.requires_grad_(), sin).sum().backward()


def test_the_gradient_in_tensorflow() -> None:
    tf, ops = pytest.importorskip("tensorflow"), pytest.importorskip("opgate.tensorflow")
    rng = np.random.default_rng(0)
    x = tf.Variable(rng.standard_normal((2, 3, 5, 8)).astype(np.float32))
    angles = rng.standard_normal((2, 5, 4)).astype(np.float32)
    cos = tf.constant(np.cos(angles))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(ops.rotary_embedding(x, cos, np.sin(angles))))
    np.testing.assert_allclose(tape.gradient(loss, x), 2 * x.numpy(), rtol=1e-5, atol=1e-5)
    with tf.GradientTape() as tape:
        tape.watch(cos)
        loss = tf.reduce_sum(ops.rotary_embedding(x, cos, np.sin(angles)))
    with pytest.raises(LookupError, match=r"by its input 'cos_cache': its gradient\.py gives none"):
        tape.gradient(loss, cos)
