from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    exact = (0.0, 0.0)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": (rng.standard_normal(shape) * 4).astype(dtype)}, tolerance=exact)
    for ceiling in (0.0, 0.1, 1.0, 20.0, -2.0, float("inf")):
        x = (rng.standard_normal(33) * 4).astype(dtype)
        yield Case(f"ceiling {ceiling}", {"x": x}, {"ceiling": ceiling}, tolerance=exact)
    odd = np.array([6.0, 5.99, 6.01, 0.0, -0.0, 1e4, -1e4, np.inf, -np.inf, np.nan]).astype(dtype)
    yield Case("odd", {"x": odd}, tolerance=exact)


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
