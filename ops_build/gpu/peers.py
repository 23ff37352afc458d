"""Times what a user would call instead of an op: functions of torch, torchvision and torch_cluster on CUDA."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opgate.ops_build.adapters.torch.engine import case_arguments
from opgate.ops_build.gpu.events import Begun, Fact, Timed
from opgate.ops_build.gpu.items import Item, large_case
from opgate.ops_build.table import Op
from opgate.ops_build.verification.verify import types_label

#: The arguments of an op by name, with the defaults of the attributes.
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """What a user would call instead of an op. `name` is what the page shows.

    A call that `waits` for the device can't be captured in a CUDA graph, and trying would leave an older torch in a bad
    state.
    """

    name: str
    call: Callable[[Arguments], Any]
    waits: bool = False


RUNS = 20
FEWEST_CALLS = 20
MOST_SETS = 64
#: The seconds that measuring a peer may take.
MOST_SECONDS = 2.0


def _rms_norm(a: Arguments) -> Any:
    """Returns all that the op returns: the sum too if there is a residual."""
    x = a["x"] if a.get("residual") is None else a["x"] + a["residual"]
    y = functional.rms_norm(x, a["weight"].shape, a["weight"], a["epsilon"])
    return y if a.get("residual") is None else (y, x)


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


#: The peers of an op. A peer whose package is missing is left out.
PEERS: Mapping[str, Sequence[Peer]] = {
    "MyAdd": [Peer("torch.add", lambda a: torch.add(a["b"], a["a"], alpha=2))],
    "LeakyRelu": [Peer("F.leaky_relu", lambda a: functional.leaky_relu(a["x"], a["alpha"]))],
    "Mish": [Peer("F.mish", lambda a: functional.mish(a["x"]))],
    "MishBackward": [Peer("aten.mish_backward", lambda a: torch.ops.aten.mish_backward(a["grad_y"], a["x"]))],
    "RMSNorm": [Peer("F.rms_norm", _rms_norm), Peer("torch.compile", torch.compile(_rms_norm))],
    "ResizeNormalize": [Peer("F.interpolate", _interpolate), Peer("torch.compile", torch.compile(_interpolate))],
    "DetectionPostprocess": [Peer("torchvision batched_nms", _batched_nms, waits=True)],
    "KNNQuery": [Peer("torch_cluster.knn", _knn, waits=True), Peer("cdist and topk", _cdist_topk)],
    "Voxelize": [Peer("torch_cluster.grid_cluster", _grid_cluster, waits=True)],
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
        for peer in PEERS[op.name]:
            arguments = _defaults(op) | case_arguments(op, case, types, "cuda")
            try:
                milliseconds = time_call(peer, arguments)
            except ModuleNotFoundError as error:
                yield Fact("note", f"{peer.name}: the Python package {error.name} is not installed")
                continue
            except Exception as error:
                yield Fact("note", f"{peer.name}: {type(error).__name__}: {error}")
                continue
            name = f"{peer.name} (waits)" if peer.waits else peer.name
            size = sum(np.asarray(array).nbytes for array in case.inputs.values())
            yield Timed(op.name, types_label(op, types), case.name, name, milliseconds, size)


def _defaults(op: Op) -> dict[str, Any]:
    return {attribute.name: attribute.default for attribute in op.attributes}


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
