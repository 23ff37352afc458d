"""Writes a traced formula in C++, as the header of an elementwise op (kernel_toolkit/elementwise_kernel.h) or of an op
over rows (kernel_toolkit/row_formula_kernel.h)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opgate.ops_build.op_table import Attribute
from opgate.ops_build.python_ops.expression import SCALARS, Kind, Node, Number, Over, bounds, in_order
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
_OVER = {Over.ELEMENT: "elements", Over.ROW: "row", Over.COLUMN: "column"}
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum"}
#: The functions that cost less than a number in memory.
_CHEAP = frozenset(
    {"add", "subtract", "multiply", "divide", "negative", "absolute", "square", "minimum", "maximum", "select", "fixed"}
)


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
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The tensors of an op over rows: what the number of columns is called, and what inputs and outputs have a value
    for."""

    length: str
    inputs: Sequence[Over]
    outputs: Sequence[Over]


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
    formulas = [_Formula(op, choice) for choice in choices]
    lines = [
        "#pragma once",
        "",
        f'#include "kernel_toolkit/{"row_formula_kernel" if op.rows else "formula"}.h"',
        '#include "kernel_toolkit/op.h"',
        "",
        op_line(op),
        "",
        f"namespace {space} {{",
    ]
    for name, formula in zip(names, formulas, strict=True):
        lines += ["", *formula.lines(name)]
    lines += ["", *_chooser(op, names, choices, max(formula.kept for formula in formulas)), ""]
    lines += [
        f"}}  // namespace {space}",
        "",
        f"OPGATE_{'ROWS' if op.rows else 'ELEMENTWISE'}({op.tag}, {space}::Chosen)",
    ]
    return "\n".join(lines) + "\n"


def op_line(op: Stated) -> str:
    """Returns the line that states an op."""
    return f"OPGATE_OP({op.tag}, {literal(op.signature)}, {literal(op.doc)})"


