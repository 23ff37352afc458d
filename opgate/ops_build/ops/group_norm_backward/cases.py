from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    def images(*shape: int) -> dict[str, Array]:
        return {"grad_y": normal(*shape), "sum": normal(*shape), "weight": normal(shape[1])}

    # Sums over many numbers: their terms are as large as the deviation, the sum may be small. A short group may have a
    # small deviation, by which its gradient is divided.
    coarse = {"float16": (4e-3, 0.1), "bfloat16": (3e-2, 0.6), "float32": (1e-5, 3e-5), "float64": (1e-12, 1e-11)}
    many = dict.fromkeys(("grad_x_and_residual", "grad_weight", "grad_bias"), coarse[dtype.name])
    shapes = [
        (2, 6),
        (0, 6, 4),
        (2, 6, 0),
        (1, 6, 1),
        (2, 6, 5),
        (3, 6, 7, 9),
        (1, 6, 2, 3, 4),
        (2, 6, 16),
        (40, 6, 33),
    ]
    for shape in shapes:
        for groups in (1, 3, 6):
            if shape[1:] in ((6,), (6, 1)) and groups == 6:
                continue  # a group of one number has no deviation
            inputs, words = images(*shape), {"groups": groups}
            yield Case(f"{list(shape)} in {groups} groups", inputs, words, tolerance=many)
            more = inputs | {"grad_sum": normal(*shape)}
            yield Case(f"{list(shape)} in {groups}, the sum's gradient", more, words, tolerance=many)
    yield Case("no channel", images(2, 0, 3), {"groups": 2})
    yield Case("many small groups", images(3, 320, 3), {"groups": 32}, tolerance=many)
    yield Case("one large group", images(2, 4, 13, 17), {"groups": 1}, tolerance=many)
    inputs = images(2, 8, 5)
    del inputs["weight"]
    yield Case("without weight", inputs, {"groups": 2}, tolerance=many)
    for epsilon in (0.0, 1e-6, 0.5, 100.0):
        yield Case(f"epsilon {epsilon}", images(2, 8, 5), {"groups": 4, "epsilon": epsilon}, tolerance=many)
    odd = images(2, 4, 3)
    odd["sum"][0, 0, 0] = np.nan
    yield Case("not finite", odd, {"groups": 2}, tolerance=many)
    yield Case("groups 0", inputs, {"groups": 0}, error="attribute 'groups': expected 1 or more, got 0")
    yield Case("groups 3 of 8", inputs, {"groups": 3}, error="attribute 'groups': expected a divisor of c = 8, got 3")
    pattern = "attribute 'epsilon': expected a finite number, 0 or more, got"
    yield Case("epsilon negative", inputs, {"groups": 2, "epsilon": -1.0}, error=pattern)
    yield Case("unequal shapes", inputs | {"sum": normal(3, 8, 5)}, {"groups": 2}, error="input 'sum': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """8 images of 320 channels, 64 x 64, in 32 groups."""
    x = np.resize(np.linspace(-2, 2, 4099), (8, 320, 64, 64)).astype(types["T"])
    return Case("8 x 320 x 64 x 64", {"grad_y": x, "sum": x, "weight": x[0, :, 0, 0]}, {"groups": 32})
