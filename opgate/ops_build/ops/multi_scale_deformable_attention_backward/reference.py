"""MultiScaleDeformableAttentionBackward in NumPy: the product rule for one corner after the other."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.multi_scale_deformable_attention.reference import corners


def reference(
    grad_output: Array,
    value: Array,
    spatial_shapes: Array,
    level_start_index: Array,
    sampling_locations: Array,
    attention_weights: Array,
) -> tuple[Array, Array, Array]:
    """The gradients of value [b, keys, heads, dims], sampling_locations [b, queries, heads, levels, points, 2] and
    attention_weights [b, queries, heads, levels, points], in the dtype of value, computed in f64."""
    b, _, heads, dims = value.shape
    upstream = grad_output.astype(np.float64).reshape(b, sampling_locations.shape[1], heads, dims)
    grad_value, grad_locations, grad_attention = (
        np.zeros(array.shape) for array in (value, sampling_locations, attention_weights)
    )
    with np.errstate(all="ignore"):
        for corner in corners(spatial_shapes, level_start_index, sampling_locations):
            sample = (corner.b, corner.query, corner.head, corner.level, corner.point)
            key = (corner.b, corner.key, corner.head)
            gradient = upstream[corner.b, corner.query, corner.head]
            attention = attention_weights[sample].astype(np.float64)
            product = (gradient * value[key].astype(np.float64)).sum(-1)
            np.add.at(grad_value, key, (attention * corner.weight)[:, None] * gradient)
            grad_attention[sample] += corner.weight * product
            grad_locations[sample] += np.stack([corner.slope_x, corner.slope_y], -1) * product[:, None]
        grad_locations *= attention_weights[..., None].astype(np.float64)
        return (
            grad_value.astype(value.dtype),
            grad_locations.astype(value.dtype),
            grad_attention.astype(value.dtype),
        )
