from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, of_sums
from opgate.ops_build.ops.multi_scale_deformable_attention.cases import Types, good, refused
from opgate.ops_build.ops.multi_scale_deformable_attention.cases import large as forward

#: Slopes are the differences of values times the width of a level, so their terms cancel out.
TOLERANCE = {"float16": (4e-3, 3e-2), "bfloat16": (3e-2, 3e-1), "float32": (2e-5, 1e-4), "float64": (1e-12, 1e-11)}


def of(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs of the gradient for those of MultiScaleDeformableAttention."""
    value, (b, queries) = inputs["value"], inputs["sampling_locations"].shape[:2]
    grad = np.random.default_rng(1).standard_normal((b, queries, value.shape[2] * value.shape[3]))
    return {"grad_output": np.asarray(grad, value.dtype), **inputs}


def cases(types: Types) -> Iterator[Case]:
    for name, inputs in good(types):
        yield Case(name, of(inputs), {}, TOLERANCE[types["T"].name])
    for name, inputs, error, unseen in refused(types):
        yield Case(name, of(inputs), error=error, unseen=unseen)


def large(types: Types) -> Case:
    """The gradient of a layer of Deformable DETR's decoder."""
    case = forward(types)
    tolerance = of_sums(types["T"], grad_value=1e-4, grad_sampling_locations=5e-2, grad_attention_weights=3e-4)
    return Case(case.name, of(case.inputs), tolerance=tolerance)
