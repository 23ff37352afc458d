"""Pre-processing: what is usual for a head, what the words of --pre change, and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from opgate.attach.model.graph import STATUS
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError, Report
from opgate.attach.pictures.facts import Network
from opgate.attach.pictures.heads import of_paddle
from opgate.attach.pictures.pre_words import FITS, IMAGENET, MULTIPLE, Pre, check_places, read

#: The words of --pre that are usual for a head. {h} and {w} are the size of the input.
_USUAL: Mapping[str, str] = {
    "yolov8": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "obb": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "yolov5": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "yolox": "letterbox-start:{h}x{w} bgr byte pad:114 cv-linear",
    "end2end": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "detr": "stretch:{h}x{w} rgb unit pil-bilinear",
    "ssd": "stretch:{h}x{w} rgb half cv-linear",
    "boxes": "stretch:{h}x{w} rgb unit pil-bilinear",
    "picodet": "stretch:{h}x{w} rgb imagenet cv-cubic",
    "nanodet": "letterbox:{h}x{w} bgr byte mean:103.53,116.28,123.675 std:57.375,57.12,58.395 pad:0 cv-linear",
    "blazeface": "letterbox:{h}x{w} rgb half pad:0 pil-bilinear",
    "scrfd": "letterbox-start:{h}x{w} rgb byte mean:127.5 std:128 pad:0 cv-linear",
    "classify": "resize:{s} crop:{h}x{w} rgb imagenet pil-bilinear",
    "value": "resize:{s} crop:{h}x{w} rgb imagenet pil-bilinear",
    "embed": "stretch:{h}x{w} rgb imagenet pil-bilinear",
    "segment": "stretch:{h}x{w} rgb imagenet pil-bilinear",
    "ctc": "height:{h} rgb half pad:127 cv-linear",
    "db": "shortest:736 bgr imagenet pad:0 cv-linear",
}


def usual(kind: str, network: Network, size: tuple[int, int]) -> str:
    """Returns the words of --pre that are usual for a head of this kind, in a network of this size."""
    words = _USUAL[kind]
    if kind == "classify" and network.metadata.get("task") == "classify":  # Ultralytics
        words = "resize:{m} crop:{h}x{w} rgb unit pil-bilinear"
    if kind == "db" and network.height is not None and network.width is not None:
        words = words.replace("shortest:736", "letterbox-start:{h}x{w}")
    if kind == "ctc" and (of_paddle(network) or "character" in network.metadata):  # PaddleOCR reads with OpenCV
        words = words.replace("rgb", "bgr narrowest:320")
    return words.format(h=size[0], w=size[1], s=round(max(size) / 0.875), m=max(size))


#: What adds a node to a tensor, with a name for its output or "", and returns the output.
Step = Callable[[str, str], str]
#: What is reported, in this order, and how it follows from a Pre.
_SUBJECTS = ("place", "colours", "range", "pad", "filter")


def _described(pre: Pre, numbers: bool) -> dict[str, str]:
    """Returns the words for each subject of a Pre. `numbers` says that --pre has those of the mean or the std."""
    size = f"{pre.height}" if pre.height == pre.width else f"{pre.height}x{pre.width}"
    resized = "x".join(map(str, pre.stretched)) if any(pre.stretched) else pre.shorter_side
    place = {word: f"{word}:{size}" for word in FITS}
    places = {FITS[word]: text for word, text in place.items()} | {
        "crop": (f"resize:{resized} " if resized else "") + f"crop:{size}",
        "fit_height": f"height:{pre.height}"
        + (
            f" narrowest:{pre.narrowest} widest:{pre.width} bucket:{pre.bucket}"
            if pre.bucket
            else f", then padded to {pre.width} columns"
        ),
        "multiples": f"shortest:{pre.shorter_side} longest:{pre.width}",
    }
    scale = "byte" if pre.scale == "byte" else "unit"
    if pre.mean or pre.std:
        scale += f" mean:{_joined(pre.mean or (0,))} std:{_joined(pre.std or (1,))}"
    if (pre.scale, pre.mean, pre.std) == ("unit", *IMAGENET) and not numbers:
        scale = "imagenet"
    return {
        "place": places[pre.fit],
        "colours": "grey" if pre.channels == 1 else pre.order.lower(),
        "range": scale,
        "pad": f"pad:{pre.pad}",
        "filter": pre.filter.replace("_", "-"),
    }


def _joined(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def settle(said: str, kind: str, network: Network, size: tuple[int, int], report: Report) -> Pre:
    """Returns the pre-processing: the words of --pre, the file's own facts, and what is usual for a head of this kind.
    `size` is the height and width of the input.

    Raises AttachError.
    """
    base = read(usual(kind, network, size), Pre()).pre
    if network.channels == 1:
        base = replace(base, channels=1)
    if network.scales:
        base = replace(base, scale="byte", mean=(), std=())
    words = read(said, base, size)
    decided, pre = words.decided, words.pre
    if "shorter side" in decided and "place" not in decided:
        raise AttachError(f"--pre: '{decided['shorter side']}' needs a crop: resize:256 crop:224")
    check_places(words)
    if any(pre.stretched) and kind not in ("classify", "embed", "segment"):
        raise AttachError(f"--pre: '{decided['shorter side']}' is for classify, embed and segment: {kind} finds places")
    if pre.fit == "crop" and "shorter side" not in decided and "place" in decided:
        pre = replace(pre, shorter_side=round(max(pre.height, pre.width) / 0.875))
    stated = "mean" in decided and "range" not in decided and pre.scale != "byte"
    if stated and max(map(abs, pre.mean), default=0) > 1:
        raise AttachError(f"--pre: '{decided.get('mean', '')}' is beyond 0..1: add the word byte")
    if pre.fit == "fit_height" and network.width is not None:
        pre = replace(pre, width=network.width, bucket=0)
    _check(pre, network)
    _check_bytes(pre, network, decided)
    for subject, text in _described(pre, not decided.keys().isdisjoint({"mean", "std"})).items():
        if subject == "pad" and pre.fit in ("stretch", "crop"):
            continue
        words_of = {
            "place": ("place", "shorter side", "widest", "narrowest", "bucket", "longest"),
            "range": ("range", "mean", "std"),
        }
        if any(part in decided for part in words_of.get(subject, (subject,))):
            report.said(subject, text)
        elif (subject == "range" and network.scales) or (subject == "colours" and pre.channels == 1):
            report.found(subject, text)
        else:
            report.default(subject, text, f"usual for {kind}")
    return pre


def _check(pre: Pre, network: Network) -> None:
    """Raises AttachError if a Pre doesn't make what the network takes."""
    if not pre.height or not pre.width:
        raise AttachError(
            f"--pre: the size of the input '{network.input}' is open: say it, such as letterbox:640 for a detector, or "
            "stretch:224 for a classifier"
        )
    for side, has, wants in (("height", pre.height, network.height), ("width", pre.width, network.width)):
        if wants is not None and has != wants and not (side == "width" and pre.fit == "fit_height"):
            raise AttachError(f"--pre: the {side} is {has}, and the input '{network.input}' has {wants}")
    if pre.channels != network.channels:
        raise AttachError(
            f"--pre: {'grey has 1 channel' if pre.channels == 1 else 'colours have 3 channels'}, and the input "
            f"'{network.input}' has {network.channels}"
        )
    for name, numbers in (("mean", pre.mean), ("std", pre.std)):
        if len(numbers) not in (0, 1, pre.channels):
            raise AttachError(f"--pre: {name} has {len(numbers)} numbers: expected 1 or {pre.channels}")
    if min(pre.std, default=1) <= 0:
        raise AttachError(f"--pre: a std is {min(pre.std):g}: expected numbers above 0")
    if pre.fit == "crop" and pre.shorter_side and pre.shorter_side < max(pre.height, pre.width):
        raise AttachError(f"--pre: the shorter side of {pre.shorter_side} is less than the crop")
    if any(pre.stretched) and (pre.stretched[0] < pre.height or pre.stretched[1] < pre.width):
        raise AttachError(f"--pre: a picture of {pre.stretched[0]} x {pre.stretched[1]} is smaller than the crop")


