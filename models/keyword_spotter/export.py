"""Exports the trained network as the ONNX file in the model repository."""

from __future__ import annotations

from pathlib import Path

import torch

from models.exporting import export_module
from models.keyword_spotter.network import TOP, KeywordSpotter
from models.keyword_spotter.train import load


def export(weights: Path, repository: Path) -> Path:
    """Writes `<repository>/keyword_spotter/1/model.onnx`. Returns the path."""
    path = repository / "keyword_spotter" / "1" / "model.onnx"
    inputs = {"data": torch.zeros(100, dtype=torch.uint8), "ends": torch.tensor([30, 50, 100], dtype=torch.int32)}
    outputs = {"labels": ("n", TOP), "scores": ("n", TOP), "count": ("n",), "status": ("n",)}
    export_module(KeywordSpotter(load(weights)), inputs, {"data": {0: "total"}, "ends": {0: "n"}}, outputs, path)
    return path
