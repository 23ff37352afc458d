"""Point clouds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.op_works import Call, Inputs, Peer, Work, library_peer, torch_peer

NEIGHBOURS = 16


def kd_tree(module: str, name: str, package: str) -> Peer:
    def make(inputs: Inputs) -> Call:
        import importlib

        tree = getattr(importlib.import_module(module), name)
        xyz = inputs["xyz"]
        return lambda: tree(xyz).query(xyz, NEIGHBOURS)

    return library_peer(f"{package} {name}, its build included", package, make)


def nearest(xyz: Tensor) -> object:
    return torch.cdist(xyz, xyz).topk(NEIGHBOURS, largest=False)


def voxels(points: Tensor, size: Tensor) -> object:
    keys = ((points[:, :3] - points[:, :3].amin(0)) / size).long()
    _, inverse, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), points.shape[1]).index_add_(0, inverse, points)
    return sums / counts[:, None], counts


def rows_of_points(points: Tensor, coords: Tensor, size: Tensor) -> Tensor:
    strides = torch.tensor([1, 1 << 20, 1 << 40])
    keys = (torch.floor(points / size).long() * strides).sum(1)
    return torch.searchsorted((coords * strides).sum(1), keys)


def cells(pos: Tensor, size: Tensor) -> Tensor:
    """The formula of torch_cluster's grid."""
    start, end = pos.amin(0), pos.amax(0)
    counts = ((end - start) / size).long() + 1
    strides = torch.cat([counts.new_ones(1), counts[:-1].cumprod(0)])
    return (((pos - start) / size).long() * strides).sum(1)


def segment_sums(x: Tensor, ends: Tensor) -> Tensor:
    lengths = torch.diff(ends.long(), prepend=ends.new_zeros(1).long())
    return torch.segment_reduce(x, "sum", lengths=lengths)


def grouped_works() -> Iterator[Work]:
    """Cells of a grid, and reductions of rows."""
    rng = np.random.default_rng(1)
    for size, count in {"1 K": 1_000, "30 K": 30_000, "1 M": 1_000_000}.items():
        pos = 30 * rng.random((count, 3), np.float32)
        names = ("pos", "size")
        yield Work(
            "GridCluster", size, {"pos": pos, "size": np.full(3, 0.5, np.float32)}, types={"T": "f32"},
            peers=(
                torch_peer("torch_cluster's formula", cells, *names),
                torch_peer("torch_cluster's formula", cells, *names, compiled=True),
            ),
        )  # fmt: skip
    for size, (rows, columns) in {"1 K x 1": (1_000, 1), "100 K x 16": (100_000, 16),
                                  "100 K x 64": (100_000, 64)}.items():  # fmt: skip
        x, outputs = rng.random((rows, columns), np.float32), rows // 10
        ends = np.append(np.sort(rng.integers(0, rows, outputs - 1)), rows).astype(np.int32)
        yield Work(
            "SegmentReduce", f"{size}, {outputs} segments", {"x": x, "ends": ends}, types={"T": "f32"},
            peers=(torch_peer("torch.segment_reduce", segment_sums, "x", "ends"),),
        )  # fmt: skip
        index = rng.integers(0, outputs, rows)
        zeros = torch.zeros(outputs, columns)
        yield Work(
            "ScatterReduce", f"{size} to {outputs} rows",
            {"x": x, "index": index, "dim_size": np.array(outputs)}, types={"T": "f32"},
            peers=(
                torch_peer("torch.index_add", lambda x, index, zeros=zeros: zeros.index_add(0, index, x), "x", "index"),
            ),
        )  # fmt: skip


def works() -> Iterator[Work]:
    yield from grouped_works()
    rng = np.random.default_rng(0)
    for size, count in {"300": 300, "8 K": 8_000, "100 K": 100_000}.items():
        xyz = rng.random((count, 3), np.float32)
        peers = [kd_tree("pykdtree.kdtree", "KDTree", "pykdtree"), kd_tree("scipy.spatial", "cKDTree", "scipy")]
        if count < 10_000:
            peers.append(torch_peer("torch.cdist and topk", nearest, "xyz"))
        inputs = {"xyz": xyz, "offset": np.array([count], np.int32)}
        # The decomposition forms all distances.
        few = count < 10_000
        yield Work("KNNQuery", size, inputs, tuple(peers), {"nsample": NEIGHBOURS}, decomposed=few)
    for size, count in {"1 K": 1_000, "30 K": 30_000, "1 M": 1_000_000}.items():
        points = 30 * rng.random((count, 4), np.float32)
        yield Work(
            "Voxelize", size, {"points": points, "size": np.full(3, 0.5, np.float32)},
            (torch_peer("torch.unique and index_add", voxels, "points", "size"),),
        )  # fmt: skip
        names = ("points", "coords", "size")
        numbers = np.floor(points[:, :3] / np.float32(0.5)).astype(np.int64)
        numbers = np.unique(numbers @ [1, 1 << 20, 1 << 40])[:, None] >> [0, 20, 40] & (1 << 20) - 1
        inputs = {
            "points": points[:, :3].copy(),
            "coords": numbers.astype(np.int32),
            "size": np.full(3, 0.5, np.float32),
        }
        yield Work(
            "VoxelOfPoint", size, inputs,
            (torch_peer("torch.searchsorted", rows_of_points, *names),
             torch_peer("torch.searchsorted", rows_of_points, *names, compiled=True)),
        )  # fmt: skip