def _check_bytes(pre: Pre, network: Network, decided: Mapping[str, str]) -> None:
    """Raises AttachError if a network that takes bytes would get something else."""
    if network.dtype != "u8" or (pre.scale == "byte" and not pre.mean and not pre.std):
        return
    word = next((decided[part] for part in ("range", "mean", "std") if decided.get(part, "byte") != "byte"), "")
    raise AttachError(f"--pre: the input '{network.input}' takes bytes (u8), which '{word}' would change: leave it out")


def add(nodes: Nodes, pre: Pre, network: Network) -> None:
    """Adds the nodes from `data` and `ends` to the network's input, with `geometry` and STATUS beside it."""
    steps: list[Step] = []
    if pre.bucket:
        steps.append(lambda x, to: _used_width(nodes, x, pre, to))
    if any(pre.stretched):
        steps.append(lambda x, to: _centre(nodes, x, pre, to))
    if pre.fit == "multiples":
        steps.append(lambda x, to: _used_sides(nodes, x, to))
    steps += typed(nodes, network)
    image = f"{nodes.prefix}image" if steps else network.input
    nodes.add_op("ImagePreprocess", ["data", "ends"], [image, "geometry", STATUS], "image", **_full(pre))
    for number, step in enumerate(steps, 1):
        image = step(image, network.input if number == len(steps) else "")


