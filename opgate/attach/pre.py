"""Pre-processing: the words that describe it, and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from opgate.attach.facts import Network
from opgate.attach.nodes import Nodes
from opgate.attach.report import AttachError, Report

#: How a word for a filter is called in ImagePreprocess.
FILTERS = {
    name.replace("_", "-"): name
    for name in (
        "fast", "pil_nearest", "pil_box", "pil_bilinear", "pil_hamming", "pil_bicubic", "pil_lanczos", "cv_nearest",
        "cv_linear", "cv_area", "cv_cubic", "cv_lanczos4",
    )
}  # fmt: skip
#: The words for the place of a picture, and how it is called in ImagePreprocess.
FITS = {"letterbox": "letterbox", "letterbox-start": "letterbox_start", "stretch": "stretch"}
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: How wide a line of text may become, and to what its width is rounded up.
WIDEST, BUCKET = 2048, 32


@dataclass(frozen=True, slots=True)
class Pre:
    """How a picture becomes the input of a network.

    `fit`, `filter` and `scale` have the names of ImagePreprocess. `height` and `width` are those of the network's
    input; with fit_height the width follows the picture up to `width`, rounded up to a multiple of `bucket`, unless
    that is 0, and at least `narrowest`. `mean` and `std` have a number for each channel, or one for all.
    """

    fit: str = "letterbox"
    height: int = 0
    width: int = 0
    shorter_side: int = 0
    channels: int = 3
    order: str = "RGB"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scale: str = "unit"
    pad: int = 114
    filter: str = "cv_linear"
    bucket: int = 0
    narrowest: int = 0

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of ImagePreprocess that differ from its defaults."""
        stated = {
            "pad": (self.pad, 114),
            "mean": (list(self.mean), []),
            "std": (list(self.std), []),
            "order": (self.order, "RGB"),
            "channels": (self.channels, 3),
            "fit": (self.fit, "letterbox"),
            "shorter_side": (self.shorter_side, 0),
            "filter": (self.filter, "fast"),
            "scale": (self.scale, "unit"),
        }
        changed = {name: value for name, (value, default) in stated.items() if value != default}
        return {"height": self.height, "width": self.width, **changed}


@dataclass(slots=True)
class _Words:
    """The words of --pre that are read, by what they decide: the place, colours, range, pad, filter."""

    pre: Pre = field(default_factory=Pre)
    decided: dict[str, str] = field(default_factory=dict)


def _size(word: str, text: str) -> tuple[int, int]:
    """Reads 640, or 640x480 as height x width."""
    parts = text.split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and 0 < int(part) <= 65535 for part in parts):
        raise AttachError(f"--pre: expected a size such as {word}:640 or {word}:640x480 (height x width), got '{text}'")
    return int(parts[0]), int(parts[-1])


def _numbers(word: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise AttachError(f"--pre: expected numbers such as {word}:0.5,0.5,0.5, got '{text}'") from None


def _whole(word: str, text: str, most: int) -> int:
    if not text.isdecimal() or int(text) > most:
        raise AttachError(f"--pre: expected {word}:0 to {word}:{most}, got '{word}:{text}'")
    return int(text)


def _fit(pre: Pre, word: str, text: str) -> Pre:
    height, width = _size(word, text)
    return replace(pre, fit=FITS[word], height=height, width=width, shorter_side=0)


def _crop(pre: Pre, word: str, text: str) -> Pre:
    height, width = _size(word, text)
    return replace(pre, fit="crop", height=height, width=width)


def _lines(pre: Pre, word: str, text: str) -> Pre:
    height = _whole(word, text, 4096)
    return replace(pre, fit="fit_height", height=height, width=WIDEST, bucket=BUCKET, shorter_side=0)


#: What a word with an argument does, and what it decides.
_WITH_ARGUMENT: Mapping[str, tuple[str, Callable[[Pre, str, str], Pre]]] = {
    "letterbox": ("place", _fit),
    "letterbox-start": ("place", _fit),
    "stretch": ("place", _fit),
    "crop": ("place", _crop),
    "height": ("place", _lines),
    "resize": ("shorter side", lambda pre, word, text: replace(pre, shorter_side=_whole(word, text, 65535))),
    "widest": ("widest", lambda pre, word, text: replace(pre, width=_whole(word, text, 65535))),
    "narrowest": ("narrowest", lambda pre, word, text: replace(pre, narrowest=_whole(word, text, 65535))),
    "bucket": ("bucket", lambda pre, word, text: replace(pre, bucket=_whole(word, text, 65535))),
    "pad": ("pad", lambda pre, word, text: replace(pre, pad=_whole(word, text, 255))),
    "mean": ("mean", lambda pre, word, text: replace(pre, mean=_numbers(word, text))),
    "std": ("std", lambda pre, word, text: replace(pre, std=_numbers(word, text))),
}
#: What a word alone decides, and its fields.
_ALONE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{word: ("place", {"fit": name, "shorter_side": 0}) for word, name in FITS.items()},
    "rgb": ("colours", {"order": "RGB", "channels": 3}),
    "bgr": ("colours", {"order": "BGR", "channels": 3}),
    "grey": ("colours", {"channels": 1}),
    "unit": ("range", {"scale": "unit", "mean": (), "std": ()}),
    "byte": ("range", {"scale": "byte"}),
    "half": ("range", {"scale": "unit", "mean": (0.5,), "std": (0.5,)}),
    "imagenet": ("range", {"scale": "unit", "mean": _IMAGENET[0], "std": _IMAGENET[1]}),
    **{word: ("filter", {"filter": name}) for word, name in FILTERS.items()},
}


