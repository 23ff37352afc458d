"""DrawPolygons in NumPy: a pixel is painted if it is near a side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.draw_bounding_boxes.reference import place, table, tag, text_of, usual_thickness


def reference(
    image: Array,
    polygons: Array,
    scores: Array | None,
    labels: Array | None,
    texts: Array | None,
    count: Array | None,
    *,
    names: Sequence[str],
    thickness: int,
) -> Array:
    """A copy of u8 [h, w, 3] with the sides, then the tags, of the first `count` polygons f32 [k, p, 2]; the first on
    top."""
    drawn = image.copy()
    thickness = thickness or usual_thickness(image)
    rows = len(polygons) if count is None else min(max(int(count[0]), 0), len(polygons))
    if texts is not None:
        known = np.arange(len(texts), dtype=np.int32)
        names = ["".join(names[label] for label in text if 0 <= label < len(names)) for text in texts]
        labels = known if labels is None else np.where(labels < 0, -1, known)
    palette, shown = table("palette"), []
    for row in reversed(range(rows)):
        if not polygons.shape[1] or not np.isfinite(polygons[row]).all():
            continue
        box = np.concatenate([polygons[row].min(0), polygons[row].max(0)])
        if at := place(box, labels, row, image.shape):
            shown.append((row, at, palette[0 if labels is None else labels[row] % 16]))
    for row, _, colour in shown:
        drawn[near(polygons[row].astype(np.float64), image.shape[:2], thickness / 2)] = colour
    for row, (left, top, _, _), colour in shown:
        if text := text_of(row, scores, labels, names):
            tag(drawn, (left, top), text, (thickness + 1) // 2, colour)
    return drawn


def near(corners: Array, shape: tuple[int, ...], reach: float) -> Array:
    """Which pixels of a picture are at most `reach` away from a side, bool [h, w]."""
    y, x = np.indices(shape).astype(np.float64)
    found = np.zeros(shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
        dx, dy = bx - ax, by - ay
        length = dx * dx + dy * dy
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / length, 0, 1) if length > 0 else 0.0
        beside, below = (x - ax) - along * dx, (y - ay) - along * dy
        found |= beside * beside + below * below <= reach * reach
    return found
