"""What a formula computes: a graph of functions of the inputs' elements, of attributes and of numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, Flag

Number = int | float


class Kind(Enum):
    """What a node gives: an element of the tensors' dtype or a condition on elements; a whole or a real number or a
    condition that is the same for all elements, such as an attribute."""

    ELEMENT = "element"
    CONDITION = "condition"
    INTEGER = "integer"
    REAL = "real"
    SETTING = "setting"


class Over(Flag):
    """What a node has a value for: all elements together, each row, each column, or each element. The tensors of an
    elementwise op have rows of one column."""

    ALL = 0
    ROW = 1
    COLUMN = 2
    ELEMENT = 3


#: The kinds of numbers that are the same for all elements, and the kinds of conditions.
SCALARS = frozenset({Kind.INTEGER, Kind.REAL})
CONDITIONS = frozenset({Kind.CONDITION, Kind.SETTING})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node. `what` is "input", "attribute", "number" or "length", the number of columns, or names a function
    (functions.py) of the nodes `of`. `value` is the name of an input or attribute, or the number."""

    what: str
    kind: Kind
    of: tuple[Node, ...] = ()
    value: str | Number = ""
    over: Over = Over.ALL


class Graph:
    """Makes nodes, one for what is computed twice."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}

    def node(
        self, what: str, kind: Kind, of: Sequence[Node] = (), value: str | Number = "", over: Over | None = None
    ) -> Node:
        """Returns a node, which has a value for what those have that it is a function of, if not `over` says it."""
        # 0.0 and -0.0 are equal, as are 1 and 1.0
        key = (what, kind, repr(value), *map(id, of))
        if key not in self._nodes:
            own = functools.reduce(Over.__or__, (node.over for node in of), Over.ALL) if over is None else over
            self._nodes[key] = Node(what, kind, tuple(of), value, own)
        return self._nodes[key]

    def number(self, value: Number) -> Node:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            value = float(value)
        return self.node("number", Kind.INTEGER if isinstance(value, int) else Kind.REAL, value=value)


def in_order(results: Sequence[Node]) -> Iterator[Node]:
    """Yields the nodes that results are computed from, and the results, each behind those that it is a function of."""
    seen: set[int] = set()
    stack = [(node, False) for node in reversed(results)]
    while stack:
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if ready:
            seen.add(id(node))
            yield node
        else:
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.of))


def bounds(node: Node) -> tuple[float, float]:
    """Returns numbers between which every value of a node is, or NaN."""
    if node.what == "number":
        return float(node.value), float(node.value)
    if node.what in ("sigmoid", "sigmoid_of_negative", "normal_cdf", "gaussian"):
        return 0.0, 1.0
    if node.what in ("minimum", "maximum"):
        (a, b), (c, d) = map(bounds, node.of)
        return (min(a, c), min(b, d)) if node.what == "minimum" else (max(a, c), max(b, d))
    if node.what == "negative":
        low, high = bounds(node.of[0])
        return -high, -low
    if node.what == "absolute":
        low, high = bounds(node.of[0])
        return 0.0, max(abs(low), abs(high))
    return -math.inf, math.inf