def _read(text: str, pre: Pre) -> _Words:
    """Reads the words of a spec over a Pre. Raises AttachError for a word that is unknown or decides twice."""
    words = _Words(pre)
    for word in sorted(text.split(), key=lambda word: not word.startswith("height:")):  # which sets what others change
        name, colon, argument = word.partition(":")
        known = _WITH_ARGUMENT.get(name) if colon else None
        if known is not None:
            decides, change = known
            words.pre = change(words.pre, name, argument)
        elif not colon and name in _ALONE:
            decides, fields = _ALONE[name]
            words.pre = replace(words.pre, **fields)
        else:
            raise AttachError(
                f"--pre: what is '{word}'? Expected words such as {', '.join(f'{w}:…' for w in _WITH_ARGUMENT)}, "
                f"{', '.join(_ALONE)}"
            )
        if decides in words.decided:
            raise AttachError(f"--pre: '{words.decided[decides]}' and '{word}' both say the {decides}")
        words.decided[decides] = word
    return words


#: The words of --pre that are usual for a head. {h} and {w} are the size of the input.
_USUAL: Mapping[str, str] = {
    "yolov8": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "yolov5": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "yolox": "letterbox-start:{h}x{w} bgr byte pad:114 cv-linear",
    "end2end": "letterbox:{h}x{w} rgb unit pad:114 cv-linear",
    "detr": "stretch:{h}x{w} rgb unit pil-bilinear",
    "ssd": "stretch:{h}x{w} rgb half cv-linear",
    "boxes": "stretch:{h}x{w} rgb unit pil-bilinear",
    "blazeface": "letterbox:{h}x{w} rgb half pad:0 pil-bilinear",
    "scrfd": "letterbox-start:{h}x{w} rgb byte mean:127.5 std:128 pad:0 cv-linear",
    "classify": "resize:{s} crop:{h}x{w} rgb imagenet pil-bilinear",
    "embed": "stretch:{h}x{w} rgb imagenet pil-bilinear",
    "segment": "stretch:{h}x{w} rgb imagenet pil-bilinear",
    "ctc": "height:{h} rgb half pad:127 cv-linear",
}


def usual(kind: str, network: Network, size: tuple[int, int]) -> str:
    """Returns the words of --pre that are usual for a head of this kind, in a network of this size."""
    words = _USUAL[kind]
    if kind == "classify" and network.metadata.get("task") == "classify":  # Ultralytics
        words = "resize:{m} crop:{h}x{w} rgb unit pil-bilinear"
    if kind == "ctc" and "character" in network.metadata:  # PaddleOCR reads with OpenCV
        words = words.replace("rgb", "bgr narrowest:320")
    return words.format(h=size[0], w=size[1], s=round(max(size) / 0.875), m=max(size))


#: What is reported, in this order, and how it follows from a Pre.
_SUBJECTS = ("place", "colours", "range", "pad", "filter")


