"""Exports the trained network as the ONNX files in the model repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

from models.digit_detector.graphs import all_graphs
from models.digit_detector.network import DigitNetwork


def load_network(weights: Path) -> DigitNetwork:
    """Returns the network with its trained weights, in evaluation mode."""
    network = DigitNetwork()
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network.eval()


def export_all(weights: Path, repository: Path) -> Iterator[Path]:
    """Writes `<repository>/<model>/1/model.onnx` for every model that has a graph. Yields the paths."""
    for name, model in all_graphs(load_network(weights)).items():
        path = repository / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        yield path
