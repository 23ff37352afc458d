"""Makes rooms with furniture, as points that a scanner might see, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LABELS = ("floor", "wall", "table", "chair", "shelf", "sofa", "lamp")
_FLOOR, _WALL, _TABLE, _CHAIR, _SHELF, _SOFA, _LAMP = range(len(LABELS))

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scene:
    """The points of a room, xyz f32 (n, 3) in metres with z up, and their labels i64 (n,)."""

    xyz: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Box:
    """A box with its sides along the axes, from `low` to `high`."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]


def scene(rng: np.random.Generator, points: int) -> Scene:
    """Returns a room of `points` points, turned and moved at random."""
    width, depth, height = rng.uniform(3.5, 7), rng.uniform(3, 6), rng.uniform(2.3, 2.8)
    pieces: list[tuple[Floats, int]] = [(_box(rng, _Box((0, 0, 0), (width, depth, 0.0)), 40.0), _FLOOR)]
    for wall in _walls(width, depth, height):
        if rng.random() < 0.85:
            pieces.append((_box(rng, wall, 40.0), _WALL))
    taken: list[tuple[float, float, float]] = []
    for _ in range(int(rng.integers(5, 11))):
        label = int(rng.integers(_TABLE, _LAMP + 1))
        boxes = _FURNITURE[label](rng)
        reach = max(np.hypot(x, y) for box in boxes for x, y, _ in (box.low, box.high))
        for _ in range(20):
            x, y = rng.uniform(reach, width - reach), rng.uniform(reach, depth - reach)
            if all(np.hypot(x - a, y - b) > reach + other for a, b, other in taken):
                taken.append((x, y, reach))
                turned = np.concatenate([_box(rng, box) for box in boxes]) @ _turn(rng.uniform(0, 2 * np.pi))
                pieces.append((turned + np.array([x, y, 0]), label))
                break
    xyz = np.concatenate([piece for piece, _ in pieces])
    labels = np.concatenate([np.full(len(piece), label) for piece, label in pieces])
    chosen = rng.choice(len(xyz), points, replace=len(xyz) < points)
    seen = xyz[chosen] + rng.normal(0, 0.012, (points, 3))
    seen = (seen - (width / 2, depth / 2, 0)) @ _turn(rng.uniform(0, 2 * np.pi)) + rng.uniform(-3, 3, 3)
    return Scene(seen.astype(np.float32), labels[chosen])


def held_out_scenes(count: int, seed: int = 0) -> list[Scene]:
    """Returns the first scenes of the held-out data, which have 600 to 1400 points."""
    rng = np.random.default_rng([seed, 99])
    return [scene(rng, int(rng.integers(600, 1401))) for _ in range(count)]


def _turn(angle: float) -> Floats:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])


def _box(rng: np.random.Generator, box: _Box, density: float = 220.0) -> Floats:
    """Returns points on the sides of a box, about `density` for a square metre."""
    low, size = np.array(box.low, float), np.array(box.high, float) - box.low
    sides = []
    for axis in range(3):
        across = [other for other in range(3) if other != axis]
        count = int(rng.poisson(density * size[across[0]] * size[across[1]]))
        for face in (0, 1) if size[axis] > 0 else (0,):
            points = low + size * rng.random((count, 3))
            points[:, axis] = low[axis] + face * size[axis]
            sides.append(points)
    return np.concatenate(sides)


def _walls(width: float, depth: float, height: float) -> list[_Box]:
    return [
        _Box((0, 0, 0), (width, 0, height)), _Box((0, depth, 0), (width, depth, height)),
        _Box((0, 0, 0), (0, depth, height)), _Box((width, 0, 0), (width, depth, height)),
    ]  # fmt: skip


def _legs(x: float, y: float, height: float, thick: float = 0.05) -> list[_Box]:
    return [
        _Box((a - thick / 2, b - thick / 2, 0), (a + thick / 2, b + thick / 2, height))
        for a in (-x, x)
        for b in (-y, y)
    ]


def _table(rng: np.random.Generator) -> list[_Box]:
    x, y, top = rng.uniform(0.4, 0.9), rng.uniform(0.35, 0.5), rng.uniform(0.45, 0.8)
    return [_Box((-x, -y, top - 0.04), (x, y, top)), *_legs(x - 0.06, y - 0.06, top - 0.04)]


def _chair(rng: np.random.Generator) -> list[_Box]:
    side, seat, back = rng.uniform(0.2, 0.26), rng.uniform(0.4, 0.52), rng.uniform(0.35, 0.55)
    return [
        _Box((-side, -side, seat - 0.04), (side, side, seat)),
        _Box((-side, side - 0.04, seat), (side, side, seat + back)),
        *_legs(side - 0.03, side - 0.03, seat - 0.04),
    ]


def _shelf(rng: np.random.Generator) -> list[_Box]:
    x, y, top = rng.uniform(0.3, 0.7), rng.uniform(0.13, 0.25), rng.uniform(0.7, 2.0)
    boards = [_Box((-x, -y, z), (x, y, z + 0.02)) for z in np.arange(0.1, top, 0.35)]
    return [*boards, _Box((-x, -y, 0), (-x + 0.02, y, top)), _Box((x - 0.02, -y, 0), (x, y, top)),
            _Box((-x, y - 0.02, 0), (x, y, top))]  # fmt: skip


def _sofa(rng: np.random.Generator) -> list[_Box]:
    x, y, seat = rng.uniform(0.6, 1.1), rng.uniform(0.38, 0.48), rng.uniform(0.38, 0.48)
    back, arm = rng.uniform(0.7, 0.95), rng.uniform(0.55, 0.68)
    return [
        _Box((-x, -y, 0.05), (x, y, seat)), _Box((-x, y - 0.18, seat), (x, y, back)),
        _Box((-x, -y, seat), (-x + 0.16, y, arm)), _Box((x - 0.16, -y, seat), (x, y, arm)),
    ]  # fmt: skip


def _lamp(rng: np.random.Generator) -> list[_Box]:
    top, shade = rng.uniform(1.3, 1.8), rng.uniform(0.15, 0.25)
    return [
        _Box((-0.15, -0.15, 0), (0.15, 0.15, 0.04)), _Box((-0.03, -0.03, 0), (0.03, 0.03, top)),
        _Box((-shade, -shade, top), (shade, shade, top + 0.3)),
    ]  # fmt: skip


_FURNITURE = {_TABLE: _table, _CHAIR: _chair, _SHELF: _shelf, _SOFA: _sofa, _LAMP: _lamp}