def c_kernel(op: Stated, function: str) -> str:
    """Returns the source of an op whose kernel is a function of C."""
    space = f"opgate::ops::of_{op.tag}"
    lines = [
        '#include "kernel_toolkit/formula.h"',
        '#include "kernel_toolkit/op.h"',
        "",
        op_line(op),
        f'extern "C" int {function}(OpgateCall* call);',
        "",
        f"namespace {space} {{",
        f"struct Kernel : CKernel<&::{function}> {{",
        *check_lines(op),
        "};",
        f"}}  // namespace {space}",
        "",
        f"OPGATE_CPU_KERNEL({op.tag}, {space}::Kernel)",
    ]
    return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """Returns a text as a literal of C++."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _chooser(op: Stated, names: Sequence[str], choices: Sequence[Choice], kept: int) -> Iterator[str]:
    """Yields the struct that checks the attributes and chooses among the formulas."""
    yield "struct Chosen {"
    if op.rows:
        for name, tensors in (("kInputs", op.rows.inputs), ("kOutputs", op.rows.outputs)):
            what = ", ".join(f"rows::Over::{_OVER[over]}" for over in tensors)
            yield f"  static constexpr rows::Over {name}[] = {{{what}}};"
        yield f'  static constexpr const char* kLength = "{op.rows.length}";'
        yield f"  static constexpr std::size_t kKept = {kept};"
    yield from check_lines(op)
    yield "  template <typename Run>"
    length, given = (", std::int64_t length", ", length") if op.rows else ("", "")
    yield f"  static Status choose(const Attributes& attributes{length}, const Run& run) {{"
    for name, choice in zip(names[:-1], choices[:-1], strict=True):
        tests = [_test(attribute, value, op.attributes) for attribute, value in choice.when.items()]
        yield f"    if ({' && '.join(tests)}) return run({name}(attributes{given}));"
    yield f"    return run({names[-1]}(attributes{given}));"
    yield "  }"
    yield "};"


def check_lines(op: Stated) -> Iterator[str]:
    """Yields the function that checks the attributes."""
    if op.limits:
        yield "  static Status check(const Attributes& attributes, const KnownSizes&) {"
        for limit in op.limits:
            condition = _scalar(limit.condition, op.attributes)
            yield f'    if (!({condition})) return attributes.refuse("{limit.attribute}", {literal(limit.expected)});'
        yield "    return {};"
        yield "  }"


def _test(name: str, value: str | bool | float, attributes: Sequence[Attribute]) -> str:
    if isinstance(value, str):
        return f'attributes.text("{name}") == {literal(value)}'
    return f"{_attribute(name, attributes)} == {str(value).lower()}"


def _scalar(node: Node, attributes: Sequence[Attribute], *, top: bool = False) -> str:
    """Returns the expression of a number or a condition that is the same for all elements, on the host."""
    if node.what == "number":
        return _number(node.value)  # type: ignore[arg-type]
    if node.what == "attribute":
        return _attribute(str(node.value), attributes)
    if node.what == "length":
        return "length"
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
        self._op = op
        self._inputs = op.inputs
        self._attributes = op.attributes
        self.kept = 0  # how many values of columns a formula over rows keeps
        everything = {id(node): node for results in choice.results.values() for node in in_order(results)}
        self._scalars = _held(everything.values(), [r for results in choice.results.values() for r in results])

    def lines(self, name: str) -> Iterator[str]:
        yield f"struct {name} {{"
        if not self._op.rows:
            yield f"  static constexpr std::size_t kArity = {len(self._inputs)};"
        for member, node in self._members():
            yield f"  {_TYPES[node.kind]} {member};"
        values = ", ".join(f"{member}({_scalar(node, self._attributes, top=True)})" for member, node in self._members())
        given = "[[maybe_unused]] const Attributes& attributes"
        given += ", [[maybe_unused]] std::int64_t length" * bool(self._op.rows)
        yield f"  explicit {name}({given}){' : ' * bool(values)}{values} {{}}"
        if self._op.rows:
            yield "  template <typename V, typename Row>"
            yield "  OPGATE_OF_ROW void operator()(Row& row) const {"
        else:
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
        members = {id(node): member for member, node in self._members()}
        if self._op.rows:
            body = RowBody(self._op.inputs, self._op.rows, dtype, results, members)
            yield from body.lines()
            self.kept = max(self.kept, body.kept)
            return
        texts = {id(node): _named(str(node.value)) for node in in_order(results) if node.what == "input"}
        statements = Statements(dtype, members, texts)
        yield from statements.lines([*in_order(results)], results)
        yield statements.returned(results)


class Statements:
    """Writes nodes as statements. `members` names those numbers and conditions that are the same for all elements, and
    `texts` has the texts of the nodes that are written already, by their id."""

    def __init__(self, dtype: str, members: Mapping[int, str], texts: Mapping[int, str]) -> None:
        self.dtype, self.members = dtype, members
        self.texts = dict(texts)
        self._number = 0

    def lines(self, nodes: Sequence[Node], results: Sequence[Node], *, named: bool = False) -> Iterator[str]:
        """Yields the statements of nodes, each behind those that it is a function of. One that is used once has none,
        unless it is to be `named`."""
        uses = Counter(id(each) for node in nodes for each in node.of)
        uses.update(id(node) for node in results)
        for node in nodes:
            if id(node) in self.texts:
                continue
            if node.kind in _SETTINGS:
                self.texts[id(node)] = self._setting(node)
                continue
            text = self._element(node, [self.text(each) for each in node.of])
            if named or uses[id(node)] > 1:
                yield f"const {_TYPES[node.kind]} {'r' if named else 't'}{self._number} = {text};"
                self.texts[id(node)] = f"{'r' if named else 't'}{self._number}"
                self._number += 1
            else:
                self.texts[id(node)] = f"({text})"

    def text(self, node: Node) -> str:
        return self.texts.get(id(node)) or self._setting(node)

    def returned(self, results: Sequence[Node]) -> str:
        given = ", ".join(self.text(node) for node in results)
        return f"return {given};" if len(results) == 1 else f"return Results<V, {len(results)}>{{{{{given}}}}};"

    def _setting(self, node: Node) -> str:
        if node.kind is Kind.SETTING:
            return self.members.get(id(node), "")
        text = self.members.get(id(node)) or (_number(node.value) if node.what == "number" else "")  # type: ignore[arg-type]
        return f"V({text})"

    def _element(self, node: Node, arguments: Sequence[str]) -> str:
        if node.what in _LIMITS:
            limits = [each.kind in SCALARS for each in node.of]
            if any(limits):
                x, limit = arguments if limits[1] else reversed(arguments)
                return f"formula::{_LIMITS[node.what]}({x}, {limit})"
        if node.what == "select" and node.of[0].kind is Kind.SETTING:
            return f"formula::blend({', '.join(arguments)})"
        if node.what == "exp" and node.kind is Kind.ELEMENT:
            low, high = bounds(node.of[0])
            if low >= _EXP_RANGE[self.dtype][0] and high <= _EXP_RANGE[self.dtype][1]:
                return f"exp_in_range({arguments[0]})"
        return _call(node.what, arguments, integers="int" in self.dtype)


class RowBody:
    """The body of a formula over rows. A pass goes over the columns of a row and computes the reductions whose
    arguments need no others than those of the passes before; the last one writes the outputs. What costs much and is
    needed in several passes is kept."""

    def __init__(
        self, inputs: Sequence[str], rows: Rows, dtype: str, results: Sequence[Node], members: Mapping[int, str]
    ) -> None:
        self._rows, self._results = rows, results
        self._order = [*in_order(results)]
        self._places = {name: place for place, name in enumerate(inputs)}
        self._stage: dict[int, int] = {}
        for node in self._order:
            stage = max((self._stage[id(each)] for each in node.of), default=0)
            self._stage[id(node)] = stage + _reduces(node)
        self._last = max(self._stage[id(node)] for node in results)
        self._roots = [self._roots_of(number) for number in range(self._last + 1)]
        self._passes = [self._columns_of(roots) for roots in self._roots]
        self._kept = [*self._worth_keeping()]
        self.kept = len(self._kept)
        locals_ = {key: member.replace("setting_", "s") for key, member in members.items()}
        self._copies = [f"[[maybe_unused]] const auto {locals_[key]} = {member};" for key, member in members.items()]
        self._row = Statements(dtype, locals_, {})

    def lines(self) -> Iterator[str]:
        yield from self._copies
        yield from self._inputs()
        for number in range(self._last + 1):
            row = [node for node in self._order if self._of_row(node) and self._stage[id(node)] <= number]
            yield from self._row.lines(row, [], named=True)
            for place, node in enumerate(self._kept):
                if self._first_pass(node) == number:
                    yield from self._lambda(f"const auto kept{place} = row.template keep<{place}>(", [node])
                    self._row.texts[id(node)] = f"kept{place}[i]"
            yield from self._reductions(number)
        yield from self._outputs()

    def _of_row(self, node: Node) -> bool:
        return node.kind not in _SETTINGS and Over.COLUMN not in node.over

    def _inputs(self) -> Iterator[str]:
        for node in self._order:
            if node.what != "input":
                continue
            place, name = self._places[str(node.value)], _named(str(node.value))
            if self._of_row(node):
                yield f"const V {name} = row.template value<{place}>();"
                self._row.texts[id(node)] = name
            else:
                yield f"const auto {name} = row.template values<{place}>();"
                self._row.texts[id(node)] = f"{name}[i]"

    def _reductions(self, number: int) -> Iterator[str]:
        found = [node for node in self._order if _reduces(node) and self._stage[id(node)] == number + 1]
        if not found:
            return
        kinds = ", ".join(f"rows::Reduction::{_REDUCTIONS[node.what]}" for node in found)
        begin = f"const auto pass{number} = row.template reduce<{kinds}>("
        yield from self._lambda(begin, [node.of[0] for node in found])
        for place, node in enumerate(found):
            self._row.texts[id(node)] = f"pass{number}" if len(found) == 1 else f"result_of<{place}>(pass{number})"

    def _outputs(self) -> Iterator[str]:
        for over, call in ((Over.ELEMENT, "write"), (Over.COLUMN, "add")):
            places = [place for place, each in enumerate(self._rows.outputs) if each is over]
            if places:
                numbers = ", ".join(map(str, places))
                yield from self._lambda(f"row.template {call}<{numbers}>(", [self._results[place] for place in places])
        for place, each in enumerate(self._rows.outputs):
            if each is Over.ROW:
                yield f"row.template put<{place}>({self._row.text(self._results[place])});"

    def _lambda(self, begin: str, roots: Sequence[Node]) -> Iterator[str]:
        """Yields a call with a function of a column that gives the roots."""
        yield f"{begin}[=]([[maybe_unused]] std::int64_t i) {{"
        column = Statements(self._row.dtype, self._row.members, self._row.texts)
        yield from (f"  {line}" for line in column.lines(self._columns_of(roots, column.texts), roots))
        yield f"  {column.returned(roots)}"
        yield "});"

    def _roots_of(self, number: int) -> list[Node]:
        """Returns what a pass computes for each column."""
        roots = [node.of[0] for node in self._order if _reduces(node) and self._stage[id(node)] == number + 1]
        if number == self._last:
            outputs = zip(self._results, self._rows.outputs, strict=True)
            roots += [node for node, over in outputs if Over.COLUMN in over]
        return roots

    def _columns_of(self, roots: Sequence[Node], known: Collection[int] = ()) -> list[Node]:
        """Returns the nodes that have a value for each column, from which roots are computed without a reduction.
        `known` has the ids of those that are there."""
        found: dict[int, Node] = {}
        stack = [*roots]
        while stack:
            node = stack.pop()
            if id(node) not in found and id(node) not in known and Over.COLUMN in node.over:
                found[id(node)] = node
                stack += node.of
        return [node for node in self._order if id(node) in found]

    def _first_pass(self, node: Node) -> int:
        return next(number for number, nodes in enumerate(self._passes) if node in nodes)

    def _worth_keeping(self) -> Iterator[Node]:
        """Yields the nodes that are computed in one pass and needed in another, if they cost much."""
        for node in self._order:
            if node.kind is not Kind.ELEMENT or all(node not in nodes for nodes in self._passes):
                continue
            first = self._first_pass(node)
            later = range(first + 1, self._last + 1)
            needed = any(
                node in self._roots[number]
                or any(node in each.of and self._first_pass(each) == number for each in self._passes[number])
                for number in later
            )
            if needed and any(each.what not in _CHEAP | {"input"} for each in self._columns_of([node])):
                yield node


def _reduces(node: Node) -> bool:
    return node.what in FUNCTIONS and FUNCTIONS[node.what].reduces


def _call(name: str, arguments: Sequence[str], *, integers: bool) -> str:
    """Returns the call of a function in C++."""
    function = FUNCTIONS[name]
    if name == "fixed":
        return arguments[0]
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
