"""DeformConv2dBackward in NumPy: the gradients of the columns, and from them all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.deform_conv2d.reference import columns_of, corners


def reference(
    grad_output: Array, input: Array, weight: Array, offset: Array, mask: Array | None, **attributes: Any
) -> tuple[Array, ...]:
    """The gradients of input [n, c, h, w], weight [oc, cg, kh, kw], offset [n, offsets, oh, ow], bias [oc] and mask
    [n, offsets / 2, oh, ow], in the dtype of input, computed in f64."""
    (n, c, h, w), (oc, cg, kh, kw), out = input.shape, weight.shape, offset.shape[2:]
    groups, taps = c // cg, kh * kw
    offset_groups = offset.shape[1] // (2 * taps)
    size = c // offset_groups
    factors = np.ones((n, offset_groups, taps, *out))
    if mask is not None:
        factors = mask.astype(np.float64).reshape(factors.shape)
    grad_input, grad_offset = np.zeros(input.shape), np.zeros((n, offset_groups, taps, 2, *out))
    grad_mask = np.zeros(factors.shape)
    with np.errstate(all="ignore"):
        columns = columns_of(input, weight, offset, mask, attributes).reshape(n, groups, cg, taps, *out)
        upstream = grad_output.astype(np.float64).reshape(n, groups, oc // groups, *out)
        filters = weight.astype(np.float64).reshape(groups, oc // groups, cg, taps)
        grad_weight = np.einsum("ngoij,ngctij->goct", upstream, columns).reshape(weight.shape)
        grad_columns = np.einsum("ngoij,goct->ngctij", upstream, filters).reshape(n, c, taps, *out)
        for group, tap, (image, i, j), row, column, near, slope_y, slope_x in corners(h, w, weight, offset, attributes):
            factor = factors[image, group, tap, i, j]
            for channel in range(group * size, (group + 1) * size):
                gradient = grad_columns[image, channel, tap, i, j]
                product = gradient * input[image, channel, row, column].astype(np.float64)
                np.add.at(grad_input[:, channel], (image, row, column), gradient * near * factor)
                grad_mask[image, group, tap, i, j] += near * product
                grad_offset[image, group, tap, 0, i, j] += slope_y * product
                grad_offset[image, group, tap, 1, i, j] += slope_x * product
        grad_offset *= factors[:, :, :, None]
        grad_bias = grad_output.astype(np.float64).sum(axis=(0, 2, 3))
        gradients = (
            grad_input, grad_weight, grad_offset.reshape(offset.shape), grad_bias,
            grad_mask.reshape(n, offset_groups * taps, *out),
        )  # fmt: skip
        return tuple(gradient.astype(input.dtype) for gradient in gradients)
