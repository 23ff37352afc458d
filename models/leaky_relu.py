"""The tutorials' activation as a model: y = LeakyRelu(x) with alpha 0.1, on rows of any length.

`python -m models.leaky_relu` exports it from PyTorch into the model repository.
"""

from __future__ import annotations

from pathlib import Path

import torch
import typer
from torch import Tensor, nn

import opgate.torch
from models.exporting import export_module


class LeakyRelu(nn.Module):
    """x f32 (n, m) -> y f32 (n, m)."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = opgate.torch.leaky_relu(x, alpha=0.1)
        return y


def main(repository: Path = Path("model_repository")) -> None:
    """Write leaky_relu/1/model.onnx to the model repository."""
    path = repository / "leaky_relu" / "1" / "model.onnx"
    export_module(LeakyRelu(), {"x": torch.randn(2, 3)}, {"x": {0: "n", 1: "m"}}, {"y": ("n", "m")}, path)
    typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
