"""Draws the input and the output of the served file as a curve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from models.commands import session_of

_REACH, _UNIT, _EDGE = 10, 16, 24


def write_picture(repository: Path, ops_library: Path, path: Path) -> None:
    """Draws y over x from -10 to 10, with a line for every second number."""
    x = np.linspace(-_REACH, _REACH, 41, dtype=np.float32)
    (y,) = session_of("leaky_relu", repository, ops_library).run(["y"], {"x": x[None]})
    side = 2 * (_REACH * _UNIT + _EDGE)
    figure = Image.new("RGB", (side, side), "white")
    draw, font, middle = ImageDraw.Draw(figure), ImageFont.load_default(12), side // 2
    for number in range(-_REACH, _REACH + 1, 2):
        place = middle + number * _UNIT
        colour = "#555555" if number == 0 else "#dddddd"
        draw.line((place, _EDGE, place, side - _EDGE), fill=colour)
        draw.line((_EDGE, side - place, side - _EDGE, side - place), fill=colour)
        draw.text((place, middle + 3), str(number), fill="#555555", font=font, anchor="ma")
        if number:
            draw.text((middle - 4, side - place), str(number), fill="#555555", font=font, anchor="rm")
    draw.line([(middle + a * _UNIT, middle - b * _UNIT) for a, b in zip(x, y[0], strict=True)], fill="#c23616", width=3)
    draw.text((side - _EDGE, middle - 4), "x", fill="black", font=font, anchor="rs")
    draw.text((middle + 6, _EDGE), "y", fill="black", font=font, anchor="la")
    figure.quantize(32).save(path, optimize=True)
