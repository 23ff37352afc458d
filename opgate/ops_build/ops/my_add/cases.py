from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        a, b = ((rng.standard_normal(shape) * 100).astype(dtype) for _ in range(2))
        yield Case(f"normal {list(shape)}", {"a": a, "b": b})
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        edge = np.array([limits.max, limits.min, -1, 0], dtype)
        yield Case("wraps around", {"a": edge, "b": edge[::-1].copy()})
    one, two = np.ones(2, dtype), np.ones(3, dtype)
    yield Case(
        "unequal shapes",
        {"a": one, "b": two},
        error=r"input 'b': expected T\[\.\.\.\] with \.\.\. = \[2\], got .*\[3\]",
    )


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    a = np.resize(np.arange(4099), 1 << 24).astype(types["T"])
    return Case("16 Mi", {"a": a, "b": a})
