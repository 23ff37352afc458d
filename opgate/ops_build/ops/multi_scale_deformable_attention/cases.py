from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values, of_sums
from opgate.ops_build.ops.segment_reduce.cases import TOLERANCE

Types = Mapping[str, np.dtype[Any]]


def attention(
    types: Types,
    shapes: Sequence[tuple[int, int]] = ((4, 5), (2, 3)),
    *,
    b: int = 2,
    heads: int = 2,
    dims: int = 8,
    queries: int = 5,
    points: int = 3,
    spread: float = 0.15,
    seed: int = 0,
) -> dict[str, Array]:
    """Inputs with samples at random, of which some lie up to `spread` outside the levels."""
    rng = np.random.default_rng(seed)
    sizes = [height * width for height, width in shapes]
    weights = rng.uniform(0, 1, (b, queries, heads, len(shapes), points))
    locations = rng.uniform(-spread, 1 + spread, (b, queries, heads, len(shapes), points, 2))
    return {
        "value": np.asarray(rng.standard_normal((b, sum(sizes), heads, dims)), types["T"]),
        "spatial_shapes": np.array(shapes, types["I"]).reshape(-1, 2),
        "level_start_index": (np.cumsum([0, *sizes])[:-1]).astype(types["I"]),
        "sampling_locations": locations.astype(types["T"]),
        "attention_weights": weights.astype(types["T"]),
    }


def at_edges(types: Types, shapes: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """A query for each edge value of the first level, along one axis or along both."""
    height, width = shapes[0]
    x, y = (
        edge_values(types["T"], *((at + 0.5) / side for at in (-1, 0, 1, side - 1, side))) for side in (width, height)
    )
    pairs = np.concatenate([np.stack(np.broadcast_arrays(x, 0.3), -1), np.stack(np.broadcast_arrays(0.3, y), -1)])
    inputs = attention(types, shapes, b=1, queries=len(pairs), points=1)
    inputs["sampling_locations"][...] = pairs[None, :, None, None, None]
    return inputs


def good(types: Types) -> Iterator[tuple[str, dict[str, Array]]]:
    """Names and inputs that the op takes."""
    for dims in (0, 1, 3, 8, 16, 31, 32, 64, 80):
        yield f"{dims} dims", attention(types, dims=dims)
    for points in (0, 1, 4, 5, 17):
        yield f"{points} points", attention(types, points=points)
    for heads in (0, 1, 8):
        yield f"{heads} heads", attention(types, heads=heads)
    # On a GPU a thread of so many computes several numbers.
    yield "many queries", attention(types, ((4, 5),), b=2, heads=8, dims=32, queries=515, points=1)
    for queries in (0, 1, 70):
        yield f"{queries} queries", attention(types, queries=queries, b=3)
    yield "nothing in the batch", attention(types, b=0)
    for shapes in ([], [(1, 1)], [(1, 9)], [(9, 1)], [(8, 8), (4, 4), (2, 2), (1, 1)], [(0, 3), (2, 2), (3, 0)]):
        yield f"levels {shapes}", attention(types, shapes)
    yield "no keys", attention(types, [(0, 0)])
    yield "samples far outside", attention(types, spread=3)
    many = attention(types, [(3, 3)], b=1, heads=1, dims=2, queries=600, points=4)
    many["sampling_locations"][...] = 0.4
    yield "many samples at one place", many
    shared = attention(types)
    shared["level_start_index"][:] = 3, 2
    shared["spatial_shapes"][:] = (3, 2), (2, 7)
    yield "levels that share keys, and keys of no level", shared
    edge = attention(types, [(4, 4)], points=6)
    # Sample coordinates -1, -0.5, -1 + 1/16, 0, 3 and 4: on keys, between them, and at the bounds.
    edge["sampling_locations"][..., 0] = np.array([-0.125, 0, -0.109375, 0.125, 0.875, 1.125])
    edge["sampling_locations"][..., 1] = np.array([0.5, -0.125, 0.875, 1, 0.125, 0.3125])
    yield "samples on keys and on bounds", edge
    for shapes in ([(4, 4), (0, 4), (4, 0)], [(1, 2)]):
        yield f"places at the edges of {shapes[0]}", at_edges(types, shapes)
    odd = attention(types, [(3, 4)], points=4, spread=-0.1)
    odd["sampling_locations"][0, 0, 0, 0] = [[np.nan, 0.5], [0.5, np.inf], [-np.inf, np.nan], [3e4, -3e4]]
    odd["attention_weights"][0, 1, 0, 0, 0] = np.nan
    odd["attention_weights"][0, 2, 1, 0, 1] = np.inf
    yield "numbers that aren't finite", odd
    far = attention(types, [(3, 4)], points=2, queries=3, b=1)
    far["sampling_locations"][...] = [[0.05, 0.05], [0.08, 0.1]]
    far["value"][0, 5:] = np.nan
    yield "NaN in keys that no sample needs", far


def refused(types: Types) -> Iterator[tuple[str, dict[str, Array], str, bool]]:
    """Names, inputs, errors, and whether the error is in the values."""
    for name, at, value, error in [
        ("spatial_shapes", 2, -1, "input 'spatial_shapes': element 2 is -1, expected at least 0"),
        ("spatial_shapes", 1, -5, "input 'spatial_shapes': element 1 is -5, expected at least 0"),
        ("level_start_index", 1, -1, "input 'level_start_index': element 1 is -1, and the level has 2 x 3 keys"),
        ("level_start_index", 1, 21, "element 1 is 21, and the level has 2 x 3 keys, expected them among the 26 keys"),
        ("spatial_shapes", 0, 2**31 - 1, "element 0 is 0, and the level has 2147483647 x 5 keys"),
    ]:
        inputs = attention(types)
        inputs[name].flat[at] = value
        yield f"{name} {value}", inputs, error, True
    inputs = attention(types)
    one = inputs["sampling_locations"][:, :, :1]
    yield "a head too few", inputs | {"sampling_locations": one}, "input 'sampling_locations': expected", False
    one = inputs["spatial_shapes"][:1]
    yield "a level too few", inputs | {"spatial_shapes": one}, "level_start_index", False


def cases(types: Types) -> Iterator[Case]:
    for name, inputs in good(types):
        yield Case(name, inputs, {}, TOLERANCE[types["T"].name])
    for name, inputs, error, unseen in refused(types):
        yield Case(name, inputs, error=error, unseen=unseen)


def large(types: Types) -> Case:
    """A layer of Deformable DETR's decoder: 300 queries, 8 heads of 32, four levels of a picture of 800 x 1066."""
    shapes = [(100, 134), (50, 67), (25, 34), (13, 17)]
    inputs = attention(types, shapes, b=1, heads=8, dims=32, queries=300, points=4)
    return Case("300 queries", inputs, tolerance=of_sums(types["T"], output=1e-4))
