"""BevPoolV2, MultiScaleDeformableAttention and DeformConv2d, which gather from feature maps, and their gradients, against
torch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from opgate.ops_build.case import Array
from opgate.ops_build.ops.bev_pool_v2.cases import view, with_intervals
from opgate.ops_build.ops.deform_conv2d.cases import conv
from opgate.ops_build.ops.multi_scale_deformable_attention.cases import attention
from tests.ops.conftest import RunOp

torch = pytest.importorskip("torch")
views = pytest.importorskip("benchmarks.op_works.views")  # it is written with torch

#: How near f16, f32 and f64 come to sums in f64 of numbers of about 1.
RELATIVE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}


@pytest.mark.parametrize("dtype", RELATIVE)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_bev_pool_agrees_with_index_add(run_op: RunOp, dtype: Any, data: st.DataObject, seed: int) -> None:
    cameras = tuple(data.draw(st.integers(1, most)) for most in (2, 3, 6, 4, 5))
    grid = tuple(data.draw(st.integers(1, most)) for most in (2, 20, 20))
    order = data.draw(st.sampled_from(["sorted", "shuffled", "repeated"]))
    inputs, attributes = view(
        np.dtype(dtype), data.draw(st.integers(0, 300)), cameras=cameras, c=data.draw(st.integers(1, 100)),
        grid=grid, order=order, seed=seed,
    )  # fmt: skip
    depth, feat = (torch.from_numpy(inputs[name]).double().requires_grad_() for name in ("depth", "feat"))
    cells = len(depth) * int(np.prod(grid))
    ranks = {name: torch.from_numpy(array) for name, array in inputs.items() if name.startswith("ranks")}
    expected = views.pooled({"depth": depth, "feat": feat, **ranks}, cells)
    near = {"rtol": RELATIVE[dtype], "atol": RELATIVE[dtype]}
    given = inputs if data.draw(st.booleans()) else with_intervals(inputs)
    (bev,) = run_op("BevPoolV2", given, attributes)
    np.testing.assert_allclose(bev.reshape(cells, -1), expected.detach(), **near)
    grad = np.random.default_rng(seed).standard_normal(bev.shape).astype(dtype)
    expected.backward(torch.from_numpy(grad).double().reshape(expected.shape))
    near["atol"] *= 8
    for actual, gradient in zip(
        run_op("BevPoolV2Backward", {"grad_bev": grad, **given}), (depth.grad, feat.grad), strict=True
    ):
        np.testing.assert_allclose(actual, gradient, **near)


@pytest.mark.parametrize("order", ["sorted", "shuffled", "repeated"])
def test_torch_checks_the_gradient_of_bev_pool(library: Path, order: str) -> None:
    ops = pytest.importorskip("opgate.torch")
    inputs, attributes = view(np.dtype(np.float64), 20, cameras=(1, 1, 3, 2, 4), c=3, grid=(1, 3, 2), order=order)
    given = with_intervals(inputs)
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    ranks = [tensors[name] for name in given if name not in ("depth", "feat")]
    depth, feat = tensors["depth"].requires_grad_(), tensors["feat"].requires_grad_()
    assert torch.autograd.gradcheck(lambda d, f: ops.bev_pool_v2(d, f, *ranks, **attributes), (depth, feat))


@pytest.mark.parametrize("dtype", RELATIVE)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_deformable_attention_agrees_with_grid_sample(
    run_op: RunOp, dtype: Any, data: st.DataObject, seed: int
) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
    sizes = {"b": 2, "heads": 8, "dims": 70, "queries": 20, "points": 5}
    given = {name: data.draw(st.integers(1, most)) for name, most in sizes.items()}
    types = {"T": np.dtype(dtype), "I": np.dtype(data.draw(st.sampled_from([np.int32, np.int64])))}
    inputs = attention(types, shapes, **given, seed=seed)
    differentiated = ("value", "sampling_locations", "attention_weights")
    wide = [torch.from_numpy(inputs[name]).double().requires_grad_() for name in differentiated]
    expected = views.attended(dict(zip(differentiated, wide, strict=True)), shapes)
    near = {"rtol": RELATIVE[dtype], "atol": 4 * RELATIVE[dtype]}
    (output,) = run_op("MultiScaleDeformableAttention", inputs)
    np.testing.assert_allclose(output, expected.detach(), **near)
    grad = np.random.default_rng(seed).standard_normal(output.shape).astype(dtype)
    expected.backward(torch.from_numpy(grad).double())
    grad_value, grad_locations, grad_weights = run_op(
        "MultiScaleDeformableAttentionBackward", {"grad_output": grad, **inputs}
    )
    np.testing.assert_allclose(grad_value, wide[0].grad, **near)
    np.testing.assert_allclose(grad_weights, wide[2].grad, rtol=near["rtol"], atol=8 * near["atol"])
    # The slope jumps where a sample lies on a key.
    places = inputs["sampling_locations"].astype(np.float64) * [[[shape[::-1]] for shape in shapes]] - 0.5
    smooth = (np.abs(places - np.round(places)) > 1e-4).all(-1)
    np.testing.assert_allclose(
        grad_locations[smooth], wide[1].grad.numpy()[smooth], rtol=near["rtol"], atol=100 * near["atol"]
    )


def test_torch_checks_the_gradient_of_deformable_attention(library: Path) -> None:
    ops = pytest.importorskip("opgate.torch")
    types = {"T": np.dtype(np.float64), "I": np.dtype(np.int64)}
    inputs = attention(types, [(3, 4), (2, 2)], b=1, dims=3, queries=2, points=2, spread=0.1)
    value, shapes, starts, locations, weights = (torch.from_numpy(array) for array in inputs.values())
    tensors = [tensor.requires_grad_() for tensor in (value, locations, weights)]
    assert torch.autograd.gradcheck(
        lambda v, p, w: ops.multi_scale_deformable_attention(v, shapes, starts, p, w), tensors
    )


def onnxruntime_deform_conv(inputs: Mapping[str, Array], attributes: Mapping[str, int]) -> Array:
    """ONNX Runtime's DeformConv."""
    given = {name: inputs[name] for name in ("input", "weight", "offset", "bias", "mask") if name in inputs}
    weight, channels = inputs["weight"], inputs["input"].shape[1]
    node = helper.make_node(
        "DeformConv", [name if name in given else "" for name in ("input", "weight", "offset", "bias", "mask")], ["y"],
        dilations=[attributes["dilation_h"], attributes["dilation_w"]], kernel_shape=weight.shape[2:],
        strides=[attributes["stride_h"], attributes["stride_w"]], pads=[attributes["pad_h"], attributes["pad_w"]] * 2,
        group=channels // weight.shape[1], offset_group=inputs["offset"].shape[1] // (2 * weight[0, 0].size),
    )  # fmt: skip
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    graph = helper.make_graph([node], "oracle", values, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, given)
    return outputs[0]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_deformable_convolution_agrees_with_onnxruntime(run_op: RunOp, data: st.DataObject, seed: int) -> None:
    groups, offset_groups = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 4), (3, 2), (6, 6)]))

    def pair(least: int, most: int) -> tuple[int, int]:
        return data.draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    inputs, attributes = conv(
        np.dtype(np.float32), n=data.draw(st.integers(1, 3)), c=12 * data.draw(st.integers(1, 4)),
        oc=groups * data.draw(st.integers(1, 40)), size=pair(8, 20), kernel=pair(1, 3), groups=groups,
        offset_groups=offset_groups, stride=pair(1, 3), pad=pair(0, 2), dilation=pair(1, 3), bias=data.draw(st.booleans()),
        mask=data.draw(st.booleans()), spread=data.draw(st.sampled_from([0, 0.5, 3, 30])), seed=seed,
    )  # fmt: skip
    (output,) = run_op("DeformConv2d", inputs, attributes)
    np.testing.assert_allclose(output, onnxruntime_deform_conv(inputs, attributes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", RELATIVE)
def test_without_offsets_it_is_torchs_convolution(run_op: RunOp, dtype: Any) -> None:
    inputs, attributes = conv(
        np.dtype(dtype), c=6, oc=9, groups=3, kernel=(3, 2), stride=(2, 1), pad=(1, 2), dilation=(1, 2), mask=False
    )
    inputs["offset"][...] = 0
    wide = [torch.from_numpy(inputs[name]).double() for name in ("input", "weight", "bias")]
    expected = torch.nn.functional.conv2d(*wide, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=3)
    (output,) = run_op("DeformConv2d", inputs, attributes)
    np.testing.assert_allclose(output, expected, rtol=RELATIVE[dtype], atol=4 * RELATIVE[dtype])


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 3), (6, 2)])
def test_the_gradient_of_deformable_convolution_agrees_with_autograd(
    run_op: RunOp, dtype: Any, mask: bool, groups: int, offset_groups: int
) -> None:
    inputs, attributes = conv(
        np.dtype(dtype), n=2, c=12, oc=18, groups=groups, offset_groups=offset_groups, size=(14, 15), kernel=(3, 2),
        stride=(2, 1), dilation=(1, 2), mask=mask,
    )  # fmt: skip
    if dtype is np.float16:  # no sample on a pixel, where the slope jumps
        inputs["offset"] = (np.round(inputs["offset"].astype(np.float64) * 16) / 16 + 1 / 32).astype(dtype)
    wide = {name: torch.from_numpy(array).double().requires_grad_() for name, array in inputs.items()}
    expected = views.deform_conv(attributes, wide)
    near = {"rtol": RELATIVE[dtype], "atol": 4 * RELATIVE[dtype]}
    np.testing.assert_allclose(run_op("DeformConv2d", inputs, attributes)[0], expected.detach(), **near)
    grad = np.random.default_rng(1).standard_normal(expected.shape).astype(dtype)
    expected.backward(torch.from_numpy(grad).double())
    given = {name: array for name, array in inputs.items() if name != "bias"}
    near["atol"] *= 16
    names = ("input", "weight", "offset", "bias", "mask")
    gradients = run_op("DeformConv2dBackward", {"grad_output": grad, **given}, attributes)
    for name, gradient in zip(names, gradients, strict=True):
        if name in wide:
            np.testing.assert_allclose(gradient, wide[name].grad, **near, err_msg=name)


@pytest.mark.parametrize("mask", [False, True])
def test_torch_checks_the_gradient_of_deformable_convolution(library: Path, mask: bool) -> None:
    ops = pytest.importorskip("opgate.torch")
    inputs, attributes = conv(
        np.dtype(np.float64), n=1, c=2, oc=2, size=(4, 3), kernel=(2, 2), offset_groups=2, mask=mask, spread=0.6
    )
    tensors = [torch.from_numpy(array).requires_grad_() for array in inputs.values()]
    assert torch.autograd.gradcheck(lambda *given: ops.deform_conv2d(*given, **attributes), tensors)
