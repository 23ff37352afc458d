"""RoiAlignRotated in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array

MOST_SAMPLES = 1024


def reference(
    input: Array,
    rois: Array,
    *,
    output_height: int,
    output_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> Array:
    """output T [r, c, output_height, output_width] from input T [n, c, h, w] and rois f32 [r, 6] (picture, cx, cy, w,
    h, angle). Positions are formed in f32, averages in f64."""
    _, channels, h, w = input.shape
    output = np.zeros((len(rois), channels, output_height, output_width))
    for out, roi in zip(output, rois, strict=True):
        found = samples_of(
            roi, (h, w), (output_height, output_width), spatial_scale, sampling_ratio, aligned, clockwise
        )
        if found is None:
            continue
        inside, rows, columns, (down, across) = found
        values = np.zeros((channels, *inside.shape))
        with np.errstate(invalid="ignore"):
            for r, row_weight in rows:
                for c, column_weight in columns:
                    values += (row_weight * column_weight) * input[int(roi[0])][:, r, c].astype(np.float64)
        values = np.where(inside, values, 0)
        out[:] = values.reshape(channels, output_height, down, output_width, across).mean((2, 4))
    return output.astype(input.dtype)


def samples_of(
    roi: Array,
    size: tuple[int, int],
    bins: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> tuple[Array, list[tuple[Array, Array]], list[tuple[Array, Array]], tuple[int, int]] | None:
    """The samples of a region [down, across] over all its bins: whether each is inside, its two rows and their weights,
    its two columns and their weights, and the samples of a bin. None if there are none."""
    one, half = np.float32(1), np.float32(0.5)
    (h, w), (output_height, output_width) = size, bins
    cx, cy, width, height = roi[1:5] * np.float32(spatial_scale)
    if not np.isfinite(roi).all() or 0 in (h, w, output_height, output_width):
        return None
    if aligned:
        cx, cy = cx - half, cy - half
    else:
        width, height = np.maximum(width, one), np.maximum(height, one)
    bin_width, bin_height = width / np.float32(output_width), height / np.float32(output_height)
    across, down = (max(sampling_ratio, 0) or min(int(np.ceil(b)), MOST_SAMPLES) for b in (bin_width, bin_height))
    if 0 in (across, down):
        return None
    dx, dy = (offsets(*axis) for axis in ((width, output_width, across), (height, output_height, down)))
    angle = np.float64(roi[5] if clockwise else -roi[5])
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x = dx[None] * cosine - dy[:, None] * sine + cx
    y = dx[None] * sine + dy[:, None] * cosine + cy
    inside = (y >= -1) & (y <= h) & (x >= -1) & (x <= w)
    rows, columns = pixels(np.where(inside, y, 0), h), pixels(np.where(inside, x, 0), w)
    return inside, rows, columns, (down, across)


def offsets(size: np.float32, bins: int, samples: int) -> Array:
    """The distances of the samples of an axis from the centre, in f32."""
    width = size / np.float32(bins)
    with np.errstate(over="ignore"):
        within = (np.arange(samples, dtype=np.float32) + np.float32(0.5)) * width / np.float32(samples)
    return np.asarray(-size / np.float32(2) + np.arange(bins, dtype=np.float32)[:, None] * width + within).ravel()


def pixels(at: Array, size: int) -> list[tuple[Array, Array]]:
    """The two pixels around positions, and their weights."""
    at = np.maximum(at, 0)
    low = np.minimum(at.astype(int), size - 1)
    second = np.where(low == size - 1, 0, at - low.astype(np.float32))
    return [(low, 1 - second), (np.minimum(low + 1, size - 1), second)]
