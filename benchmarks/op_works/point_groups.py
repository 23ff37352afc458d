"""Groups of points, as PointNet++ forms them: samples, balls, and interpolation between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.op_works import Call, Inputs, Work, library_peer, torch_peer

NSAMPLE = 32


def trees(inputs: Inputs) -> Call:
    from scipy.spatial import cKDTree

    xyz, queries, radius = inputs["xyz"], inputs["new_xyz"], float(len(inputs["xyz"]) ** (-1 / 3) * 1.5)
    return lambda: cKDTree(xyz).query_ball_point(queries, radius, return_sorted=True)


def buckets(inputs: Inputs) -> Call:
    import fpsample

    xyz, count = inputs["xyz"], int(inputs["new_offset"][-1])
    return lambda: fpsample.bucket_fps_kdline_sampling(xyz, count, h=5, start_idx=0)


def farthest(inputs: Inputs) -> Call:
    import fpsample

    xyz, count = inputs["xyz"], int(inputs["new_offset"][-1])
    return lambda: fpsample.fps_sampling(xyz, count, start_idx=0)


def interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    return (features[idx] * weight[:, :, None]).sum(1)


def interpolate_backward(grad_y: Tensor, features: Tensor, idx: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    spread = grad_y[:, None] * weight[:, :, None]
    grad_features = torch.zeros_like(features).index_add_(0, idx.flatten(), spread.flatten(0, 1))
    return grad_features, (grad_y[:, None] * features[idx]).sum(-1)


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    clouds = {"1 K, 256 balls": (1024, 256), "16 K, 4 K balls": (16_384, 4096), "100 K, 20 K balls": (100_000, 20_000)}
    for size, (n, m) in clouds.items():
        xyz = rng.random((n, 3), np.float32)
        ends = {"offset": np.array([n], np.int32), "new_offset": np.array([m], np.int32)}
        balls = {"xyz": xyz, **ends, "new_xyz": xyz[rng.permutation(n)[:m]]}
        yield Work(
            "BallQuery", size, balls, (library_peer("scipy cKDTree, its build included", "scipy", trees),),
            {"nsample": NSAMPLE, "max_radius": float(n ** (-1 / 3) * 1.5)},
        )  # fmt: skip
        peers = [library_peer("fpsample's QuickFPS", "fpsample", buckets)]
        if n < 100_000:
            peers.append(library_peer("fpsample's plain sampling", "fpsample", farthest))
        yield Work("FarthestPointSample", size.replace("balls", "samples"), {"xyz": xyz, **ends}, tuple(peers))
    for size, n, m, c in [("256 x 64", 64, 256, 64), ("4 K x 256", 1024, 4096, 256), ("16 K x 256", 4096, 16_384, 256)]:
        weight = rng.random((m, 3), np.float32)
        inputs = {
            "features": rng.standard_normal((n, c), np.float32),
            "idx": rng.integers(0, n, (m, 3)).astype(np.int32),
            "weight": weight / weight.sum(1, keepdims=True),
        }
        peers = [torch_peer("torch, rows times weights", interpolate, *inputs, compiled=c) for c in (False, True)]
        yield Work("ThreeInterpolate", size, inputs, tuple(peers))
        inputs = {"grad_y": rng.standard_normal((m, c), np.float32), **inputs}
        peers = [torch_peer("torch.index_add", interpolate_backward, *inputs, compiled=c) for c in (False, True)]
        yield Work("ThreeInterpolateBackward", size, inputs, tuple(peers))
