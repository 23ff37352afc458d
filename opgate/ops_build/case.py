"""A case of an op: inputs, attributes, and how close the outputs must come to the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
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
    `expected` maps outputs to arrays that you know: the reference must give them too.
    """

    name: str
    inputs: Mapping[str, Array | Sequence[Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None
    error: str | None = None
    unseen: bool = False
    expected: Mapping[str, Any] | None = None


def of_sums(dtype: np.dtype[Any], **absolute: float) -> Mapping[str, tuple[float, float]] | None:
    """Returns the tolerance of a large case whose outputs are sums of many terms of f32.

    Terms may cancel, and what they were rounded by stays. `absolute` has atol for each output by its name. Returns None
    for other dtypes, which have their own tolerance.
    """
    return {name: (1e-5, atol) for name, atol in absolute.items()} if dtype == np.float32 else None


def with_gradients(cases: Iterable[Case], name: str, like: str) -> Iterator[Case]:
    """Makes the cases of a backward op from those of its op: with a normally distributed input `name`, the gradient of
    an output that has the dtype and the shape of the input `like`."""
    rng = np.random.default_rng(1)
    for case in cases:
        of = np.asarray(case.inputs[like])
        gradient = np.asarray(rng.standard_normal(of.shape)).astype(of.dtype)
        yield replace(case, inputs={name: gradient, **case.inputs}, expected=None)


def edge_values(dtype: np.dtype[Any] | type[np.floating[Any]], *edges: float) -> Array:
    """Returns numbers of a float dtype at which code that turns a float into an index goes wrong.

    These are 0, every edge, and the halves beside them, each with the next number on both sides; numbers so small that
    adding them to 1 gives 1; both zeros; NaN, the infinities and the greatest finite numbers. Edges are where one index
    ends and another begins, and where none begins: -1, 0 and the size, for example. Take sizes that are powers of two,
    because there the numbers below are twice as dense as those above, and an index of size 0.
    """
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    most, small = float(limits.max), float(limits.eps) / 4
    exact = np.unique(np.array([at + beside for at in (0.0, *edges) for beside in (-0.5, 0.0, 0.5)], dtype))
    special = np.array([small, -small, 0.0, -0.0, np.nan, np.inf, -np.inf, most, -most], dtype)
    towards = [np.nextafter(exact, np.full_like(exact, end)) for end in (-np.inf, np.inf)]
    return np.concatenate([towards[0], exact, towards[1], special])
