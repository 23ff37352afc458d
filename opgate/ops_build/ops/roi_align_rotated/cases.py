from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values

#: A fused multiply-add moves a sample by some 1e-6 pixels.
TOLERANCES = {"float16": (2e-3, 4e-3), "bfloat16": (1.6e-2, 2e-2), "float32": (1e-5, 3e-5)}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def picture(*dims: int) -> Array:
        return rng.uniform(-1, 1, dims).astype(dtype)

    def regions(count: int, pictures: int, h: int, w: int) -> Array:
        numbers = rng.integers(0, max(pictures, 1), count)
        centres, sides = rng.uniform(0, 1, (2, count)) * [[w], [h]], rng.uniform(0.5, 1.2 * max(h, w), (2, count))
        return np.stack([numbers, *centres, *sides, rng.uniform(-4, 4, count)], 1).astype(np.float32)

    def case(name: str, image: Array, rois: Any, height: int = 3, width: int = 2, **more: Any) -> Case:
        inputs = {"input": image, "rois": np.array(rois, np.float32).reshape(-1, 6)}
        attributes = {"output_height": height, "output_width": width, **more}
        return Case(name, inputs, attributes, TOLERANCES[dtype.name])

    image = picture(2, 3, 17, 23)
    rois = regions(9, 2, 17, 23)
    for aligned in (True, False):
        for clockwise in (True, False):
            for ratio in (0, 1, 2, 3):
                name = f"ratio {ratio}, aligned {aligned}, clockwise {clockwise}"
                more = {"sampling_ratio": ratio, "aligned": aligned, "clockwise": clockwise}
                yield case(name, image, rois, **more)
    yield case("a negative ratio is none", image, rois, sampling_ratio=-2)
    for height, width in [(1, 1), (7, 7), (14, 14), (5, 33), (0, 3), (3, 0)]:
        yield case(f"{height} x {width} bins", image, rois, height, width, sampling_ratio=2)
    for c in (0, 1, 31, 70):
        yield case(f"{c} channels", picture(1, c, 9, 9), regions(3, 1, 9, 9))
    yield case("no regions", image, np.zeros((0, 6)))
    yield case("no regions and no pictures", image[:0], np.zeros((0, 6)))
    yield case("many regions", picture(3, 2, 12, 9), regions(90, 3, 12, 9))
    for h, w in [(1, 1), (1, 8), (8, 1), (2, 2)]:
        yield case(f"{h} x {w} pixels", picture(1, 2, h, w), regions(8, 1, h, w), sampling_ratio=2)
    yield case("no pixels", picture(1, 2, 0, 5), [[0, 1, 1, 2, 2, 0]])
    yield case("a quarter of the size", image, rois * np.array([1, 4, 4, 4, 4, 1], np.float32), spatial_scale=0.25)
    yield from geometry_cases(case, image, picture(1, 1, 6, 8))
    yield from errors(case, image, rois)


