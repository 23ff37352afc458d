from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.roi_align_rotated import cases as forward

#: Terms cancel, and there may be many of a pixel.
TOLERANCES = {"float16": (2e-3, 2e-2), "bfloat16": (1.6e-2, 0.2), "float32": (1e-5, 2e-4)}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    """Those of RoiAlignRotated, with gradients of its output."""
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for case in forward.cases(types):
        known = {n: v for n, v in case.attributes.items() if not n.startswith("output_")}
        bins = (case.attributes["output_height"], case.attributes["output_width"])
        if min(bins) < 0 or "pixels that aren't finite" in case.name or case.inputs["rois"].shape[1] != 6:  # type: ignore[union-attr]
            continue
        inputs = {"grad_output": gradient_of(rng, case, bins), **case.inputs}
        error = case.error
        if error and "output_height" in error:
            error = "input 'grad_output': expected at most 4096 bins, got y = 5000"
        yield Case(case.name, inputs, known, TOLERANCES[dtype.name], error, case.unseen)
    image = rng.uniform(-1, 1, (1, 2, 6, 5)).astype(dtype)
    odd = rng.uniform(-1, 1, (1, 2, 3, 3)).astype(dtype)
    odd[0, 0, 1, 1], odd[0, 1, 2, 0] = np.nan, np.inf
    region = np.array([[0, 3, 3, 4, 4, 0.3]], np.float32)
    yield Case("gradients that aren't finite", {"grad_output": odd, "input": image, "rois": region})


def gradient_of(rng: np.random.Generator, case: Case, bins: tuple[int, int]) -> Array:
    image, rois = np.asarray(case.inputs["input"]), np.asarray(case.inputs["rois"])
    return rng.uniform(-1, 1, (len(rois), image.shape[1], *bins)).astype(image.dtype)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """512 regions of 7 x 7 bins, 256 channels of 100 x 152."""
    case = forward.large(types)
    gradient = gradient_of(np.random.default_rng(1), case, (7, 7))
    return Case(case.name, {"grad_output": gradient, **case.inputs}, {"sampling_ratio": 2}, TOLERANCES[types["T"].name])
