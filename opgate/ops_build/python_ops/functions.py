"""The functions of formulas: what NumPy calls each, and its derivative.

kernel_toolkit/formula.h has a C++ function of the same name for each, with the same meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgate.ops_build.case import Array

#: From the gradient of the result, the result and the arguments to the gradients of the arguments. None is 0.
Derivative = Callable[..., "tuple[Any, ...]"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `numpy` computes it of arrays. `operator` is how C++ writes it, if it has no name there. One without
    a derivative is constant almost everywhere. `condition` says that it gives a truth, `integers` that it takes
    integers too, and `reduces` that it gives one value for a row."""

    name: str
    numpy: Callable[..., Any]
    derivative: Derivative | None = None
    operator: str = ""
    condition: bool = False
    integers: bool = False
    reduces: bool = False


def erf(x: Any) -> Any:
    """The error function 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x, elementwise."""
    return _elementwise("erf", x)


def normal_cdf(x: Any) -> Any:
    """The normal distribution's share below x, (1 + erf(x / sqrt(2))) / 2, elementwise. No digits are lost where it is
    small."""
    return _elementwise("normal_cdf", x)


def gaussian(x: Any) -> Any:
    """exp(-x^2 / 2), elementwise."""
    return _elementwise("gaussian", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), elementwise. No digits are lost where it is small."""
    return _elementwise("sigmoid", x)


def select(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, elsewhere b, elementwise. Both are computed. In a formula it takes the place of a
    branch; np.where is the same."""
    return np.where(condition, a, b)


def _elementwise(name: str, x: Any) -> Any:
    own = getattr(x, "opgate_function", None)
    return own(name) if own else FUNCTIONS[name].numpy(x)


def _of_each(function: Callable[[float], float]) -> Callable[[Any], Array]:
    def of_array(x: Any) -> Array:
        array = np.asarray(x)
        values = [function(float(value)) for value in array.reshape(-1)]
        dtype = array.dtype if array.dtype.kind == "f" else np.float64
        return np.array(values, dtype).reshape(array.shape)

    return of_array


def _numpy_sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) < 0, e, np.ones_like(e)) / (1 + e)


