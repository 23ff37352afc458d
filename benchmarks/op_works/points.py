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


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for size, count in {"300": 300, "8 K": 8_000, "100 K": 100_000}.items():
        xyz = rng.random((count, 3), np.float32)
        peers = [kd_tree("pykdtree.kdtree", "KDTree", "pykdtree"), kd_tree("scipy.spatial", "cKDTree", "scipy")]
        if count < 10_000:
            peers.append(torch_peer("torch.cdist and topk", nearest, "xyz"))
        yield Work(
            "KNNQuery", size, {"xyz": xyz, "offset": np.array([count], np.int32)}, tuple(peers), {"nsample": NEIGHBOURS}
        )
    for size, count in {"1 K": 1_000, "30 K": 30_000, "1 M": 1_000_000}.items():
        points = 30 * rng.random((count, 4), np.float32)
        yield Work(
            "Voxelize", size, {"points": points, "size": np.full(3, 0.5, np.float32)},
            (torch_peer("torch.unique and index_add", voxels, "points", "size"),),
        )  # fmt: skip
