from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.voxelize import cases as voxelize
from opgate.ops_build.ops.voxelize.reference import voxels_of


def voxels(points: Array, size: Array, range: Array | None = None, order: str = "xyz", batch_columns: int = 0) -> Array:
    """The coords that Voxelize gives."""
    keys = np.unique(voxels_of(points, size, range, batch_columns)[1], axis=0)
    if order == "xyz":
        keys = np.hstack([keys[:, :batch_columns], keys[:, batch_columns:][:, ::-1]])
    return keys.astype(np.int32)


def case(
    name: str, points: Any, coords: Any, size: Any = (0.5, 0.5, 0.5), range: Any = None, error: str | None = None,
    unseen: bool = False, **attributes: Any,
) -> Case:  # fmt: skip
    inputs = {"points": np.asarray(points, np.float32), "coords": np.asarray(coords, np.int32)}
    inputs["size"] = np.asarray(size, np.float32)
    if range is not None:
        inputs["range"] = np.asarray(range, np.float32)
    return Case(name, inputs, attributes, error=error, unseen=unseen)


def array_of(case: Case, name: str) -> Any:
    """An input of a case, or None."""
    return case.inputs.get(name)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    yield from own_cases()
    # The points of Voxelize's cases, and every second of its voxels.
    for other in voxelize.cases(types):
        attributes: dict[str, Any] = {
            name: other.attributes[name] for name in ("order", "batch_columns") if name in other.attributes
        }
        points, size, range = (array_of(other, name) for name in ("points", "size", "range"))
        about_the_voxels = {"reduction", "max_points", "max_voxels"} & {*other.attributes}
        if other.error is None and not about_the_voxels:
            coords = voxels(points, size, range, **attributes)[::2]
            yield case(other.name, points, coords, size, range, **attributes)
        elif other.error is not None and "input" in other.error:
            coords = np.zeros((2, 3 + other.attributes.get("batch_columns", 0)))
            yield case(other.name, points, coords, size, range, other.error, other.unseen, **attributes)


def own_cases() -> Iterator[Case]:
    rng = np.random.default_rng(2)
    points = rng.uniform(-2, 2, (3000, 5)).astype(np.float32)
    points[:, 0] = rng.integers(0, 4, 3000)
    size = np.array([0.5, 0.4, 0.3], np.float32)
    for order in ("xyz", "zyx"):
        for batch_columns in (0, 1):
            attributes: dict[str, Any] = {"order": order, "batch_columns": batch_columns}
            coords = voxels(points, size, None, order, batch_columns)
            name = f"{order}, {batch_columns} batch columns"
            yield case(name, points, coords, size, **attributes)
            shuffled = rng.permutation(np.concatenate([coords, coords[::3], coords[:5]]))
            yield case(f"{name}, not in order and with duplicates", points, shuffled, size, **attributes)
            yield case(f"{name}, descending", points, coords[::-1], size, **attributes)
    yield case("no voxels", points, np.zeros((0, 3)))
    yield case("no points", points[:0], [[0, 0, 0]])
    yield case("nothing", points[:0], np.zeros((0, 3)))
    yield case("one voxel, many times", np.zeros((3, 3)), np.zeros((700, 3)))
    ends = [-(2**31), -(2**20) - 1, -(2**20), -1, 0, 2**20 - 1, 2**20, 2**21 - 1, 2**21, 2**31 - 1]
    coords = np.stack(np.meshgrid(ends, ends, ends), axis=-1).reshape(-1, 3)
    far = np.array(
        [[0, 0, 0], [-1, 0, 0], [2**20 - 1, -(2**20), 0], [2**20, 0, 0], [np.nan, 0, 0], [-1, -1, -1]], np.float32
    )
    yield case("numbers that no voxel has", far, coords, (1, 1, 1))
    ends = [-(2**31), -(2**15) - 1, -(2**15), -1, 0, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**31 - 1]
    coords = np.stack(np.meshgrid([-1, 0, 1, 2**15 - 1, 2**15, 2**31 - 1], [0, -1], ends, ends), -1).reshape(-1, 4)
    far = np.array(
        [[0, 0, 0, 0], [1, 0, -1, 0], [2**15 - 1, -1, 2**15 - 1, -(2**15)], [0, 0, 2**15, 0], [2, 0, 0, 0]], np.float32
    )
    yield case("numbers that no voxel of a batch has", far, coords, (1, 1, 1), batch_columns=1)
    # Without checks these would have the keys of the points.
    wrapped = [[2**16, 0, 0, 0], [0, 2**15 + 1, 0, 0], [0, 0, 0, 0], [0, -(2**15) + 1, 1, 0]]
    places = np.array([[0, 0, 0, 0], [0, -(2**15) + 1, 1, 0]], np.float32)
    yield case("numbers that would wrap around", places, wrapped, (1, 1, 1), batch_columns=1)
    yield case("four columns of coords", points, np.zeros((2, 4)), error="input 'coords'")
    yield case("three columns of coords", points, np.zeros((2, 3)), error="input 'coords'", batch_columns=1)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """A million points and their voxels."""
    cloud = voxelize.large(types)
    return Case("1M x 4", {**cloud.inputs, "coords": voxels(array_of(cloud, "points"), array_of(cloud, "size"))})
