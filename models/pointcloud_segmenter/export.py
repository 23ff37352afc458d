"""Exports the trained network as the ONNX file in the model repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from models.exporting import export_module
from models.pointcloud_segmenter.files import npy
from models.pointcloud_segmenter.network import MAX_POINTS, PointCloudSegmenter
from models.pointcloud_segmenter.scenes import held_out_scenes
from models.pointcloud_segmenter.train import load


def export(weights: Path, repository: Path) -> Path:
    """Writes `<repository>/pointcloud_segmenter/1/model.onnx`. Returns the path."""
    path = repository / "pointcloud_segmenter" / "1" / "model.onnx"
    files = [npy(scene) for scene in held_out_scenes(3)]
    ends = np.cumsum([len(file) for file in files]).astype(np.int32)
    data = np.frombuffer(b"".join(files), np.uint8).copy()
    inputs = {"data": torch.from_numpy(data), "ends": torch.from_numpy(ends)}
    outputs = {"labels": ("n", MAX_POINTS), "scores": ("n", MAX_POINTS), "count": ("n",), "status": ("n",)}
    dynamic = {"data": {0: "total"}, "ends": {0: "n"}}
    export_module(PointCloudSegmenter(load(weights)), inputs, dynamic, outputs, path)
    return path