def _power_gradients(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    of_base = select(b == 0, 0.0, b * a ** (b - 1))
    return g * of_base, None if getattr(b, "scalar", False) else g * select(
        a > 0, y * np.log(select(a > 0, a, 1.0)), 0.0
    )


def _between(first: Callable[[Any, Any], Any]) -> Derivative:
    """The derivative of a minimum or a maximum, which `first` says is the first argument. Both get half if they are
    equal, as in PyTorch; a limit that is the same for all elements gets nothing."""

    def derivative(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
        if getattr(a, "scalar", False):
            return None, select(first(a, b), 0.0, g)
        if getattr(b, "scalar", False):
            return select(first(b, a), 0.0, g), None
        return (
            select(a == b, 0.5 * g, select(first(a, b), g, 0.0)),
            select(a == b, 0.5 * g, select(first(b, a), g, 0.0)),
        )

    return derivative


_ARITHMETIC = [
    Function("add", np.add, lambda g, y, a, b: (g, g), "+", integers=True),
    Function("subtract", np.subtract, lambda g, y, a, b: (g, -g), "-", integers=True),
    Function("multiply", np.multiply, lambda g, y, a, b: (g * b, g * a), "*", integers=True),
    Function("divide", np.divide, lambda g, y, a, b: (g / b, -g * y / b), "/"),
    Function("floor_divide", np.floor_divide, integers=True),
    Function("remainder", np.remainder, lambda g, y, a, b: (g, -g * np.floor(a / b)), integers=True),
    Function("negative", np.negative, lambda g, y, x: (-g,), "-", integers=True),
    Function("absolute", np.absolute, lambda g, y, x: (g * np.sign(x),), integers=True),
    Function("square", np.square, lambda g, y, x: (2 * g * x,), integers=True),
    Function("sign", np.sign, integers=True),
    Function("minimum", np.minimum, _between(lambda a, b: a < b), integers=True),
    Function("maximum", np.maximum, _between(lambda a, b: a > b), integers=True),
    Function("power", np.power, _power_gradients, integers=True),
    Function("logaddexp", np.logaddexp, lambda g, y, a, b: (g * sigmoid(a - b), g * sigmoid(b - a))),
    Function("softplus", lambda x: np.logaddexp(0, x), lambda g, y, x: (g * sigmoid(x),)),
    Function("hypot", np.hypot, lambda g, y, a, b: (g * a / y, g * b / y)),
    Function("arctan2", np.arctan2, lambda g, y, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b))),
    Function("copysign", np.copysign, lambda g, y, a, b: (g * np.copysign(1.0, a) * np.copysign(1.0, b), None)),
]
_ROUNDING = [Function(function.__name__, function) for function in (np.floor, np.ceil, np.trunc, np.rint)]
_ELEMENTARY = [
    Function("sqrt", np.sqrt, lambda g, y, x: (0.5 * g / y,)),
    Function("cbrt", np.cbrt, lambda g, y, x: (g / (3 * y * y),)),
    Function("exp", np.exp, lambda g, y, x: (g * y,)),
    Function("exp2", np.exp2, lambda g, y, x: (g * y * math.log(2),)),
    Function("expm1", np.expm1, lambda g, y, x: (g * (y + 1),)),
    Function("log", np.log, lambda g, y, x: (g / x,)),
    Function("log2", np.log2, lambda g, y, x: (g / (x * math.log(2)),)),
    Function("log10", np.log10, lambda g, y, x: (g / (x * math.log(10)),)),
    Function("log1p", np.log1p, lambda g, y, x: (g / (1 + x),)),
    Function("sin", np.sin, lambda g, y, x: (g * np.cos(x),)),
    Function("cos", np.cos, lambda g, y, x: (-g * np.sin(x),)),
    Function("tan", np.tan, lambda g, y, x: (g * (1 + y * y),)),
    Function("arcsin", np.arcsin, lambda g, y, x: (g / np.sqrt((1 - x) * (1 + x)),)),
    Function("arccos", np.arccos, lambda g, y, x: (-g / np.sqrt((1 - x) * (1 + x)),)),
    Function("arctan", np.arctan, lambda g, y, x: (g / (1 + x * x),)),
    Function("sinh", np.sinh, lambda g, y, x: (g * np.cosh(x),)),
    Function("cosh", np.cosh, lambda g, y, x: (g * np.sinh(x),)),
    Function("tanh", np.tanh, lambda g, y, x: (g * (1 - y) * (1 + y),)),
    Function("arcsinh", np.arcsinh, lambda g, y, x: (g / np.hypot(x, 1.0),)),
    Function("arccosh", np.arccosh, lambda g, y, x: (g / np.sqrt((x - 1) * (x + 1)),)),
    Function("arctanh", np.arctanh, lambda g, y, x: (g / ((1 - x) * (1 + x)),)),
    Function("sigmoid", _numpy_sigmoid, lambda g, y, x: (g * y * sigmoid(-x),)),
    Function("sigmoid_of_negative", lambda x: _numpy_sigmoid(-x), lambda g, y, x: (-g * y * sigmoid(x),)),
    Function("gaussian", lambda x: np.exp(-np.square(x) / 2), lambda g, y, x: (-g * x * y,)),
    Function("erf", _of_each(math.erf), lambda g, y, x: (g * (2 / math.sqrt(math.pi)) * np.exp(-x * x),)),
    Function(
        "normal_cdf",
        _of_each(lambda x: math.erfc(-x / math.sqrt(2)) / 2),
        lambda g, y, x: (g * (1 / math.sqrt(2 * math.pi)) * gaussian(x),),
    ),
]
_CONDITIONS = [
    Function("less", np.less, operator="<", condition=True, integers=True),
    Function("less_equal", np.less_equal, operator="<=", condition=True, integers=True),
    Function("greater", np.greater, operator=">", condition=True, integers=True),
    Function("greater_equal", np.greater_equal, operator=">=", condition=True, integers=True),
    Function("equal", np.equal, operator="==", condition=True, integers=True),
    Function("not_equal", np.not_equal, operator="!=", condition=True, integers=True),
    Function("isnan", np.isnan, condition=True),
    Function("isinf", np.isinf, condition=True),
    Function("isfinite", np.isfinite, condition=True),
    Function("logical_and", np.logical_and, operator="&&", condition=True, integers=True),
    Function("logical_or", np.logical_or, operator="||", condition=True, integers=True),
    Function("logical_not", np.logical_not, operator="!", condition=True, integers=True),
]
_SELECT = Function(
    "select", np.where, lambda g, y, c, a, b: (None, select(c, g, 0.0), select(c, 0.0, g)), integers=True
)


def _of_row(reduction: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: reduction(x, axis=-1, keepdims=True)


def _of_extreme(g: Any, y: Any, x: Any) -> tuple[Any]:
    """Equal ones share the gradient, as in PyTorch's amax."""
    return (select(x == y, g / _elementwise("sum", select(x == y, 1.0, 0.0)), 0.0),)


#: The reductions of a row. `fixed` is a number that a result doesn't depend on, though it is computed with it.
_ROWS = [
    Function("sum", _of_row(np.sum), lambda g, y, x: (g,), reduces=True),
    Function("max", _of_row(lambda x, **of: np.max(x, initial=-np.inf, **of)), _of_extreme, reduces=True),
    Function("min", _of_row(lambda x, **of: np.min(x, initial=np.inf, **of)), _of_extreme, reduces=True),
    Function("fixed", lambda x: x),
]

FUNCTIONS: Mapping[str, Function] = {
    function.name: function for function in (*_ARITHMETIC, *_ROUNDING, *_ELEMENTARY, *_CONDITIONS, _SELECT, *_ROWS)
}
#: What NumPy calls otherwise.
ALIASES: Mapping[str, str] = {
    "abs": "absolute",
    "true_divide": "divide",
    "mod": "remainder",
    "fabs": "absolute",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "invert": "logical_not",
}

#: What NumPy calls the reductions of a row that formulas have.
REDUCTIONS = ("sum", "mean", "max", "min", "var", "std", "logaddexp.reduce", "linalg.norm")

#: What a formula may call, for messages.
NAMES = ", ".join(
    [
        *(f"np.{name}" for name, each in FUNCTIONS.items() if isinstance(each.numpy, np.ufunc)),
        "np.where",
        "np.clip",
        *(f"np.{name}" for name in REDUCTIONS),
        "opgate.sigmoid",
        "opgate.erf",
        "opgate.normal_cdf",
        "opgate.gaussian",
    ]
)
