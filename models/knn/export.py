"""Exports KNNQuery, which finds the three points nearest to each query."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import opgate.torch
from models.exporting import export_module

NEIGHBOURS = 3


class Neighbours(nn.Module):
    """xyz f32 (n, 3), queries f32 (m, 3) -> idx i32 (m, 3), dist f32 (m, 3): one cloud, so there is one segment."""

    def forward(self, xyz: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        ends = [
            torch.ones_like(points[:, 0], dtype=torch.int32).sum(0, True, dtype=torch.int32)
            for points in (xyz, queries)
        ]
        idx, dist = opgate.torch.knn_query(xyz, ends[0], queries, ends[1], nsample=NEIGHBOURS)
        return idx, dist


def export(repository: Path) -> Path:
    """Writes knn/1/model.onnx and returns its path."""
    path = repository / "knn" / "1" / "model.onnx"
    inputs = {"xyz": torch.randn(9, 3), "queries": torch.randn(5, 3)}
    dims = {"xyz": {0: "n"}, "queries": {0: "m"}}
    export_module(Neighbours(), inputs, dims, {"idx": ("m", NEIGHBOURS), "dist": ("m", NEIGHBOURS)}, path)
    return path
