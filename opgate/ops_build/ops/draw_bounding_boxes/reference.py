"""DrawBoundingBoxes in NumPy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from opgate.ops_build.case import Array

_FOLDER = Path(__file__).parent


def reference(
    image: Array,
    boxes: Array,
    scores: Array | None,
    labels: Array | None,
    count: Array | None,
    *,
    names: Sequence[str],
    thickness: int,
) -> Array:
    """A copy of u8 [h, w, 3] with the outlines, then the tags, of the first `count` boxes; the first on top."""
    drawn = image.copy()
    thickness = thickness or usual_thickness(image)
    rows = len(boxes) if count is None else min(max(int(count[0]), 0), len(boxes))
    shown = [(row, at) for row in reversed(range(rows)) if (at := place(boxes[row], labels, row, image.shape))]
    palette = table("palette")
    colours = [palette[0 if labels is None else labels[row] % 16] for row, _ in shown]
    for (_, (left, top, right, bottom)), colour in zip(shown, colours, strict=True):
        inside = _region(drawn, left + thickness, top + thickness, right - thickness, bottom - thickness)
        kept = inside.copy()
        _region(drawn, left, top, right, bottom)[...] = colour
        inside[...] = kept
    for (row, (left, top, _, _)), colour in zip(shown, colours, strict=True):
        if text := text_of(row, scores, labels, names):
            tag(drawn, (left, top), text, (thickness + 1) // 2, colour)
    return drawn


def usual_thickness(image: Array) -> int:
    return max(2, (int(min(image.shape[:2])) + 100) // 200)


def place(box: Array, labels: Array | None, row: int, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    if not np.isfinite(box).all() or box[2] < box[0] or box[3] < box[1] or (labels is not None and labels[row] < 0):
        return None
    left, top, right, bottom = (int(np.floor(float(value) + 0.5)) for value in box)
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    return (left, top, right, bottom) if left < shape[1] and top < shape[0] and right > 0 and bottom > 0 else None


def _region(drawn: Array, left: int, top: int, right: int, bottom: int) -> Array:
    return drawn[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]


def text_of(row: int, scores: Array | None, labels: Array | None, names: Sequence[str]) -> str:
    text = ""
    if labels is not None:
        text = names[labels[row]] if labels[row] < len(names) else str(labels[row])
        text = re.sub("[^ -~]", "?", text)
    if scores is not None and not np.isnan(scores[row]):
        percent = int(np.floor(100 * min(max(float(scores[row]), 0.0), 1.0) + 0.5))
        text += f"{' ' if text else ''}{percent}%"
    return text


def tag(drawn: Array, corner: tuple[int, int], text: str, scale: int, colour: Array) -> None:
    left, top = corner
    font = table("font")
    glyphs = np.stack([np.unpackbits(font[ord(letter) - 32, :, None], axis=1)[:, 3:] for letter in text])
    bitmap = np.pad(glyphs, ((0, 0), (0, 0), (0, 1))).transpose(1, 0, 2).reshape(8, -1)[:, :-1]
    bitmap = np.pad(bitmap, ((1, 1), (2, 2))).astype(bool)
    height, width = (size * scale for size in bitmap.shape)
    y = max(min(top - height if top >= height else top, drawn.shape[0] - height), 0)
    x = max(min(left, drawn.shape[1] - width), 0)
    region = drawn[y : y + height, x : x + width]
    rows, columns = (np.arange(size) // scale for size in region.shape[:2])
    ink = 0 if colour.astype(int) @ (299, 587, 114) >= 128_000 else 255
    region[...] = np.where(bitmap[np.ix_(rows, columns)][..., None], np.uint8(ink), colour)


@cache
def table(name: str) -> Array:
    """u8 [rows, columns]: the numbers in a table of this folder, which the kernels include."""
    lines = [line.split("//")[0] for line in (_FOLDER / f"{name}.inc").read_text().splitlines()]
    rows = [re.findall(r"0x[0-9a-f]+|\d+", line) for line in lines]
    return np.array([[int(value, 0) for value in row] for row in rows if row], np.uint8)
