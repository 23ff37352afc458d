"""Bird's-eye views, deformable attention and deformable convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.op_works import Call, Inputs, Peer, Work, onnx_peer
from opgate.ops_build.ops.bev_pool_v2.cases import view, with_intervals
from opgate.ops_build.ops.bev_pool_v2_backward.cases import of as of_bev_pool
from opgate.ops_build.ops.deform_conv2d.cases import conv
from opgate.ops_build.ops.deform_conv2d_backward.cases import of as of_deform_conv
from opgate.ops_build.ops.multi_scale_deformable_attention.cases import attention
from opgate.ops_build.ops.multi_scale_deformable_attention_backward.cases import of as of_attention

F32 = np.dtype(np.float32)
TYPES = {"T": F32, "I": np.dtype(np.int64)}


def pooled(inputs: Mapping[str, Tensor], cells: int) -> Tensor:
    """What BEVDet's bev_pool_v2 gives, with index_add: [cells, c]."""
    depth = inputs["depth"].flatten()[inputs["ranks_depth"].long(), None]
    terms = depth * inputs["feat"].flatten(0, 3)[inputs["ranks_feat"].long()]
    return torch.zeros(cells, terms.shape[1], dtype=terms.dtype).index_add(0, inputs["ranks_bev"].long(), terms)


def attended(inputs: Mapping[str, Tensor], shapes: list[tuple[int, int]]) -> Tensor:
    """Multi-scale deformable attention from grid_sample, one level after the other."""
    value, locations, weights = (inputs[k] for k in ("value", "sampling_locations", "attention_weights"))
    b, _, heads, dims = value.shape
    queries, points, outputs = locations.shape[1], locations.shape[4], []
    for level, part in enumerate(value.split([height * width for height, width in shapes], dim=1)):
        maps = part.permute(0, 2, 3, 1).reshape(b * heads, dims, *shapes[level])
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).reshape(b * heads, queries, points, 2)
        outputs.append(functional.grid_sample(maps, grid, align_corners=False))
    flat = weights.transpose(1, 2).reshape(b * heads, 1, queries, -1)
    total = (torch.cat(outputs, -1) * flat).sum(-1)
    return total.reshape(b, heads * dims, queries).transpose(1, 2)


