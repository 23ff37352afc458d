"""FakeQuantize and SigmoidFocalLoss, which models are trained with, and their gradients, against torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

torch = pytest.importorskip("torch")


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 4).astype(dtype)


def in_torch(scale: Array, zero_point: Array, x: Any, axis: int, low: int, high: int) -> Any:
    scales, points = torch.tensor(scale), torch.tensor(zero_point)
    if len(scale) == 1:
        return torch.fake_quantize_per_tensor_affine(x, scales, points, low, high)
    return torch.fake_quantize_per_channel_affine(x, scales, points, axis, low, high)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("shape", "axis"), [((4000,), None), ((6, 50, 7), 1), ((5, 40), 1), ((8, 3, 5), 0)])
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 15)])
def test_fake_quantize_agrees_with_torch(
    run_op: RunOp, dtype: Any, shape: tuple[int, ...], axis: int | None, low: int, high: int
) -> None:
    rng, count = np.random.default_rng(1), 1 if axis is None else shape[axis]
    x, grad_y = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    scale, zero_point = rng.uniform(0.01, 0.5, count).astype(np.float32), rng.integers(low, high, count, np.int32)
    inputs: dict[str, Array | None] = {"x": x, "scale": scale, "zero_point": zero_point}
    attributes = {"axis": axis or 0, "quant_min": low, "quant_max": high}
    given = torch.tensor(x, requires_grad=True)
    expected = in_torch(scale, zero_point, given, axis or 0, low, high)
    expected.backward(torch.tensor(grad_y))
    np.testing.assert_array_equal(run_op("FakeQuantize", inputs, attributes)[0], expected.detach().numpy())
    gradient = run_op("FakeQuantizeBackward", {"grad_y": grad_y} | inputs, attributes)[0]
    np.testing.assert_array_equal(gradient, given.grad.numpy())


def test_fake_quantize_of_odd_numbers_agrees_with_torch(run_op: RunOp) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.5, 1.5, -0.5, 2.5, 1e30, -0.0, 300], np.float32)
    scale, zero_point = np.array([0.25], np.float32), np.array([3], np.int32)
    y = run_op("FakeQuantize", {"x": x, "scale": scale, "zero_point": zero_point})[0]
    np.testing.assert_array_equal(y, in_torch(scale, zero_point, torch.tensor(x), 0, -128, 127).numpy())


def focal_loss(x: Any, target: Any, alpha: float, gamma: float) -> Any:
    """The formula of torchvision.ops.sigmoid_focal_loss, from torch's own functions."""
    p = torch.sigmoid(x)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    loss = entropy * (1 - (p * target + (1 - p) * (1 - target))) ** gamma
    return loss * (alpha * target + (1 - alpha) * (1 - target)) if alpha >= 0 else loss


@pytest.mark.parametrize(
    ("dtype", "relative"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 1.6e-2), (np.float32, 1e-5), (np.float64, 1e-12)]
)
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (-1.0, 1.0), (0.5, 0.0), (0.75, 3.5)])
@pytest.mark.parametrize("soft", [False, True])
def test_the_focal_loss_agrees_with_torch(
    run_op: RunOp, dtype: Any, relative: float, alpha: float, gamma: float, soft: bool
) -> None:
    rng = np.random.default_rng(2)
    x, grad = numbers(2000, dtype=dtype), numbers(2000, dtype=dtype, seed=1)
    target = (rng.uniform(0, 1, 2000) if soft else rng.integers(0, 2, 2000)).astype(dtype)
    given = torch.tensor(x.astype(np.float64), requires_grad=True)
    expected = focal_loss(given, torch.tensor(target.astype(np.float64)), alpha, gamma)
    expected.backward(torch.tensor(grad.astype(np.float64)))
    attributes = {"alpha": alpha, "gamma": gamma}
    loss = run_op("SigmoidFocalLoss", {"x": x, "target": target}, attributes)[0]
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=relative, atol=relative / 10)
    gradient = run_op("SigmoidFocalLossBackward", {"grad_loss": grad, "x": x, "target": target}, attributes)[0]
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=relative, atol=relative)


@pytest.mark.parametrize("attributes", [{}, {"gamma": 1.5, "alpha": -1.0}])
def test_torch_checks_the_gradient_of_the_focal_loss(library: Path, attributes: Mapping[str, Any]) -> None:
    ops = pytest.importorskip("opgate.torch")
    x = torch.linspace(-4, 4, 24, dtype=torch.float64, requires_grad=True)
    target = (torch.arange(24) % 2).double()
    assert torch.autograd.gradcheck(
        lambda x: ops.sigmoid_focal_loss(x, target, **attributes),
        x,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )


def test_a_tangent_of_the_focal_loss_comes_from_the_logits(library: Path) -> None:
    ops = pytest.importorskip("opgate.torch")
    x, target = torch.linspace(-4, 4, 24, dtype=torch.float64), (torch.arange(24) % 2).double()
    _, tangent = torch.func.jvp(lambda x: ops.sigmoid_focal_loss(x, target), (x,), (torch.ones_like(x),))
    gradient = torch.func.grad(lambda x: ops.sigmoid_focal_loss(x, target).sum())(x)
    torch.testing.assert_close(tangent, gradient)
    with pytest.raises(NotImplementedError, match="can't be differentiated by its input 'target'"):
        torch.func.jvp(ops.sigmoid_focal_loss, (x, target), (torch.ones_like(x), torch.ones_like(target)))
