"""The four cameras, and the map that they look at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CAMERAS = ("front", "left", "back", "right")
HEIGHT, WIDTH = 32, 80
"""Pixels of the pictures that the network sees."""
CELLS, CELL = 32, 0.5
"""The map has 32 x 32 cells of half a metre, with the cameras in its middle. Row 0 is in front, column 0 is left."""

_ABOVE_GROUND = 1.7
_FOCAL = 40.0
"""In pixels: half the width, so that each camera sees a quarter of the horizon."""
_HORIZON = 10.0
"""The row of the horizon."""

Floats = npt.NDArray[np.float64]


def rays(height: int = HEIGHT, width: int = WIDTH) -> Floats:
    """Returns the directions of the pixels' centres, (4, height, width, 3), with one metre forward.

    x is in front of the rig, y left of it, z up. Other sizes give the centres of larger or smaller pixels.
    """
    column = (np.arange(width) + 0.5) * (WIDTH / width) - WIDTH / 2
    row = (np.arange(height) + 0.5) * (HEIGHT / height) - _HORIZON
    left, up = np.meshgrid(-column / _FOCAL, -row / _FOCAL, indexing="xy")
    forward = np.ones_like(left)
    seen = []
    for quarter in range(4):
        c, s = np.cos(quarter * np.pi / 2), np.sin(quarter * np.pi / 2)
        seen.append(np.stack([c * forward - s * left, s * forward + c * left, up], -1))
    return np.stack(seen)


def origin() -> Floats:
    """Returns the place of the cameras."""
    return np.array([0, 0, _ABOVE_GROUND])


def cell_centres() -> tuple[Floats, Floats]:
    """Returns x and y of the cells, (32, 32) each."""
    ahead = (CELLS / 2 - 0.5 - np.arange(CELLS)) * CELL
    x, y = np.meshgrid(ahead, ahead, indexing="ij")
    return x, y


def cell_of(x: Floats, y: Floats) -> npt.NDArray[np.int64]:
    """Returns the number of the cell that a place is in, -1 outside of the map."""
    row, column = (np.floor(CELLS / 2 - place / CELL).astype(np.int64) for place in (x, y))
    inside = (row >= 0) & (row < CELLS) & (column >= 0) & (column < CELLS)
    return np.where(inside, row * CELLS + column, -1)
