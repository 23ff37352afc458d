"""Times what a user would call instead of an op: functions of torch, torchvision and torch_cluster on CUDA."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opgate.ops_build.adapters.torch.engine import case_arguments
from opgate.ops_build.case import Case
from opgate.ops_build.gpu_check.events import Begun, Fact, Timed
from opgate.ops_build.gpu_check.items import Item, large_case
from opgate.ops_build.op_table import Op
from opgate.ops_build.verification.verify import types_label

#: The arguments of an op by name, with the defaults of the attributes. "host" has the inputs as arrays, for sizes that
#: a user knows without asking the device.
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """What a user would call instead of an op. `name` is what the page shows.

    `call` returns the outputs of the op. If it is not `exact`, it computes something alike: another filter, or results
    in another form. A call that `waits` for the device can't be captured in a CUDA graph, and trying would leave an
    older torch in a bad state.
    """

    name: str
    call: Callable[[Arguments], Any]
    waits: bool = False
    exact: bool = True


#: The name of a peer that torch.compile makes.
COMPILED = "torch.compile"


def _compiled(call: Callable[[Arguments], Any]) -> Peer:
    @functools.cache
    def compiled() -> Any:
        return torch.compile(call)  # it brings the compiler, which takes seconds

    @functools.wraps(call)
    def run(arguments: Arguments) -> Any:
        return compiled()(arguments)

    return Peer(COMPILED, run)


RUNS = 20
FEWEST_CALLS = 20
MOST_SETS = 64
#: The seconds that measuring a peer may take.
MOST_SECONDS = 1.0


# Norms and activations.


def _with_residual(a: Arguments) -> Any:
    return a["x"] if a.get("residual") is None else a["x"] + a["residual"]


def _rms_norm(a: Arguments) -> Any:
    """Returns all that the op returns: the sum too if there is a residual."""
    x = _with_residual(a)
    y = functional.rms_norm(x, x.shape[-1:], a.get("weight"), a["epsilon"])
    return y if a.get("residual") is None else (y, x)


def _layer_norm(a: Arguments) -> Any:
    x = _with_residual(a)
    y = functional.layer_norm(x, x.shape[-1:], a.get("weight"), a.get("bias"), a["epsilon"])
    return y if a.get("residual") is None else (y, x)


def _group_norm(a: Arguments) -> Any:
    x = _with_residual(a)
    y = functional.group_norm(x, a["groups"], a.get("weight"), a.get("bias"), a["epsilon"])
    return y if a.get("residual") is None else (y, x)


def _layer_norm_backward(a: Arguments) -> Any:
    x, weight = a["sum"], a["weight"]
    mean = x.mean(-1, keepdim=True)
    root = (x.var(-1, correction=0, keepdim=True) + a["epsilon"]).rsqrt()
    bias = torch.zeros_like(weight)
    return torch.ops.aten.native_layer_norm_backward(
        a["grad_y"], x, x.shape[-1:], mean.float(), root.float(), weight, bias, [True, True, True]
    )


def _group_norm_backward(a: Arguments) -> Any:
    x, weight, groups = a["sum"], a["weight"], a["groups"]
    n, c = x.shape[:2]
    rows = x.reshape(n, groups, -1)
    mean = rows.mean(-1)
    root = (rows.var(-1, correction=0) + a["epsilon"]).rsqrt()
    return torch.ops.aten.native_group_norm_backward(
        a["grad_y"], x, mean, root, weight, n, c, x.numel() // max(1, n * c), groups, [True, True, True]
    )


def _rms_norm_backward(a: Arguments) -> Any:
    x, weight, upstream = a["sum"], a["weight"], a["grad_y"]
    root = (x.square().mean(-1, keepdim=True) + a["epsilon"]).rsqrt()
    standard, scaled = x * root, upstream * weight
    grad_x = root * (scaled - standard * (scaled * standard).mean(-1, keepdim=True))
    return grad_x, (upstream * standard).reshape(-1, weight.shape[0]).sum(0)


def _focal_loss(a: Arguments) -> Any:
    x, target, alpha = a["x"], a["target"], a["alpha"]
    p = torch.sigmoid(x)
    entropy = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    q = p * (1 - target) + (1 - p) * target
    return (alpha * target + (1 - alpha) * (1 - target)) * entropy * q ** a["gamma"]


def _focal_loss_backward(a: Arguments) -> Any:
    x, target, alpha, gamma = a["x"], a["target"], a["alpha"], a["gamma"]
    p = torch.sigmoid(x)
    entropy = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    q = p * (1 - target) + (1 - p) * target
    weight = alpha * target + (1 - alpha) * (1 - target)
    slope = p * (1 - p) * (1 - 2 * target)
    return a["grad_loss"] * weight * ((p - target) * q**gamma + gamma * entropy * q ** (gamma - 1) * slope)


def _fake_quantize(a: Arguments) -> Any:
    return torch.fake_quantize_per_tensor_affine(a["x"], a["scale"], a["zero_point"], a["quant_min"], a["quant_max"])


def _fake_quantize_backward(a: Arguments) -> Any:
    steps = torch.round(a["x"] / a["scale"]) + a["zero_point"]
    return torch.where((steps >= a["quant_min"]) & (steps <= a["quant_max"]), a["grad_y"], 0)


def _rotary(a: Arguments) -> Any:
    cos, sin = a["cos_cache"][:, None], a["sin_cache"][:, None]
    first, second = a["x"].chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


# Pictures and detections.


def _interpolate(a: Arguments) -> Any:
    planes = a["image"].permute(0, 3, 1, 2).float()
    resized = functional.interpolate(planes, (a["height"], a["width"]), mode="bilinear", align_corners=False)
    return resized / 255


def _grid_sample(a: Arguments) -> Any:
    """Crops out of one picture: samples at the places that the matrices say, black outside."""
    (_, h, w, _), crops = a["image"].shape, a["matrix"].shape[0]
    planes = a["image"].permute(0, 3, 1, 2).float().expand(crops, -1, -1, -1)
    rows = torch.arange(a["height"], device=planes.device, dtype=torch.float32)
    columns = torch.arange(a["width"], device=planes.device, dtype=torch.float32)
    down, across = torch.meshgrid(rows, columns, indexing="ij")
    places = torch.stack([across, down, torch.ones_like(down)], -1)
    x, y = torch.einsum("rij,hwj->rihw", a["matrix"].float(), places).unbind(1)
    unit = torch.stack([(2 * x + 1) / w - 1, (2 * y + 1) / h - 1], -1)
    return functional.grid_sample(planes, unit, align_corners=False) / 255


def _batched_nms(a: Arguments) -> Any:
    """Thresholds all heads and suppresses boxes per class and picture, in one call."""
    ops = importlib.import_module("torchvision.ops")
    head = a["head"]
    scores = head[:, 4:]
    picture, label, anchor = torch.nonzero(scores > a["score_threshold"], as_tuple=True)
    boxes = ops.box_convert(head[picture, :4, anchor], "cxcywh", "xyxy")
    return ops.batched_nms(boxes, scores[picture, label, anchor], picture * scores.shape[1] + label, a["iou_threshold"])


def _multi_class_nms(a: Arguments) -> Any:
    ops = importlib.import_module("torchvision.ops")
    boxes, scores = a["boxes"], a["scores"]
    picture, label, anchor = torch.nonzero(scores > a["score_threshold"], as_tuple=True)
    group = picture * scores.shape[1] + label
    return ops.batched_nms(boxes[picture, anchor], scores[picture, label, anchor], group, a["iou_threshold"])


def _deform_conv2d(a: Arguments) -> Any:
    ops = importlib.import_module("torchvision.ops")
    return ops.deform_conv2d(
        a["input"],
        a["offset"],
        a["weight"],
        a.get("bias"),
        (a["stride_h"], a["stride_w"]),
        (a["pad_h"], a["pad_w"]),
        (a["dilation_h"], a["dilation_w"]),
        a.get("mask"),
    )


def _deform_conv2d_backward(a: Arguments) -> Any:
    importlib.import_module("torchvision.ops")  # registers the operator
    weight, image, offset = a["weight"], a["input"], a["offset"]
    bias = weight.new_zeros(weight.shape[0])
    taps = weight.shape[2] * weight.shape[3]
    return torch.ops.torchvision._deform_conv2d_backward(
        a["grad_output"], image, weight, offset, a["mask"], bias, a["stride_h"], a["stride_w"], a["pad_h"], a["pad_w"],
        a["dilation_h"], a["dilation_w"], image.shape[1] // weight.shape[1], offset.shape[1] // (2 * taps), True,
    )  # fmt: skip


def _corner_pool(a: Arguments) -> Any:
    axis = 2 if a["mode"] in ("top", "bottom") else 3
    if a["mode"] in ("bottom", "right"):
        return a["x"].cummax(axis).values
    return a["x"].flip(axis).cummax(axis).values.flip(axis)


def _multi_scale_attention(a: Arguments) -> Any:
    """As the repository of Deformable DETR does it without its own kernel: grid_sample for each level."""
    value, locations, weights = a["value"], a["sampling_locations"], a["attention_weights"]
    (b, _, heads, dims), (_, queries, _, levels, points, _) = value.shape, locations.shape
    sampled, first = [], 0
    for level, (height, width) in enumerate(a["host"]["spatial_shapes"].tolist()):
        keys = value[:, first : first + height * width].flatten(2).transpose(1, 2).reshape(-1, dims, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        sampled.append(functional.grid_sample(keys, grid, align_corners=False))
        first += height * width
    attention = weights.transpose(1, 2).reshape(b * heads, 1, queries, levels * points)
    output = (torch.stack(sampled, -2).flatten(-2) * attention).sum(-1)
    return output.view(b, heads * dims, queries).transpose(1, 2)


# Points.


def _knn(a: Arguments) -> Any:
    return importlib.import_module("torch_cluster").knn(a["xyz"], a["xyz"], a["nsample"])


def _cdist_topk(a: Arguments) -> Any:
    distances, rows = torch.cdist(a["xyz"], a["xyz"]).topk(a["nsample"], largest=False)
    return rows.int(), distances


def _knn_backward(a: Arguments) -> Any:
    """For points that are the queries."""
    xyz, rows = a["xyz"], a["idx"].long()
    counts = (a["dist"] > 0) & torch.isfinite(a["dist"])
    factor = torch.where(counts, a["grad_dist"] / a["dist"], 0)
    away = (xyz[rows] - xyz[:, None]) * factor[..., None]
    grad_xyz = torch.zeros_like(xyz).index_add_(0, rows.flatten(), away.flatten(0, 1))
    return grad_xyz - away.sum(1), torch.zeros_like(xyz)


def _ball_query(a: Arguments) -> Any:
    """The first points whose distance is below the radius: the least of their numbers."""
    n, most = a["xyz"].shape[0], a["nsample"]
    numbers = torch.arange(n, device=a["xyz"].device, dtype=torch.int32)
    near = torch.where(torch.cdist(a["new_xyz"], a["xyz"]) < a["max_radius"], numbers, n)
    rows = near.topk(most, largest=False).values
    count = (rows < n).sum(1, dtype=torch.int32)
    padded = torch.where(rows < n, rows, rows[:, :1])
    return torch.where(padded < n, padded, a["fill"]), count


def _grid_cluster(a: Arguments) -> Any:
    return importlib.import_module("torch_cluster").grid_cluster(a["pos"], a["size"])


def _grid_cluster_formula(a: Arguments) -> Any:
    start, end = a["pos"].amin(0), a["pos"].amax(0)
    cells = ((end - start) / a["size"]).long() + 1
    stride = torch.cat([torch.ones_like(cells[:1]), cells.cumprod(0)[:-1]])
    return (((a["pos"] - start) / a["size"]).long() * stride).sum(1)


def _voxelize(a: Arguments) -> Any:
    """Means by `unique` and `index_add_`, in the order of x, y, z."""
    numbers = torch.floor(a["points"][:, :3] / a["size"].to(a["points"].device)).int()
    coords, voxel, counts = torch.unique(numbers.flip(1), dim=0, return_inverse=True, return_counts=True)
    sums = a["points"].new_zeros(len(coords), a["points"].shape[1]).index_add_(0, voxel, a["points"])
    return sums / counts[:, None], coords.flip(1), counts.int()


def _three_interpolate(a: Arguments) -> Any:
    return (a["features"][a["idx"].long()] * a["weight"][..., None]).sum(1)


def _three_interpolate_backward(a: Arguments) -> Any:
    rows, upstream = a["idx"].long(), a["grad_y"][:, None]
    spread = (a["weight"][..., None] * upstream).flatten(0, 1)
    grad_features = torch.zeros_like(a["features"]).index_add_(0, rows.flatten(), spread)
    return grad_features, (a["features"][rows] * upstream).sum(-1)


def _bev_pool(a: Arguments) -> Any:
    feat = a["feat"].flatten(0, 3)
    products = feat[a["ranks_feat"]] * a["depth"].flatten()[a["ranks_depth"]][:, None]
    cells = a["out_z"] * a["out_height"] * a["out_width"] * a["depth"].shape[0]
    bev = feat.new_zeros(cells, feat.shape[1]).index_add_(0, a["ranks_bev"], products)
    return bev.view(a["depth"].shape[0], a["out_z"], a["out_height"], a["out_width"], -1)


def _bev_pool_backward(a: Arguments) -> Any:
    feat, upstream = a["feat"].flatten(0, 3), a["grad_bev"].flatten(0, 3)[a["ranks_bev"]]
    of_points = (feat[a["ranks_feat"]] * upstream).sum(1)
    grad_depth = torch.zeros_like(a["depth"]).flatten().index_add_(0, a["ranks_depth"], of_points)
    spread = upstream * a["depth"].flatten()[a["ranks_depth"]][:, None]
    grad_feat = torch.zeros_like(feat).index_add_(0, a["ranks_feat"], spread)
    return grad_depth.view_as(a["depth"]), grad_feat.view_as(a["feat"])


# Reductions, rows and sound.


def _scatter(a: Arguments) -> Any:
    size = int(a["dim_size"])
    return a["x"].new_zeros(size, *a["x"].shape[1:]).index_add_(0, a["index"], a["x"])


def _segment(a: Arguments) -> Any:
    offsets = functional.pad(a["ends"], (1, 0)).long()
    return torch.segment_reduce(a["x"], a["reduce"], offsets=offsets, axis=0, unsafe=True, initial=0)


def _windows(a: Arguments) -> Any:
    windows = a["x"].unfold(1, a["size"], a["step"])
    return windows.mean(-1), windows.std(-1, correction=a["ddof"]), windows.amin(-1), windows.amax(-1)


def _pools(a: Arguments) -> Any:
    """By pooling, without the standard deviation."""
    x, size, step = a["x"][:, None], a["size"], a["step"]
    most, least = functional.max_pool1d(x, size, step), -functional.max_pool1d(-x, size, step)
    return functional.avg_pool1d(x, size, step)[:, 0], least[:, 0], most[:, 0]


def _topk(a: Arguments) -> Any:
    scores = a["logits"].float()
    best, labels = scores.topk(a["k"])
    return torch.exp(best - scores.logsumexp(1, keepdim=True)), labels.int()


@functools.cache
def _mel(sample_rate: int, n_fft: int, n_mels: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The window and the weights of the bands: a module has them from its construction on."""
    from opgate.ops_build.ops.log_mel_spectrogram.reference import bands

    weights = bands(sample_rate, n_fft, n_mels, 0, 0, "slaney", "slaney")
    return torch.hann_window(n_fft, device=device), torch.tensor(weights, dtype=torch.float32, device=device)


