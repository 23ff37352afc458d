"""Walks a signature with the inputs of a case, for the shapes of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.onnx.schema import GraphSizes
from opgate.ops_build.op_table import Op
from opgate.ops_build.signature_walk import KnownInput, Walk


def walk_of(op: Op, case: Case, *, static: bool = True, scalars: bool = False) -> Walk:
    """Returns a walk that has bound the inputs of a case.

    With `static` the walk knows their sizes, otherwise only their ranks. With `scalars` it also knows the values of the
    inputs in host memory.
    """
    known: list[KnownInput | None] = []
    for tensor in op.inputs:
        value = case.inputs.get(tensor.name)
        for array in value if tensor.variadic and value is not None else [value]:
            if array is None:
                known.append(None)
                continue
            shape: Sequence[Any] = np.asarray(array).shape
            scalar = int(np.asarray(array)) if scalars and tensor.const else None
            known.append(KnownInput(None, shape if static else [None] * len(shape), scalar))
    integers = {a.name: case.attributes.get(a.name, a.default) for a in op.attributes if a.kind == "int" and not a.list}
    walk = Walk(op, GraphSizes())
    walk.bind(known, integers)
    return walk
