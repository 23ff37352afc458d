"""PerspectiveCrop in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array


def reference(
    image: Array,
    quads: Array,
    index: Array | None,
    *,
    height: int,
    width: int,
    filter: str,
    rotate_from: float,
    order: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Array, Array]:
    """Planes f32 [r, 3, height, c] and widths i32 [r] of the quads f32 [r, 4, 2] of pictures u8 [n, h, w, 3], with c
    the greatest width. Interpolated in f64."""
    n, h, w, _ = image.shape
    numbers = index if index is not None else np.zeros(len(quads), int) if n == 1 else np.arange(len(quads))
    ratio = float(np.float32(rotate_from))
    pixels = [
        places(quad, height, width, ratio) if h and w else np.zeros((height, 0, 2)) for quad in quads.astype(np.float64)
    ]
    widths = np.array([each.shape[1] for each in pixels], np.int32)
    crops = np.zeros((len(quads), 3, height, int(widths.max(initial=0))), np.float32)
    # Attributes are f32 in a model.
    shift, scale = np.array(mean, np.float32).astype(np.float64), np.array(std, np.float32).astype(np.float64)
    for crop, number, at in zip(crops, numbers, pixels, strict=True):
        if at.size:
            colours = interpolated(image[number], at, filter)[..., :: -1 if order == "BGR" else 1]
            crop[..., : at.shape[1]] = ((colours / 255 - shift) / scale).transpose(2, 0, 1)
    return crops, widths


def places(quad: Array, height: int, most: int, rotate_from: float) -> Array:
    """The places x y in the picture of a crop's pixels, [height, columns, 2]. No columns if there is no crop."""
    none = np.zeros((height, 0, 2))
    if not np.isfinite(quad).all():
        return none
    w, h = (max(np.hypot(*(quad[a] - quad[b])), np.hypot(*(quad[c] - quad[d]))) for a, b, c, d in (QUAD_W, QUAD_H))
    one, other = quad[1] - quad[2], quad[3] - quad[2]
    if not (w > 0 and h > 0 and one[0] * other[1] - other[0] * one[1]):
        return none
    rotated = h / w >= rotate_from
    columns = int(min(most, max(1, np.ceil(height * (h / w if rotated else w / h)))))
    x, y = np.meshgrid(np.arange(columns), np.arange(height))
    if rotated:
        column, row = w - 0.5 - (y + 0.5) * w / height, (x + 0.5) * h / columns - 0.5
    else:
        column, row = (x + 0.5) * w / columns - 0.5, (y + 0.5) * h / height - 0.5
    # The perspective that takes the corners of the unit square to those of the quad: 8 unknowns.
    rows, right = [], []
    for (s, t), (px, py) in zip(((0, 0), (1, 0), (1, 1), (0, 1)), quad, strict=True):
        rows += [[s, t, 1, 0, 0, 0, -s * px, -t * px], [0, 0, 0, s, t, 1, -s * py, -t * py]]
        right += [px, py]
    scale = np.abs(quad).max()
    unknown = np.linalg.solve(np.array(rows) / scale, np.array(right) / scale)
    matrix = np.append(unknown, 1).reshape(3, 3)
    with np.errstate(all="ignore"):
        homogeneous = np.stack([column / w, row / h, np.ones_like(column)], -1) @ matrix.T
        at: Array = homogeneous[..., :2] / homogeneous[..., 2:]
    return at


QUAD_W, QUAD_H = (0, 1, 2, 3), (0, 3, 1, 2)


def interpolated(picture: Array, at: Array, filter: str) -> Array:
    """The colours f64 [..., 3] at places x y."""
    total = np.zeros((*at.shape[:-1], 3))
    sides = (picture.shape[1], picture.shape[0])
    at = np.stack(
        [np.clip(np.nan_to_num(at[..., axis], nan=-3), -3, side + 2) for axis, side in enumerate(sides)], axis=-1
    )
    first = np.floor(at).astype(np.int64)
    weights = [keys(at[..., axis] - first[..., axis], filter) for axis in (0, 1)]
    for j in range(4):
        for i in range(4):
            x, y = (np.clip(first[..., axis] + k - 1, 0, sides[axis] - 1) for axis, k in ((0, i), (1, j)))
            total += (weights[0][i] * weights[1][j])[..., None] * picture[y, x]
    return np.clip(total, 0, 255)


def keys(t: Array, filter: str) -> list[Array]:
    """The weights of the four pixels around a place that is t behind the second."""
    if filter == "linear":
        return [0 * t, 1 - t, t, 0 * t]
    a = -0.75

    def weight(x: Array) -> Array:
        inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
        return np.where(x <= 1, inner, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a)

    return [weight(1 + t), weight(t), weight(1 - t), weight(2 - t)]
