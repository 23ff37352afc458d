from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ops_build.case import Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": (rng.standard_normal(shape) * 4).astype(dtype)})
    extremes = [-1e30, -1000.0, -103.0, -88.5, -87.0, -30.0, -20.0, -1e-6, -0.0, 0.0, 1e-6, 19.9, 20.1, 89.0, 1000.0, 1e30]
    finite = [x for x in extremes if abs(x) < 6e4 or dtype != np.float16]
    yield Case("extremes", {"x": np.array([*finite, np.inf, -np.inf, np.nan]).astype(dtype)}, tolerance=(1e-2, 1e-30) if dtype.itemsize == 2 else (1e-5, 1e-36))
