"""The network: small, fully convolutional and anchor-free, with Mish activations and heads at strides 8 and 16."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from models.digit_detector.dataset import CLASSES

STRIDES = (8, 16)


class ConvNormMish(nn.Module):
    """Convolution without bias, batch normalization, Mish."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)
        self.act = nn.Mish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """f32 (n, channels_in, h, w) -> f32 (n, channels_out, ceil(h / stride), ceil(w / stride))."""
        y: Tensor = self.act(self.norm(self.conv(x)))
        return y


class Residual(nn.Module):
    """Two 3x3 convolutions through `inner` channels, whose output is added to the input."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce = ConvNormMish(channels, inner)
        self.expand = ConvNormMish(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        """f32 (n, channels, h, w) -> the same shape."""
        y: Tensor = x + self.expand(self.reduce(x))
        return y


class Head(nn.Module):
    """Computes the logarithms of four distances and the logits of the classes for each cell of a feature map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.box = ConvNormMish(channels, channels)
        self.box_out = nn.Conv2d(channels, 4, 1)
        self.label = ConvNormMish(channels, channels)
        self.label_out = nn.Conv2d(channels, CLASSES, 1)
        nn.init.constant_(self.label_out.bias, -math.log(99))  # type: ignore[arg-type]
        nn.init.constant_(self.box_out.bias, 0.5)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f32 (n, channels, h, w) -> f32 (n, 4, h, w) and f32 (n, 10, h, w)."""
        return self.box_out(self.box(x)), self.label_out(self.label(x))


class DigitNetwork(nn.Module):
    """Computes the boxes and class logits of every anchor from RGB pictures in 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNormMish(3, 16, stride=2)
        self.down4 = ConvNormMish(16, 24, stride=2)
        self.stage4 = Residual(24, 24)
        self.down8 = ConvNormMish(24, 48, stride=2)
        self.stage8 = nn.Sequential(Residual(48, 32), Residual(48, 32))
        self.down16 = ConvNormMish(48, 96, stride=2)
        self.stage16 = nn.Sequential(Residual(96, 48), Residual(96, 48))
        self.lateral = ConvNormMish(96, 48, kernel=1)
        self.fuse = ConvNormMish(96, 48, kernel=1)
        self.merge8 = Residual(48, 32)
        self.heads = nn.ModuleList([Head(48), Head(48)])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """f32 (n, 3, h, w), h and w multiples of 16, -> boxes f32 (n, a, 4) and logits f32 (n, a, 10).

        Boxes are x1, y1, x2, y2 in pixels of the input. The a anchors are the centres of the cells of the stride-8
        map, row by row, and then those of the stride-16 map.
        """
        map8 = self.stage8(self.down8(self.stage4(self.down4(self.stem(image)))))
        map16 = self.lateral(self.stage16(self.down16(map8)))
        upsampled = nn.functional.interpolate(map16, scale_factor=2.0, mode="nearest")
        map8 = self.merge8(self.fuse(torch.cat([map8, upsampled], 1)))
        boxes, logits = [], []
        for head, stride, features in zip(self.heads, STRIDES, (map8, map16), strict=True):
            distances, classes = head(features)
            reach = distances.flatten(2).transpose(1, 2).float().exp() * stride
            centres = cell_centres(features.shape[2], features.shape[3], stride).to(reach)
            boxes.append(torch.cat([centres - reach[..., :2], centres + reach[..., 2:]], -1))
            logits.append(classes.flatten(2).transpose(1, 2))
        return torch.cat(boxes, 1), torch.cat(logits, 1)


def cell_centres(rows: int, columns: int, stride: int) -> Tensor:
    """Returns f32 (rows * columns, 2): x and y, in input pixels, of the centre of each cell of a feature map, row by
    row."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride
