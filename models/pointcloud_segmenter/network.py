"""The network: attention between neighbours, on points that become fewer and then as many again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

import opgate.torch
from models.pointcloud_segmenter.scenes import LABELS

MAX_POINTS = 4096
NEIGHBOURS = 12
PILLAR = 0.5
"""The sides of a pillar in metres."""
PILLARS = 64
"""Pillars on each side of a room. A room has its middle in the middle of them."""


class Context(StrEnum):
    """What a point knows of others: its neighbours by the ops, or what stands in their place as a comparison."""

    neighbours = "neighbours"
    """KNNQuery, FarthestPointSample and GridCluster."""
    room = "room"
    """Only the maximum over all points of the room, as in PointNet."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """Points of several rooms: xyz f32 (n, 3), the room of each i64 (n,), and the ends of the rooms i32 (b,)."""

    xyz: Tensor
    room: Tensor
    offset: Tensor


def cloud_of(xyz: Tensor, offset: Tensor) -> Cloud:
    rows = torch.arange(xyz.shape[0], device=xyz.device, dtype=torch.int32)
    return Cloud(xyz, (rows[:, None] >= offset[None, :]).sum(1), offset)


def levelled(cloud: Cloud) -> Cloud:
    """Moves the middle of each room to the origin, and its lowest point to the height 0."""
    middle = opgate.torch.segment_reduce(cloud.xyz, cloud.offset, reduce="mean")
    lowest = opgate.torch.segment_reduce(cloud.xyz, cloud.offset, reduce="min")
    origin = torch.cat([middle[:, :2], lowest[:, 2:]], 1)
    return Cloud(cloud.xyz - origin[cloud.room], cloud.room, cloud.offset)


def sampled(cloud: Cloud) -> tuple[Cloud, Tensor]:
    """Returns a quarter of the points of each room, and their rows."""
    ends = cloud.offset
    sizes = torch.diff(ends, prepend=torch.zeros_like(ends[:1]))
    new_ends = torch.cumsum(torch.div(sizes + 3, 4, rounding_mode="floor"), 0, dtype=torch.int32)
    rows = opgate.torch.farthest_point_sample(cloud.xyz, ends, new_ends).to(torch.int64)
    return Cloud(cloud.xyz[rows], cloud.room[rows], new_ends), rows


class Attention(nn.Module):
    """A layer of a Point Transformer: each point adds up what its neighbours say, weighted channel by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(4, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.weight = nn.Sequential(nn.ReLU(), nn.Linear(channels, channels))
        self.out = nn.Sequential(nn.Linear(channels, channels), nn.LayerNorm(channels), nn.ReLU())

    def forward(self, x: Tensor, cloud: Cloud, idx: Tensor) -> Tensor:
        away = cloud.xyz[idx] - cloud.xyz[:, None]
        place = self.place(torch.cat([away, away.square().sum(2, keepdim=True)], 2) * 4)
        weights = torch.softmax(self.weight(self.query(x)[:, None] - self.key(x)[idx] + place), 1)
        added: Tensor = ((self.value(x)[idx] + place) * weights).sum(1)
        return x + self.out(added)


class OwnPoint(nn.Module):
    """What stands in the place of Attention: as many layers, and no neighbours."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels), nn.ReLU(),
            nn.Linear(channels, channels), nn.LayerNorm(channels), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class SegmentationNetwork(nn.Module):
    """xyz f32 (n, 3), offset i32 (b,) -> logits f32 (n, 7)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(3, 24), nn.LayerNorm(24), nn.ReLU())
        self.fine = Attention(24)
        self.down = nn.Sequential(nn.Linear(27, 48), nn.LayerNorm(48), nn.ReLU())
        self.coarse = nn.ModuleList([Attention(48), Attention(48)])
        self.pillar = nn.Sequential(nn.Linear(50, 48), nn.ReLU())
        self.out = nn.Sequential(nn.Linear(24 + 48 + 1, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, len(LABELS)))

    def forward(self, xyz: Tensor, offset: Tensor) -> Tensor:
        cloud = levelled(cloud_of(xyz, offset))
        idx = neighbours(cloud, cloud, NEIGHBOURS)
        x = self.fine(self.enter(_tilted(cloud.xyz)), cloud, idx)
        few, _ = sampled(cloud)
        around = neighbours(cloud, few, NEIGHBOURS)
        away = cloud.xyz[around] - few.xyz[:, None]
        y = self.down(torch.cat([x[around], away * 4], 2)).amax(1)
        idx = neighbours(few, few, NEIGHBOURS)
        for layer in self.coarse:
            y = layer(y, few, idx)
        y = y + self.pillar(_pillars(y, few))
        nearest, distance = opgate.torch.knn_query(few.xyz, few.offset, cloud.xyz, cloud.offset, nsample=3, fill=0)
        weights = 1 / (distance + 0.02)
        weights = weights / weights.sum(1, keepdim=True)
        up = (y[nearest.to(torch.int64)] * weights[:, :, None]).sum(1)
        logits: Tensor = self.out(torch.cat([x, up, cloud.xyz[:, 2:]], 1))
        return logits


