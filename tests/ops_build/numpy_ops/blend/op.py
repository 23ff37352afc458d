import numpy as np

import opgate
from opgate import Case


@opgate.op("<T: f16|f32> Blend(weights: f32[m], xs*: T[...]) -> (y: T[...])", "A sum of tensors, with weights.")
def blend(weights, xs):
    if len(weights) != len(xs):
        raise opgate.InvalidArgument(f"expected a weight for each of {len(xs)} tensors, got {len(weights)}")
    return sum(weight * x for weight, x in zip(weights, xs, strict=True))


@blend.cases
def _(types):
    rng = np.random.default_rng(0)
    for count in (1, 3):
        xs = [rng.standard_normal((2, 5)).astype(types["T"]) for _ in range(count)]
        yield Case(f"{count} tensors", {"weights": rng.uniform(0, 1, count).astype("f4"), "xs": xs})
    yield Case(
        "a weight too few", {"weights": np.ones(2, "f4"), "xs": xs}, error="a weight for each of 3 tensors, got 2"
    )
