"""ResizeNormalize against ONNX's Resize in ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@cache
def resize(mode: str) -> ort.InferenceSession:
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [None] * 4),
        helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]),
    ]
    node = helper.make_node("Resize", ["image", "", "", "sizes"], ["resized"], mode=mode)
    outputs = [helper.make_tensor_value_info("resized", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "resize", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def onnx_resize(image: Array, height: int, width: int, mode: str) -> Array:
    planes = np.ascontiguousarray(image.transpose(0, 3, 1, 2)).astype(np.float32)
    sizes = np.int64([*planes.shape[:2], height, width])
    resized: Array = resize(mode).run(None, {"image": planes, "sizes": sizes})[0]
    return resized


def check(run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int], mode: str) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    attributes = {"height": to[0], "width": to[1], "mean": MEAN, "std": STD, "interpolation": mode}
    resized = onnx_resize(image, *to, mode)
    expected = (resized / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    # ONNX Runtime computes the positions of the taps in f32, so they are slightly off.
    np.testing.assert_allclose(
        run_op("ResizeNormalize", {"image": image}, attributes)[0], expected, rtol=1e-4, atol=5e-4
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 7), (1, 64, 48), (3, 120, 161)])
@pytest.mark.parametrize("to", [(1, 1), (5, 3), (32, 24), (64, 48), (100, 201), (224, 224)])
def test_linear_agrees_with_onnx(run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int]) -> None:
    check(run_op, shape, to, "linear")


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 7), (1, 64, 48), (3, 119, 161)])
@pytest.mark.parametrize("to", [(1, 1), (5, 3), (32, 24), (64, 48), (101, 201)])
def test_nearest_agrees_with_onnx(run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int]) -> None:
    check(run_op, shape, to, "nearest")


def test_a_step_is_blended_between_half_pixel_centres(run_op: RunOp) -> None:
    image = np.uint8([0, 255]).reshape(1, 1, 2, 1).repeat(3, axis=3)
    for interpolation, expected in [("linear", [0, 0.25, 0.75, 1]), ("nearest", [0, 0, 1, 1])]:
        attributes = {"height": 1, "width": 4, "interpolation": interpolation}
        tensor = run_op("ResizeNormalize", {"image": image}, attributes)[0]
        np.testing.assert_allclose(tensor, np.broadcast_to(np.float32(expected), (1, 3, 1, 4)), atol=1e-6)
