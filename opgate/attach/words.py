"""The words of --pre."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opgate.attach.report import AttachError

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
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
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
class Words:
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
    "imagenet": ("range", {"scale": "unit", "mean": IMAGENET[0], "std": IMAGENET[1]}),
    **{word: ("filter", {"filter": name}) for word, name in FILTERS.items()},
}


def read(text: str, pre: Pre, size: tuple[int, int] = (0, 0)) -> Words:
    """Reads the words of a spec over a Pre. `size` is the height and width of a place without one.

    Raises AttachError for a word that is unknown or decides twice.
    """
    words = Words(pre)
    for word in sorted(text.split(), key=lambda word: not word.startswith("height:")):  # which sets what others change
        name, colon, argument = word.partition(":")
        known = _WITH_ARGUMENT.get(name) if colon else None
        if known is not None:
            decides, change = known
            words.pre = change(words.pre, name, argument)
        elif not colon and name in _ALONE:
            decides, fields = _ALONE[name]
            words.pre = replace(words.pre, **fields)
            if name in FITS:
                words.pre = replace(words.pre, height=size[0], width=size[1], bucket=0)
        else:
            raise AttachError(
                f"--pre: what is '{word}'? Expected words such as {', '.join(f'{w}:…' for w in _WITH_ARGUMENT)}, "
                f"{', '.join(_ALONE)}"
            )
        if decides in words.decided:
            raise AttachError(f"--pre: '{words.decided[decides]}' and '{word}' both say the {decides}")
        words.decided[decides] = word
    return words


def stated_size(said: str) -> tuple[int, int] | None:
    """Returns the height and width that --pre says, None if it says none. A width that follows the picture is 0.
    Raises AttachError."""
    stated = read(said, Pre()).pre
    if not stated.height:
        return None
    return stated.height, 0 if stated.bucket else stated.width
