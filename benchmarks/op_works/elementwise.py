"""Activations and other elementwise ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.op_works import Array, Peer, Work, onnx_peer, torch_peer

SIZES = {"1 K": 1 << 10, "64 K": 1 << 16, "16 M": 1 << 24}
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
aten = torch.ops.aten


def numbers(count: int, dtype: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count, np.float32).astype(DTYPES[dtype])


@dataclass(frozen=True, slots=True)
class Activation:
    """An op, its inputs, and the function of torch that computes the same. `onnx` is ONNX's operator with its opset and
    attributes; ONNX Runtime's CPU provider has few of them for 16-bit types."""

    op: str
    function: Callable[..., object]
    inputs: tuple[str, ...] = ("x",)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    onnx: tuple[str, int, Mapping[str, Any]] | None = None
    onnx_dtypes: tuple[str, ...] = ("f32",)

    def peers(self, dtype: str) -> Iterator[Peer]:
        name = getattr(self.function, "__name__", str(self.function))
        yield torch_peer(name, self.function, *self.inputs)
        yield torch_peer(name, self.function, *self.inputs, compiled=True)
        if self.onnx and dtype in self.onnx_dtypes:
            op_type, opset, attributes = self.onnx
            yield onnx_peer(op_type, *self.inputs, opset=opset, **attributes)


def gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def twice_a_plus_b(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(b, a, alpha=2)


def focal_loss(x: Tensor, target: Tensor) -> Tensor:
    """The published formula, as torchvision has it."""
    p = torch.sigmoid(x)
    entropy = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    missed = p * (1 - target) + (1 - p) * target
    return (0.25 * target + 0.75 * (1 - target)) * entropy * missed**2


ACTIVATIONS = (
    Activation("Mish", functional.mish, onnx=("Mish", 18, {})),
    Activation("MishBackward", aten.mish_backward, ("grad_y", "x")),
    Activation("Swish", functional.silu),
    Activation("SwishBackward", aten.silu_backward, ("grad_y", "x")),
    Activation("Gelu", functional.gelu, onnx=("Gelu", 20, {})),
    Activation("Gelu", gelu_tanh, attributes={"approximate": "tanh"}, onnx=("Gelu", 20, {"approximate": "tanh"})),
    Activation("GeluBackward", aten.gelu_backward, ("grad_y", "x")),
    Activation("Asinh", torch.asinh, onnx=("Asinh", 18, {})),
    Activation("ClampedRelu", functional.relu6),
    Activation("LeakyRelu", functional.leaky_relu, onnx=("LeakyRelu", 18, {"alpha": 0.01}), onnx_dtypes=("f32", "f16")),
    Activation("MyAdd", twice_a_plus_b, ("a", "b")),
    Activation("SigmoidFocalLoss", focal_loss, ("x", "target")),
)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127)


def works() -> Iterator[Work]:
    for size, count in SIZES.items():
        for dtype, element in DTYPES.items():
            label, types = f"{size} {dtype}", {"T": dtype}
            arrays = [numbers(count, dtype), numbers(count, dtype, 1)]
            for one in ACTIVATIONS:
                inputs = dict(zip(one.inputs, arrays, strict=False))
                if "target" in inputs:
                    inputs["target"] = (arrays[1] > 0).astype(element)
                how = "".join(f", {value}" for value in one.attributes.values())
                yield Work(one.op, label + how, inputs, tuple(one.peers(dtype)), one.attributes, types)
        scale, zero_point = np.full(1, 0.05, np.float32), np.zeros(1, np.int32)
        yield Work(
            "FakeQuantize", f"{size} f32", {"x": numbers(count, "f32"), "scale": scale, "zero_point": zero_point},
            (torch_peer("fake_quantize_per_tensor_affine", fake_quantize, "x", "scale", "zero_point"),),
            types={"T": "f32"},
        )  # fmt: skip
