"""The tutorials' search for neighbours as a model: KNNQuery finds the three points nearest to each query.

`python -m models.knn` exports it from PyTorch into the model repository.
"""

from __future__ import annotations

from pathlib import Path

import torch
import typer
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


def main(repository: Path = Path("model_repository")) -> None:
    """Write knn/1/model.onnx to the model repository."""
    path = repository / "knn" / "1" / "model.onnx"
    inputs = {"xyz": torch.randn(9, 3), "queries": torch.randn(5, 3)}
    dims = {"xyz": {0: "n"}, "queries": {0: "m"}}
    export_module(Neighbours(), inputs, dims, {"idx": ("m", NEIGHBOURS), "dist": ("m", NEIGHBOURS)}, path)
    typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
