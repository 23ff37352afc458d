"""The activations and their gradients against torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import expit, ndtr

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

torch = pytest.importorskip("torch")


#: Each dtype with the allowed relative error: the rounding of the result and the error of the arithmetic before it.
DTYPES = [(np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3), (np.float32, 1e-6), (np.float64, 1e-13)]


def points(dtype: Any) -> Array:
    """Returns points from -90 to 90, with more of them around zero, where Mish bends."""
    wide = np.linspace(-90, 90, 4001)
    return np.concatenate([wide, np.linspace(-6, 6, 4001), -np.logspace(-20, 1, 200)]).astype(dtype)


def gradient_of_mish(grad_y: Array, x: Array) -> Array:
    wide = torch.tensor(x.astype(np.float64), requires_grad=True)
    torch.nn.functional.mish(wide).backward(torch.tensor(grad_y.astype(np.float64)))
    gradient: Array = wide.grad.numpy()
    return gradient


@pytest.mark.parametrize(("dtype", "relative"), DTYPES)
def test_mish_agrees_with_torch(run_op: RunOp, dtype: Any, relative: float) -> None:
    x = points(dtype)
    expected = torch.nn.functional.mish(torch.tensor(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(
        run_op("Mish", {"x": x})[0], expected, rtol=relative, atol=1e-7 if dtype == np.float16 else 1e-35
    )


@pytest.mark.parametrize(("dtype", "relative"), DTYPES)
def test_the_gradient_of_mish_agrees_with_torch(run_op: RunOp, dtype: Any, relative: float) -> None:
    x = points(dtype)
    grad_y = np.random.default_rng(0).standard_normal(x.shape).astype(dtype)
    # The derivative is zero at x = -1.192. There its terms, which are of order 1, cancel.
    absolute = 1e-15 if dtype == np.float64 else 3e-7
    gradient = run_op("MishBackward", {"grad_y": grad_y, "x": x})[0]
    np.testing.assert_allclose(gradient, gradient_of_mish(grad_y, x), rtol=relative, atol=absolute)


def test_a_small_gradient_keeps_its_digits(run_op: RunOp) -> None:
    x = np.linspace(-80, -20, 500, dtype=np.float32)
    gradient = run_op("MishBackward", {"grad_y": np.ones_like(x), "x": x})[0]
    np.testing.assert_allclose(gradient, gradient_of_mish(np.ones_like(x), x), rtol=1e-6)


def exact_slope_of_mish(x: float) -> Decimal:
    """Returns the derivative of Mish at x, with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        wide = Decimal(x)
        e = wide.exp()
        t = e * (e + 2) / (e * (e + 2) + 2)
        return t + wide * (1 - t * t) * e / (1 + e)


def test_where_the_slope_is_near_one_f64_has_its_last_digit(run_op: RunOp) -> None:
    """At x = 20 the slope differs from 1 by 1.5 units in the last place."""
    x = np.concatenate([np.linspace(2.5, 25, 2000), np.linspace(19.9, 22.1, 500)])
    slopes = run_op("MishBackward", {"grad_y": np.ones_like(x), "x": x})[0]
    for slope, exact in zip(slopes, map(exact_slope_of_mish, x), strict=True):
        assert abs(Decimal(slope) - exact) <= Decimal(np.spacing(1.0)) * Decimal("0.6")


@pytest.mark.parametrize(("dtype", "relative"), DTYPES)
@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_leaky_relu_agrees_with_torch(run_op: RunOp, dtype: Any, relative: float, alpha: float) -> None:
    x = points(dtype)
    expected = torch.nn.functional.leaky_relu(torch.tensor(x.astype(np.float64)), float(np.float32(alpha))).numpy()
    leaky = run_op("LeakyRelu", {"x": x}, {"alpha": alpha})[0]
    np.testing.assert_allclose(leaky, expected, rtol=relative, atol=1e-7 if dtype == np.float16 else 0)


