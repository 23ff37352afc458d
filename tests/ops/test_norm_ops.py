"""The norms and their gradients against ONNX Runtime's SkipSimplifiedLayerNormalization and torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

RELATIVE = {np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2, np.float32: 1e-5}


@cache
def skip_norm(element: int, epsilon: float) -> ort.InferenceSession:
    inputs = [helper.make_tensor_value_info(name, element, None) for name in ("x", "residual", "weight")]
    outputs = [helper.make_tensor_value_info(name, element, None) for name in ("y", "sum")]
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization",
        ["x", "residual", "weight"],
        ["y", "", "", "sum"],
        domain="com.microsoft",
        epsilon=epsilon,
    )
    graph = helper.make_graph([node], "norm", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def normal(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("c", [1, 7, 32, 100, 4096])
@pytest.mark.parametrize("epsilon", [1e-5, 0.25])
def test_with_a_residual_it_agrees_with_onnxruntime(run_op: RunOp, c: int, epsilon: float) -> None:
    x, residual, weight = normal(np.float32, 2, 9, c), normal(np.float32, 2, 9, c, seed=1), normal(np.float32, c)
    feeds = {"x": x, "residual": residual, "weight": weight}
    y, total = run_op("RMSNorm", feeds, {"epsilon": epsilon})
    expected, expected_sum = skip_norm(TensorProto.FLOAT, epsilon).run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(total, expected_sum)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("c", [1, 7, 64, 1000])
def test_without_a_residual_it_agrees_with_torch(run_op: RunOp, dtype: Any, c: int) -> None:
    torch = pytest.importorskip("torch")
    x, weight = normal(dtype, 5, c), normal(dtype, c)
    y, total = run_op("RMSNorm", {"x": x, "weight": weight}, {"epsilon": 1e-6})
    wide, wide_weight = (torch.tensor(array.astype(np.float64)) for array in (x, weight))
    expected = torch.nn.functional.rms_norm(wide, (c,), wide_weight, eps=1e-6).numpy()
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=RELATIVE[dtype], atol=1e-6)
    np.testing.assert_array_equal(total, x.astype(total.dtype))


@pytest.mark.parametrize("kind", ["normal", "uniform", "equal"])
def test_the_error_does_not_grow_with_the_row(run_op: RunOp, kind: str) -> None:
    rng, shape = np.random.default_rng(0), (2, 1 << 20)
    values = {"normal": rng.standard_normal(shape), "uniform": rng.uniform(0, 1, shape), "equal": np.full(shape, 0.1)}
    x, weight = values[kind].astype(np.float32), np.ones(1 << 20, np.float32)
    y = run_op("RMSNorm", {"x": x, "weight": weight}, {"epsilon": 0.0})[0]
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(np.square(wide), axis=-1, keepdims=True))
    units = np.abs(y - expected) / np.spacing(np.abs(expected.astype(np.float32)))
    assert units.max() <= 2


ALL = {np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2, np.float32: 2e-5, np.float64: 1e-12}


def wide(array: Array | None) -> Any:
    torch = pytest.importorskip("torch")
    return None if array is None else torch.tensor(array.astype(np.float64), requires_grad=True)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("c", [1, 7, 64, 1000])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_agrees_with_torch(run_op: RunOp, dtype: Any, c: int, affine: bool) -> None:
    torch = pytest.importorskip("torch")
    x, weight, bias = normal(dtype, 5, c), *((normal(dtype, c), normal(dtype, c, seed=2)) if affine else (None, None))
    y, total = run_op("LayerNorm", {"x": x, "weight": weight, "bias": bias}, {"epsilon": 2**-20})
    expected = torch.nn.functional.layer_norm(wide(x), (c,), wide(weight), wide(bias), eps=2**-20)
    np.testing.assert_allclose(y.astype(np.float64), expected.detach().numpy(), rtol=ALL[dtype], atol=ALL[dtype])
    np.testing.assert_array_equal(total, x.astype(total.dtype))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 5), 3), ((3, 8), 8), ((2, 32, 9, 7), 4), ((1, 5, 2, 3, 4), 1)])
def test_group_norm_agrees_with_torch(run_op: RunOp, dtype: Any, shape: tuple[int, ...], groups: int) -> None:
    torch = pytest.importorskip("torch")
    x, weight, bias = normal(dtype, *shape), normal(dtype, shape[1]), normal(dtype, shape[1], seed=2)
    attributes = {"groups": groups, "epsilon": 2**-20}
    y = run_op("GroupNorm", {"x": x, "weight": weight, "bias": bias}, attributes)[0]
    expected = torch.nn.functional.group_norm(wide(x), groups, wide(weight), wide(bias), eps=2**-20)
    np.testing.assert_allclose(y.astype(np.float64), expected.detach().numpy(), rtol=ALL[dtype], atol=ALL[dtype])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradients_agree_with_torch(run_op: RunOp, dtype: Any, name: str, weighted: bool) -> None:
    torch = pytest.importorskip("torch")
    x, grad_y, grad_sum = (normal(dtype, 70, 40, seed=seed) for seed in range(3))
    weight = normal(dtype, 40, seed=3) if weighted else None
    inputs, factor = wide(x), wide(weight if weighted else np.ones(40))
    if name == "LayerNorm":
        bias = wide(np.zeros(40))
        y = torch.nn.functional.layer_norm(inputs, (40,), factor, bias, eps=2**-20)
        parameters = [factor, bias]
    else:
        y, parameters = torch.nn.functional.rms_norm(inputs, (40,), factor, eps=2**-20), [factor]
    expected = torch.autograd.grad([y, inputs], [inputs, *parameters], [wide(grad_y), wide(grad_sum)])
    feeds = {"grad_y": grad_y, "sum": x, "weight": weight, "grad_sum": grad_sum}
    gradients = run_op(f"{name}Backward", feeds, {"epsilon": 2**-20})
    for gradient, exact in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.astype(np.float64), exact.numpy(), rtol=ALL[dtype], atol=20 * ALL[dtype])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 5), 3), ((3, 8), 4), ((2, 32, 9, 7), 4), ((1, 5, 2, 3, 4), 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_group_norm_agrees_with_torch(
    run_op: RunOp, dtype: Any, shape: tuple[int, ...], groups: int, weighted: bool
) -> None:
    torch = pytest.importorskip("torch")
    x, grad_y, grad_sum = (normal(dtype, *shape, seed=seed) for seed in range(3))
    weight = normal(dtype, shape[1], seed=3) if weighted else None
    inputs, factor, bias = wide(x), wide(weight if weighted else np.ones(shape[1])), wide(np.zeros(shape[1]))
    y = torch.nn.functional.group_norm(inputs, groups, factor, bias, eps=2**-10)
    expected = torch.autograd.grad([y, inputs], [inputs, factor, bias], [wide(grad_y), wide(grad_sum)])
    feeds = {"grad_y": grad_y, "sum": x, "weight": weight, "grad_sum": grad_sum}
    gradients = run_op("GroupNormBackward", feeds, {"groups": groups, "epsilon": 2**-10})
    for gradient, exact in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.astype(np.float64), exact.numpy(), rtol=ALL[dtype], atol=20 * ALL[dtype])


def test_a_large_mean_costs_no_digits(run_op: RunOp) -> None:
    """The numbers are near 2^22, where f32 has halves. Subtracting the mean gives their exact differences."""
    x = (np.random.default_rng(0).integers(0, 16, (3, 10_001)) / 2 + 2.0**22).astype(np.float32)
    exact = x.astype(np.float64) - 2.0**22
    exact = (exact - exact.mean(axis=-1, keepdims=True)) / exact.std(axis=-1, keepdims=True)
    for name, inputs, attributes in [("LayerNorm", x, {}), ("GroupNorm", x[:, None], {"groups": 1})]:
        y = run_op(name, {"x": inputs}, {"epsilon": 0.0} | attributes)[0].reshape(x.shape)
        np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-6)


def test_torch_checks_the_gradients(library: Path) -> None:
    torch, ops = pytest.importorskip("torch"), pytest.importorskip("opgate.torch")
    x, residual, weight, bias = map(
        wide, (normal(np.float64, 3, 5, seed=i) if i < 2 else normal(np.float64, 5) for i in range(4))
    )
    for inputs in [(x,), (x, weight), (x, weight, bias), (x, weight, bias, residual), (x, None, None, residual)]:
        assert torch.autograd.gradcheck(ops.layer_norm, inputs)
    for inputs in [(x,), (x, weight), (x, weight, residual), (x, None, residual)]:
        assert torch.autograd.gradcheck(ops.rms_norm, inputs)
