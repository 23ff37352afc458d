from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case, with_gradients
from opgate.ops_build.ops.sigmoid_focal_loss import cases as forward


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    return with_gradients(forward.cases(types), "grad_loss", like="x")


def large(types: Mapping[str, np.dtype]) -> Case:
    """4 Mi elements."""
    return next(with_gradients([forward.large(types)], "grad_loss", like="x"))
