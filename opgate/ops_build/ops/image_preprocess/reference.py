"""ImagePreprocess in NumPy, with Pillow for JPEG and for Pillow's filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.images.reference import UNSUPPORTED, DecodeError, open_picture
from opgate.ops_build.images.resize_reference import resized

MAX_RESIZED_SIDE = 1 << 24


def reference(
    data: Array,
    ends: Array,
    *,
    height: int,
    width: int,
    pad: int,
    mean: Sequence[float],
    std: Sequence[float],
    order: str,
    max_pixels: int,
    channels: int,
    fit: str,
    shorter_side: int,
    filter: str,
    scale: str,
    multiple: int,
) -> tuple[Array, Array, Array]:
    """Planes f32 [n, channels, height, width], geometry f32 [n, 6] and status i32 [n] of the n encoded pictures in
    `data`."""
    count, most = len(ends), 255 if scale == "unit" else 1
    # Attributes are f32 in a model.
    shift, deviation = (
        np.broadcast_to(np.array(value, np.float32).astype(np.float64), channels) for value in (mean, std)
    )
    images = np.empty((count, channels, height, width), np.float32)
    images[:] = ((pad / most - shift) / deviation)[:, None, None]
    geometry = np.tile(np.array([1, 1, 0, 0, 0, 0], np.float32), (count, 1))
    status = np.zeros(count, np.int32)
    begin = 0
    for i, end in enumerate(ends.tolist()):
        try:
            picture = open_picture(data[begin:end].tobytes(), max_pixels)
            new_w, new_h, left, top = placement(*picture.upright_size, width, height, fit, shorter_side, multiple)
            w, h = picture.upright_size
            reduction = next(s for s in (8, 4, 2, 1) if s == 1 or (-(-w // s) >= new_w and -(-h // s) >= new_h))
            pixels = picture.pixels(reduction if filter == "fast" else 1, pad)
        except DecodeError as error:
            status[i] = error.status
        else:
            if channels == 1:
                pixels = grey(pixels)
            scaled = bilinear(pixels, new_w, new_h) if filter == "fast" else resized(pixels, new_w, new_h, filter)
            canvas = placed(scaled, width, height, left, top, pad)
            values = canvas[..., ::-1] if order == "BGR" else canvas
            images[i] = ((values / most - shift) / deviation).transpose(2, 0, 1)
            geometry[i] = (w / new_w, h / new_h, left, top, w, h)
        begin = end
    return images, geometry, status


def placement(
    w: int, h: int, width: int, height: int, fit: str, shorter_side: int, multiple: int
) -> tuple[int, int, int, int]:
    """Returns width and height of the resized picture, and where its left and top lie in the result."""

    def rounded(side: int, ratio: float) -> int:
        return max(1, int(np.floor(side * ratio + 0.5)))

    match fit:
        case "stretch":
            return width, height, 0, 0
        case "fit_height":
            return min(width, max(1, int(np.ceil(height * (w / h))))), height, 0, 0
        case "multiples":
            ratio = min(max(1, shorter_side / min(w, h)), width / w, height / h)
            new_w, new_h = (
                min(most, max(multiple, round(int(side * ratio) / multiple) * multiple))
                for side, most in ((w, width), (h, height))
            )
            return new_w, new_h, 0, 0
        case "crop":
            if shorter_side:
                new_w, new_h = (shorter_side * side // min(w, h) for side in (w, h))
            else:
                new_w, new_h = (rounded(side, max(width / w, height / h)) for side in (w, h))
            if max(new_w, new_h) > MAX_RESIZED_SIDE:
                raise DecodeError(UNSUPPORTED)
            left, top = (
                (room - side) // 2 if side < room else -round((side - room) / 2)
                for side, room in ((new_w, width), (new_h, height))
            )
            return new_w, new_h, left, top
    ratio = min(width / w, height / h)
    if fit == "letterbox_start":
        return min(width, max(1, int(w * ratio))), min(height, max(1, int(h * ratio))), 0, 0
    new_w, new_h = min(width, max(1, round(w * ratio))), min(height, max(1, round(h * ratio)))
    return new_w, new_h, (width - new_w) // 2, (height - new_h) // 2


def placed(picture: Array, width: int, height: int, left: int, top: int, pad: int) -> Array:
    """Returns [height, width, c] with the picture at left and top, which may be negative, and `pad` around it."""
    canvas = np.full((height, width, picture.shape[2]), float(pad))
    part = picture[max(0, -top) : height - top, max(0, -left) : width - left]
    top, left = max(0, top), max(0, left)
    canvas[top : top + part.shape[0], left : left + part.shape[1]] = part
    return canvas


def grey(pixels: Array) -> Array:
    """Returns u8 [h, w, 1]: the luma of ITU-R 601 in fixed point, as Pillow's convert("L") has it."""
    weighted: Array = pixels.astype(np.int64) @ np.array([19595, 38470, 7471])
    return (weighted + 0x8000 >> 16).astype(np.uint8)[..., None]


def bilinear(pixels: Array, width: int, height: int) -> Array:
    """[h, w, c] resized in f64: half-pixel centres, two taps a direction, clamped at the edges."""
    for axis, to in ((0, height), (1, width)):
        size = pixels.shape[axis]
        place = np.clip((np.arange(to) + 0.5) * (size / to) - 0.5, 0, size - 1)
        first = place.astype(np.int64)
        second = np.minimum(first + 1, size - 1)
        weight = np.expand_dims(place - first, tuple(a for a in range(3) if a != axis))
        near, far = (pixels.take(taps, axis).astype(np.float64) for taps in (first, second))
        pixels = near + (far - near) * weight
    return pixels
