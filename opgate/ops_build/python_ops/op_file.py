"""Reads the op.py of an op's folder: the signature, the sources that the build compiles, the reference, the cases."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.op_table import Op, SignatureError, parse_signature, snake_case
from opgate.ops_build.python_ops import layout, loop, triton_kernel
from opgate.ops_build.python_ops.differences import check_directions
from opgate.ops_build.python_ops.embedded import EmbeddedOp
from opgate.ops_build.python_ops.execution import OpFileError, executed, line_of
from opgate.ops_build.python_ops.formula_source import Choice, Rows, Stated, c_kernel, header
from opgate.ops_build.python_ops.gradient_op import gradient_op
from opgate.ops_build.python_ops.gradient_reference import gradient_reference
from opgate.ops_build.python_ops.numpy_gradient import numpy_gradient, numpy_gradient_signature
from opgate.ops_build.python_ops.parser import ParserError, parser_library
from opgate.ops_build.python_ops.python_op import PythonOp, place_of
from opgate.ops_build.python_ops.traced import FormulaError
from opgate.ops_build.python_ops.tracing import choices_of, formula_of, limits_of, names_in
from opgate.ops_build.python_ops.trials import (
    MOST_INPUTS,
    of_whole_tensors,
    rounded,
    usual,
    usual_cases,
    with_output_gradients,
    with_tolerances,
)

FILE = "op.py"
_Types = Mapping[str, "np.dtype[Any]"]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class OpFile:
    """An op.py, executed and with its signature read."""

    file: Path
    python: PythonOp
    op: Op

    @cached_property
    def choices(self) -> list[Choice]:
        """The traced formula. Raises OpFileError."""
        function = self.python.formula_function
        assert function is not None
        _check_parameters(self.op, function)
        return self._traced(lambda: choices_of(self.op, formula_of(function)))

    @cached_property
    def backward(self) -> tuple[Op, list[Choice]] | None:
        """The op that computes the gradient, and its traced formula, which is empty if it runs in Python. None
        if there is no gradient. Raises OpFileError."""
        if self.has_formula:
            return self._traced(lambda: gradient_op(self.op, self.python))
        signature = self._traced(lambda: numpy_gradient_signature(self.op, self.python))
        if signature is None:
            return None
        assert self.python.gradient_function is not None
        parsed = _parsed(signature, place_of(self.python.gradient_function), f"the gradient is the op {signature}")
        return replace(parsed, doc=f"The gradient of {self.op.name}."), []

    @property
    def has_formula(self) -> bool:
        """Whether the kernel is a formula. Else it is a function of C, a loop, or the op's own function in NumPy."""
        return self.python.formula_function is not None

    def embedded(self) -> list[EmbeddedOp]:
        """Returns what a library needs to run functions in Python: the op's own if nothing is compiled in its place,
        and a gradient in NumPy."""
        if self.has_formula:
            return []
        name, source = str(Path(*self.file.parts[-3:])), self.file.read_bytes()
        ops = [] if self.python.c_function or self.python.loop_kernel else [self.op]
        ops += [self.backward[0]] if self.backward else []
        return [EmbeddedOp(op.signature, op.doc, name, source) for op in ops]

    def sources(self) -> dict[str, str]:
        """Returns the sources that are compiled, by name: the headers of a formula and of its gradient, the source of
        a loop or of what calls a function of C, and that of a kernel in Triton. An op that runs in Python alone has
        none. Raises OpFileError."""
        python, name = self.python, snake_case(self.op.name)
        if sum(map(bool, (python.formula_function, python.c_function, python.loop_kernel))) > 1:
            raise OpFileError(
                f"{python.place}: {self.op.name} has a formula, a loop or a function of C, not two of them"
            )
        texts = {}
        if python.c_function:
            texts[f"{name}.cpp"] = c_kernel(self._stated, python.c_function)
        elif python.loop_kernel is not None:
            texts[f"{name}.cpp"] = self._loop_source
        elif self.has_formula:
            texts[f"{name}.h"] = self._header(self.op, self.choices)
            if self.backward is not None:
                texts[f"{snake_case(self.backward[0].name)}.h"] = self._header(*self.backward)
        if python.triton_kernel is not None:
            texts[f"{name}.cu"] = self._triton_source
        self._check_defaults()
        return texts

    def _check_defaults(self) -> None:
        """Raises OpFileError if the author's check refuses a default of the signature."""
        function = self.python.check_function
        if function is None:
            return
        defaults = {attribute.name: attribute.default for attribute in self.op.attributes if not attribute.required}
        names = inspect.signature(function).parameters
        if not defaults.keys() >= names.keys():  # what no attribute is called is said when the check is traced
            return
        try:
            limits = dict(function(**{name: defaults[name] for name in names}))
            wrong = [(name, expected) for name, (good, expected) in limits.items() if not good]
        except Exception as error:  # whatever the author's code raises
            line = line_of(error, str(self.file))
            place = f"{self.file}:{line}" if line else place_of(function)
            raise OpFileError(f"{place}: {type(error).__name__}: {error}") from error
        for name, expected in wrong:
            raise OpFileError(
                f"{self.python.place}: attribute '{name}': the default is {defaults.get(name)!r}, and the check says: "
                f"expected {expected}"
            )

    @cached_property
    def _stated(self) -> Stated:
        limits = self._traced(lambda: limits_of(self.op, self.python.check_function))
        return Stated(self.op.name, self.op.signature, self.op.doc, [], self.op.attributes, limits)

    @cached_property
    def _loop_source(self) -> str:
        kernel = self.python.loop_kernel
        assert kernel is not None
        return self._traced(lambda: loop.source(self.op, self._stated, kernel))

    @cached_property
    def _triton_source(self) -> str:
        kernel = self.python.triton_kernel
        assert kernel is not None
        header = f"{snake_case(self.op.name)}.h" if self.has_formula else None
        return self._traced(lambda: triton_kernel.source(self.op, self._stated, kernel, header))

    def _header(self, op: Op, choices: Sequence[Choice]) -> str:
        limits = self._traced(lambda: limits_of(self.op, self.python.check_function))
        known = {attribute.name for attribute in op.attributes}
        held = [limit for limit in limits if known.issuperset(names_in([limit.condition]))]
        inputs = [tensor.name for tensor in op.inputs]
        columns = layout.columns_of(op)
        over = [[layout.over(op, tensor) for tensor in tensors] for tensors in (op.inputs, op.outputs)]
        rows = Rows(columns, *over) if columns else None
        return header(Stated(op.name, op.signature, op.doc, inputs, op.attributes, held, rows), choices)

    def reference(self) -> Callable[..., Any]:
        """Returns the op in NumPy. Floats are computed in float64."""
        function = self.python.function
        if self.has_formula:
            function = of_whole_tensors(self.op, function)
        return rounded(self.op, function, wide=True)

    def backward_reference(self) -> Callable[..., Any]:
        """Returns the gradient in NumPy, which is held to differences of the op. Raises ValueError if they differ."""
        assert self.backward is not None
        if not self.has_formula:
            return self._numpy_reference(self.backward[0])
        return gradient_reference(self.op, self.python, *self.backward)

    def _numpy_reference(self, backward: Op) -> Callable[..., Any]:
        of_arrays = numpy_gradient(self.op, backward, self.python)

        def compute(*inputs: Any, **attributes: Any) -> Any:
            results = of_arrays(*inputs, **attributes)
            if not self.python.surrogate:
                values = dict(zip((tensor.name for tensor in backward.inputs), inputs, strict=True))
                named = dict(zip((output.name for output in backward.outputs), results, strict=True))
                check_directions(self.op, self.python.function, values, attributes, named)
            return results

        return rounded(backward, compute, wide=True)

    def cases(self, types: _Types) -> list[Case]:
        """Returns the cases that the author states, or usual ones for an op of elements or rows. Raises
        FileNotFoundError if there are none."""
        if self.python.cases_function is not None:
            return self._stated_cases(self.python.cases_function, types)
        if not usual(self.op) or any(attribute.required for attribute in self.op.attributes):
            raise FileNotFoundError(
                f"{self.python.place}: {self.op.name} has no cases, and none can be made up: state them with "
                f"@{self.python.__name__}.cases"
            )
        reference = self.reference()
        return with_tolerances(self.op, [*usual_cases(self.op, types, reference)], reference)

    def _stated_cases(self, function: Callable[..., Any], types: _Types) -> list[Case]:
        place = place_of(function)
        try:
            found = list(function(types))
        except Exception as error:  # whatever the author's code raises
            line = line_of(error, str(self.file))
            place = f"{self.file}:{line}" if line else place
            raise OpFileError(f"{place}: {type(error).__name__}: {error}") from error
        known = {tensor.name for tensor in self.op.inputs}
        required = {tensor.name for tensor in self.op.inputs if not tensor.optional}
        for case in found:
            if not isinstance(case, Case):
                raise OpFileError(f"{place}: expected opgate.Case(name, inputs), got {case!r}")
            if not case.error and not required <= case.inputs.keys() <= known:
                raise OpFileError(
                    f"{place}: case '{case.name}': expected the inputs {', '.join(known)}, got {', '.join(case.inputs)}"
                )
        return found

    def large(self, types: _Types) -> Case | None:
        return None if self.python.large_function is None else self.python.large_function(types)

    def backward_cases(self, cases: Iterable[Case]) -> list[Case]:
        """Returns the cases of the gradient from those of the op."""
        assert self.backward is not None
        op, choices = self.backward
        own = [case for case in cases if not case.error]
        found = with_output_gradients(self.op, own) if self.has_formula else [*map(self._with_gradients, own)]
        names = [tensor.name for tensor in op.inputs]
        if not {output.name for output in self.op.outputs}.isdisjoint(names):
            found = [replace(case, inputs={**case.inputs, **self._outputs(case)}) for case in found]
        attributes = {attribute.name for attribute in op.attributes}
        given = [
            replace(
                case,
                inputs={name: case.inputs[name] for name in names if name in case.inputs},
                attributes={name: value for name, value in case.attributes.items() if name in attributes},
                tolerance=None if self.has_formula else case.tolerance,
                expected=None,
            )
            for case in found
        ]
        if not self.has_formula:
            return given
        return with_tolerances(op, given, gradient_reference(self.op, self.python, op, choices, checked=False))

    def _with_gradients(self, case: Case) -> Case:
        """Returns a case with a normally distributed gradient of each output."""
        rng = np.random.default_rng(1)
        gradients = {
            f"grad_{name}": np.asarray(rng.standard_normal(array.shape)).astype(array.dtype)
            for name, array in self._outputs(case).items()
        }
        return replace(case, inputs={**gradients, **case.inputs})

    def _outputs(self, case: Case) -> dict[str, Any]:
        own = {tensor.name: case.inputs.get(tensor.name) for tensor in self.op.inputs}
        arrays = self.reference()(**own, **case.attributes)
        return {output.name: array for output, array in zip(self.op.outputs, arrays, strict=True)}

    def _traced(self, trace: Callable[[], _Result]) -> _Result:
        try:
            return trace()
        except FormulaError as error:
            text = str(error)
            raise OpFileError(text if text.startswith(str(self.file)) else f"{self.python.place}: {text}") from None


