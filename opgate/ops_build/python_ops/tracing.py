"""Calls a formula once for each choice of its settings and each type that elements are computed in."""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Attribute, Input, Op, Output
from opgate.ops_build.python_ops import layout
from opgate.ops_build.python_ops.expression import CONDITIONS, Graph, Kind, Node, Over, in_order
from opgate.ops_build.python_ops.formula_source import COMPUTED, Choice, Limit
from opgate.ops_build.python_ops.python_op import place_of
from opgate.ops_build.python_ops.traced import FormulaError, Trace, Traced

#: A formula: from the trace, the inputs and the attributes to the results.
Formula = Callable[[Trace, Mapping[str, Traced], Mapping[str, Any]], Sequence[object]]


def computed_in(dtype: str) -> np.dtype[Any]:
    """Returns the dtype that elements of a dtype are computed in."""
    return np.dtype(np.float32) if dtype in ("f16", "bf16") else DTYPES[dtype].numpy


def check_formula(op: Op) -> None:
    """Raises FormulaError if the op of a signature can't have a formula."""
    columns = layout.columns_of(op)
    if len(op.type_variables) != 1 or {*op.tensor_types} != {*op.type_variables}:
        raise FormulaError(f"a formula's tensors have one type variable, such as <T: f32>, got '{op.signature}'")
    if not layout.has_rows(op):
        raise FormulaError(
            "a formula computes elements, with the dims [...] in every tensor, or rows: [..., n] for elements, [...] "
            f"or [..., 1] for one number for each row, [n] for one for each column, got '{op.signature}'"
        )
    if any(tensor.optional or tensor.variadic or tensor.const for tensor in op.inputs) or any(
        output.optional for output in op.outputs
    ):
        raise FormulaError(f"a formula's tensors are all required, got '{op.signature}'")
    (dtypes,) = op.type_variables.values()
    if wrong := [dtype for dtype in dtypes if computed_in(dtype).name not in COMPUTED]:
        raise FormulaError(f"a formula computes numbers, and {op.name} takes {', '.join(wrong)}")
    if columns and (whole := [dtype for dtype in dtypes if computed_in(dtype).kind != "f"]):
        raise FormulaError(f"a formula over rows computes floats, and {op.name} takes {', '.join(whole)}")


def choices_of(op: Op, formula: Formula) -> list[Choice]:
    """Traces a formula. Raises FormulaError."""
    check_formula(op)
    deciding = [attribute for attribute in op.attributes if attribute.kind in ("bool", "choice") and not attribute.list]
    (dtypes,) = op.type_variables.values()
    computed = dict.fromkeys(computed_in(dtype) for dtype in dtypes)
    found = []
    for values in itertools.product(*(_values(attribute) for attribute in deciding)):
        when = {attribute.name: value for attribute, value in zip(deciding, values, strict=True)}
        general = _choice(op, formula, when, computed)
        # A power that is an attribute is often 2, and a square costs little.
        squares = {**when, **dict.fromkeys(_powers(op, general), 2.0)}
        found += [_choice(op, formula, squares, computed), general] if len(squares) > len(when) else [general]
    return found


def _choice(
    op: Op, formula: Formula, when: Mapping[str, str | bool | float], computed: Iterable[np.dtype[Any]]
) -> Choice:
    graph = Graph()
    rows = layout.columns_of(op) is not None
    return Choice(when, {dtype.name: _traced(op, formula, Trace(graph, dtype, rows), when) for dtype in computed})


def _powers(op: Op, choice: Choice) -> list[str]:
    """Returns the float attributes that powers are computed from."""
    nodes = [node for results in choice.results.values() for node in in_order(results) if node.kind is Kind.ELEMENT]
    names = {name for node in nodes if node.what == "power" for name in names_in([node.of[1]])}
    return [each.name for each in op.attributes if each.name in names and each.kind == "float" and not each.list]


def _values(attribute: Attribute) -> Sequence[str | bool]:
    return attribute.choices or (False, True)


def _traced(op: Op, formula: Formula, trace: Trace, when: Mapping[str, str | bool | float]) -> Sequence[Node]:
    inputs = {tensor.name: _input(op, trace, tensor) for tensor in op.inputs}
    attributes = {a.name: when[a.name] if a.name in when else _attribute(trace, a) for a in op.attributes}
    values = [trace.wrap(result) for result in formula(trace, inputs, attributes)]
    results = [value.node for value in values]
    if len(results) != len(op.outputs):
        raise FormulaError(f"expected {len(op.outputs)} results, one for each output, got {len(results)}")
    for node, output in zip(results, op.outputs, strict=True):
        if node.kind in CONDITIONS:
            raise FormulaError(f"output '{output.name}' is a condition: write np.where(condition, 1, 0)")
        if trace.dtype.kind in "iu" and node.kind is Kind.REAL:
            raise FormulaError(f"output '{output.name}' is no {trace.dtype}: write a whole number")
    if trace.rows:
        for value, output in zip(values, op.outputs, strict=True):
            _check_axes(value, output)
    return results


