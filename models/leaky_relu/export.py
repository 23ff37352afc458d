"""Exports LeakyRelu with alpha 0.1."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import opgate.torch
from models.exporting import export_module


class LeakyRelu(nn.Module):
    """x f32 (n, m) -> y f32 (n, m)."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = opgate.torch.leaky_relu(x, alpha=0.1)
        return y


def export(repository: Path) -> Path:
    """Writes leaky_relu/1/model.onnx and returns its path."""
    path = repository / "leaky_relu" / "1" / "model.onnx"
    export_module(LeakyRelu(), {"x": torch.randn(2, 3)}, {"x": {0: "n", 1: "m"}}, {"y": ("n", "m")}, path)
    return path
