"""One trial of an op: inputs, attributes and how close the outputs must come to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """`inputs` by the signature's names: an array, a list of arrays for a variadic input; an optional input left out is
    absent. `attributes` hold what differs from the defaults. `tolerance` is (rtol, atol) for every output, or by
    output's name; without it the dtype's own. `error` is a pattern: the op must refuse the inputs with a message that
    has it. `unseen`: the error is in what a tensor holds, which a GPU's kernel can't report without waiting for the
    device: there the op may take the inputs, and what it computes is not compared."""

    name: str
    inputs: Mapping[str, Array | Sequence[Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None
    error: str | None = None
    unseen: bool = False
