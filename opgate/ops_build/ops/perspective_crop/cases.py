from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: Sums of 16 products in f32 of places in f64, of pixels that may be far apart.
TOLERANCE = {"crops": (1e-5, 2e-5), "widths": (0.0, 0.0)}


def turned(x: float, y: float, w: float, h: float, degrees: float) -> list[list[float]]:
    """The corners of a rectangle around a centre."""
    turn = np.deg2rad(degrees)
    u, v = np.array([np.cos(turn), np.sin(turn)]) * w / 2, np.array([-np.sin(turn), np.cos(turn)]) * h / 2
    return [((x, y) + i * u + j * v).tolist() for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def pictures(n: int, h: int, w: int) -> Array:
        return rng.integers(0, 256, (n, h, w, 3), dtype=np.uint8)

    def case(name: str, image: Array, quads: Any, height: int = 8, width: int = 64, **more: Any) -> Case:
        inputs = {"image": image, "quads": np.array(quads, np.float32).reshape(-1, 4, 2)}
        if "index" in more:
            inputs["index"] = np.array(more.pop("index"), np.int32)
        error = more.pop("error", None)
        return Case(name, inputs, {"height": height, "width": width, **more}, TOLERANCE, error=error)

    image = pictures(1, 40, 60)
    quads = [
        turned(30.3, 20.2, 31.1, 9.7, 3),
        turned(25.1, 18.3, 9.2, 30.9, 5),
        turned(25.1, 18.3, 20.2, 20.1, -40),
        turned(5.2, 36.1, 30.3, 12.4, 20),
        [[10.1, 5.2], [50.3, 9.1], [44.2, 30.7], [14.9, 35.5]],
        [[40.2, 30.1], [10.4, 30.3], [10.7, 18.2], [40.3, 18.9]],
    ]
    for chosen in ("cubic", "linear"):
        yield case(f"the example, {chosen}", image, [[10, 10], [50, 10], [50, 20], [10, 20]], 20, 99, filter=chosen)
        for number, quad in enumerate(quads):
            yield case(f"quad {number}, {chosen}", image, quad, filter=chosen)
        yield case(f"several quads, {chosen}", image, quads, 13, 20, filter=chosen)
    normal: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    for order in ("RGB", "BGR"):
        yield case(f"normalized, {order}", image, quads, order=order, **normal)
    for rotate_from in (0.01, 1.0, 3.3, 1e9):
        yield case(f"turned from {rotate_from}", image, quads, rotate_from=rotate_from)
    for height, width in [(1, 1), (1, 9), (48, 1), (48, 320)]:
        yield case(f"{height} x {width}", image, quads, height, width)
    several = pictures(3, 21, 33)
    yield case("a quad for each picture", several, quads[:3])
    yield case("quads of chosen pictures", several, quads, index=[2, 0, 0, 1, 2, 2])
    yield case("one quad of several pictures", several, quads[:1], index=[1])
    for h, w in [(1, 1), (1, 7), (7, 1), (0, 5), (5, 0)]:
        yield case(f"of {h} x {w} pixels", pictures(1, h, w), quads)
    yield case("nothing", pictures(0, 5, 5), [])
    yield case("no quads", image, [])
    yield case("no quads of several pictures", several, [], index=[])
    yield case("all edges", image, [[-9.2, -7.1], [70.3, -8.8], [71.4, 55.1], [-8.7, 49.9]], 30, 40)
    yield from odd_cases(case, image, quads)
    yield from errors(case, image, several, quads)


def odd_cases(case: Any, image: Array, quads: list[Any]) -> Iterator[Case]:
    odd = np.array([quads[0]] * 5)
    for row, value in enumerate([np.nan, np.inf, -np.inf, 1e30, -1e30]):
        odd[row, row % 4, row % 2] = value
    yield case("numbers that are not finite", image, odd[:3])
    flat = [
        [[5, 5]] * 4,
        [[0, 0], [9, 0], [9, 0], [0, 0]],
        [[3, 0], [3, 0], [3, 9], [3, 9]],
        [[0, 1], [9, 2], [8, 2], [1, 2]],
    ]
    yield case("quads without an area", image, flat)
    far = (np.array(quads) + 1e6).tolist()
    yield case("far away", image, far)
    yield case("huge", image, [turned(30, 20, 1e6, 9e5, 3)])


def errors(case: Any, image: Array, several: Array, quads: list[Any]) -> Iterator[Case]:
    for number in (3, -1):
        error = f"input 'index': element 1 is {number}, expected the number of a picture, 0..2"
        yield case(f"picture {number}", several, quads[:2], index=[0, number], error=error)
    error = "input 'image': expected sides of at most 16777216, got 33554432"
    yield case("a side too long", np.zeros((1, 0, 2**25, 3), np.uint8), quads, error=error)
    error = "input 'index': expected the pictures of the 2 quads, got none; .* not 3"
    yield case("no index", several, quads[:2], error=error)
    yield case("an index too few", image, quads[:2], index=[0], error="input 'index': expected")
    wrong: list[tuple[str, Any, str]] = [
        ("height", 0, "1..16777216, got 0"),
        ("width", 2**25, "1..16777216, got 33554432"),
        ("rotate_from", 0.0, "a number above 0"),
        ("rotate_from", np.nan, "a number above 0"),
        ("std", [1, 0, 1], "finite numbers other than 0"),
        ("mean", [1, 0, np.inf], "finite numbers"),
    ]
    for name, value, expected in wrong:
        error = f"attribute '{name}': expected {expected}"
        yield case(f"{name} {value}", image, quads[:1], error=error, **dict[str, Any]({name: value}))


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """60 lines of a page of 1080 x 1920, as a reader of lines takes them."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (1, 1080, 1920, 3), dtype=np.uint8)
    numbers = rng.uniform([300, 40, 100, 20, -10], [1500, 1000, 500, 60, 10], (60, 5))
    quads = np.array([turned(*row) for row in numbers], np.float32)
    return Case("60 x 48 x 320", {"image": image, "quads": quads}, {"height": 48, "width": 320}, TOLERANCE)
