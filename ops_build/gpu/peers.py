"""Times what a user would call instead of an op: functions of torch, torchvision and torch_cluster on CUDA."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ops_build.adapters.torch.engine import case_arguments
from ops_build.gpu.events import Begun, Fact, Timed
from ops_build.gpu.items import Item, large_case
from ops_build.table import Op
from ops_build.verification.verify import types_label

#: The arguments of an op by name, with the defaults of the attributes.
Arguments = Mapping[str, Any]
Peer = Callable[[Arguments], Any]

RUNS = 20
FEWEST_CALLS = 20
MOST_SETS = 64


def _rms_norm(a: Arguments) -> Any:
    x = a["x"] if a.get("residual") is None else a["x"] + a["residual"]
    return functional.rms_norm(x, a["weight"].shape, a["weight"], a["epsilon"])


def _interpolate(a: Arguments) -> Any:
    planes = a["image"].permute(0, 3, 1, 2).float()
    resized = functional.interpolate(planes, (a["height"], a["width"]), mode="bilinear", align_corners=False)
    return resized / 255


def _batched_nms(a: Arguments) -> Any:
    """Thresholds all heads and suppresses boxes per class and picture, in one call."""
    ops = importlib.import_module("torchvision.ops")
    head = a["head"]
    scores = head[:, 4:]
    picture, label, anchor = torch.nonzero(scores > a["score_threshold"], as_tuple=True)
    boxes = ops.box_convert(head[picture, :4, anchor], "cxcywh", "xyxy")
    return ops.batched_nms(boxes, scores[picture, label, anchor], picture * scores.shape[1] + label, a["iou_threshold"])


def _knn(a: Arguments) -> Any:
    return importlib.import_module("torch_cluster").knn(a["xyz"], a["xyz"], a["nsample"])


def _cdist_topk(a: Arguments) -> Any:
    return torch.cdist(a["xyz"], a["xyz"]).topk(a["nsample"], largest=False)


def _grid_cluster(a: Arguments) -> Any:
    points = a["points"][:, :3].contiguous()
    return importlib.import_module("torch_cluster").grid_cluster(points, a["size"].to(points.device))


#: The peers of an op: the name that the page shows, and the call. A peer whose package is missing is left out.
PEERS: Mapping[str, Sequence[tuple[str, Peer]]] = {
    "MyAdd": [("torch.add", lambda a: torch.add(a["b"], a["a"], alpha=2))],
    "LeakyRelu": [("F.leaky_relu", lambda a: functional.leaky_relu(a["x"], a["alpha"]))],
    "Mish": [("F.mish", lambda a: functional.mish(a["x"]))],
    "MishBackward": [("aten.mish_backward", lambda a: torch.ops.aten.mish_backward(a["grad_y"], a["x"]))],
    "RMSNorm": [("F.rms_norm", _rms_norm), ("torch.compile", torch.compile(_rms_norm))],
    "ResizeNormalize": [("F.interpolate", _interpolate), ("torch.compile", torch.compile(_interpolate))],
    "DetectionPostprocess": [("torchvision batched_nms", _batched_nms)],
    "KNNQuery": [("torch_cluster.knn", _knn), ("cdist and topk", _cdist_topk)],
    "Voxelize": [("torch_cluster.grid_cluster", _grid_cluster)],
}


def time_peers(items: Sequence[Item]) -> Iterator[Begun | Timed | Fact]:
    """Yields the time of every peer at the large case of its op."""
    if not torch.cuda.is_available():
        yield Fact("absent", "torch sees no GPU")
        return
    for op, types in items:
        case = large_case(op, types)
        if case is None or op.name not in PEERS:
            continue
        yield Begun(op.name, types_label(op, types))
        for name, peer in PEERS[op.name]:
            arguments = _defaults(op) | case_arguments(op, case, types, "cuda")
            try:
                milliseconds = time_call(peer, arguments)
            except ModuleNotFoundError as error:
                yield Fact("note", f"{name}: the Python package {error.name} is not installed")
                continue
            size = sum(np.asarray(array).nbytes for array in case.inputs.values())
            yield Timed(op.name, types_label(op, types), case.name, name, milliseconds, size)


def _defaults(op: Op) -> dict[str, Any]:
    return {attribute.name: attribute.default for attribute in op.attributes}


def time_call(peer: Peer, arguments: Arguments) -> float:
    """Returns the median time of a call in milliseconds.

    The calls are replayed from a CUDA graph and use different memory in turn, as in runner.cpp. A call that can't be
    captured, because it waits for the device, is timed as it is.
    """
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    bytes_of_set = 2 * sum(tensor.nbytes for tensor in tensors)
    sets = min(max(2 * cache // max(bytes_of_set, 1) + 1, 2), MOST_SETS)
    copies = [
        {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
        for _ in range(sets)
    ]
    calls = math.ceil(FEWEST_CALLS / sets) * sets
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for copy in (*copies, copies[0]):  # compiles, and fills the allocator's pool
            peer(copy)
    torch.cuda.synchronize()

    def run_all() -> None:
        for call in range(calls):
            peer(copies[call % sets])

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            run_all()
        launch: Callable[[], None] = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
        launch = run_all
    times: list[float] = []
    for _ in range(RUNS + 1):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / calls)
    return sorted(times[1:])[RUNS // 2]
