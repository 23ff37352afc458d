"""BevPoolV2, which gathers from feature maps, and its gradient, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.case import Array
from opgate.ops_build.ops.bev_pool_v2.cases import view, with_intervals
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
