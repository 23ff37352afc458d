from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": rng.standard_normal(shape).astype(dtype)})
    for alpha in (0.0, 0.25, -1.0, 2.0):
        yield Case(f"alpha {alpha}", {"x": rng.standard_normal(33).astype(dtype)}, {"alpha": alpha})
    yield Case("extremes", {"x": np.array([-np.inf, np.inf, np.nan, -0.0, 0.0]).astype(dtype)})


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
