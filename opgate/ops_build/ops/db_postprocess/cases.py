from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

GEOMETRY = np.array([[2.5, 2, 0, 12, 240, 140], [0.5, 0.75, 8, 0, 30, 40], [1, 1, 0, 0, 0, 0]], np.float32)
#: Corners are sums of a few products in f64, rounded to f32.
TOLERANCE = {"quads": (1e-5, 1e-4), "scores": (1e-6, 1e-7), "count": (0.0, 0.0)}


def band(
    height: int, width: int, centre: tuple[float, float], size: tuple[float, float], degrees: float, value: float = 0.9
) -> Array:
    """A map that is `value` in a rectangle of `size` around the centre x y, turned by an angle, and 0 elsewhere."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    turn = np.deg2rad(degrees)
    x, y = x - centre[0], y - centre[1]
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    inside: Array = (np.abs(along) <= size[0] / 2) & (np.abs(across) <= size[1] / 2)
    return (value * inside).astype(np.float32)


def page(height: int, width: int, lines: int, seed: int) -> Array:
    """A map with lines of text of all angles, which may meet, in some noise."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0, 0.2, (height, width)).astype(np.float32)
    for _ in range(lines):
        centre = tuple(rng.uniform(0, [width, height]))
        size = tuple(rng.uniform([10, 4], [60, 14]))
        values = np.maximum(values, band(height, width, centre, size, rng.uniform(-90, 90), rng.uniform(0.35, 1)))
    return values