def _stft(a: Arguments) -> Any:
    window, weights = _mel(a["sample_rate"], a["n_fft"], a["n_mels"], str(a["pcm"].device))
    spectrum = torch.stft(a["pcm"], a["n_fft"], a["hop_length"], window=window, return_complex=True)
    return torch.log((weights @ (spectrum.real**2 + spectrum.imag**2)).clamp_min(a["floor"]))


@functools.cache
def _resampler(from_rate: int, to_rate: int) -> Any:
    transforms = importlib.import_module("torchaudio.transforms")
    return transforms.Resample(from_rate, to_rate, resampling_method="sinc_interp_kaiser").cuda()


def _resample(a: Arguments) -> Any:
    return _resampler(a["from_rate"], a["to_rate"])(a["x"])


def _aten(name: str, *inputs: str, **options: str) -> Callable[[Arguments], Any]:
    """Calls an operator of torch on inputs, with attributes of the op as options."""
    operator = getattr(torch.ops.aten, name)
    return lambda a: operator(*(a[name] for name in inputs), **{key: a[value] for key, value in options.items()})


#: The peers of each op, as users would write them. One whose package is missing is left out.
PEERS: Mapping[str, Sequence[Peer]] = {
    "Asinh": [Peer("torch.asinh", _aten("asinh", "x"))],
    "BallQuery": [Peer("cdist and topk", _ball_query)],
    "BevPoolV2": [Peer("index_add", _bev_pool)],
    "BevPoolV2Backward": [Peer("index_add", _bev_pool_backward)],
    "ClampedRelu": [Peer("torch.clamp", lambda a: a["x"].clamp(0, a["ceiling"]))],
    "CornerPool": [Peer("cummax", _corner_pool)],
    "DeformConv2d": [Peer("torchvision", _deform_conv2d)],
    "DeformConv2dBackward": [Peer("torchvision", _deform_conv2d_backward)],
    "DetectionPostprocess": [Peer("torchvision batched_nms", _batched_nms, waits=True, exact=False)],
    "FakeQuantize": [Peer("fake_quantize_per_tensor_affine", _fake_quantize)],
    "FakeQuantizeBackward": [_compiled(_fake_quantize_backward)],
    "Gelu": [Peer("F.gelu", lambda a: functional.gelu(a["x"], approximate=a["approximate"]))],
    "GeluBackward": [Peer("aten.gelu_backward", _aten("gelu_backward", "grad_y", "x", approximate="approximate"))],
    "GridCluster": [
        Peer("torch_cluster.grid_cluster", _grid_cluster, waits=True),
        _compiled(_grid_cluster_formula),
    ],
    "GroupNorm": [Peer("F.group_norm", _group_norm), _compiled(_group_norm)],
    "GroupNormBackward": [Peer("aten.native_group_norm_backward", _group_norm_backward)],
    "KNNQuery": [Peer("torch_cluster.knn", _knn, waits=True, exact=False), Peer("cdist and topk", _cdist_topk)],
    "KNNQueryBackward": [Peer("index_add", _knn_backward)],
    "LayerNorm": [Peer("F.layer_norm", _layer_norm), _compiled(_layer_norm)],
    "LayerNormBackward": [Peer("aten.native_layer_norm_backward", _layer_norm_backward)],
    "LeakyRelu": [Peer("F.leaky_relu", lambda a: functional.leaky_relu(a["x"], a["alpha"]))],
    "LogMelSpectrogram": [Peer("torch.stft", _stft)],
    "Mish": [Peer("F.mish", lambda a: functional.mish(a["x"]))],
    "MishBackward": [Peer("aten.mish_backward", _aten("mish_backward", "grad_y", "x"))],
    "MultiClassNMS": [Peer("torchvision batched_nms", _multi_class_nms, waits=True, exact=False)],
    "MultiScaleDeformableAttention": [
        Peer("grid_sample", _multi_scale_attention),
        _compiled(_multi_scale_attention),
    ],
    "MyAdd": [Peer("torch.add", lambda a: torch.add(a["b"], a["a"], alpha=2))],
    "RMSNorm": [Peer("F.rms_norm", _rms_norm), _compiled(_rms_norm)],
    "RMSNormBackward": [_compiled(_rms_norm_backward)],
    "ResampleAudio": [Peer("torchaudio Resample", _resample, exact=False)],
    "ResizeNormalize": [Peer("F.interpolate", _interpolate), _compiled(_interpolate)],
    "RotaryEmbedding": [Peer("eager", _rotary), _compiled(_rotary)],
    "ScatterReduce": [Peer("index_add", _scatter)],
    "SegmentReduce": [Peer("torch.segment_reduce", _segment)],
    "SigmoidFocalLoss": [Peer("eager", _focal_loss), _compiled(_focal_loss)],
    "SigmoidFocalLossBackward": [_compiled(_focal_loss_backward)],
    "SlidingWindow": [Peer("unfold", _windows), Peer("pooling, no std", _pools, exact=False)],
    "Swish": [Peer("F.silu", lambda a: functional.silu(a["x"]))],
    "SwishBackward": [Peer("aten.silu_backward", _aten("silu_backward", "grad_y", "x"))],
    "ThreeInterpolate": [Peer("eager", _three_interpolate), _compiled(_three_interpolate)],
    "ThreeInterpolateBackward": [Peer("index_add", _three_interpolate_backward)],
    "TopKLabels": [Peer("topk and logsumexp", _topk)],
    "Voxelize": [Peer("unique and index_add", _voxelize, waits=True)],
    "WarpAffine": [Peer("grid_sample", _grid_sample), _compiled(_grid_sample)],
}

