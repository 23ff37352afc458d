"""Activations and other elementwise ops."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

from benchmarks.op_works import Array, Work, onnx_peer, torch_peer

SIZES = {"1 K": 1 << 10, "64 K": 1 << 16, "16 M": 1 << 24}
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def numbers(count: int, dtype: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count, np.float32).astype(DTYPES[dtype])


def works() -> Iterator[Work]:
    for size, count in SIZES.items():
        for dtype in DTYPES:
            label, types = f"{size} {dtype}", {"T": dtype}
            x, other = numbers(count, dtype), numbers(count, dtype, 1)
            # ONNX Runtime's CPU provider has few operators for 16-bit types.
            own = dtype == "f32"
            yield Work(
                "Mish", label, {"x": x}, types=types,
                peers=(
                    torch_peer("F.mish", functional.mish, "x"),
                    torch_peer("F.mish", functional.mish, "x", compiled=True),
                    *([onnx_peer("Mish", "x")] if own else []),
                ),
            )  # fmt: skip
            yield Work(
                "LeakyRelu", label, {"x": x}, types=types,
                peers=(
                    torch_peer("F.leaky_relu", functional.leaky_relu, "x"),
                    torch_peer("F.leaky_relu", functional.leaky_relu, "x", compiled=True),
                    *([onnx_peer("LeakyRelu", "x", alpha=0.01)] if dtype != "bf16" else []),
                ),
            )  # fmt: skip
            yield Work(
                "MishBackward", label, {"grad_y": other, "x": x}, types=types,
                peers=(torch_peer("aten.mish_backward", torch.ops.aten.mish_backward, "grad_y", "x"),),
            )  # fmt: skip
            yield Work(
                "MyAdd", label, {"a": x, "b": other}, types=types,
                peers=(torch_peer("torch.add", lambda a, b: torch.add(b, a, alpha=2), "a", "b"),),
            )  # fmt: skip