def smooth(height: int, width: int, seed: int, step: int = 8) -> Array:
    """Clouds: noise of cells of `step` pixels, interpolated."""
    small = np.random.default_rng(seed).random((height // step + 2, width // step + 2))
    y, x = np.mgrid[:height, :width] / step
    top, left = y.astype(int), x.astype(int)
    y, x = y - top, x - left
    rows = [small[top + i, left] * (1 - x) + small[top + i, left + 1] * x for i in (0, 1)]
    clouds: Array = rows[0] * (1 - y) + rows[1] * y
    return clouds.astype(np.float32)


def case(name: str, *maps: Array, geometry: Array | None = None, **attributes: Any) -> Case:
    inputs = {"probabilities": np.stack(maps)[:, None]}
    if geometry is not None:
        inputs["geometry"] = geometry
    return Case(name, inputs, attributes, TOLERANCE)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for degrees in (0, 90, 17, -17, 45, -45, 60, -75, 3, 88):
        turned = [band(70, 90, (40, 33), size, degrees) for size in ((50, 12), (20, 20), (9, 44))]
        yield case(f"turned by {degrees}", *turned)
        yield case(f"turned by {degrees}, geometry", *turned, geometry=GEOMETRY)
    yield case("the example", band(20, 40, (20, 9), (20, 10), 0))
    pages = [page(96, 128, 12, seed) for seed in range(3)]
    yield case("pages", *pages)
    yield case("pages, geometry", *pages, geometry=GEOMETRY)
    yield case("pages, as RapidOCR", *pages, box_threshold=0.5, unclip_ratio=1.6, dilation=True)
    for name, value in [("threshold", 0.5), ("threshold", -1.0), ("box_threshold", 0.0), ("box_threshold", 0.8)]:
        yield case(f"{name} {value}", *pages, **dict[str, Any]({name: value}))
    own = {"thresholds": [0.5, -1.0, np.nan], "box_thresholds": [np.nan, 0.1, 0.8]}
    for names in (["thresholds"], ["box_thresholds"], list(own)):
        more = {name: np.array(own[name], np.float32) for name in names}
        each = case(f"{' and '.join(names)} of each map", *pages)
        yield replace(each, inputs={**each.inputs, **more})
    for name, value in [("unclip_ratio", 0.0), ("unclip_ratio", 4.0), ("min_size", 1), ("min_size", 12)]:
        yield case(f"{name} {value}", *pages, box_threshold=0.1, **dict[str, Any]({name: value}))
    for most in (0, 1, 3):
        yield case(f"{most} at most", *pages, max_detections=most)
    for dilation in (False, True):
        for seed in range(4):
            clouds = smooth(61, 83, seed)
            yield case(f"clouds {seed}, {dilation}", clouds, threshold=0.55, box_threshold=0.3, dilation=dilation)
    yield from shape_cases()
    yield from value_cases()
    yield from error_cases()


def shape_cases() -> Iterator[Case]:
    for h, w in [(1, 1), (1, 40), (40, 1), (2, 2), (4, 4), (5, 30), (0, 4), (4, 0)]:
        yield case(f"{h} x {w} of text", np.ones((h, w), np.float32), max_detections=4)
    yield Case("no maps", {"probabilities": np.zeros((0, 1, 5, 5), np.float32)}, {"max_detections": 4})
    y, x = np.mgrid[:48, :48]
    shapes = {
        "a checkerboard": (x + y) % 2,
        "dots": (x % 2) * (y % 2),
        "squares": (x % 6 < 4) * (y % 6 < 4),
        "stripes": x % 2,
        "a diagonal": np.abs(x - y) < 3,
        "diagonals": (x - y) % 12 < 6,
        "rings": np.maximum(np.abs(x - 24), np.abs(y - 24)) % 8 < 4,
        "a disc": (x - 24) ** 2 + (y - 24) ** 2 < 400,
        "an L": (x < 6) | (y > 40),
        "a triangle": x < y,
        "a comb": (y < 5) | (x % 8 < 4),
        "a U that is joined below": ((x < 8) | (x > 40)) & (y < 44) | (y >= 40),
        "corners that touch": ((x < 8) & (y < 8)) | ((x >= 8) & (x < 16) & (y >= 8) & (y < 16)),
        "the whole": np.ones_like(x),
    }
    for name, mask in shapes.items():
        for dilation in (False, True):
            values = np.where(mask, 0.9, 0.1).astype(np.float32)
            yield case(f"{name}, {dilation}", values, dilation=dilation, box_threshold=0.2, max_detections=100)


def value_cases() -> Iterator[Case]:
    text = band(24, 40, (20, 11), (20, 8), 0)
    for value in (np.nan, np.inf, -np.inf, 3e38, -5.0, 7.0):
        odd = text.copy()
        odd[3, 3], odd[11, 20], odd[9:13, 15] = value, value, value
        yield case(f"{value} here and there", odd, threshold=0.5)
        yield case(f"{value} everywhere", np.full((9, 9), value, np.float32), max_detections=3)
    edge = np.float32(0.3)
    both = text.copy()
    both[text > 0] = edge
    yield case("the threshold itself is none", both, box_threshold=0.0)
    both[text > 0] = np.nextafter(edge, np.float32(1))
    yield case("just above the threshold", both, box_threshold=0.0)
    both[text > 0] = np.float32(0.6)
    yield case("the box threshold itself is kept", both)
    far = np.array([[1e30, -1e30, 0, 0, 9, 9]], np.float32)
    yield case("far away", text, geometry=far)


def error_cases() -> Iterator[Case]:
    values = {"probabilities": np.zeros((1, 1, 4, 4), np.float32)}
    wrong: list[tuple[str, Any, str]] = [
        ("threshold", np.nan, "a number"),
        ("box_threshold", np.nan, "a number"),
        ("unclip_ratio", -1.0, "a finite number from 0 on"),
        ("unclip_ratio", np.inf, "a finite number from 0 on"),
        ("min_size", 0, r"1\.\.16777216"),
        ("max_detections", 2**31, "at most 2147483647"),
    ]
    for name, value, expected in wrong:
        yield Case(f"{name} {value}", values, {name: value}, error=f"attribute '{name}': expected {expected}")
    for shape, expected in [((1, 1, 0, 2**25), "sides of at most"), ((0, 1, 2**17, 2**17), "fewer than 2^32 pixels")]:
        inputs = {"probabilities": np.zeros(shape, np.float32)}
        yield Case(f"maps of {shape}", inputs, error=f"input 'probabilities': expected {expected}".replace("^", r"\^"))
    yield Case("two channels", {"probabilities": np.zeros((1, 2, 4, 4), np.float32)}, error="input 'probabilities'")
    for name in ("thresholds", "box_thresholds"):
        yield Case(f"two {name}", values | {name: np.zeros(2, np.float32)}, error=f"input '{name}'")
    yield Case("five numbers", values | {"geometry": np.zeros((1, 5), np.float32)}, error="input 'geometry'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """A page of 736 x 992 with 60 lines."""
    rng = np.random.default_rng(1)
    values = rng.uniform(0, 0.1, (736, 992)).astype(np.float32)
    for row in range(12):
        for column in range(5):
            top, left = 20 + 60 * row, 20 + 195 * column
            values[top : top + 18, left : left + int(rng.integers(40, 170))] = 0.9
    return case("736 x 992", values, geometry=np.array([[1, 1, 0, 0, 992, 736]], np.float32))
