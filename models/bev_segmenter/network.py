"""The network: pictures to features and distances, these to the map, and the map to what is occupied."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import torch
from torch import Tensor, nn

import opgate.torch
from models.bev_segmenter.rig import CAMERAS, CELLS, HEIGHT, WIDTH, cell_of, origin, rays

STRIDE = 4
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
FEATURES = 24
DISTANCES = np.arange(1.0, 11.5, 0.5)
"""How far in front of a camera a point may be, in metres."""


class View(StrEnum):
    """How features come onto the map: by the op, or what stands in its place to see what it is worth."""

    splat = "splat"
    """BevPoolV2, where the cameras' geometry says."""
    learned = "learned"
    """A learned matrix from the places in each picture to the cells of the map."""


class Splat(nn.Module):
    """features (b * 4, 24, h, w), distances (b * 4, d, h, w) -> map (b, 24, 32, 32)."""

    ranks: Tensor
    cells: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Each point of a picture at each distance: depth (4, d, h, w), feat (4, h, w).
        place = origin() + rays(ROWS, COLUMNS)[:, None] * DISTANCES[None, :, None, None, None]
        cell = cell_of(place[..., 0], place[..., 1])
        rank = np.flatnonzero((cell >= 0) & (place[..., 2] > -0.5))
        rank = rank[np.argsort(cell.reshape(-1)[rank], kind="stable")]
        self.register_buffer("ranks", torch.from_numpy(rank), persistent=False)
        self.register_buffer("cells", torch.from_numpy(cell.reshape(-1)[rank]), persistent=False)

    def forward(self, features: Tensor, distances: Tensor) -> Tensor:
        depth = torch.softmax(distances, 1).unflatten(0, (-1, len(CAMERAS)))
        feat = features.permute(0, 2, 3, 1).unflatten(0, (-1, len(CAMERAS)))
        places, per_camera = ROWS * COLUMNS, len(DISTANCES) * ROWS * COLUMNS
        scenes = torch.cumsum(torch.ones_like(depth[:, 0, 0, 0, 0], dtype=torch.int64), 0)[:, None] - 1
        of_feat = self.ranks // per_camera * places + self.ranks % places
        ranks = [
            (of_scene + scenes * step).flatten().to(torch.int32)
            for of_scene, step in (
                (self.ranks, len(CAMERAS) * per_camera),
                (of_feat, len(CAMERAS) * places),
                (self.cells, CELLS * CELLS),
            )
        ]
        bev = opgate.torch.bev_pool_v2(depth.contiguous(), feat.contiguous(), *ranks, out_height=CELLS, out_width=CELLS)
        on_map: Tensor = bev[:, 0].permute(0, 3, 1, 2)
        return on_map


class Learned(nn.Module):
    """What stands in the place of Splat: each cell adds up all places of all pictures with learned weights."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(len(CAMERAS) * ROWS * COLUMNS, CELLS * CELLS)
        self.mix = nn.Conv2d(FEATURES + len(DISTANCES), FEATURES, 1)

    def forward(self, features: Tensor, distances: Tensor) -> Tensor:
        mixed = self.mix(torch.cat([features, torch.softmax(distances, 1)], 1)).flatten(2)
        across = mixed.unflatten(0, (-1, len(CAMERAS))).transpose(1, 2).flatten(2)
        on_map: Tensor = self.matrix(across).unflatten(2, (CELLS, CELLS))
        return on_map


def _block(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class BevNetwork(nn.Module):
    """pictures f32 (b, 4, 3, 32, 80) of 0..1 -> logits f32 (b, 32, 32)."""

    def __init__(self, view: View = View.splat) -> None:
        super().__init__()
        self.see = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _block(32, 48), _block(48, 48))
        self.lift = nn.Conv2d(48, FEATURES + len(DISTANCES), 1)
        self.view: nn.Module = Splat() if view is View.splat else Learned()
        self.norm = nn.BatchNorm2d(FEATURES)
        self.out = nn.Sequential(_block(FEATURES, 32), _block(32, 32), _block(32, 32), nn.Conv2d(32, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        lifted = self.lift(self.see(pictures.flatten(0, 1) - 0.5))
        features, distances = lifted.split([FEATURES, len(DISTANCES)], 1)
        logits: Tensor = self.out(self.norm(self.view(features, distances))).squeeze(1)
        return logits


class BevSegmenter(nn.Module):
    """The served model: four encoded pictures to the probability that a cell is occupied.

    For each camera data u8 (total,), ends i32 (n,) -> occupancy f32 (n, 32, 32), status i32 (n,).
    """

    def __init__(self, network: BevNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        front: Tensor,
        front_ends: Tensor,
        left: Tensor,
        left_ends: Tensor,
        back: Tensor,
        back_ends: Tensor,
        right: Tensor,
        right_ends: Tensor,
    ) -> tuple[Tensor, Tensor]:
        decoded = [
            opgate.torch.image_preprocess(data, ends, height=HEIGHT, width=WIDTH)
            for data, ends in ((front, front_ends), (left, left_ends), (back, back_ends), (right, right_ends))
        ]
        pictures = torch.stack([image for image, _, _ in decoded], 1)
        status = torch.stack([status for _, _, status in decoded], 1).amax(1)
        return torch.sigmoid(self.network(pictures)), status