#: The ops that nothing of torch, torchvision or torchaudio computes in a few calls, and what others use.
NO_PEER: Mapping[str, str] = {
    "DrawBoundingBoxes": "torchvision draws with Pillow on the CPU",
    "FarthestPointSample": "torch_cluster and pointops have it, and no wheel of this torch",
    "MultiScaleDeformableAttentionBackward": "the repository of Deformable DETR has a kernel of its own",
    "NMSRotated": "mmcv and detectron2 have it, and no wheel of this torch",
    "RoiAlignRotated": "mmcv and detectron2 have it, and no wheel of this torch",
    "RoiAlignRotatedBackward": "mmcv has it, and no wheel of this torch",
    "SoftNMS": "mmcv has it on the CPU",
    "WeightedNMS": "MediaPipe has it on the CPU",
    "VoxelOfPoint": "spconv has it inside its voxel generator",
}


def time_peers(items: Sequence[Item], compiled: bool) -> Iterator[Begun | Timed | Fact]:
    """Yields the time of every peer at the large case of its op: of those that torch.compile makes, or of the others.

    bf16 is left out where f16 is there: the peers are as fast with it.
    """
    if not torch.cuda.is_available():
        yield Fact("absent", "torch sees no GPU")
        return
    for op, types in items:
        if op.name in NO_PEER and not compiled:
            yield Fact("no peer", f"{op.name} ({NO_PEER[op.name]})")
        peers = [peer for peer in PEERS.get(op.name, ()) if (peer.name == COMPILED) == compiled]
        case = large_case(op, types) if peers and "bf16" not in types.values() else None
        if case is None:
            continue
        yield Begun(op.name, types_label(op, types))
        for peer in peers:
            arguments = peer_arguments(op, case, types, "cuda")
            try:
                milliseconds = time_call(peer, arguments)
            except ModuleNotFoundError as error:
                yield Fact("note", f"{peer.name}: the Python package {error.name} is not installed")
                continue
            except Exception as error:
                yield Fact("note", f"{op.name}, {peer.name}: {type(error).__name__}: {error}")
                continue
            name = f"{peer.name} (waits)" if peer.waits else peer.name
            size = sum(np.asarray(array).nbytes for array in case.inputs.values())
            yield Timed(op.name, types_label(op, types), case.name, name, milliseconds, size)


