from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

IDENTITY = [[1, 0, 0], [0, 1, 0]]


def similarity(angle: float, scale: float, x: float, y: float) -> list[list[float]]:
    a, b = scale * float(np.cos(angle)), scale * float(np.sin(angle))
    return [[a, -b, x], [b, a, y]]


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def pictures(n: int, h: int, w: int) -> Array:
        return rng.integers(0, 256, (n, h, w, 3), dtype=np.uint8)

    def case(name: str, image: Array, matrix: Any, height: int = 5, width: int = 7, **more: Any) -> Case:
        inputs = {"image": image, "matrix": np.array(matrix, types["T"]).reshape(-1, 2, 3)}
        if "index" in more:
            inputs["index"] = np.array(more.pop("index"), np.int32)
        return Case(name, inputs, {"height": height, "width": width, **more}, tolerance=(1e-5, 1e-5))

    image = pictures(1, 11, 13)
    for maps_to in ("crop", "image"):
        for name, matrix in [
            ("identity", IDENTITY),
            ("half a pixel", [[1, 0, 0.5], [0, 1, -0.5]]),
            ("twice as large", [[2, 0, 0], [0, 2, 0]]),
            ("half as large", [[0.5, 0, 0.25], [0, 0.5, 0.25]]),
            ("turned by a right angle", [[0, -1, 10], [1, 0, 0]]),
            ("turned", similarity(0.4, 0.8, 3, -1)),
            ("mirrored", [[-1, 0, 12], [0, 1, 0]]),
            ("sheared", [[1, 0.5, -2], [0.1, 1, 1]]),
            ("far away", [[1, 0, 1000], [0, 1, -1000]]),
            ("to one point", [[0, 0, 3], [0, 0, 4]]),
            ("to a line", [[1, 2, 0], [2, 4, 1]]),
        ]:
            yield case(f"{name}, to the {maps_to}", image, matrix, 12, 15, maps_to=maps_to, border=[10, 200, 90])
    several, three = pictures(3, 9, 10), [similarity(0.3 * k, 1.1, k, 1) for k in range(3)]
    yield case("a matrix for each picture", several, three)
    yield case("crops of one picture", image, three)
    yield case("crops of chosen pictures", several, [*three, *three], index=[2, 0, 0, 1, 2, 2])
    yield case("one crop of several pictures", several, three[:1], index=[1])
    normal: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    yield case("normalized", image, similarity(0.2, 1.5, 1, 1), border=[114, 114, 114], **normal)
    for height, width in [(1, 1), (3, 63), (3, 64), (2, 65), (1, 200), (0, 4), (4, 0)]:
        yield case(f"{height} x {width}", image, similarity(0.1, 4, 0, 0), height, width)
    for h, w in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 30), (0, 3), (3, 0)]:
        yield case(f"of {h} x {w} pixels", pictures(2, h, w), [IDENTITY, [[3, 0, 1], [0, 3, 1]]], border=[1, 2, 3])
    yield case("nothing", pictures(0, 5, 5), np.zeros((0, 2, 3)))
    yield case("no crops", image, np.zeros((0, 2, 3)))
    yield case("no crops of several pictures", several, np.zeros((0, 2, 3)), index=[])
    # The last pixel of the last picture, and the first one of the first.
    yield case("the ends", several, [[[1, 0, -8], [0, 1, -7]], [[1, 0, 2], [0, 1, 2]]], index=[2, 0])
    yield case("all edges", image, similarity(0.5, 0.3, 6, 6), 30, 30, border=[255, 0, 128])
    yield from odd_cases(case, image)
    yield from errors(case, image, several)


def odd_cases(case: Any, image: Array) -> Iterator[Case]:
    odd = np.array([IDENTITY] * 7, np.float64)
    for row, value in enumerate([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-30, 0]):
        odd[row, row % 2, row % 3] = value
    for maps_to in ("crop", "image"):
        yield case(f"odd numbers, to the {maps_to}", image, odd, maps_to=maps_to, border=[9, 9, 9])


def errors(case: Any, image: Array, several: Array) -> Iterator[Case]:
    def refused(name: str, error: str, unseen: bool = False, pictures: Array = image, **more: Any) -> Case:
        one = case(name, pictures, more.pop("matrix", IDENTITY), **more)
        return Case(one.name, one.inputs, one.attributes, error=error, unseen=unseen)

    for number in (3, -1):
        error = f"input 'index': element 1 is {number}, expected the number of a picture, 0..2"
        yield refused(f"picture {number}", error, True, several, matrix=[IDENTITY] * 2, index=[0, number])
    error = "input 'index': expected the pictures of the 2 matrices, got none; .* not 3"
    yield refused("no index", error, pictures=several, matrix=[IDENTITY] * 2)
    yield refused("an index too few", "input 'index': expected", matrix=[IDENTITY] * 2, index=[0])
    wrong: list[tuple[str, Any, str]] = [
        ("height", 2**25, "at most 16777216, got 33554432"),
        ("border", [0, 0, 256], "numbers in 0..255"),
        ("border", [-1, 0, 0], "numbers in 0..255"),
        ("std", [1, 0, 1], "finite numbers other than 0"),
        ("mean", [1, 0, np.inf], "finite numbers"),
    ]
    for name, value, expected in wrong:
        yield refused(f"{name} {value}", f"attribute '{name}': expected {expected}", **dict[str, Any]({name: value}))
    yield refused("a negative width", "-1", width=-1)


def large(types: Mapping[str, np.dtype]) -> Case:
    """64 faces of 112 x 112 of a picture of 1080 x 1920."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (1, 1080, 1920, 3), dtype=np.uint8)
    numbers = rng.uniform([-0.5, 0.6, 100, 100], [0.5, 2, 1800, 900], (64, 4))
    matrix = np.array([similarity(*row) for row in numbers], types["T"])
    attributes = {"height": 112, "width": 112, "maps_to": "image"}
    return Case("64 x 112 x 112", {"image": image, "matrix": matrix}, attributes, (1e-5, 1e-5))
