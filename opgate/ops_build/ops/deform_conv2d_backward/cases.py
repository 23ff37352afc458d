from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, of_sums
from opgate.ops_build.ops.deform_conv2d.cases import good, refused
from opgate.ops_build.ops.deform_conv2d.cases import large as forward

#: Sums of some hundred products, of which many cancel out.
TOLERANCE = {"float16": (4e-3, 5e-2), "bfloat16": (3e-2, 4e-1), "float32": (1e-5, 1e-4), "float64": (1e-12, 1e-11)}


def of(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs of the gradient for those of DeformConv2d."""
    offset = inputs["offset"]
    grad = np.random.default_rng(1).standard_normal((len(offset), len(inputs["weight"]), *offset.shape[2:]))
    given = {name: array for name, array in inputs.items() if name != "bias"}
    return {"grad_output": np.asarray(grad, offset.dtype), **given}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    for name, inputs, attributes in good(dtype):
        yield Case(name, of(inputs), attributes, TOLERANCE[dtype.name])
    for name, inputs, attributes, error in refused(dtype):
        yield Case(name, of(inputs), attributes, error=error)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """The gradient of a modulated layer of a ResNet."""
    case = forward(types)
    tolerance = of_sums(types["T"], grad_input=1e-5, grad_weight=1e-3, grad_offset=5e-5, grad_mask=5e-5)
    return Case(case.name, of(case.inputs), case.attributes, tolerance)
