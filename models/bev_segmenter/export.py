"""Exports the trained network as the ONNX file in the model repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.bev_segmenter.files import png
from models.bev_segmenter.network import BevSegmenter
from models.bev_segmenter.rig import CAMERAS, CELLS
from models.bev_segmenter.scenes import held_out_scenes
from models.bev_segmenter.train import load
from models.exporting import export_module


def export(weights: Path, repository: Path) -> Path:
    """Writes `<repository>/bev_segmenter/1/model.onnx`. Returns the path."""
    path = repository / "bev_segmenter" / "1" / "model.onnx"
    streets = held_out_scenes(3)
    inputs: dict[str, Tensor] = {}
    dynamic: dict[str, dict[int, str]] = {}
    for camera, name in enumerate(CAMERAS):
        files = [png(street.pictures[camera]) for street in streets]
        inputs[name] = torch.from_numpy(np.frombuffer(b"".join(files), np.uint8).copy())
        inputs[f"{name}_ends"] = torch.from_numpy(np.cumsum([len(file) for file in files]).astype(np.int32))
        dynamic |= {name: {0: f"{name}_total"}, f"{name}_ends": {0: "n"}}
    outputs = {"occupancy": ("n", CELLS, CELLS), "status": ("n",)}
    export_module(BevSegmenter(load(weights)), inputs, dynamic, outputs, path)
    return path
