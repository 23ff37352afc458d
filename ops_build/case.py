"""A case of an op: inputs, attributes, and how close the outputs must come to the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs and attributes that an op is run with, and what the run must give.

    `inputs` maps the signature's names to arrays, and a variadic input's name to a list of arrays. An optional input
    that the mapping lacks is absent. `attributes` hold the values that differ from the defaults. `tolerance` is
    (rtol, atol) for all outputs, or a mapping from an output's name to such a pair; None stands for the tolerance of
    the output's dtype. If `error` is set, the op must refuse the inputs with a message that matches this regular
    expression. `unseen` means that the error is in the values of a tensor. A CUDA kernel can't report such an error
    without waiting for the device, so on a GPU the op may accept the inputs, and its outputs are not compared.
    """

    name: str
    inputs: Mapping[str, Array | Sequence[Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None
    error: str | None = None
    unseen: bool = False


def with_gradients(cases: Iterable[Case], name: str, like: str) -> Iterator[Case]:
    """Makes the cases of a backward op from those of its op: with a normally distributed input `name`, the gradient of
    an output that has the dtype and the shape of the input `like`."""
    rng = np.random.default_rng(1)
    for case in cases:
        of = np.asarray(case.inputs[like])
        gradient = np.asarray(rng.standard_normal(of.shape)).astype(of.dtype)
        yield replace(case, inputs={name: gradient, **case.inputs})