def deform_conv(attributes: Mapping[str, int], inputs: Mapping[str, Tensor]) -> Tensor:
    """The deformable convolution from grid_sample, one element of a filter after the other."""
    picture, weight, offset, mask = (inputs.get(name) for name in ("input", "weight", "offset", "mask"))
    assert picture is not None and weight is not None and offset is not None
    (n, c, h, w), (oc, cg, kh, kw), (oh, ow) = picture.shape, weight.shape, offset.shape[2:]
    offsets = offset.reshape(n, -1, kh * kw, 2, oh, ow)
    maps = picture.reshape(n, offsets.shape[1], -1, h, w).flatten(0, 1)
    rows, columns = torch.meshgrid(torch.arange(oh), torch.arange(ow), indexing="ij")
    samples = []
    for tap in range(kh * kw):
        y = rows * attributes["stride_h"] - attributes["pad_h"] + tap // kw * attributes["dilation_h"]
        x = columns * attributes["stride_w"] - attributes["pad_w"] + tap % kw * attributes["dilation_w"]
        y, x = y + offsets[:, :, tap, 0], x + offsets[:, :, tap, 1]
        grid = torch.stack([(2 * x + 1) / w - 1, (2 * y + 1) / h - 1], dim=-1).flatten(0, 1)
        sampled = functional.grid_sample(maps, grid, align_corners=False)
        if mask is not None:
            sampled = sampled * mask.reshape(n, -1, kh * kw, oh, ow)[:, :, tap].flatten(0, 1)[:, None]
        samples.append(sampled.reshape(n, c // cg, cg, oh, ow))
    filters = weight.reshape(c // cg, -1, cg, kh * kw)
    output = torch.einsum("tngcij,goct->ngoij", torch.stack(samples), filters).reshape(n, oc, oh, ow)
    return output if inputs.get("bias") is None else output + inputs["bias"][:, None, None]


def torch_decomposition(name: str, function: Callable[[Mapping[str, Tensor]], Tensor]) -> Peer:
    def make(inputs: Inputs) -> Call:
        return lambda: function(inputs)

    return Peer(name, "torch", "torch", make)


def gradient_peer(name: str, function: Callable[[Mapping[str, Tensor]], Tensor], upstream: str, *names: str) -> Peer:
    """Returns a peer: torch's gradient of `function` for the named inputs."""

    def make(inputs: Inputs) -> Call:
        with torch.inference_mode(False):  # a graph has no tensors that were made for inference
            own = {key: tensor.clone() for key, tensor in inputs.items() if tensor is not None}
            given = [own[key].requires_grad_() for key in names]
            output = function(own)
            grad = own[upstream].reshape(output.shape)

        def call() -> object:
            with torch.inference_mode(False):
                return torch.autograd.grad(output, given, grad, retain_graph=True)

        return call

    return Peer(f"autograd of {name}", "torch", "torch", make)


def works() -> Iterator[Work]:
    yield from bev_pool_works()
    yield from attention_works()
    for size, c, side in [("16 channels, 16 x 16", 16, 16), ("64, 64 x 64", 64, 64), ("256, 28 x 28", 256, 28)]:
        inputs, attributes = conv(F32, n=1, c=c, oc=c, size=(side, side))
        flops = 2 * inputs["weight"].size * side * side
        names = ("input", "weight", "offset", "bias", "mask")
        peer = onnx_peer("DeformConv", *names, opset=19, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        yield Work("DeformConv2d", size, inputs, (peer,), attributes, {"T": "f32"}, flops=flops)
        backward = gradient_peer("F.grid_sample", partial(deform_conv, attributes), "grad_output", *names[:3], "mask")
        given = of_deform_conv(inputs)
        yield Work("DeformConv2dBackward", size, given, (backward,), attributes, {"T": "f32"}, flops=2 * flops)


def bev_pool_works() -> Iterator[Work]:
    for size, points, cameras, cells in [
        ("2 K points", 2_000, (1, 2, 20, 8, 22), 32),
        ("150 K points", 150_000, (1, 6, 59, 16, 44), 128),
        ("500 K points", 500_000, (2, 6, 59, 32, 44), 200),
    ]:
        inputs, attributes = view(F32, points, cameras=cameras, c=64, grid=(1, cells, cells))
        count = cameras[0] * cells * cells

        pool = partial(pooled, cells=count)
        peer = torch_decomposition("index_add", pool)
        given = with_intervals(inputs)
        yield Work("BevPoolV2", size, given, (peer,), attributes, {"T": "f32"}, flops=2 * 64 * points)
        backward = gradient_peer("index_add", pool, "grad_bev", "depth", "feat")
        yield Work(
            "BevPoolV2Backward", size, of_bev_pool(given, attributes), (backward,), types={"T": "f32"},
            flops=4 * 64 * points,
        )  # fmt: skip


def attention_works() -> Iterator[Work]:
    detr = [(100, 134), (50, 67), (25, 34), (13, 17)]
    for size, shapes, queries in [
        ("100 queries, two levels", detr[2:], 100),
        ("300 queries", detr, 300),
        ("4,300 queries", detr, 4_300),
    ]:
        inputs = attention(TYPES, shapes, b=1, heads=8, dims=32, queries=queries, points=4)
        flops = 8 * 32 * inputs["attention_weights"].size

        attend = partial(attended, shapes=shapes)
        types = {"T": "f32", "I": "i64"}
        peer = torch_decomposition("F.grid_sample", attend)
        yield Work("MultiScaleDeformableAttention", size, inputs, (peer,), types=types, flops=flops)
        names = ("value", "sampling_locations", "attention_weights")
        backward = gradient_peer("F.grid_sample", attend, "grad_output", *names)
        yield Work(
            "MultiScaleDeformableAttentionBackward", size, of_attention(inputs), (backward,), types=types,
            flops=2 * flops,
        )  # fmt: skip