def read_op_file(file: Path) -> OpFile:
    """Executes an op.py, if it has changed since it was last executed. Raises OpFileError."""
    return _read(file.resolve(), file.read_bytes())


@functools.lru_cache(maxsize=512)
def _read(file: Path, source: bytes) -> OpFile:
    return op_file_of(executed(file, source), file)


def op_file_of(python: PythonOp, file: Path) -> OpFile:
    """Reads the signature of an op. Raises OpFileError."""
    op = _parsed(python.signature, python.place)
    _check_names(op, python)
    _check_parameters(op, python.function)
    return OpFile(file, python, replace(op, doc=python.doc))


def _parsed(signature: str, place: str, called: str = "signature") -> Op:
    try:
        return parse_signature(parser_library(), signature)
    except SignatureError as error:
        raise OpFileError(f"{place}: {called}, {error}") from None
    except ParserError as error:
        raise OpFileError(f"{place}: {error}") from None


def _check_names(op: Op, python: PythonOp) -> None:
    """Raises OpFileError for names that Python or the op's gradient have for something else, and for too many."""
    names = [*(tensor.name for tensor in op.inputs), *(attribute.name for attribute in op.attributes)]
    taken = {f"grad_{output.name}" for output in op.outputs}
    for name in names:
        if keyword.iskeyword(name) or name in taken:
            why = "the gradient has an input of this name" if name in taken else "it is a word of Python"
            raise OpFileError(f"{python.place}: call '{name}' otherwise: {why}")
    if len(op.inputs) > MOST_INPUTS:
        raise OpFileError(f"{python.place}: expected {MOST_INPUTS} inputs or fewer, got {len(op.inputs)}")


def _check_parameters(op: Op, function: Callable[..., Any]) -> None:
    """Raises OpFileError unless a function's parameters are the inputs and the attributes of the op."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    inputs = [tensor.name for tensor in op.inputs]
    attributes = {attribute.name for attribute in op.attributes}
    if named != inputs or keywords != attributes:
        stars = ", *, " if attributes else ""
        expected = ", ".join(inputs) + stars + ", ".join(attribute.name for attribute in op.attributes)
        raise OpFileError(
            f"{place_of(function)}: expected the parameters ({expected}), those of the signature, got "
            f"{inspect.signature(function)}"
        )
    stated = {attribute.name: attribute.default for attribute in op.attributes}
    for parameter in parameters:
        if parameter.default is not inspect.Parameter.empty and parameter.default != stated.get(parameter.name):
            raise OpFileError(
                f"{place_of(function)}: leave out {parameter.name}={parameter.default!r}: the signature has the default"
            )
