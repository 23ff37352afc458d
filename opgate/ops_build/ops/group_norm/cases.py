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
        return {"x": normal(*shape), "weight": normal(shape[1]), "bias": normal(shape[1])}

    shapes = [
        (2, 6),
        (0, 6, 4),
        (2, 6, 0),
        (1, 6, 1),
        (2, 6, 5),
        (3, 6, 7, 9),
        (1, 6, 2, 3, 4),
        (2, 6, 15),
        (2, 6, 16),
        (2, 6, 37, 41),
    ]
    for shape in shapes:
        for groups in (1, 3, 6):
            inputs = images(*shape)
            yield Case(f"{list(shape)} in {groups} groups", inputs, {"groups": groups})
            yield Case(
                f"{list(shape)} in {groups}, residual", inputs | {"residual": normal(*shape)}, {"groups": groups}
            )
    yield Case("no channel", images(2, 0, 3), {"groups": 2})
    yield Case("many small groups", images(3, 320, 3), {"groups": 32})
    yield Case("one large group", images(2, 4, 130, 130), {"groups": 1})
    long = images(2, 4, 20, 400)
    yield Case("large groups, residual", long | {"residual": normal(2, 4, 20, 400)}, {"groups": 2})
    yield Case("many large groups", images(65, 4, 8224 // dtype.itemsize), {"groups": 2})
    x = normal(2, 8, 5)
    for names in [(), ("weight",), ("bias",), ("residual",), ("weight", "residual")]:
        others = {"weight": normal(8), "bias": normal(8), "residual": normal(2, 8, 5)}
        yield Case(f"with {names}", {"x": x} | {name: others[name] for name in names}, {"groups": 2})
    for epsilon in (0.0, 1e-6, 0.5):
        yield Case(f"epsilon {epsilon}", {"x": x}, {"groups": 4, "epsilon": epsilon})
    # A mean that is large beside the deviation: the numbers are exact in every dtype, and so are their differences.
    large = {"float16": 1024, "bfloat16": 128, "float32": 2.0**22, "float64": 2.0**50}[dtype.name]
    yield Case("a large mean", {"x": (rng.integers(0, 8, (2, 4, 1000)) + large).astype(dtype)}, {"groups": 2})
    odd = normal(2, 4, 3)
    odd[0, 0, 0], odd[1, 3, 2] = np.nan, np.inf
    yield Case("not finite", {"x": odd}, {"groups": 2})
    yield Case("groups 0", {"x": x}, {"groups": 0}, error="attribute 'groups': expected 1 or more, got 0")
    yield Case("groups -2", {"x": x}, {"groups": -2}, error="attribute 'groups': expected 1 or more, got -2")
    yield Case("groups 3 of 8", {"x": x}, {"groups": 3}, error="attribute 'groups': expected a divisor of c = 8, got 3")
    pattern = "attribute 'epsilon': expected a finite number, 0 or more, got"
    yield Case("epsilon negative", {"x": x}, {"groups": 2, "epsilon": -1.0}, error=pattern)
    yield Case("a weight too long", {"x": x, "weight": normal(9)}, {"groups": 2}, error="input 'weight': expected")
    yield Case("a residual of another shape", {"x": x, "residual": x[:1]}, {"groups": 2}, error="input 'residual'")


def large(types: Mapping[str, np.dtype]) -> Case:
    """8 images of 320 channels, 64 x 64, in 32 groups."""
    x = np.resize(np.linspace(-2, 2, 4099), (8, 320, 64, 64)).astype(types["T"])
    return Case("8 x 320 x 64 x 64", {"x": x, "weight": x[0, :, 0, 0], "bias": x[0, :, 1, 1]}, {"groups": 32})
