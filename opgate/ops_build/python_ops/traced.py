"""Values that stand for the elements of tensors while a formula is called once, and write down what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgate.ops_build.python_ops.expression import CONDITIONS, SCALARS, Graph, Kind, Node, Number, Over
from opgate.ops_build.python_ops.functions import ALIASES, FUNCTIONS, NAMES


class FormulaError(ValueError):
    """A formula can't be traced. The message says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A call of a formula for tensors whose elements are computed in `dtype`. `rows` says that they have rows, over
    which a formula may sum."""

    graph: Graph
    dtype: np.dtype[Any]
    rows: bool = False

    def wrap(self, value: object) -> Traced:
        """Returns a value of the formula: a traced one, or a number. Raises FormulaError."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool):
            raise FormulaError("True and False are no numbers: write 1 and 0, or a comparison")
        if isinstance(value, (int, float)):
            return Traced(self, self.graph.number(value))
        if value is None:
            raise FormulaError("expected an element, an attribute or a number, got None: does the function return?")
        raise FormulaError(f"expected an element, an attribute or a number, got {_described(value)}")

    def apply(self, name: str, *arguments: object) -> Traced:
        """Returns a function of values. Raises FormulaError."""
        function = FUNCTIONS[name]
        values = [self.wrap(argument) for argument in arguments]
        nodes = [value.node for value in values]
        flat = _flat(values)
        logical = name.startswith("logical_")
        for place, node in enumerate(nodes):
            if (node.kind in CONDITIONS) != (logical or (name == "select" and place == 0)):
                raise FormulaError(_misplaced(name, node.kind))
        taken = nodes[1:] if name == "select" else nodes
        of_elements = not {node.kind for node in nodes}.isdisjoint({Kind.ELEMENT, Kind.CONDITION})
        if function.condition:
            kind = Kind.CONDITION if of_elements else Kind.SETTING
        elif of_elements:
            kind = Kind.ELEMENT
        else:
            whole = function.integers and all(node.kind is Kind.INTEGER for node in taken)
            whole = whole and (name != "power" or self.dtype.kind in "iu")  # 2 ** -1 is 0.5
            kind = Kind.INTEGER if whole else Kind.REAL
        if of_elements and not logical and self.dtype.kind in "iu":
            self._check_integers(name, taken)
        if kind in SCALARS and all(node.what == "number" for node in nodes):
            return self.wrap(_folded(name, [node.value for node in nodes]))
        if name == "multiply" and kind is Kind.ELEMENT and (factor := next(filter(_is_one, nodes), None)):
            return values[1 - nodes.index(factor)]
        over = Over.ROW if function.reduces else None
        return Traced(self, self.graph.node(*_shared(name, kind, nodes), over=over), flat)

    def length(self) -> Traced:
        """Returns the number of columns."""
        return Traced(self, self.graph.node("length", Kind.INTEGER))

    def _check_integers(self, name: str, nodes: list[Node]) -> None:
        if not FUNCTIONS[name].integers:
            instead = ": write // for a quotient that is rounded down" if name == "divide" else ""
            raise FormulaError(f"{name} of {self.dtype} is no {self.dtype}{instead}")
        for node in nodes:
            if node.kind is Kind.REAL:
                what = node.value if node.what == "number" else "a number that is not whole"
                raise FormulaError(f"{what} meets tensors of {self.dtype}: write a whole number")
            limits = np.iinfo(self.dtype)
            if node.what == "number" and not limits.min <= int(node.value) <= limits.max:
                raise FormulaError(f"{node.value} is beyond {self.dtype}, {limits.min} to {limits.max}")


def _flat(values: list[Traced]) -> bool:
    """Returns whether the function of values has one value for a row, without the last axis. Raises FormulaError if
    NumPy would take the last axis of one value for another axis of the other."""
    varying = [value for value in values if value.node.over != Over.ALL]
    flat = [value for value in varying if value.flat]
    if flat and len(flat) < len(varying):
        raise FormulaError(
            "values for each row meet values that have a last axis: write keepdims=True in the reduction, or "
            "x[..., None]"
        )
    return bool(flat)


def _is_one(node: Node) -> bool:
    return node.what == "number" and node.value == 1


def _shared(name: str, kind: Kind, nodes: list[Node]) -> tuple[str, Kind, list[Node]]:
    """Returns a function in the form that shares most with others: a sigmoid and that of the negative number have one
    exponential, and so have the logarithms of 1 + exp(x) and 1 + exp(-x)."""
    if name == "sigmoid" and nodes[0].what == "negative":
        return "sigmoid_of_negative", kind, [*nodes[0].of]
    if name == "logaddexp" and nodes[0].what == "number" and nodes[0].value == 0:
        return "softplus", kind, nodes[1:]
    return name, kind, nodes


def _described(value: object) -> str:
    return f"an array of the shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _misplaced(name: str, kind: Kind) -> str:
    if kind in CONDITIONS:
        return f"{name} takes numbers, got a condition: write np.where(condition, 1, 0)"
    if name == "select":
        return "np.where needs a condition: write x != 0"
    return "&, | and ~ join conditions, such as (x > 0) & (x < 1)"


