"""The gradient of a formula: from the gradients of its results to those of its inputs, by the chain rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opgate.ops_build.python_ops.expression import SCALARS, Kind, Node, Over, in_order
from opgate.ops_build.python_ops.functions import FUNCTIONS
from opgate.ops_build.python_ops.traced import Trace, Traced


def gradients(
    trace: Trace, results: Sequence[Node], of_results: Sequence[Traced], inputs: Sequence[Node], over: Sequence[Over]
) -> list[Traced]:
    """Returns the gradient of each input. `of_results` are the gradients of the results, and `over` says what the
    outputs have values for. Where a formula doesn't depend on an input, or is constant almost everywhere, the gradient
    is 0. The gradient of what has a value for each column may have one for each element: their sums over the rows are
    meant."""
    parts: dict[int, list[Traced]] = {}
    for node, gradient, spread in zip(results, of_results, over, strict=True):
        parts.setdefault(id(node), []).append(_gathered(trace, gradient, spread, node))
    summed: dict[int, Traced] = {}
    for node in reversed([*in_order(results)]):
        given = parts.pop(id(node), [])
        if node.kind is not Kind.ELEMENT or not given:
            continue
        total: Any = given[0]
        for more in given[1:]:
            total = total + more
        summed[id(node)] = total
        for source, part in _parts(trace, node, total):
            parts.setdefault(id(source), []).append(part)
    zero = trace.wrap(0.0)
    return [summed.get(id(node), zero) for node in inputs]


def _parts(trace: Trace, node: Node, gradient: Traced) -> list[tuple[Node, Traced]]:
    """Returns the gradients of what a node is a function of."""
    derivative = FUNCTIONS[node.what].derivative if node.what in FUNCTIONS else None
    if derivative is None:
        return []
    arguments = [Traced(trace, source) for source in node.of]
    given = derivative(gradient, Traced(trace, node), *arguments)
    return [
        (source, _gathered(trace, trace.wrap(part), node.over, source))
        for source, part in zip(node.of, given, strict=True)
        if part is not None and source.kind is Kind.ELEMENT
    ]


def _gathered(trace: Trace, gradient: Traced, over: Over, source: Node) -> Traced:
    """Returns the gradient of a node with one value for a row, from the gradient of what it is spread over."""
    if Over.COLUMN not in over or source.over != Over.ROW:
        return gradient
    return trace.apply("sum", gradient) if Over.COLUMN in gradient.node.over else gradient * trace.length()


def evaluated(results: Sequence[Node], values: Mapping[str, Any], length: int = 1) -> list[Any]:
    """Computes nodes with NumPy. `values` are the inputs and attributes by name, `length` is the number of columns."""
    known: dict[int, Any] = {}
    for node in in_order(results):
        if node.what == "number":
            known[id(node)] = node.value
        elif node.what == "length":
            known[id(node)] = length
        elif node.what in ("input", "attribute"):
            name, _, place = str(node.value).partition("[")
            known[id(node)] = values[name][int(place[:-1])] if place else values[name]
        else:
            value = FUNCTIONS[node.what].numpy(*(known[id(source)] for source in node.of))
            # A number of Python's leaves arrays the dtype that they have.
            known[id(node)] = value.item() if node.kind in SCALARS else value
    return [known[id(node)] for node in results]
