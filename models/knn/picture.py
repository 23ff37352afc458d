"""Draws a cloud and queries with the neighbours that the served file finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from models.commands import session_of

_SIZE, _EDGE, _POINTS, _QUERIES = 420, 30, 40, 4


def write_picture(repository: Path, ops_library: Path, path: Path) -> None:
    """Draws points in a square, seen from above. Each has its row as a number; a query has a line to its neighbours."""
    rng = np.random.default_rng(5)
    xyz, queries = (np.pad(rng.random((n, 2), np.float32), ((0, 0), (0, 1))) for n in (_POINTS, _QUERIES))
    (idx,) = session_of("knn", repository, ops_library).run(["idx"], {"xyz": xyz, "queries": queries})
    figure = Image.new("RGB", (_SIZE, _SIZE), "white")
    draw, font = ImageDraw.Draw(figure), ImageFont.load_default(11)
    at, asked = (_EDGE + points[:, :2] * (_SIZE - 2 * _EDGE) for points in (xyz, queries))
    for query, rows in zip(asked, idx, strict=True):
        for row in rows:
            draw.line((*query, *at[row]), fill="#c23616", width=2)
    for points, colour, radius in ((at, "#7f8fa6", 4), (asked, "#c23616", 6)):
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    for row, (x, y) in enumerate(at):
        draw.text((x + 6, y - 14), str(row), fill="black", font=font)
    figure.quantize(32).save(path, optimize=True)