def _folded(name: str, values: list[Any]) -> Number:
    """Computes a function of numbers."""
    with np.errstate(all="ignore"):
        result = FUNCTIONS[name].numpy(*values)
    return result.item() if isinstance(result, (np.generic, np.ndarray)) else result  # type: ignore[no-any-return]


def trace_of(*values: object) -> Trace:
    return next(value.trace for value in values if isinstance(value, Traced))


def _where(*given: Any) -> Any:
    if len(given) != 3:
        raise FormulaError(f"np.where takes a condition and two values here, got {len(given)}")
    condition, a, b = given
    if isinstance(condition, bool):  # of an attribute
        return a if condition else b
    return trace_of(*given).apply("select", *given)


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _round(x: Any, decimals: int | None = 0) -> Any:
    """As NumPy rounds: the scaled number, to the nearest even one."""
    if x.node.kind is Kind.INTEGER or (x.node.kind is Kind.ELEMENT and x.dtype.kind in "iu"):
        if decimals and decimals < 0:
            raise FormulaError(f"a formula rounds no integers to {-decimals} places before the point: write // and *")
        return x
    if not decimals:
        return np.rint(x)
    scale = 10.0 ** abs(decimals)
    return np.rint(x * scale) / scale if decimals > 0 else np.rint(x / scale) * scale


def _reduced(name: str) -> Callable[..., Any]:
    """Returns a reduction as NumPy calls it."""

    def reduction(x: Any, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Any:
        trace: Trace = x.trace
        if trace.rows and options:
            raise FormulaError(f"{name} takes axis and keepdims in a formula, and no {', '.join(options)}")
        if not trace.rows:
            raise FormulaError(
                f"a formula of elements sees one of each tensor, and no {name} of them: give the signature rows, such "
                f"as (x: T[..., n]), and write axis=-1"
            )
        if axis != -1:
            raise FormulaError(
                f"a formula reduces the last axis, and {name} has axis={axis}: write axis=-1. What is summed over "
                "other axes is an op of its own, behind a transposition in the model, or a kernel in C++"
            )
        if x.node.kind in CONDITIONS:
            raise FormulaError(_misplaced(name, x.node.kind))
        if x.flat or Over.COLUMN not in x.node.over:
            raise FormulaError(f"{name} of a value that has no last axis: it is one number for a row already")
        result = _REDUCTIONS[name](x)
        return Traced(trace, result.node, not keepdims)

    return reduction


def _sum(x: Any) -> Any:
    return x.trace.apply("sum", x)


def _mean(x: Any) -> Any:
    return _sum(x) / x.trace.length()


def _variance(x: Any) -> Any:
    return _mean(np.square(x - _mean(x)))


def _logsumexp(x: Any) -> Any:
    """The result doesn't depend on the greatest element, which keeps the sum in range."""
    greatest = x.trace.apply("max", x)
    held = x.trace.apply("fixed", np.where(np.isfinite(greatest), greatest, 0.0))
    return held + np.log(_sum(np.exp(x - held)))


_REDUCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "sum": _sum,
    "mean": _mean,
    "max": lambda x: x.trace.apply("max", x),
    "min": lambda x: x.trace.apply("min", x),
    "var": _variance,
    "std": lambda x: np.sqrt(_variance(x)),
    "logaddexp.reduce": _logsumexp,
    "linalg.norm": lambda x: np.sqrt(_sum(np.square(x))),
}
#: The ufuncs whose reduction has a name.
_REDUCING = {"add": "sum", "maximum": "max", "minimum": "min", "logaddexp": "logaddexp.reduce"}


def _expanded(x: Any, axis: Any) -> Any:
    if axis != -1:
        raise FormulaError(f"a formula has rows and columns: write axis=-1, got {axis}")
    return x[..., None]


def _squeezed(x: Any, axis: Any = None) -> Any:
    if axis != -1:
        raise FormulaError(f"a formula has rows and columns: write axis=-1, got {axis}")
    return x[..., 0]


