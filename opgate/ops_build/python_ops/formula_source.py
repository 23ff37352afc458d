"""Writes a traced formula in C++, as the header of an elementwise op (kernel_toolkit/elementwise_kernel.h)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opgate.ops_build.op_table import Attribute
from opgate.ops_build.python_ops.expression import SCALARS, Kind, Node, Number, bounds, in_order
from opgate.ops_build.python_ops.functions import FUNCTIONS

#: The types that elements are computed in: the dtype in NumPy and that in C++.
COMPUTED: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "int32": "std::int32_t",
    "int64": "std::int64_t",
}
_TYPES = {
    Kind.ELEMENT: "V",
    Kind.CONDITION: "bool",
    Kind.INTEGER: "std::int64_t",
    Kind.REAL: "double",
    Kind.SETTING: "bool",
}
_SETTINGS = SCALARS | {Kind.SETTING}
_WRAPPED = frozenset({"add", "subtract", "multiply", "negative"})
#: Where exp_in_range (kernel_toolkit/elementary.h) gives exp.
_EXP_RANGE = {"float32": (-87.0, 88.0), "float64": (-708.0, 709.0)}
_LIMITS = {"minimum": "at_most", "maximum": "at_least"}


@dataclass(frozen=True, slots=True)
class Choice:
    """A formula for some values of the attributes that choose among formulas: the results by the dtype of NumPy that
    elements are computed in."""

    when: Mapping[str, str | bool | float]
    results: Mapping[str, Sequence[Node]]


@dataclass(frozen=True, slots=True)
class Stated:
    """An op as C++ states it."""

    tag: str
    signature: str
    doc: str
    inputs: Sequence[str]
    attributes: Sequence[Attribute]
    limits: Sequence[Limit] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """What an attribute must be: a condition on attributes, and a text that says it."""

    attribute: str
    condition: Node
    expected: str


def header(op: Stated, choices: Sequence[Choice]) -> str:
    """Returns the header of an op whose formula is traced once for each of the choices."""
    space = f"opgate::ops::of_{op.tag}"
    names = [f"Formula{number or ''}" for number in range(len(choices))]
    lines = [
        "#pragma once",
        "",
        '#include "kernel_toolkit/formula.h"',
        '#include "kernel_toolkit/op.h"',
        "",
        f"OPGATE_OP({op.tag}, {_literal(op.signature)}, {_literal(op.doc)})",
        "",
        f"namespace {space} {{",
    ]
    for name, choice in zip(names, choices, strict=True):
        lines += ["", *_Formula(op, choice).lines(name)]
    lines += ["", *_chooser(op, names, choices), "", f"}}  // namespace {space}"]
    lines += ["", f"OPGATE_ELEMENTWISE({op.tag}, {space}::Chosen)"]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _chooser(op: Stated, names: Sequence[str], choices: Sequence[Choice]) -> Iterator[str]:
    """Yields the struct that checks the attributes and chooses among the formulas."""
    yield "struct Chosen {"
    if op.limits:
        yield "  static Status check(const Attributes& attributes, const KnownSizes&) {"
        for limit in op.limits:
            condition = _scalar(limit.condition, op.attributes)
            yield f'    if (!({condition})) return attributes.refuse("{limit.attribute}", {_literal(limit.expected)});'
        yield "    return {};"
        yield "  }"
    yield "  template <typename Run>"
    yield "  static Status choose(const Attributes& attributes, const Run& run) {"
    for name, choice in zip(names[:-1], choices[:-1], strict=True):
        tests = [_test(attribute, value, op.attributes) for attribute, value in choice.when.items()]
        yield f"    if ({' && '.join(tests)}) return run({name}(attributes));"
    yield f"    return run({names[-1]}(attributes));"
    yield "  }"
    yield "};"


def _test(name: str, value: str | bool | float, attributes: Sequence[Attribute]) -> str:
    if isinstance(value, str):
        return f'attributes.text("{name}") == {_literal(value)}'
    return f"{_attribute(name, attributes)} == {str(value).lower()}"


def _scalar(node: Node, attributes: Sequence[Attribute], *, top: bool = False) -> str:
    """Returns the expression of a number or a condition that is the same for all elements, on the host."""
    if node.what == "number":
        return _number(node.value)  # type: ignore[arg-type]
    if node.what == "attribute":
        return _attribute(str(node.value), attributes)
    kinds = {each.kind for each in node.of if each.kind in SCALARS}
    kind = Kind.REAL if Kind.REAL in kinds or node.kind is Kind.REAL else Kind.INTEGER
    arguments = [
        f"{_TYPES[kind]}({_scalar(each, attributes)})" if each.kind in SCALARS else _scalar(each, attributes)
        for each in node.of
    ]
    text = _call(node.what, arguments, integers=kind is Kind.INTEGER)
    return text if top else f"({text})"


def _attribute(name: str, attributes: Sequence[Attribute]) -> str:
    name, _, place = name.partition("[")
    attribute = next(each for each in attributes if each.name == name)
    getter = {"int": "integer", "float": "number", "bool": "boolean"}[attribute.kind]
    text = f'attributes.{getter}{"s" * attribute.list}("{name}")' + (f"[{place}" if place else "")
    return f"static_cast<float>({text})" if attribute.kind == "float" else text  # it has single precision


class _Formula:
    """The struct of one formula."""

    def __init__(self, op: Stated, choice: Choice) -> None:
        self._choice = choice
        self._inputs = op.inputs
        self._attributes = op.attributes
        everything = {id(node): node for results in choice.results.values() for node in in_order(results)}
        self._scalars = _held(everything.values(), [r for results in choice.results.values() for r in results])

    def lines(self, name: str) -> Iterator[str]:
        yield f"struct {name} {{"
        yield f"  static constexpr std::size_t kArity = {len(self._inputs)};"
        for member, node in self._members():
            yield f"  {_TYPES[node.kind]} {member};"
        values = ", ".join(f"{member}({_scalar(node, self._attributes, top=True)})" for member, node in self._members())
        yield f"  explicit {name}([[maybe_unused]] const Attributes& attributes){' : ' * bool(values)}{values} {{}}"
        yield "  template <typename V>"
        parameters = ", ".join(f"[[maybe_unused]] V {_named(name)}" for name in self._inputs)
        yield f"  OPGATE_HOST_DEVICE auto operator()({parameters}) const {{"
        bodies: dict[tuple[str, ...], list[str]] = {}
        for dtype, results in self._choice.results.items():
            bodies.setdefault(tuple(self._body(dtype, results)), []).append(dtype)
        # The most general one comes last: an engine may have more types for floats.
        last = next((body for body, dtypes in bodies.items() if "float32" in dtypes), [*bodies][-1])
        for body, dtypes in bodies.items():
            if body is not last:
                tests = " || ".join(f"std::is_same_v<V, {COMPUTED[dtype]}>" for dtype in dtypes)
                yield from [f"    if constexpr ({tests}) {{", *(f"      {line}" for line in body), "    } else {"]
        yield from (f"      {line}" for line in last)
        yield f"    {'}' * len(bodies)}"
        yield from self._refusal()
        yield "};"

    def _members(self) -> Iterator[tuple[str, Node]]:
        for number, node in enumerate(self._scalars):
            yield f"setting_{number}", node

    def _refusal(self) -> Iterator[str]:
        """Yields the function that refuses whole numbers which the tensors' integers don't have."""
        whole = [node for node in self._scalars if node.kind is Kind.INTEGER]
        if not whole or not any("int" in dtype for dtype in self._choice.results):
            return
        yield "  template <typename V>"
        yield "  Status refusal() const {"
        for member, node in self._members():
            if node in whole:
                names = " and ".join(
                    dict.fromkeys(str(each.value) for each in in_order([node]) if each.what == "attribute")
                )
                yield f'    OPGATE_RETURN_IF_ERROR(formula::fits<V>("{names}", {member}));'
        yield "    return {};"
        yield "  }"

    def _body(self, dtype: str, results: Sequence[Node]) -> Iterator[str]:
        nodes = list(in_order(results))
        uses = Counter(id(each) for node in nodes for each in node.of)
        uses.update(id(node) for node in results)
        members = {id(node): member for member, node in self._members()}
        texts: dict[int, str] = {}
        number = 0
        for node in nodes:
            if node.kind in SCALARS:
                text = members.get(id(node)) or (_number(node.value) if node.what == "number" else "")  # type: ignore[arg-type]
                texts[id(node)] = f"V({text})"
                continue
            if node.kind is Kind.SETTING:
                texts[id(node)] = members.get(id(node), "")
                continue
            if node.what == "input":
                texts[id(node)] = _named(str(node.value))
                continue
            arguments = [texts[id(each)] for each in node.of]
            text = self._element(node, arguments, dtype)
            if uses[id(node)] > 1:
                yield f"const {_TYPES[node.kind]} t{number} = {text};"
                texts[id(node)] = f"t{number}"
                number += 1
            else:
                texts[id(node)] = f"({text})"
        given = ", ".join(texts[id(node)] for node in results)
        yield f"return {given};" if len(results) == 1 else f"return Results<V, {len(results)}>{{{{{given}}}}};"

    @staticmethod
    def _element(node: Node, arguments: Sequence[str], dtype: str) -> str:
        if node.what in _LIMITS:
            limits = [each.kind in SCALARS for each in node.of]
            if any(limits):
                x, limit = arguments if limits[1] else reversed(arguments)
                return f"formula::{_LIMITS[node.what]}({x}, {limit})"
        if node.what == "select" and node.of[0].kind is Kind.SETTING:
            return f"formula::blend({', '.join(arguments)})"
        if node.what == "exp" and node.kind is Kind.ELEMENT:
            low, high = bounds(node.of[0])
            if low >= _EXP_RANGE[dtype][0] and high <= _EXP_RANGE[dtype][1]:
                return f"exp_in_range({arguments[0]})"
        return _call(node.what, arguments, integers="int" in dtype)


def _call(name: str, arguments: Sequence[str], *, integers: bool) -> str:
    """Returns the call of a function in C++."""
    function = FUNCTIONS[name]
    if name == "select":
        return f"opgate::select({', '.join(arguments)})"
    if function.operator and not (integers and name in _WRAPPED):
        if len(arguments) == 1:
            return f"{function.operator}{arguments[0]}"
        return f"{arguments[0]} {function.operator} {arguments[1]}"
    return f"formula::{name}({', '.join(arguments)})"


def _held(nodes: Iterable[Node], results: Iterable[Node]) -> list[Node]:
    """Returns the numbers and conditions that are the same for all elements and that elements are computed from; the
    formula holds them. Numbers that the formula states are written where they are used."""
    held: dict[int, Node] = {}
    used = [each for node in nodes if node.kind not in _SETTINGS for each in node.of]
    for node in (*used, *results):
        if node.kind in _SETTINGS and node.what != "number":
            held[id(node)] = node
    return list(held.values())


def _named(name: str) -> str:
    """Returns the name of an input in C++."""
    return f"{name}_in"


def _number(value: Number) -> str:
    if isinstance(value, int):
        if abs(value) < 2**31:
            return str(value)
        least = "std::numeric_limits<std::int64_t>::min()"
        return least if value == -(2**63) else f"std::int64_t{{{value}}}"
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' * (value < 0)}std::numeric_limits<double>::infinity()"
    return repr(value) if value >= 0 and math.copysign(1, value) > 0 else f"({value!r})"
