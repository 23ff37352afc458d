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