#: Functions of NumPy that are no ufuncs.
_OTHERS: Mapping[Any, Callable[..., Any]] = {
    np.where: _where,
    np.clip: _clip,
    np.round: _round,
    np.sum: _reduced("sum"),
    np.mean: _reduced("mean"),
    np.max: _reduced("max"),
    np.amax: _reduced("max"),
    np.min: _reduced("min"),
    np.amin: _reduced("min"),
    np.var: _reduced("var"),
    np.std: _reduced("std"),
    np.linalg.norm: _reduced("linalg.norm"),
    np.expand_dims: _expanded,
    np.squeeze: _squeezed,
}


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of a formula: an element of a tensor, an attribute, or what is computed from them.

    It takes part in arithmetic, comparisons, `&`, `|` and `~` of comparisons, and in the functions of NumPy that
    functions.py names. `dtype` is that in which elements are computed: float32 for f16, bf16 and f32. `flat` says that
    it has one value for a row and no last axis.
    """

    __slots__ = ("flat", "node", "trace")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, node: Node, flat: bool = False) -> None:
        self.trace, self.node, self.flat = trace, node, flat

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.trace.dtype

    @property
    def scalar(self) -> bool:
        """Whether it is the same for all elements."""
        return self.node.kind in SCALARS

    def opgate_function(self, name: str) -> Traced:
        return self.trace.apply(name, self)

    def astype(self, dtype: Any, **_: Any) -> Traced:
        if np.dtype(dtype) != self.dtype:
            raise FormulaError(
                f"a formula computes in {self.dtype} here and its result becomes what the signature says: "
                f"leave out .astype({np.dtype(dtype)})"
            )
        return self

    def clip(self, low: Any = None, high: Any = None) -> Any:
        return _clip(self, low, high)

    sum, mean, max, min, var, std = (_reduced(name) for name in ("sum", "mean", "max", "min", "var", "std"))

    @property
    def shape(self) -> _Shape:
        if not self.trace.rows or Over.COLUMN not in self.node.over:
            self._no_array(name="shape")
        return _Shape(self.trace)

    def __getitem__(self, key: Any) -> Traced:
        """x[..., None] and x[..., 0] give and take away the last axis of what has one value for a row."""
        if self.trace.rows and isinstance(key, tuple) and len(key) == 2 and key[0] is ...:
            of_row = Over.COLUMN not in self.node.over
            if key[1] is None and (self.flat or self.scalar):
                return Traced(self.trace, self.node)
            if key[1] in (0, -1) and of_row and not self.flat:
                return Traced(self.trace, self.node, flat=True)
        return self._no_array()  # type: ignore[no-any-return]

    def __round__(self, decimals: int | None = 0) -> Any:
        return _round(self, decimals)

    def __pow__(self, power: Any) -> Any:
        node = self.trace.wrap(power).node
        if node.what == "number":
            return _whole_power(self, node.value)  # type: ignore[arg-type]
        return self.trace.apply("power", self, power)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *arguments: Any, **options: Any) -> Any:
        name = ALIASES.get(ufunc.__name__, ufunc.__name__)
        if name == "positive":
            return self
        if method == "reduce" and name in _REDUCING:
            (x,) = arguments
            return _reduced(_REDUCING[name])(x, **{"axis": 0, **options})
        if name == "reciprocal":
            return self.trace.apply("divide", 1, *arguments)
        if name not in FUNCTIONS or method != "__call__":
            called = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
            raise FormulaError(f"{called} is no function of formulas. They have {NAMES}")
        if options:
            raise FormulaError(f"np.{ufunc.__name__} takes no {', '.join(options)} in a formula")
        if name == "power":
            return self.trace.wrap(arguments[0]) ** arguments[1]
        return self.trace.apply(name, *arguments)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in _OTHERS:
            raise FormulaError(f"np.{function.__name__} is no function of formulas. They have {NAMES}")
        return _OTHERS[function](*arguments, **options)

    def _no_number(self, *_: object) -> Any:
        raise FormulaError(
            "a formula has no values while it is traced: take functions of NumPy, not of math, np.where in place of an "
            "assignment, and a range of a known number"
        )

    __float__ = __int__ = __index__ = __complex__ = _no_number

    def __bool__(self) -> bool:
        raise FormulaError(
            "a branch on a value: a formula computes both sides, write np.where(condition, a, b). For min, max and "
            "chained comparisons write np.minimum, np.maximum and (a < x) & (x < b)"
        )

    def _no_array(self, *_: object, name: str = "") -> Any:
        what = f": it has no .{name}" if name else ""
        if self.trace.rows:
            raise FormulaError(
                "a formula sees one row of each tensor, and no parts of it; it has x.shape[-1], and x[..., None] and "
                f"x[..., 0] of one value for a row{what}"
            )
        raise FormulaError(f"a formula sees one element of each tensor, which has no shape, no axis and no parts{what}")

    __setitem__ = __len__ = __iter__ = __array__ = _no_array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._no_array(name=name)


class _Shape:
    """The shape of a tensor with rows, of which the number of columns is known to a formula."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getitem__(self, axis: Any) -> Traced:
        if axis != -1:
            raise FormulaError(f"a formula knows the number of columns, x.shape[-1], and not x.shape[{axis}]")
        return self._trace.length()

    def __iter__(self) -> Any:
        raise FormulaError("a formula knows the number of columns, x.shape[-1], and no other dim")


def _whole_power(x: Traced, power: Number) -> Any:
    """x to a power that is a number: products for the small whole ones."""
    if power == 0.5:
        return np.sqrt(x)
    if power == 0:
        return x.trace.wrap(1)
    if power < 0 and x.dtype.kind in "iu" and x.node.kind is Kind.ELEMENT:
        raise FormulaError("integers have no negative powers, in NumPy neither")
    if power < 0 and x.dtype.kind == "f":
        return 1 / _whole_power(x, -power)
    if not (float(power).is_integer() and 1 <= power <= 16):
        return x.trace.apply("power", x, power)
    result: Any = None
    square: Any = x
    left = int(power)
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        square = square * square if left else square
    return result
