from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.segment_reduce.cases import TOLERANCE

INTERVALS = ("interval_starts", "interval_lengths")


def view(
    dtype: np.dtype[Any],
    points: int,
    *,
    cameras: tuple[int, ...] = (1, 2, 5, 3, 4),
    c: int = 8,
    grid: tuple[int, int, int] = (1, 4, 6),
    order: str = "sorted",
    seed: int = 0,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Inputs and attributes for `points` random points. `cameras` are b, cams, d, h and w."""
    rng = np.random.default_rng(seed)
    b, cams, d, h, w = cameras
    cells = b * int(np.prod(grid))
    rank = (
        rng.permutation(b * cams * d * h * w)[:points]
        if order != "repeated"
        else rng.integers(0, min(9, b * cams * d * h * w), points)
    )
    camera, rest = np.divmod(rank, d * h * w)
    ranks = {
        "ranks_depth": rank,
        "ranks_feat": camera * h * w + rest % (h * w),
        "ranks_bev": rng.integers(0, max(1, cells), len(rank)),
    }
    if order == "sorted":
        places = np.argsort(ranks["ranks_bev"], kind="stable")
        ranks = {name: array[places] for name, array in ranks.items()}
    inputs = {
        "depth": rng.uniform(0, 1, cameras).astype(dtype),
        "feat": np.asarray(rng.standard_normal((b, cams, h, w, c)), dtype),
        **{name: array.astype(np.int32) for name, array in ranks.items()},
    }
    return inputs, dict(zip(("out_z", "out_height", "out_width"), grid, strict=True))


def with_intervals(inputs: dict[str, Array]) -> dict[str, Array]:
    """The same with the intervals of equal cells that follow one another."""
    bev = inputs["ranks_bev"]
    starts = np.flatnonzero(np.concatenate([[True], bev[1:] != bev[:-1]])[: len(bev)])
    lengths = np.diff(np.append(starts, len(bev)))
    return inputs | {"interval_starts": starts.astype(np.int32), "interval_lengths": lengths.astype(np.int32)}


def good(dtype: np.dtype[Any]) -> Iterator[tuple[str, dict[str, Array], dict[str, int]]]:
    """Names, inputs and attributes that the op takes."""
    for order in ("sorted", "shuffled", "repeated"):
        for count in (0, 1, 2, 100):
            inputs, attributes = view(dtype, count, order=order)
            yield f"{count} points, {order}", inputs, attributes
            yield f"{count} points, {order}, with intervals", with_intervals(inputs), attributes
    for c in (0, 1, 3, 16, 17, 31, 64, 80, 133):
        inputs, attributes = view(dtype, 60, c=c, order="shuffled")
        yield f"{c} channels", inputs, attributes
        yield f"{c} channels with intervals", with_intervals(inputs), attributes
    for grid in ((1, 1, 1), (3, 2, 2), (0, 4, 4), (1, 50, 60)):
        inputs, attributes = view(dtype, 60 if 0 not in grid else 0, grid=grid)
        yield f"{grid} cells", inputs, attributes
        yield f"{grid} cells with intervals", with_intervals(inputs), attributes
    yield "three pictures", *view(dtype, 300, cameras=(3, 2, 5, 3, 4), order="shuffled")
    for cameras in ((0, 2, 5, 3, 4), (1, 0, 5, 3, 4), (1, 2, 0, 3, 4), (1, 2, 5, 0, 4)):
        yield f"cameras {cameras}", *view(dtype, 0, cameras=cameras)
    inputs, attributes = view(dtype, 700, cameras=(1, 2, 20, 4, 5), c=20, grid=(1, 1, 1))
    yield "many points of one cell", inputs, attributes
    yield "many points of one cell with an interval", with_intervals(inputs), attributes
    inputs, attributes = view(dtype, 900, cameras=(1, 2, 30, 4, 5), grid=(1, 20, 20), order="shuffled")
    yield "many cells that come again", with_intervals(inputs), attributes
    inputs, attributes = view(dtype, 900, cameras=(1, 2, 30, 4, 5), grid=(1, 20, 20))
    descending = inputs | {"ranks_bev": np.sort(inputs["ranks_bev"])[::-1].copy()}
    yield "descending cells", with_intervals(descending), attributes
    yield "more cells than a block has", *view(dtype, 3000, cameras=(1, 1, 50, 8, 8), c=2, grid=(1, 40, 40))
    inputs, attributes = view(dtype, 40)
    inputs["depth"][...] = 1
    inputs["feat"][0, 0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    yield "features that aren't finite", inputs, attributes
    inputs, attributes = view(dtype, 20, order="shuffled")
    some = {
        "interval_starts": np.array([2, 5, 5, 9, 20], np.int32),
        "interval_lengths": np.array([3, 0, 2, 11, 0], np.int32),
    }
    yield "intervals of several cells, some empty, that leave points out", inputs | some, attributes
    inputs["ranks_depth"][[0, 8]], inputs["ranks_feat"][[1, 7]], inputs["ranks_bev"][[0, 3]] = -1, 10**9, 24
    yield "ranks outside, which nobody needs", inputs | some, attributes
    none = {name: np.zeros(0, np.int32) for name in INTERVALS}
    yield "no intervals", inputs | none, attributes


def refused(dtype: np.dtype[Any]) -> Iterator[tuple[str, dict[str, Array], dict[str, int], str, bool]]:
    """Names, inputs, attributes, errors, and whether the error is in the values."""
    inputs, attributes = view(dtype, 5)
    for name, end in [("ranks_depth", 120), ("ranks_feat", 24), ("ranks_bev", 24)]:
        for value in (-1, end, 2**31 - 1):
            wrong = inputs[name].copy()
            wrong[3] = value
            error = rf"input '{name}': element 3 is {value}, expected 0\.\.{end - 1}"
            yield f"{name} {value}", inputs | {name: wrong}, attributes, error, True
    first = inputs | {"ranks_bev": np.array([0, 0, 24, 0, 0], np.int32)}
    for starts, lengths, error in [
        ([0, 2], [3, 1], r"input 'interval_starts': element 1 is 2, expected 3\.\.5"),
        ([-1], [3], r"input 'interval_starts': element 0 is -1, expected 0\.\.5"),
        ([6], [0], r"input 'interval_starts': element 0 is 6, expected 0\.\.5"),
        ([0, 3], [1, 3], r"input 'interval_lengths': element 1 is 3, expected 0\.\.2"),
        ([0, 3], [-1, 1], r"input 'interval_lengths': element 0 is -1, expected 0\.\.5"),
        ([0, 2], [1, 1], r"input 'ranks_bev': element 2 is 24, expected 0\.\.23"),
    ]:
        intervals = dict(zip(INTERVALS, (np.array(starts, np.int32), np.array(lengths, np.int32)), strict=True))
        yield f"intervals {starts} {lengths}", first | intervals, attributes, error, True
    for name, other in [INTERVALS, INTERVALS[::-1]]:
        error = f"input '{other}': expected it with '{name}', got none"
        yield f"{name} alone", inputs | {name: np.zeros(1, np.int32)}, attributes, error, False
    yield "a rank too few", inputs | {"ranks_feat": inputs["ranks_feat"][1:]}, attributes, "ranks_feat", False
    yield "other cameras", inputs | {"feat": inputs["feat"][:, :1]}, attributes, "input 'feat': expected", False


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    for name, inputs, attributes in good(dtype):
        yield Case(name, inputs, attributes, TOLERANCE[dtype.name])
    for name, inputs, attributes, error, unseen in refused(dtype):
        yield Case(name, inputs, attributes, error=error, unseen=unseen)
    inputs, _ = view(dtype, 3)
    yield Case("a negative size", inputs, {"out_height": -1, "out_width": 4}, error="out_height|output 'bev'")
    huge = {"out_height": 2**20, "out_width": 2**20}
    yield Case("too many cells", inputs, huge, error=r"expected fewer than 2\^31 cells")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """BEVDet's six cameras of 16 x 44 pixels, 59 depths and 64 channels on 128 x 128 cells: 150,000 points."""
    inputs, attributes = view(types["T"], 150_000, cameras=(1, 6, 59, 16, 44), c=64, grid=(1, 128, 128))
    return Case("150,000 points, 64 channels", with_intervals(inputs), attributes)
