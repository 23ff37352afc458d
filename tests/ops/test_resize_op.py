"""ResizeNormalize against ONNX's Resize in ONNX Runtime, torch's interpolation with antialiasing, and Pillow."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from PIL import Image

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


def check(run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int], mode: str, channels: int = 3) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*shape, channels), np.uint8)
    mean, std = [*MEAN, 0.5][:channels], [*STD, 2.0][:channels]
    attributes = {"height": to[0], "width": to[1], "mean": mean, "std": std, "interpolation": mode}
    resized = onnx_resize(image, *to, mode)
    expected = (resized / 255 - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
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


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("to", [(5, 3), (100, 201)])
def test_grey_and_rgba_agree_with_onnx(run_op: RunOp, channels: int, mode: str, to: tuple[int, int]) -> None:
    check(run_op, (2, 64, 48), to, mode, channels)


def test_a_step_is_blended_between_half_pixel_centres(run_op: RunOp) -> None:
    image = np.uint8([0, 255]).reshape(1, 1, 2, 1).repeat(3, axis=3)
    for interpolation, expected in [("linear", [0, 0.25, 0.75, 1]), ("nearest", [0, 0, 1, 1])]:
        attributes = {"height": 1, "width": 4, "interpolation": interpolation}
        tensor = run_op("ResizeNormalize", {"image": image}, attributes)[0]
        np.testing.assert_allclose(tensor, np.broadcast_to(np.float32(expected), (1, 3, 1, 4)), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 7), (1, 64, 48), (3, 120, 161)])
@pytest.mark.parametrize("to", [(1, 1), (5, 3), (32, 24), (64, 48), (100, 201)])
def test_with_antialiasing_it_agrees_with_torch(
    run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int]
) -> None:
    check_antialiased(run_op, shape, to, 3)


@pytest.mark.parametrize("channels", [1, 4])
def test_with_antialiasing_grey_and_rgba_agree_with_torch(run_op: RunOp, channels: int) -> None:
    check_antialiased(run_op, (2, 64, 48), (11, 70), channels)


def check_antialiased(run_op: RunOp, shape: tuple[int, int, int], to: tuple[int, int], channels: int) -> None:
    torch = pytest.importorskip("torch")
    image = np.random.default_rng(1).integers(0, 256, (*shape, channels), np.uint8)
    planes = torch.tensor(image).permute(0, 3, 1, 2).double()
    expected = torch.nn.functional.interpolate(planes, to, mode="bilinear", antialias=True).numpy() / 255
    (tensor,) = run_op("ResizeNormalize", {"image": image}, {"height": to[0], "width": to[1], "antialias": 1})
    np.testing.assert_allclose(tensor, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(480, 640), (333, 500), (500, 333), (256, 256), (225, 1001)])
def test_the_preset_for_imagenet(run_op: RunOp, height: int, width: int) -> None:
    """Torchvision's preset on a picture of Pillow: resize the shorter side to 256, take the centre of 224."""
    image = np.random.default_rng(2).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    picture = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
    shorter = min(height, width)
    wide, high = 256 * width // shorter, 256 * height // shorter
    left, top = round((wide - 224) / 2), round((high - 224) / 2)
    centre = picture.resize((wide, high), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    attributes = {"height": 224, "width": 224, "shorter_side": 256, "antialias": 1}
    (tensor,) = run_op("ResizeNormalize", {"image": np.asarray(picture)[None]}, attributes)
    # Pillow rounds to bytes after each of two passes.
    np.testing.assert_allclose(tensor[0].transpose(1, 2, 0) * 255, np.asarray(centre), rtol=0, atol=1.01)