def _described(pre: Pre) -> dict[str, str]:
    """Returns the words for each subject of a Pre."""
    size = f"{pre.height}" if pre.height == pre.width else f"{pre.height}x{pre.width}"
    place = {word: f"{word}:{size}" for word in FITS}
    places = {FITS[word]: text for word, text in place.items()} | {
        "crop": (f"resize:{pre.shorter_side} " if pre.shorter_side else "") + f"crop:{size}",
        "fit_height": f"height:{pre.height}"
        + (
            f" narrowest:{pre.narrowest} widest:{pre.width} bucket:{pre.bucket}"
            if pre.bucket
            else f", then padded to {pre.width} columns"
        ),
    }
    normal = "" if not (pre.mean or pre.std) else f" mean:{_joined(pre.mean or (0,))} std:{_joined(pre.std or (1,))}"
    if (pre.mean, pre.std) == _IMAGENET:
        normal = " (imagenet)"
    return {
        "place": places[pre.fit],
        "colours": "grey" if pre.channels == 1 else pre.order.lower(),
        "range": ("byte" if pre.scale == "byte" else "unit") + normal,
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
    base = _read(usual(kind, network, size), Pre()).pre
    if network.channels == 1:
        base = replace(base, channels=1)
    if network.scales:
        base = replace(base, scale="byte", mean=(), std=())
    words = _read(said, base)
    decided, pre = words.decided, words.pre
    if "shorter side" in decided and "place" not in decided:
        raise AttachError(f"--pre: '{decided['shorter side']}' needs a crop: resize:256 crop:224")
    if pre.fit == "crop" and "shorter side" not in decided and "place" in decided:
        pre = replace(pre, shorter_side=round(max(pre.height, pre.width) / 0.875))
    if ("mean" in decided or "std" in decided) and "range" not in decided and max(map(abs, pre.mean), default=0) > 1:
        raise AttachError(f"--pre: '{decided.get('mean', '')}' is beyond 0..1: add the word byte")
    _check(pre, network)
    for subject, text in _described(pre).items():
        if subject == "pad" and pre.fit in ("stretch", "crop"):
            continue
        words_of = {
            "place": ("place", "shorter side", "widest", "narrowest", "bucket"),
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
    if 0 in pre.std:
        raise AttachError("--pre: a std is 0")
    if pre.fit == "crop" and pre.shorter_side and pre.shorter_side < max(pre.height, pre.width):
        raise AttachError(f"--pre: the shorter side of {pre.shorter_side} is less than the crop")


def add(nodes: Nodes, pre: Pre, network: Network) -> None:
    """Adds the nodes from `data` and `ends` to the network's input, with `geometry` and `status` beside it."""
    if network.width is not None and pre.fit == "fit_height":
        pre = replace(pre, width=network.width, bucket=0)
    steps: list[Callable[[str, str], str]] = []
    if pre.bucket:
        steps.append(lambda x, to: _used_width(nodes, x, pre, to))
    if network.layout == "NHWC":
        steps.append(lambda x, to: nodes.add("Transpose", [x], "nhwc", to=to, perm=[0, 2, 3, 1]))
    if network.dtype == "u8":
        steps.append(lambda x, to: nodes.add("Round", [x], "whole", to=to))
        steps.append(lambda x, to: nodes.cast(x, TensorProto.UINT8, "bytes", to=to))
    if network.dtype == "f16":
        steps.append(lambda x, to: nodes.cast(x, TensorProto.FLOAT16, "half", to=to))
    image = f"{nodes.prefix}image" if steps else network.input
    nodes.add_op("ImagePreprocess", ["data", "ends"], [image, "geometry", "status"], "image", **_full(pre))
    for number, step in enumerate(steps, 1):
        image = step(image, network.input if number == len(steps) else "")


def _full(pre: Pre) -> dict[str, Any]:
    """Returns the attributes, with a mean and a std for each channel."""
    attributes = pre.attributes()
    for name in ("mean", "std"):
        if len(numbers := attributes.get(name, [])) == 1:
            attributes[name] = [float(number) for number in numbers] * pre.channels
    return attributes


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


def stated_size(said: str) -> tuple[int, int] | None:
    """Returns the height and width that --pre says, None if it says none. A width that follows the picture is 0.
    Raises AttachError."""
    read = _read(said, Pre()).pre
    if not read.height:
        return None
    return read.height, 0 if read.bucket else read.width
