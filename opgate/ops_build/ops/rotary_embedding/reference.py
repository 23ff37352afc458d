"""RotaryEmbedding in NumPy, in f64."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None,
    *,
    interleaved: bool,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Array:
    """x is [batch, heads, sequence, head size] or [batch, sequence, heads * head size]. Returns y with its shape."""
    heads = x.astype(np.float64)
    if x.ndim == 3:
        heads = heads.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(0, 2, 1, 3)
    rotated = rotary_embedding_dim or heads.shape[3]
    cos, sin = (np.asarray(cache).astype(np.float64) for cache in (cos_cache, sin_cache))
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    cos, sin = cos[:, None], sin[:, None]
    first = slice(0, rotated, 2) if interleaved else slice(0, rotated // 2)
    second = slice(1, rotated, 2) if interleaved else slice(rotated // 2, rotated)
    a, b, y = heads[..., first], heads[..., second], heads.copy()
    with np.errstate(invalid="ignore"):
        y[..., first], y[..., second] = cos * a - sin * b, sin * a + cos * b
    if x.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(x.shape)
    return y.astype(x.dtype)
