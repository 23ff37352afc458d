"""Gradients that are stated in Python, in terms of other ops of the table: <op>/gradient.py.

    def gradient(ops, grad_y, cos_cache, sin_cache, position_ids, **attributes):
        return ops.rotary_embedding(grad_y, cos_cache, -sin_cache, position_ids, **attributes), None, None, None

The function takes the ops, by their names in snake_case, and of `grad_<output>`, the inputs, outputs and attributes of
the op those that it names. It returns the gradient of each input, None for one without. Tensors are those of PyTorch or
TensorFlow, so it computes with ops and operators alone. The build puts the text into the library.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from opgate.ops_build.op_table import Op, snake_case


class GradientError(ValueError):
    """A gradient.py is none. The message begins with its file and line."""


class StatedGradient:
    """The gradient.py of an op. `tensors` are the inputs and outputs that it takes, `attributes` its attributes. Raises
    GradientError."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self._file = f"{snake_case(op.name)}/gradient.py"
        self._function = check_text(op.gradient, Path(self._file))
        line = self._function.__code__.co_firstlineno
        outputs = [output.name for output in op.outputs]
        known = [*(f"grad_{name}" for name in outputs), *(tensor.name for tensor in op.inputs), *outputs]
        own = [attribute.name for attribute in op.attributes]
        parameters = [*inspect.signature(self._function).parameters.values()][1:]
        everything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        named = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for name in named:
            if name not in known and name not in own:
                raise GradientError(
                    f"{self._file}:{line}: a gradient of {op.name} takes {', '.join([*known, *own])}, and there is no "
                    f"{name}"
                )
        self._takes = [name for name in named if name in known]
        self.tensors = [name for name in self._takes if not self._is_gradient(name)]
        self.attributes = own if everything else [name for name in own if name in named]

    def _is_gradient(self, name: str) -> bool:
        return name in {f"grad_{tensor.name}" for tensor in self.op.outputs}

    def __call__(self, ops: Any, tensors: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the gradients of inputs by their names, without those that have none. Raises GradientError."""
        given = {name: tensors[name] for name in self._takes}
        found = self._function(ops, **given, **{name: attributes[name] for name in self.attributes})
        parts = found if isinstance(found, tuple) else (found,)
        if len(parts) != len(self.op.inputs):
            raise GradientError(
                f"{self._file}:{self._function.__code__.co_firstlineno}: expected {len(self.op.inputs)} gradients, one "
                f"for each input, got {len(parts)}"
            )
        return {t.name: part for t, part in zip(self.op.inputs, parts, strict=True) if part is not None}


def check_text(text: str, file: Path) -> Callable[..., Any]:
    """Returns the function that a gradient.py states. Raises GradientError."""
    linecache.cache[str(file)] = (len(text), None, text.splitlines(keepends=True), str(file))
    names: dict[str, Any] = {"__name__": "gradient"}
    try:
        exec(compile(text, str(file), "exec"), names)
    except Exception as error:  # whatever the author's code raises
        line = getattr(error, "lineno", None) or 1
        raise GradientError(f"{file}:{line}: {type(error).__name__}: {error}") from error
    function = names.get("gradient")
    if not inspect.isfunction(function) or not inspect.signature(function).parameters:
        raise GradientError(f"{file}:1: expected a function gradient(ops, grad_y, ...)")
    return function


def stated_gradient(op: Op, backward: Op | None) -> StatedGradient | None:
    """Returns the stated gradient of an op, or None if it has none. `backward` is the op of its gradient, if the table
    has one. Raises GradientError."""
    if not op.gradient:
        return None
    if backward is not None:
        raise GradientError(f"{op.name} has two gradients: a gradient.py, and the op {backward.name}")
    return StatedGradient(op)


def differentiable(ops: Iterable[Op]) -> set[str]:
    """Returns the names of the ops that have a gradient."""
    listed = [*ops]
    return {op.name.removesuffix("Backward") for op in listed if op.name.endswith("Backward")} | {
        op.name for op in listed if op.gradient
    }
