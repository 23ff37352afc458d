from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.three_interpolate import cases as forward


def with_gradient(case: Case) -> Case:
    """The same inputs, and a gradient of the output. A gradient adds up more terms than an output has."""
    features, idx = (np.asarray(case.inputs[name]) for name in ("features", "idx"))
    shape = (len(idx), features.shape[1])
    grad = np.random.default_rng(2).uniform(-1, 1, shape).astype(features.dtype)
    terms = max([1, features.shape[1], *np.bincount(np.minimum(idx[idx >= 0], 99), minlength=1)])
    rtol, atol = forward.TOLERANCES[features.dtype.name]
    return replace(case, inputs={"grad_y": grad, **case.inputs}, tolerance=(rtol, atol * max(1, terms / 16)))


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for case in forward.cases(types):
        yield with_gradient(case)
    # More queries than are summed at once.
    many = next(case for case in forward.cases(types) if case.name == "300 queries")
    features, idx, weight = (np.asarray(many.inputs[name]) for name in ("features", "idx", "weight"))
    few = {"features": features[:2], "idx": np.asarray(idx % 2, np.int32), "weight": weight}
    yield with_gradient(replace(many, name="two rows of 300 queries", inputs=few))


def large(types: Mapping[str, np.dtype]) -> Case:
    """16,384 points between 4,096, 128 features."""
    return with_gradient(forward.large(types))
