"""RoiAlignRotatedBackward in NumPy: what each sample takes from a pixel, it gives back to it."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.roi_align_rotated.reference import samples_of


def reference(
    grad_output: Array,
    input: Array,
    rois: Array,
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> Array:
    """grad_input T [n, c, h, w] from grad_output T [r, c, y, x]. Positions are formed in f32, sums in f64."""
    gradient = np.zeros(input.shape)
    size, bins = input.shape[2:], grad_output.shape[2:]
    for upstream, roi in zip(grad_output, rois, strict=True):
        found = samples_of(roi, size, bins, spatial_scale, sampling_ratio, aligned, clockwise)
        if found is None:
            continue
        inside, rows, columns, (down, across) = found
        of_sample = upstream.astype(np.float64).repeat(down, axis=1).repeat(across, axis=2) / (down * across)
        for r, row_weight in rows:
            for c, column_weight in columns:
                weight = np.where(inside, row_weight * column_weight, 0)
                at = np.nonzero(weight)
                for plane, values in zip(gradient[int(roi[0])], of_sample, strict=True):
                    np.add.at(plane, (r[at], c[at]), weight[at] * values[at])
    return gradient.astype(input.dtype)
