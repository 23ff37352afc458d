"""BevPoolV2 and MultiScaleDeformableAttention, which gather from feature maps, and their gradients, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.case import Array
from opgate.ops_build.ops.bev_pool_v2.cases import view, with_intervals
from opgate.ops_build.ops.multi_scale_deformable_attention.cases import attention
from tests.ops.conftest import RunOp

torch = pytest.importorskip("torch")

#: How near f16, f32 and f64 come to sums in f64 of numbers of about 1.
RELATIVE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}


def pooled(inputs: dict[str, Array], attributes: dict[str, int], depth: Any, feat: Any) -> Any:
    """What BEVDet's bev_pool_v2 gives, with index_add."""
    ranks = {name: torch.from_numpy(inputs[name]).long() for name in ("ranks_depth", "ranks_feat", "ranks_bev")}
    dims = (len(depth), *attributes.values(), feat.shape[-1])
    terms = depth.flatten()[ranks["ranks_depth"], None] * feat.flatten(0, 3)[ranks["ranks_feat"]]
    return torch.zeros(int(np.prod(dims[:-1])), dims[-1], dtype=torch.float64).index_add(
        0, ranks["ranks_bev"], terms
    ).reshape(dims)  # fmt: skip


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
    expected = pooled(inputs, attributes, depth, feat)
    near = {"rtol": RELATIVE[dtype], "atol": RELATIVE[dtype]}
    given = inputs if data.draw(st.booleans()) else with_intervals(inputs)
    (bev,) = run_op("BevPoolV2", given, attributes)
    np.testing.assert_allclose(bev, expected.detach(), **near)
    grad = np.random.default_rng(seed).standard_normal(bev.shape).astype(dtype)
    expected.backward(torch.from_numpy(grad).double())
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


def attended(shapes: list[tuple[int, int]], value: Any, locations: Any, weights: Any) -> Any:
    """Multi-scale deformable attention from grid_sample, one level after the other."""
    b, _, heads, dims = value.shape
    queries, points, outputs = locations.shape[1], locations.shape[4], []
    for level, part in enumerate(value.split([height * width for height, width in shapes], dim=1)):
        maps = part.permute(0, 2, 3, 1).reshape(b * heads, dims, *shapes[level])
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).reshape(b * heads, queries, points, 2)
        samples = torch.nn.functional.grid_sample(maps, grid, padding_mode="zeros", align_corners=False)
        outputs.append(samples * weights[:, :, :, level].transpose(1, 2).reshape(b * heads, 1, queries, points))
    total = torch.stack(outputs).sum(dim=(0, -1))
    return total.reshape(b, heads * dims, queries).transpose(1, 2)


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
    expected = attended(shapes, *wide)
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
