"""Standard subgraphs that an op of opgate computes in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from opgate.onnx_tools.patterns import Match, Pattern, scalar_of
from opgate.onnx_tools.rewrite_text import float_text
from opgate.onnx_tools.values import Values

#: The types that the trials can feed to ONNX Runtime from Python.
FLOATS = ("f16", "f32", "f64")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Nodes of a graph that an op could replace.

    `inputs` and `output` map names of `body` to tensors of the graph.
    """

    op: str
    nodes: tuple[onnx.NodeProto, ...]
    inputs: dict[str, str]
    output: tuple[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """An op and the patterns that it replaces. `body` returns None if a match isn't what the op computes."""

    op: str
    patterns: tuple[Pattern, ...]
    body: Callable[[Match, Values], str | None]

    def candidates(self, graph: onnx.GraphProto, values: Values) -> Iterator[Candidate]:
        """Yields the candidates in a graph. No two of them share a node; the patterns that come first go first."""
        taken: set[str] = set()
        for pattern in self.patterns:
            for match in pattern.matches(graph, values):
                outputs = {node.output[0] for node in match.nodes}
                body = self.body(match, values) if taken.isdisjoint(outputs) else None
                if body is None or values.dtype(match.tensors[pattern.inputs[0]]) not in (None, *FLOATS):
                    continue
                taken |= outputs
                inputs = {name: match.tensors[name] for name in pattern.inputs}
                yield Candidate(self.op, match.nodes, inputs, ("y", match.tensors[pattern.output]), body)


def _mish(match: Match, values: Values) -> str:
    return "y = opgate.Mish (x)"


def _swish(match: Match, values: Values) -> str:
    alpha = scalar_of(values, match.tensors["alpha"]) if "alpha" in match.tensors else 1.0
    assert alpha is not None
    return f"y = opgate.Swish <alpha = {float_text(alpha)}> (x)"


def _gelu(match: Match, values: Values) -> str:
    stated = [attribute.s.decode() for node in match.nodes if node.op_type == "Gelu" for attribute in node.attribute]
    return f'y = opgate.Gelu <approximate = "{stated[0] if stated else "none"}"> (x)'


def _norm(match: Match, values: Values) -> str | None:
    """Returns the node of RMSNorm or LayerNorm, if the means are over the last axis and the factors have one axis."""
    if not all(_over_last_axis(node, values) for node in match.nodes if node.op_type == "ReduceMean"):
        return None
    x = values.shape(match.tensors["x"])
    for name in ("weight", "bias"):
        shape = values.shape(match.tensors[name]) if name in match.tensors else None
        if shape is not None and (len(shape) != 1 or (x is not None and x[-1] != shape[0])):
            return None
    epsilon = scalar_of(values, match.tensors["epsilon"])
    assert epsilon is not None
    if "wide" in match.tensors and not _returns_to_type(match, values):
        return None
    is_layer_norm = "mean" in match.tensors
    inputs = ", ".join(name for name in ("x", "weight", "bias") if name in match.tensors)
    return f"y = opgate.{'LayerNorm' if is_layer_norm else 'RMSNorm'} <epsilon = {float_text(epsilon)}> ({inputs})"


def _over_last_axis(node: onnx.NodeProto, values: Values) -> bool:
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    axes = attributes.get("axes")
    if axes is None and len(node.input) > 1 and node.input[1]:
        constant = values.constant(node.input[1])
        axes = None if constant is None else np.ravel(constant).tolist()
    shape = values.shape(node.input[0])
    if not attributes.get("keepdims", 1):
        return False
    return axes is not None and (list(axes) == [-1] or (shape is not None and list(axes) == [len(shape) - 1]))


def _returns_to_type(match: Match, values: Values) -> bool:
    """Returns whether the casts of a match lead to f32 and back to the type of x."""
    wide = values.dtype(match.tensors["wide"])
    back = values.dtype(match.tensors.get("back", match.tensors["y"]))
    return wide == "f32" and back is not None and back == values.dtype(match.tensors["x"])


_TWO = "two = Constant <value_float = 2.0> ()"
_ONE = "one = Constant <value_float = 1.0> ()"


#: The share below x, doubled, of x by the root of 2.
_DOUBLED = tuple(
    f"{scaled} e = Erf (d) {_ONE} a = Add (e, one)"
    for scaled in (
        "root = Constant <value_float = 1.4142135> () d = Div (x, root)",
        "inverse = Constant <value_float = 0.70710677> () d = Mul (x, inverse)",
    )
)
_HALVED = ("m = Mul (x, a) y = Mul (m, half)", "m = Mul (x, half) y = Mul (m, a)", "m = Mul (a, half) y = Mul (x, m)")


def _squares(of: str) -> tuple[str, ...]:
    return f"{_TWO} squares = Pow ({of}, two)", f"squares = Mul ({of}, {of})"


def _quotients(of: str, to: str) -> tuple[str, ...]:
    return (
        f"{to} = Div ({of}, root)",
        f"inverse = Reciprocal (root) {to} = Mul ({of}, inverse)",
        f"{_ONE} inverse = Div (one, root) {to} = Mul ({of}, inverse)",
    )


def _norms(*, centred: bool) -> tuple[Pattern, ...]:
    """Returns the patterns of a norm: with the factors that it may have, and in f32 between two casts or without
    them."""
    patterns = []
    factors: list[tuple[str, ...]] = [("weight", "bias"), ("weight",), ()] if centred else [("weight",), ()]
    for named, cast in itertools.product(factors, (True, False)):
        start = "wide" if cast else "x"
        source = "centred" if centred else start
        normal = "normal" if cast or named else "y"
        tail = ["back = Cast (normal)"] if cast else []
        result = "back" if cast else normal
        for place, name in enumerate(named):
            target = "y" if place == len(named) - 1 else "scaled"
            tail.append(f"{target} = {'Mul' if name == 'weight' else 'Add'} ({result}, {name})")
            result = target
        if cast and not named:
            tail = ["y = Cast (normal)"]
        for squares, quotient in itertools.product(_squares(source), _quotients(source, normal)):
            head = ["wide = Cast (x)"] if cast else []
            head += [f"mean = ReduceMean ({start}) centred = Sub ({start}, mean)"] if centred else []
            middle = "variance = ReduceMean (squares) lifted = Add (variance, epsilon) root = Sqrt (lifted)"
            text = " ".join([*head, squares, middle, quotient, *tail])
            patterns.append(Pattern(text, ("x", *named), ("epsilon",)))
    return tuple(patterns)


FUSIONS = (
    Fusion(
        "Mish",
        (
            Pattern("s = Softplus (x) t = Tanh (s) y = Mul (x, t)", ("x",)),
            Pattern(f"{_ONE} e = Exp (x) a = Add (e, one) s = Log (a) t = Tanh (s) y = Mul (x, t)", ("x",)),
            Pattern("y = Mish (x)", ("x",)),
        ),
        _mish,
    ),
    Fusion(
        "Swish",
        (
            Pattern("s = Sigmoid (x) y = Mul (x, s)", ("x",)),
            Pattern("a = Mul (x, alpha) s = Sigmoid (a) y = Mul (x, s)", ("x",), ("alpha",)),
        ),
        _swish,
    ),
    Fusion(
        "Gelu",
        (
            *(
                Pattern(f"{doubled} half = Constant <value_float = 0.5> () {halved}", ("x",))
                for doubled, halved in itertools.product(_DOUBLED, _HALVED)
            ),
            Pattern("y = Gelu (x)", ("x",)),
        ),
        _gelu,
    ),
    Fusion("LayerNorm", _norms(centred=True), _norm),
    Fusion("RMSNorm", _norms(centred=False), _norm),
)