def geometry_cases(case: Any, image: Array, small: Array) -> Iterator[Case]:
    quarter = np.pi / 2
    # Each bin has one sample, in the centre of a pixel.
    for name, angle in [("0", 0.0), ("a half", 2 * quarter)]:
        yield case(f"whole pixels turned by {name}", small, [[0, 4, 3, 8, 6, angle]], 6, 8, sampling_ratio=1)
    yield case("upright", image, [[0, 11, 8, 12, 6, 0], [1, 5, 5, 3, 9, 0]], 4, 4)
    yield case("beyond all edges", image, [[0, 11, 8, 90, 80, 0.3], [1, 0, 0, 30, 20, 1]], sampling_ratio=4)
    # Positions -1 and w are the last that count; they have the value of the edge.
    edges = [[0, x + 0.5, 3, 2, 2, 0] for x in (-1.5, -1, -0.75, -0.5, 0, 6.5, 7, 7.5, 8, 8.25, 9)]
    yield case("at the edges", small, edges, 1, 1, sampling_ratio=1)
    for name, (h, w) in {"4 x 8": (4, 8), "1 x 2": (1, 2), "no": (0, 4)}.items():
        # One sample, half a pixel from the centre of its region.
        x, y = (edge_values(np.float32, *(at + 0.5 for at in (-1, 0, 1, side - 1, side))) for side in (w, h))
        places = [*((at, 0.75) for at in x), *((0.75, at) for at in y)]
        rois = [[0, *place, 0, 0, 0] for place in places]
        yield case(f"places at the edges of {name} pixels", image[:1, :, :h, :w], rois, 1, 1, sampling_ratio=1)
        sides = [[0, 2, 2, side, 2, 0.5] for side in edge_values(np.float32, 1, 2, w) if not side < 0]
        yield case(f"sides at the edges of {name} pixels", image[:1, :, :h, :w], sides, 1, 2)
    yield case("numbers of pictures at their edges", image, [[at, 9, 9, 5, 5, 1] for at in below(2)])
    yield case("outside", small, [[0, -50, 3, 2, 2, 0.5], [0, 3, 1e6, 2, 2, 0.5]])
    yield case("no sides", image, [[0, 5, 5, 0, 0, 0.5], [0, 5, 5, 0, 4, 0.5], [1, 7, 7, 3, 0, 0.5]])
    yield case("no sides, a fixed ratio", image, [[0, 5, 5, 0, 0, 0.5], [1, 7, 7, 3, 0, 0.5]], sampling_ratio=2)
    yield case("negative sides count as 1", image, [[0, 5, 5, -3, -2, 0.5]], aligned=False)
    # A thread doesn't hold all samples of these at once.
    big = [
        [0, 20, 17, 180, 70, 0.6],
        [1, 11, 8, 900, 800, -2],
        [0, 3, 4, 2e9, 1e9, 0.3],
        [0, 7, 8, 3e4, 2e5, np.pi / 2],
    ]
    yield case("regions with many samples", image[:, :1], big, 1, 2)
    yield case(
        "many samples of a bin", image, [[0, 11, 8, 20, 15, 0.4], [1, 30, 8, 20, 15, 2]], 1, 2, sampling_ratio=90
    )
    yield case("many bins", image, [[0, 11, 8, 20, 15, 0.4]], 40, 60, sampling_ratio=6)
    yield case("a huge region", small[:, :, :2, :2], [[0, 1, 1, 1e30, 1e-3, 0], [0, 1, 1, 3000, 1, 0]], 1, 1)
    odd = [[1, 5, 5, 4, 4, 0.2] for _ in range(9)]
    for row, (column, value) in enumerate(
        [(1, np.nan), (2, np.inf), (3, np.inf), (4, np.nan), (5, np.nan), (5, np.inf)]
    ):
        odd[row][column] = value
    yield case("regions that aren't finite", image, odd)
    strange = image.copy()
    strange[0, 0, 3, 3], strange[1, 1, 8, 9], strange[0, 0, 0, 0] = np.nan, np.inf, np.nan
    beside = image.copy()
    beside[:, :, :, 0] = np.nan
    yield case("NaN beside a region that sticks out", beside, [[0, 20, 9, 12, 5, 0.2], [1, 21, 15, 300, 4, 0.1]], 2, 4)
    yield case("pixels that aren't finite", strange, [[0, 15, 9, 9, 3, 0.2], [1, 4, 3, 3, 3, 1], [0, 4, 3, 6, 6, 1]])
    yield case("a fraction of a picture's number", image, [[1.75, 9, 9, 5, 5, 1]])


def below(count: int) -> Array:
    """The edge values of [0, count) that are in it."""
    values = edge_values(np.float32, count)
    return values[(values >= 0) & (values < count)]


def errors(case: Any, image: Array, rois: Array) -> Iterator[Case]:
    def refused(name: str, error: str, unseen: bool, changed: Any = rois, **more: Any) -> Case:
        one = case(name, image, changed, **more)
        return Case(one.name, one.inputs, one.attributes, error=error, unseen=unseen)

    for number in (-1, np.nextafter(np.float32(0), np.float32(-1)), 2, np.inf, np.nan):
        changed = rois.copy()
        changed[1, 0] = number
        error = "input 'rois': element 6 is .*, expected the number of a picture, below 2"
        yield refused(f"picture {number}", error, True, changed)
    changed = rois.copy()
    changed[2, 4] = -1
    yield refused("a negative side", "input 'rois': element 16 is -1.0+, expected a side that isn't", True, changed)
    for name, value, expected in [
        ("spatial_scale", 0, "a positive finite number, got 0"),
        ("spatial_scale", np.inf, "a positive finite number, got inf"),
        ("sampling_ratio", 2000, "at most 1024, got 2000"),
    ]:
        yield refused(f"{name} {value}", f"attribute '{name}': expected {expected}", False, **{name: value})
    yield refused("too high", "attribute 'output_height': expected at most 4096, got 5000", False, height=5000)
    yield refused("a negative width", "-1", False, width=-1)
    five = {"input": image, "rois": np.zeros((2, 5), np.float32)}
    yield Case("five numbers", five, {"output_height": 2, "output_width": 2}, error="input 'rois': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """512 regions of 7 x 7 bins, 256 channels of 100 x 152."""
    rng = np.random.default_rng(1)
    image = rng.uniform(-1, 1, (1, 256, 100, 152)).astype(types["T"])
    rois = np.stack(
        [np.zeros(512), *rng.uniform([[0], [0], [3], [3], [-3]], [[152], [100], [40], [40], [3]], (5, 512))], 1
    )
    attributes = {"output_height": 7, "output_width": 7, "sampling_ratio": 2}
    inputs = {"input": image, "rois": rois.astype(np.float32)}
    return Case("512 of 256 x 100 x 152", inputs, attributes, TOLERANCES[types["T"].name])