FORMULAS: Mapping[str, tuple[Mapping[str, Any], Callable[[Any], Any]]] = {
    "Swish": ({}, torch.nn.functional.silu),
    "Swish alpha": ({"alpha": 1.5}, lambda x: x * torch.sigmoid(1.5 * x)),
    "Gelu": ({}, torch.nn.functional.gelu),
    "Gelu tanh": ({"approximate": "tanh"}, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "Asinh": ({}, torch.asinh),
    "ClampedRelu": ({}, torch.nn.functional.relu6),
    "ClampedRelu ceiling": ({"ceiling": 2.5}, lambda x: torch.clamp(x, 0, 2.5)),
}


@pytest.mark.parametrize(("dtype", "relative"), DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_agrees_with_torch(run_op: RunOp, name: str, dtype: Any, relative: float) -> None:
    attributes, formula = FORMULAS[name]
    # torch's 1 + erf and 1 + tanh lose their digits where they are small.
    x = points(dtype)
    expected = formula(torch.tensor(x.astype(np.float64))).numpy()
    absolute = 1e-15 if dtype == np.float64 else 1e-7
    outputs = run_op(name.split(maxsplit=1)[0], {"x": x}, attributes)
    np.testing.assert_allclose(outputs[0], expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize(("dtype", "relative"), DTYPES)
@pytest.mark.parametrize("name", [name for name in FORMULAS if name.startswith(("Swish", "Gelu"))])
def test_a_gradient_agrees_with_torch(run_op: RunOp, name: str, dtype: Any, relative: float) -> None:
    attributes, formula = FORMULAS[name]
    x = points(dtype)
    grad_y = np.random.default_rng(0).standard_normal(x.shape).astype(dtype)
    wide = torch.tensor(x.astype(np.float64), requires_grad=True)
    formula(wide).backward(torch.tensor(grad_y.astype(np.float64)))
    gradient = run_op(f"{name.split(maxsplit=1)[0]}Backward", {"grad_y": grad_y, "x": x}, attributes)[0]
    # Terms cancel where the derivative is zero.
    absolute = 1e-14 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(gradient, wide.grad.numpy(), rtol=relative, atol=absolute)


def units(actual: Array, exact: Array) -> Array:
    """Returns the errors of f32 numbers in units of their last place."""
    distances: Array = np.abs(actual - exact) / np.spacing(np.abs(exact.astype(np.float32)))
    return distances


@pytest.mark.parametrize(
    ("name", "low", "high", "exact", "most"),
    [
        ("Asinh", -1e9, 1e9, np.arcsinh, 3),
        ("Gelu", -13, 20, lambda x: x * ndtr(x), 8),
        ("Swish", -80, 20, lambda x: x * expit(x), 4),
    ],
)
def test_f32_is_within_units_of_the_last_place(
    run_op: RunOp, name: str, low: float, high: float, exact: Callable[[Array], Array], most: float
) -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F800000, 1_000_000).astype(np.uint32)
    x = bits.view(np.float32) * np.where(np.arange(len(bits)) % 2, np.float32(-1), np.float32(1))
    x = np.concatenate([x[(x > low) & (x < high)], np.linspace(max(low, -20), 20, 200_001, dtype=np.float32)])
    expected = exact(x.astype(np.float64))
    normal = np.abs(expected) > 1.2e-38
    assert units(run_op(name, {"x": x})[0], expected)[normal].max() <= most


def test_infinities_and_zeros_are_those_of_onnx(run_op: RunOp) -> None:
    x = np.array([-np.inf, np.inf, np.nan, -0.0], np.float32)
    expected = {"Swish": [np.nan, np.inf, np.nan, -0.0], "Gelu": [np.nan, np.inf, np.nan, -0.0]}
    expected |= {"Asinh": [-np.inf, np.inf, np.nan, -0.0], "ClampedRelu": [0.0, 6.0, np.nan, -0.0]}
    for name, values in expected.items():
        outputs = run_op(name, {"x": x})
        np.testing.assert_array_equal(outputs[0], np.array(values, np.float32))
        assert np.signbit(outputs[0][3])


@pytest.mark.parametrize(
    ("name", "attributes"), [("swish", {"alpha": 0.75}), ("gelu", {}), ("gelu", {"approximate": "tanh"})]
)
def test_torch_checks_the_gradient(library: Path, name: str, attributes: Mapping[str, Any]) -> None:
    ops = pytest.importorskip("opgate.torch")
    x = torch.linspace(-4, 4, 23, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: getattr(ops, name)(x, **attributes), x)