def typed(nodes: Nodes, network: Network) -> list[Step]:
    """Returns what brings planes f32 into the layout and the type of the network's input."""
    steps: list[Step] = []
    if network.layout == "NHWC":
        steps.append(lambda x, to: nodes.add("Transpose", [x], "nhwc", to=to, perm=[0, 2, 3, 1]))
    if network.dtype == "u8":
        steps.append(lambda x, to: nodes.add("Round", [x], "whole", to=to))
        steps.append(lambda x, to: nodes.cast(x, TensorProto.UINT8, "bytes", to=to))
    if network.dtype == "f16":
        steps.append(lambda x, to: nodes.cast(x, TensorProto.FLOAT16, "half", to=to))
    return steps


def _full(pre: Pre) -> dict[str, Any]:
    """Returns the attributes, with a mean and a std for each channel."""
    attributes = pre.attributes()
    for name in ("mean", "std"):
        if len(numbers := attributes.get(name, [])) == 1:
            attributes[name] = [float(number) for number in numbers] * pre.channels
    return attributes


def _centre(nodes: Nodes, image: str, pre: Pre, to: str) -> str:
    """Cuts the centre out of stretched pictures."""
    sides = pre.height, pre.width
    first = [(whole - side) // 2 for whole, side in zip(pre.stretched, sides, strict=True)]
    last = [begin + side for begin, side in zip(first, sides, strict=True)]
    ends = nodes.ints("centre.first", first), nodes.ints("centre.last", last)
    return nodes.add("Slice", [image, *ends, nodes.ints("centre.axes", [2, 3])], "centre", to=to)


def _used_width(nodes: Nodes, image: str, pre: Pre, to: str) -> str:
    """Cuts a batch of lines to the width of the widest, rounded up to a multiple of the bucket."""
    scale = nodes.slice("geometry", 1, 0, 1, "line.scale")
    source = nodes.slice("geometry", 1, 4, 5, "line.source")
    widths = nodes.add("Div", [source, scale], "line.widths")
    widest = nodes.reduce("ReduceMax", nodes.reshape(widths, [-1], "line.flat"), 0, "line.widest")
    buckets = nodes.add("Div", [widest, nodes.constant("line.bucket", [pre.bucket])], "line.in_buckets")
    # nw is a whole number, and w / (w / nw) may lie a rounding above it.
    less = nodes.add("Sub", [buckets, nodes.constant("line.rounding", [0.01 / pre.bucket])], "line.less")
    whole = nodes.add("Ceil", [less], "line.whole")
    rounded = nodes.add("Mul", [whole, nodes.constant("line.bucket", [pre.bucket])], "line.rounded")
    held = nodes.add("Min", [rounded, nodes.constant("line.most", [pre.width])], "line.held")
    narrowest = min(max(pre.bucket, pre.narrowest), pre.width)
    least = nodes.add("Max", [held, nodes.constant("line.least", [narrowest])], "line.at_least")
    end = nodes.cast(least, TensorProto.INT64, "line.end")
    start, axis = nodes.constant("line.start", [0], np.int64), nodes.ints("axis", [3])
    return nodes.add("Slice", [image, start, end, axis], "line.image", to=to)


def _used_sides(nodes: Nodes, image: str, to: str) -> str:
    """Cuts a batch of pictures, which lie at the top left, to the width and height of the greatest."""
    source = nodes.slice("geometry", 1, 4, 6, "sides.source")
    sizes = nodes.add("Div", [source, nodes.slice("geometry", 1, 0, 2, "sides.scale")], "sides.each")
    greatest = nodes.reduce("ReduceMax", sizes, 0, "sides.greatest", keepdims=False)
    # Without a picture that can be read the sides are 0.
    used = nodes.add("Max", [greatest, nodes.constant("sides.least", [MULTIPLE] * 2)], "sides.used")
    end = nodes.cast(nodes.add("Round", [used], "sides.whole"), TensorProto.INT64, "sides.end")
    return nodes.add(
        "Slice", [image, nodes.ints("sides.start", [0, 0]), end, nodes.ints("axes", [3, 2])], "sides.image", to=to
    )