def _input(op: Op, trace: Trace, tensor: Input) -> Traced:
    node = trace.graph.node("input", Kind.ELEMENT, value=tensor.name, over=layout.over(op, tensor))
    return Traced(trace, node, trace.rows and layout.texts(tensor) == ["..."])


def _check_axes(value: Traced, output: Output) -> None:
    """Raises FormulaError if a result has not the axes of its output in an op over rows."""
    dims = layout.texts(output)
    if value.node.over == Over.ALL:
        return
    if value.flat and dims != ["..."]:
        raise FormulaError(
            f"output '{output.name}' has the dims [{', '.join(dims)}], and the result has no last axis: write "
            "keepdims=True in the reduction"
        )
    if not value.flat and dims == ["..."]:
        instead = "a reduction over axis=-1" if Over.COLUMN in value.node.over else "no keepdims=True, or x[..., 0]"
        raise FormulaError(
            f"output '{output.name}' has the dims [...], and the result has a last axis: write {instead}"
        )
    if dims == ["...", "1"] and Over.COLUMN in value.node.over:
        raise FormulaError(f"output '{output.name}' has one number for a row: write a reduction over axis=-1")


def _attribute(trace: Trace, attribute: Attribute) -> Any:
    """Returns what stands for an attribute. Raises FormulaError."""
    if attribute.kind not in ("int", "float"):
        raise FormulaError(f"attribute '{attribute.name}' is a {attribute.kind}, which no formula can compute with")
    kind = Kind.INTEGER if attribute.kind == "int" else Kind.REAL
    if not attribute.list:
        return Traced(trace, trace.graph.node("attribute", kind, value=attribute.name))
    if attribute.length is None:
        raise FormulaError(f"attribute '{attribute.name}' has any length: write {attribute.kind}[3] for three numbers")
    names = [f"{attribute.name}[{place}]" for place in range(attribute.length)]
    return tuple(Traced(trace, trace.graph.node("attribute", kind, value=name)) for name in names)


def limits_of(op: Op, function: Callable[..., Any] | None) -> list[Limit]:
    """Traces what the author says that the attributes must be. Raises FormulaError."""
    if function is None:
        return []
    trace = Trace(Graph(), np.dtype(np.float64))
    place = place_of(function)
    known = {each.name: each for each in op.attributes if each.kind in ("int", "float")}
    for name in inspect.signature(function).parameters:
        if name not in known:
            numbers = ", ".join(known) or "and there are none"
            raise FormulaError(f"{place}: a check takes attributes that are numbers, {numbers}, and not {name}")
    values = {name: _attribute(trace, known[name]) for name in inspect.signature(function).parameters}
    found = []
    limits = called(function, [], values)
    form = 'a check returns {"high": (high > 0, "a number above 0")}'
    if not isinstance(limits, dict):
        raise FormulaError(f"{place}: {form}, got a {type(limits).__name__}")
    for name, stated in limits.items():
        if name not in known or not isinstance(stated, tuple) or len(stated) != 2:
            raise FormulaError(f"{place}: {form}, with an attribute, a condition and a text")
        condition, expected = stated
        if not isinstance(condition, Traced) or condition.node.kind is not Kind.SETTING:
            raise FormulaError(f"{place}: attribute '{name}': expected a condition, such as {name} > 0")
        found.append(Limit(name, condition.node, expected))
    return found


def formula_of(function: Callable[..., Any]) -> Formula:
    """Returns the formula that a function of the author's states. Its errors name the author's line."""

    def formula(trace: Trace, inputs: Mapping[str, Traced], attributes: Mapping[str, Any]) -> Sequence[object]:
        with np.errstate(all="ignore"):
            results = called(function, [*inputs.values()], attributes)
        return results if isinstance(results, tuple) else (results,)

    return formula


def called(function: Callable[..., Any], inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Calls a function of the author's. Raises FormulaError with the author's line."""
    try:
        return function(*inputs, **attributes)
    except Exception as error:  # whatever the author's code raises
        file = inspect.unwrap(function).__code__.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        place = f"{file}:{lines[-1]}" if lines else place_of(function)
        what = str(error) if isinstance(error, FormulaError) else f"{type(error).__name__}: {error}"
        raise FormulaError(f"{place}: {what}") from error


def names_in(results: Iterable[Node]) -> set[str]:
    """Returns the inputs and attributes that results are computed from."""
    nodes = (node for node in in_order([*results]) if node.what in ("input", "attribute"))
    return {str(node.value).partition("[")[0] for node in nodes}


def kept(names: Sequence[str], choices: Sequence[Choice]) -> Iterator[str]:
    """Yields those of the inputs and attributes that the results of the choices are computed from."""
    results = [node for choice in choices for nodes in choice.results.values() for node in nodes]
    used = names_in(results) | {name for choice in choices for name in choice.when}
    yield from (name for name in names if name in used)