def peer_arguments(op: Op, case: Case, types: Mapping[str, str], device: str) -> dict[str, Any]:
    """Returns the arguments of a peer for a case."""
    defaults = {attribute.name: attribute.default for attribute in op.attributes}
    return defaults | case_arguments(op, case, types, device) | {"host": case.inputs}


def time_call(peer: Peer, arguments: Arguments) -> float:
    """Returns the median time of a call in milliseconds.

    The calls are replayed from a CUDA graph and use different memory in turn, as in runner.cpp. A slow peer gets fewer
    calls, and at least three.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        peer.call(arguments)  # compiles, and fills the allocator's pool
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once = _seconds(lambda: peer.call(arguments))
        inputs = sum(value.nbytes for value in arguments.values() if isinstance(value, torch.Tensor))
        touched = inputs + torch.cuda.max_memory_allocated() - before
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        sets = min(max(2 * cache // max(touched, 1) + 1, 2), MOST_SETS)
        copies = [
            {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
            for _ in range(sets)
        ]
        calls = min(math.ceil(FEWEST_CALLS / sets) * sets, max(1, int(MOST_SECONDS / 3 / once)))
        runs = min(RUNS, max(3, int(MOST_SECONDS / (calls * once))))
        for copy in copies[:calls]:
            peer.call(copy)
    torch.cuda.synchronize()

    def run_all() -> None:
        for call in range(calls):
            peer.call(copies[call % sets])

    launch: Callable[[], None] = run_all
    if not peer.waits:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run_all()
        launch = graph.replay
    times = [_seconds(launch) / calls for _ in range(runs + 1)]
    median: float = sorted(times[1:])[runs // 2]
    return median * 1e3


def _seconds(launch: Callable[[], object]) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    launch()
    stop.record()
    stop.synchronize()
    return max(float(start.elapsed_time(stop)) / 1e3, 1e-7)
