from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Case

#: Sums of a few terms of order one in f32.
TOLERANCE = (1e-5, 1e-5)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def case(name: str, shape: tuple[int, int, int], height: int, width: int, channels: int = 3, **more: Any) -> Case:
        image = rng.integers(0, 256, (*shape, channels), np.uint8)
        return Case(name, {"image": image}, {"height": height, "width": width, **more}, TOLERANCE)

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
    for n, h, w in [(1, 1, 1), (2, 1, 9), (1, 5, 4), (3, 8, 8), (2, 17, 33), (1, 120, 91)]:
        for height, width in [(1, 1), (5, 3), (8, 8), (31, 50), (0, 3), (3, 0), (0, 0)]:
            name = f"{n} x {h} x {w} to {height} x {width}, antialias"
            yield case(name, (n, h, w), height, width, antialias=True)
    yield from wide_cases(case)
    for more in ({}, {"antialias": True}, {"interpolation": "nearest"}):
        for n, h, w in [(1, 1, 1), (2, 40, 30), (1, 33, 100), (2, 3, 11)]:
            for height, width, side in [(8, 8, 8), (8, 8, 11), (7, 8, 9), (4, 2, 30)]:
                name = f"{n} x {h} x {w}, shorter side {side}, centre of {height} x {width}, {more}"
                yield case(name, (n, h, w), height, width, shorter_side=side, **more)
    yield case("no pictures, a shorter side", (0, 0, 3), 4, 4, shorter_side=5)
    yield case("the default is linear", (1, 5, 5), 8, 8)
    yield case("negative std", (1, 5, 5), 8, 8, std=[-1.0, 2.0, 0.5])
    for channels in (1, 4):
        mean, std = ([0.5, 0.25, 0.125, 1.0][:channels], [2.0, -1.0, 0.5, 0.25][:channels])
        for more in ({}, {"antialias": True}, {"interpolation": "nearest"}):
            for n, h, w, height, width in [
                (1, 1, 1, 3, 2),
                (2, 17, 33, 8, 8),
                (2, 9, 70, 5, 23),
                (1, 9, 70, 5, 24),
                (1, 30, 41, 61, 6),
            ]:
                name = f"{channels} channels, {n} x {h} x {w} to {height} x {width}, {more}"
                yield case(name, (n, h, w), height, width, channels, mean=mean, std=std, **more)
            name = f"{channels} channels, the centre, one mean, {more}"
            yield case(name, (2, 40, 30), 7, 8, channels, shorter_side=9, mean=[0.5], std=[0.25], **more)
        yield case(f"no pictures of {channels} channels", (0, 5, 4), 3, 3, channels)
    yield case("one mean and three std", (1, 5, 5), 8, 8, mean=[0.5], std=[1.0, 2.0, 3.0])
    yield from error_cases()


def wide_cases(case: Callable[..., Case]) -> Iterator[Case]:
    """On a GPU a block has 64 pixels of a row, and sums 2048 numbers at a time."""
    for channels in (1, 3, 4):
        for n, h, w, height, width in [(1, 20, 3001, 7, 40), (2, 9, 400, 5, 150), (1, 6, 130, 9, 200)]:
            name = f"{channels} channels, {n} x {h} x {w} to {height} x {width}, antialias"
            yield case(name, (n, h, w), height, width, channels, antialias=True, mean=[0.5], std=[0.25])


def error_cases() -> Iterator[Case]:
    four = {"height": 4, "width": 4}
    for name, attribute, value, error in [
        ("std 0", "std", [1.0, 0.0, 1.0], r"attribute 'std': expected finite numbers other than 0, got \[1, 0, 1\]"),
        ("mean NaN", "mean", [0.0, 0.0, float("nan")], r"attribute 'mean': expected finite numbers, got \[0, 0, nan\]"),
        ("negative height", "height", -1, "height"),
        ("too wide", "width", 1 << 25, "attribute 'width': expected at most 16777216, got 33554432"),
        (
            "a side too short",
            "shorter_side",
            3,
            "attribute 'shorter_side': expected 0, or from .* 4, to 16777216, got 3",
        ),
        ("a side too long", "shorter_side", 1 << 25, "attribute 'shorter_side': expected 0, or from .*, got 33554432"),
        ("a side below 0", "shorter_side", -1, "attribute 'shorter_side': expected 0, or from .*, got -1"),
        ("cubic", "interpolation", "cubic", "attribute 'interpolation'"),
    ]:
        yield Case(name, {"image": np.zeros((0, 5, 5, 3), np.uint8)}, {**four, attribute: value}, error=error)
    for shape in [(1, 0, 5, 3), (2, 5, 0, 3)]:
        error = rf"input 'image': expected sides of 1\.\.\d+, got \[{shape[0]}, {shape[1]}, {shape[2]}, 3\]"
        yield Case(f"no pixels: {shape}", {"image": np.zeros(shape, np.uint8)}, four, error=error)
    words = {**four, "antialias": True, "interpolation": "nearest"}
    image = np.zeros((1, 5, 5, 3), np.uint8)
    yield Case("nearest, antialias", {"image": image}, words, error="attribute 'antialias': expected false, because")
    long = {"image": np.zeros((1, 1, 1 << 22, 3), np.uint8)}
    error = "input 'image': expected sides that the resize makes no longer than 16777216, got 1 x 4194304"
    yield Case("a side too long behind the resize", long, {**four, "shorter_side": 8}, error=error)
    for channels in (0, 2, 5):
        error = f"input 'image': expected 1, 3 or 4 channels in the last dim, got c = {channels}"
        yield Case(f"{channels} channels", {"image": np.zeros((1, 5, 5, channels), np.uint8)}, four, error=error)
    for name, value in [("mean", [0.0] * 3), ("std", [1.0] * 3)]:
        error = rf"attribute '{name}': expected one number for all .* or one for each of the 4 channels, got \["
        yield Case(
            f"{name} of RGB for RGBA", {"image": np.zeros((1, 5, 5, 4), np.uint8)}, {**four, name: value}, error=error
        )
    for name, value in [("mean", [0.5, 0.5]), ("std", [1.0] * 5)]:
        error = f"attribute '{name}': expected one number for all"
        yield Case(f"{name} of {len(value)} numbers", {"image": image}, {**four, name: value}, error=error)


def large(types: Mapping[str, np.dtype]) -> Case:
    """32 pictures of 1080p to 640 x 640."""
    image = np.resize(np.arange(251, dtype=np.uint8), (32, 1080, 1920, 3))
    return Case("32 x 1080p", {"image": image}, {"height": 640, "width": 640})
