"""The training loss: binary cross-entropy and CIoU (Zheng et al. 2020) over task-aligned anchors (Feng et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.digit_detector.network import STRIDES, cell_centres

_SCORE_POWER = 0.5
_IOU_POWER = 4.0
_ANCHORS_PER_BOX = 9
_BOX_WEIGHT = 2.5


@dataclass(frozen=True, slots=True)
class Truth:
    """The objects in n scenes, padded to m each: boxes f32 (n, m, 4) xyxy, labels i64 (n, m), real bool (n, m).

    `real` is False for the padding.
    """

    boxes: Tensor
    labels: Tensor
    real: Tensor


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of each anchor: chosen bool (n, a), boxes f32 (n, a, 4), scores f32 (n, a, classes)."""

    chosen: Tensor
    boxes: Tensor
    scores: Tensor


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns the intersection over union of boxes xyxy, broadcast over the leading dims."""
    top_left = torch.maximum(a[..., :2], b[..., :2])
    bottom_right = torch.minimum(a[..., 2:], b[..., 2:])
    common = (bottom_right - top_left).clamp(min=0).prod(-1)
    areas = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    return common / (areas - common).clamp(min=1e-6)


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns the CIoU of boxes f32 (k, 4) xyxy, pair by pair: IoU less the distance of the centres and the difference
    in aspect."""
    iou = pairwise_iou(a, b)
    size_a, size_b = (a[:, 2:] - a[:, :2]).clamp(min=1e-3), (b[:, 2:] - b[:, :2]).clamp(min=1e-3)
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    distance = ((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2).square().sum(1)
    turn = torch.atan(size_a[:, 0] / size_a[:, 1]) - torch.atan(size_b[:, 0] / size_b[:, 1])
    aspect = 4 / math.pi**2 * turn.square()
    weight = (aspect / (1 - iou + aspect).clamp(min=1e-6)).detach()
    return iou - distance / hull.square().sum(1).clamp(min=1e-6) - weight * aspect


@torch.no_grad()
def assign(boxes: Tensor, logits: Tensor, centres: Tensor, truth: Truth) -> Targets:
    """Assigns to each object the anchors inside its box that predict its class and its box best so far."""
    count, objects = truth.labels.shape
    anchors = centres.shape[0]
    iou = pairwise_iou(truth.boxes[:, :, None], boxes[:, None])
    labels = truth.labels[:, :, None].expand(-1, -1, anchors)
    scores = logits.sigmoid().transpose(1, 2).gather(1, labels)
    margin = torch.cat([centres - truth.boxes[:, :, None, :2], truth.boxes[:, :, None, 2:] - centres], -1)
    inside = (margin.amin(-1) > 0) & truth.real[:, :, None]
    alignment = scores.pow(_SCORE_POWER) * iou.pow(_IOU_POWER) * inside
    best = alignment.topk(_ANCHORS_PER_BOX, -1)
    candidate = torch.zeros_like(inside).scatter_(-1, best.indices, best.values > 1e-9)
    owner = (iou * candidate).argmax(1)
    chosen = candidate.any(1)
    candidate &= torch.nn.functional.one_hot(owner, objects).transpose(1, 2).bool()
    alignment = alignment * candidate
    scale = (iou * candidate).amax(-1, keepdim=True) / alignment.amax(-1, keepdim=True).clamp(min=1e-9)
    quality = (alignment * scale).amax(1)
    rows = torch.arange(count)[:, None]
    target = torch.zeros_like(logits)
    target.scatter_(-1, truth.labels[rows, owner][..., None], quality[..., None])
    return Targets(chosen, truth.boxes[rows, owner], target * chosen[..., None])


class DetectionLoss(nn.Module):
    """The loss of the predictions for square pictures of `size` pixels."""

    centres: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        maps = [cell_centres(size // stride, size // stride, stride) for stride in STRIDES]
        self.register_buffer("centres", torch.cat(maps))

    def forward(self, boxes: Tensor, logits: Tensor, truth: Truth) -> Tensor:
        """boxes f32 (n, a, 4), logits f32 (n, a, classes) -> a scalar: summed loss divided by summed target scores."""
        targets = assign(boxes, logits, self.centres, truth)
        total = targets.scores.sum().clamp(min=1)
        classes = nn.functional.binary_cross_entropy_with_logits(logits, targets.scores, reduction="sum")
        weight = targets.scores.sum(-1)[targets.chosen]
        overlap = complete_iou(boxes[targets.chosen], targets.boxes[targets.chosen])
        return (classes + _BOX_WEIGHT * (weight * (1 - overlap)).sum()) / total
