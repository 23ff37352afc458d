"""Makes streets with boxes on them, and the pictures that the cameras take, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.bev_segmenter.rig import CELL, CELLS, HEIGHT, WIDTH, Floats, cell_centres, origin, rays


@dataclass(frozen=True, slots=True)
class Scene:
    """Pictures u8 (4, height, width, 3), and the map of occupied cells, bool (32, 32)."""

    pictures: npt.NDArray[np.uint8]
    occupied: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Box:
    """A box on the ground: its middle, its half sides, its height, the cosine and sine of its angle, its colour."""

    x: float
    y: float
    half: tuple[float, float]
    height: float
    turn: tuple[float, float]
    colour: Floats

    def local(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Returns a direction in the box's own axes."""
        c, s = self.turn
        return c * x + s * y, c * y - s * x


def scene(rng: np.random.Generator, scale: int = 1) -> Scene:
    """Returns a street. Its pictures are `scale` times as large as those that the network sees."""
    boxes = _boxes(rng)
    x, y = cell_centres()
    occupied = np.zeros((CELLS, CELLS), bool)
    for box in boxes:
        along, across = box.local(x - box.x, y - box.y)
        occupied |= (np.abs(along) <= box.half[0]) & (np.abs(across) <= box.half[1])
    return Scene(_pictures(rng, boxes, scale), occupied)


def held_out_scenes(count: int, seed: int = 0, scale: int = 1) -> list[Scene]:
    """Returns the first scenes of the held-out data. Those of another scale are others."""
    rng = np.random.default_rng([seed, 99, scale])
    return [scene(rng, scale) for _ in range(count)]


def _boxes(rng: np.random.Generator) -> list[_Box]:
    boxes: list[_Box] = []
    most = CELLS * CELL / 2
    for _ in range(int(rng.integers(3, 10))):
        half = (rng.uniform(0.3, 1.8), rng.uniform(0.3, 0.9))
        x, y, angle = rng.uniform(-most, most), rng.uniform(-most, most), rng.uniform(0, np.pi)
        reach = float(np.hypot(*half))
        apart = all(np.hypot(x - b.x, y - b.y) > reach + np.hypot(*b.half) for b in boxes)
        if np.hypot(x, y) > reach + 1 and apart:
            turn = (float(np.cos(angle)), float(np.sin(angle)))
            boxes.append(_Box(x, y, half, rng.uniform(0.6, 2.2), turn, rng.uniform(30, 230, 3)))
    return boxes


def _pictures(rng: np.random.Generator, boxes: list[_Box], scale: int) -> npt.NDArray[np.uint8]:
    """Follows the ray of each pixel to the ground, to the sky, or to the nearest box."""
    direction = rays(HEIGHT * scale, WIDTH * scale)
    up = direction[..., 2]
    nearest = np.where(up < 0, -origin()[2] / np.minimum(up, -1e-9), np.inf)
    x, y = (np.where(up < 0, nearest, 0) * direction[..., axis] for axis in (0, 1))
    phase, stripes = rng.uniform(0, 6, 4), rng.uniform(0.5, 3, 4)
    grain = np.sin(x * stripes[0] + phase[0]) * np.sin(y * stripes[1] + phase[1]) + 0.5 * np.sin((x + y) * stripes[2])
    ground = rng.uniform(60, 150) + rng.uniform(5, 25) * grain
    sky = rng.uniform(130, 230) + 40 * np.clip(up, 0, 1)
    colour = np.where(up < 0, ground, sky)[..., None] * rng.uniform(0.85, 1.1, 3)
    for box in boxes:
        distance, face = _hit(box, direction)
        front = distance < nearest
        nearest = np.where(front, distance, nearest)
        light = np.array([1.0, 0.8, 1.15])[face]
        colour = np.where(front[..., None], box.colour * light[..., None], colour)
    colour += rng.normal(0, rng.uniform(1, 8), colour.shape)
    return np.clip(colour, 0, 255).astype(np.uint8)


def _hit(box: _Box, direction: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Returns how far each ray goes before it meets a box, and the axis of the side that it meets."""
    along, across = box.local(direction[..., 0], direction[..., 1])
    from_x, from_y = box.local(np.array(-box.x), np.array(-box.y))
    enter, leave = [], []
    for ray, start, low, high in (
        (along, float(from_x), -box.half[0], box.half[0]),
        (across, float(from_y), -box.half[1], box.half[1]),
        (direction[..., 2], float(origin()[2]), 0.0, box.height),
    ):
        safe = np.where(np.abs(ray) < 1e-9, 1e-9, ray)
        both = np.stack([(low - start) / safe, (high - start) / safe])
        enter.append(both.min(0))
        leave.append(both.max(0))
    first, last = np.max(enter, 0), np.min(leave, 0)
    met = (first < last) & (first > 0)
    return np.where(met, first, np.inf), np.argmax(enter, 0)
