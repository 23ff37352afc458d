from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Case

#: Sums of a few terms of order one in f32.
TOLERANCE = (1e-5, 1e-5)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def case(
        name: str, shape: tuple[int, int, int], height: int, width: int, error: str | None = None, **more: Any
    ) -> Case:
        image = rng.integers(0, 256, (*shape, 3), np.uint8)
        return Case(name, {"image": image}, {"height": height, "width": width, **more}, TOLERANCE, error)

    for interpolation in ("linear", "nearest"):
        for n, h, w in [(1, 1, 1), (2, 1, 9), (1, 9, 1), (3, 8, 8), (2, 17, 33), (1, 120, 90)]:
            for height, width in [(1, 1), (5, 3), (8, 8), (16, 16), (31, 50), (64, 6)]:
                name = f"{n} x {h} x {w} to {height} x {width}, {interpolation}"
                yield case(name, (n, h, w), height, width, interpolation=interpolation)
        imagenet: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
        yield case(
            f"ImageNet's mean and std, {interpolation}", (2, 40, 30), 32, 32, **imagenet, interpolation=interpolation
        )
        for name, shape, height, width in [
            ("no pictures", (0, 5, 4), 3, 3),
            ("no rows wanted", (1, 5, 4), 0, 3),
            ("no columns wanted", (1, 5, 4), 3, 0),
            ("nothing of nothing", (1, 0, 0), 0, 3),
            ("no pictures of no size", (0, 0, 0), 3, 3),
        ]:
            yield case(f"{name}, {interpolation}", shape, height, width, interpolation=interpolation)
    yield case("the default is linear", (1, 5, 5), 8, 8)
    yield case("negative std", (1, 5, 5), 8, 8, std=[-1.0, 2.0, 0.5])
    yield from error_cases()


def error_cases() -> Iterator[Case]:
    four = {"height": 4, "width": 4}
    for name, attribute, value, error in [
        ("std 0", "std", [1.0, 0.0, 1.0], r"attribute 'std': expected finite numbers other than 0, got \[1, 0, 1\]"),
        ("mean NaN", "mean", [0.0, 0.0, float("nan")], r"attribute 'mean': expected finite numbers, got \[0, 0, nan\]"),
        ("negative height", "height", -1, "height"),
        ("too wide", "width", 1 << 25, "attribute 'width': expected at most 16777216, got 33554432"),
        ("cubic", "interpolation", "cubic", "attribute 'interpolation'"),
    ]:
        yield Case(name, {"image": np.zeros((0, 5, 5, 3), np.uint8)}, {**four, attribute: value}, error=error)
    for shape in [(1, 0, 5, 3), (2, 5, 0, 3)]:
        error = rf"input 'image': expected sides of 1\.\.\d+, got \[{shape[0]}, {shape[1]}, {shape[2]}, 3\]"
        yield Case(f"no pixels: {shape}", {"image": np.zeros(shape, np.uint8)}, four, error=error)
    yield Case("one channel", {"image": np.zeros((1, 5, 5, 1), np.uint8)}, four, error="input 'image'")


def large(types: Mapping[str, np.dtype]) -> Case:
    """32 pictures of 1080p to 640 x 640."""
    image = np.resize(np.arange(251, dtype=np.uint8), (32, 1080, 1920, 3))
    return Case("32 x 1080p", {"image": image}, {"height": 640, "width": 640})
