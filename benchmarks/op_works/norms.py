"""Normalizations of rows and groups, and rotations of heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.op_works import Array, Work, onnx_peer, torch_peer
from benchmarks.op_works.elementwise import DTYPES

SIZES = {"16 x 256": (16, 256), "512 x 1024": (512, 1024), "8192 x 4096": (8192, 4096)}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def added_rms_norm(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def layer_norm_backward(grad_y: Tensor, sum: Tensor, weight: Tensor) -> object:
    """As in training: the mean and the deviation are those of the forward pass."""
    mean = sum.mean(-1, keepdim=True)
    scale = (sum.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
    return torch.ops.aten.native_layer_norm_backward(
        grad_y, sum, weight.shape, mean, scale, weight, None, [True, True, False]
    )


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 32, weight, bias, 1e-5)


def rotate(x: Tensor, cos_cache: Tensor, sin_cache: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = cos_cache[:, None], sin_cache[:, None]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def other_works() -> Iterator[Work]:
    """The other norms, and RotaryEmbedding."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, np.float32)

    types = {"T": "f32"}
    for size, (rows, columns) in SIZES.items():
        x, weight, bias = normal(rows, columns), normal(columns), normal(columns)
        yield Work(
            "LayerNorm", f"{size} f32", {"x": x, "weight": weight, "bias": bias}, types=types, required_only=True,
            peers=(
                torch_peer("F.layer_norm", layer_norm, "x", "weight", "bias"),
                torch_peer("F.layer_norm", layer_norm, "x", "weight", "bias", compiled=True),
                onnx_peer("LayerNormalization", "x", "weight", "bias", axis=-1, epsilon=1e-5),
            ),
        )  # fmt: skip
        yield Work(
            "LayerNormBackward", f"{size} f32", {"grad_y": normal(rows, columns), "sum": x, "weight": weight},
            types=types,
            peers=(
                torch_peer("native_layer_norm_backward", layer_norm_backward, "grad_y", "sum", "weight"),
                torch_peer("native_layer_norm_backward", layer_norm_backward, "grad_y", "sum", "weight", compiled=True),
            ),
        )  # fmt: skip
    for size, shape in {"1 x 64 x 8 x 8": (1, 64, 8, 8), "1 x 256 x 32 x 32": (1, 256, 32, 32),
                        "8 x 320 x 64 x 64": (8, 320, 64, 64)}.items():  # fmt: skip
        yield Work(
            "GroupNorm", f"{size} f32", {"x": normal(*shape), "weight": normal(shape[1]), "bias": normal(shape[1])},
            types=types, attributes={"groups": 32}, required_only=True,
            peers=(
                torch_peer("F.group_norm", group_norm, "x", "weight", "bias"),
                torch_peer("F.group_norm", group_norm, "x", "weight", "bias", compiled=True),
                onnx_peer("GroupNormalization", "x", "weight", "bias", opset=21, num_groups=32, epsilon=1e-5),
            ),
        )  # fmt: skip
    for size, (heads, tokens) in {"8 heads, 16 tokens": (8, 16), "32 heads, 128 tokens": (32, 128),
                                  "32 heads, 4096 tokens": (32, 4096)}.items():  # fmt: skip
        angles = rng.uniform(-4, 4, (1, tokens, 64)).astype(np.float32)
        caches = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
        names = ("x", "cos_cache", "sin_cache")
        yield Work(
            "RotaryEmbedding", f"{size} f32", {"x": normal(1, heads, tokens, 128)} | caches, types=types,
            peers=(
                torch_peer("chunk, products and cat", rotate, *names),
                torch_peer("chunk, products and cat", rotate, *names, compiled=True),
                onnx_peer("RotaryEmbedding", *names, opset=23),
            ),
        )  # fmt: skip


def works() -> Iterator[Work]:
    yield from other_works()
    rng = np.random.default_rng(0)
    for size, (rows, columns) in SIZES.items():
        for dtype in ("f32", "f16"):
            x, residual = (rng.standard_normal((rows, columns), np.float32).astype(DTYPES[dtype]) for _ in range(2))
            weight = rng.standard_normal(columns, np.float32).astype(DTYPES[dtype])
            yield Work(
                "RMSNorm", f"{size} {dtype}", {"x": x, "weight": weight}, types={"T": dtype}, required_only=True,
                peers=(
                    torch_peer("F.rms_norm", rms_norm, "x", "weight"),
                    torch_peer("F.rms_norm", rms_norm, "x", "weight", compiled=True),
                    onnx_peer("RMSNormalization", "x", "weight", opset=23, axis=-1, epsilon=1e-5),
                ),
            )  # fmt: skip
            yield Work(
                "RMSNorm", f"{size} {dtype} with residual", {"x": x, "weight": weight, "residual": residual},
                types={"T": dtype},
                peers=(
                    torch_peer("add and F.rms_norm", added_rms_norm, "x", "weight", "residual"),
                    torch_peer("add and F.rms_norm", added_rms_norm, "x", "weight", "residual", compiled=True),
                ),
            )  # fmt: skip
