"""RMSNorm against ONNX Runtime's SkipSimplifiedLayerNormalization and torch's rms_norm."""

from __future__ import annotations

from functools import cache
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
