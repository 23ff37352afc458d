from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.gelu.cases import EXTREMES
from opgate.ops_build.ops.mish.cases import extremes
from opgate.ops_build.ops.mish_backward.cases import odd_gradients


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    x = extremes(dtype, EXTREMES)
    for approximate in ("none", "tanh"):
        chosen = {"approximate": approximate}
        for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (20_001,)]:
            grad_y, normal = ((rng.standard_normal(shape) * scale).astype(dtype) for scale in (1, 4))
            yield Case(f"{approximate} {list(shape)}", {"grad_y": grad_y, "x": normal}, chosen)
        for grad in (1.0, -3.0, 0.0):
            inputs = {"grad_y": np.full_like(x, grad), "x": x}
            yield Case(f"{approximate}, extremes, gradient {grad}", inputs, chosen)
    yield from odd_gradients(dtype)


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    x = np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])
    return Case("16 Mi", {"grad_y": x, "x": x})
