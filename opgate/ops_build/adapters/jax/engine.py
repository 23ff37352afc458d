"""Runs ops in JAX, for verification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from opgate.ops_build.adapters.jax.functions import JaxOps
from opgate.ops_build.adapters.numpy.library import load
from opgate.ops_build.case import Array, Case
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op


class JaxEngine:
    """Runs the ops of a library in JAX in this process, compiled, on the CPU."""

    name = "jax"
    device = "cpu"

    def __init__(self, library: Path) -> None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self._ops = JaxOps(load(library))

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        """Says why JAX can't have the op, None if it can."""
        reason = self._ops.left_out.get(op.name)
        return reason and f"JAX can't have the op: {reason}"

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name. Raises what JAX raises if the op refuses the case."""
        names = [name for name, returned in functions_of(op) if len(returned.outputs) == len(op.outputs)]
        call = self._ops.functions[names[0]]
        found = call(**case.inputs, **case.attributes)
        outputs = found if isinstance(found, tuple) else (found,)
        return {tensor.name: np.asarray(output) for tensor, output in zip(op.outputs, outputs, strict=True)}


#: What verification makes of a library.
engine = JaxEngine
