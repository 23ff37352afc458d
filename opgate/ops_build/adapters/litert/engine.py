"""Runs ops in LiteRT, for verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, load_delegate

from opgate.ops_build.adapters.litert.limits import NO_STRINGS
from opgate.ops_build.adapters.litert.model import OneNodeModel, one_node_model
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.comparison import assert_same_with_constants
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_table import Op


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields LiteRT with the delegate of a build, or Absent with the reason."""
    yield LiteRtEngine(options.library("litert"))


class LiteRtEngine:
    """Runs the ops of a library in LiteRT's interpreter, as a delegate."""

    name = "litert"
    device = "cpu"

    def __init__(self, library: Path) -> None:
        self._delegate = load_delegate(str(library.resolve()))

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        names = {types.get(name, name) for name in op.tensor_types}
        return NO_STRINGS if "str" in names else None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name, as NumPy arrays.

        An op that prepares runs a second time, with all inputs but the first as constants of the model.

        Raises AssertionError if an output doesn't have the shape that the delegate gave it before the run, or if the
        second run computes something else. If the op refuses the case, it raises an exception of LiteRT.
        """
        outputs = self._run(op, one_node_model(op, case, types))
        if self.device in op.prepares and len(case.inputs) > 1:
            again = self._run(op, one_node_model(op, case, types, constants=True))
            assert_same_with_constants(op, case, types, outputs, again)
        return outputs

    def interpreter(self, model: bytes, **options: Any) -> Any:
        """Returns an interpreter of a model, with the delegate. Raises an exception of LiteRT if it can't be made."""
        return Interpreter(model_content=model, experimental_delegates=[self._delegate], **options)

    def _run(self, op: Op, one: OneNodeModel) -> dict[str, Array]:
        interpreter = self.interpreter(one.model)
        interpreter.allocate_tensors()
        for detail, value in zip(interpreter.get_input_details(), one.feeds, strict=True):
            interpreter.set_tensor(detail["index"], value)
        before = [list(detail["shape"]) for detail in interpreter.get_output_details()]
        interpreter.invoke()
        outputs = {}
        for tensor, detail, shape in zip(op.outputs, interpreter.get_output_details(), before, strict=True):
            output = value_of(interpreter, detail)
            # The models don't state the shapes of outputs, so a shape before the run comes from the delegate.
            assert not shape or shape == list(output.shape), (
                f"output '{tensor.name}': shape {shape} before the run, which gave {list(output.shape)}"
            )
            outputs[tensor.name] = output
        return outputs


def value_of(interpreter: Any, detail: Mapping[str, Any]) -> Array:
    """Returns a copy of a tensor. LiteRT's own function raises ValueError for a tensor without elements whose size was
    found in the run, whichever op wrote it."""
    if 0 in detail["shape"]:
        return np.empty(detail["shape"], detail["dtype"])
    return np.array(interpreter.get_tensor(detail["index"]))
