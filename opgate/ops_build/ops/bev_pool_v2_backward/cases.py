from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, of_sums
from opgate.ops_build.ops.bev_pool_v2.cases import good, refused
from opgate.ops_build.ops.bev_pool_v2.cases import large as forward
from opgate.ops_build.ops.segment_reduce.cases import TOLERANCE


def of(inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs of the gradient for those of BevPoolV2."""
    feat = inputs["feat"]
    dims = (feat.shape[0], attributes["out_z"], attributes["out_height"], attributes["out_width"], feat.shape[-1])
    grad = np.random.default_rng(1).standard_normal(dims)
    return {"grad_bev": np.asarray(grad, feat.dtype), **inputs}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    for name, inputs, attributes in good(dtype):
        yield Case(name, of(inputs, attributes), {}, TOLERANCE[dtype.name])
    for name, inputs, attributes, error, unseen in refused(dtype):
        yield Case(name, of(inputs, attributes), error=error, unseen=unseen)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """The gradient of BEVDet's six cameras."""
    case = forward(types)
    tolerance = of_sums(types["T"], grad_depth=2e-5, grad_feat=2e-5)
    return Case(case.name, of(case.inputs, case.attributes), tolerance=tolerance)