class RoomNetwork(nn.Module):
    """What stands in the place of SegmentationNetwork: each point by itself, and the maximum over its room."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(3, 24), nn.LayerNorm(24), nn.ReLU())
        self.fine = OwnPoint(24)
        self.up = nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.ReLU())
        self.coarse = nn.Sequential(OwnPoint(48), OwnPoint(48))
        self.out = nn.Sequential(nn.Linear(24 + 96 + 1, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, len(LABELS)))

    def forward(self, xyz: Tensor, offset: Tensor) -> Tensor:
        cloud = levelled(cloud_of(xyz, offset))
        x = self.fine(self.enter(_tilted(cloud.xyz)))
        y = self.coarse(self.up(x))
        most = y.new_zeros(len(offset), y.shape[1]).index_reduce(0, cloud.room, y, "amax", include_self=False)
        logits: Tensor = self.out(torch.cat([x, y, most[cloud.room], cloud.xyz[:, 2:]], 1))
        return logits


def network_of(context: Context) -> nn.Module:
    return SegmentationNetwork() if context is Context.neighbours else RoomNetwork()


def neighbours(cloud: Cloud, queries: Cloud, count: int) -> Tensor:
    """Returns the rows of the nearest points of each query, i64 (m, count). In a small room some are the row 0."""
    if cloud is queries:
        idx, _ = opgate.torch.knn_query(cloud.xyz, cloud.offset, nsample=count, fill=-1)
    else:
        idx, _ = opgate.torch.knn_query(cloud.xyz, cloud.offset, queries.xyz, queries.offset, nsample=count, fill=-1)
    # A room with fewer points has its nearest ones several times.
    return torch.where(idx < 0, idx[:, :1], idx).to(torch.int64)


def _tilted(xyz: Tensor) -> Tensor:
    """Returns what a point says of itself: its height, and how far it is from the middle of the room."""
    across = xyz[:, :2].square().sum(1, keepdim=True).sqrt()
    return torch.cat([xyz[:, 2:], xyz[:, 2:].square(), across * 0.3], 1)


def _pillars(y: Tensor, cloud: Cloud) -> Tensor:
    """y f32 (n, c) -> the mean of its pillar, the mean height there and the height over it, f32 (n, c + 2)."""
    half = PILLAR * PILLARS / 2
    across = cloud.xyz[:, :2].clamp(-half, half - 0.001)
    place = torch.cat([across, cloud.room[:, None].to(across.dtype)], 1)
    start = torch.tensor([-half, -half, 0.0])
    size, end = torch.tensor([PILLAR, PILLAR, 1.0]), torch.tensor([half - 0.001, half - 0.001, 0.0])
    cell = opgate.torch.grid_cluster(place, size, start, end)
    values = torch.cat([y, cloud.xyz[:, 2:], torch.ones_like(y[:, :1])], 1)
    empty = torch.zeros_like(cloud.offset[:, None, None], dtype=y.dtype).repeat(1, PILLARS**2, values.shape[1])
    sums = empty.flatten(0, 1).index_add(0, cell, values)[cell]
    means = sums[:, :-1] / sums[:, -1:]
    return torch.cat([means, cloud.xyz[:, 2:] - means[:, -1:]], 1)


class PointCloudSegmenter(nn.Module):
    """The served model: PLY and NPY files to a label for each point.

    data u8 (total,), ends i32 (n,) -> labels i32 (n, 4096), scores f32 (n, 4096), count i32 (n,), status i32 (n,).
    Behind the `count` points of a row, the labels are -1 and the scores 0.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        xyz, offset, status = opgate.torch.decode_points(data, ends, max_points=MAX_POINTS)
        score, label = torch.softmax(self.network(xyz, offset), 1).max(1)
        cloud = cloud_of(xyz, offset)
        count = torch.diff(offset, prepend=torch.zeros_like(offset[:1]))
        first = (offset - count).to(torch.int64)
        column = torch.arange(xyz.shape[0]) - first[cloud.room]
        place = cloud.room * MAX_POINTS + column
        rows = torch.zeros_like(offset[:, None]).repeat(1, MAX_POINTS)
        labels = (rows - 1).flatten().index_copy(0, place, label.to(torch.int32)).reshape(-1, MAX_POINTS)
        scores = rows.to(torch.float32).flatten().index_copy(0, place, score).reshape(-1, MAX_POINTS)
        return labels, scores, count.to(torch.int32), status
