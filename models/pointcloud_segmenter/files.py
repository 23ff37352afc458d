"""Rooms as files, as clients send them."""

from __future__ import annotations

import io

import numpy as np

from models.pointcloud_segmenter.scenes import Scene


def npy(scene: Scene) -> bytes:
    """Returns the points as an NPY file."""
    file = io.BytesIO()
    np.save(file, scene.xyz)
    return file.getvalue()


def ply(scene: Scene, *, text: bool = False) -> bytes:
    """Returns the points as a PLY file."""
    kind = "ascii" if text else "binary_little_endian"
    head = f"ply\nformat {kind} 1.0\nelement vertex {len(scene.xyz)}\n"
    head += "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n"
    lines = "".join(f"{x:.4f} {y:.4f} {z:.4f}\n" for x, y, z in scene.xyz.tolist())
    return head.encode() + (lines.encode() if text else scene.xyz.astype("<f4").tobytes())
