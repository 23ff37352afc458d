"""Normalizations of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor
from torch.nn import functional

from benchmarks.op_works import Work, onnx_peer, torch_peer
from benchmarks.op_works.elementwise import DTYPES

SIZES = {"16 x 256": (16, 256), "512 x 1024": (512, 1024), "8192 x 4096": (8192, 4096)}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def added_rms_norm(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight), total


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for size, (rows, columns) in SIZES.items():
        for dtype in ("f32", "f16"):
            x, residual = (rng.standard_normal((rows, columns), np.float32).astype(DTYPES[dtype]) for _ in range(2))
            weight = rng.standard_normal(columns, np.float32).astype(DTYPES[dtype])
            yield Work(
                "RMSNorm", f"{size} {dtype}", {"x": x, "weight": weight}, types={"T": dtype},
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
