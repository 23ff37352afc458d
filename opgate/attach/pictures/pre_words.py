"""The words of --pre."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opgate.attach.model.report import AttachError, did_you_mean

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
#: How long a side may become whose length follows the picture. Such a side is a multiple of MULTIPLE.
LONGEST, MULTIPLE = 1536, 32


@dataclass(frozen=True, slots=True)
class Pre:
    """How a picture becomes the input of a network.

    `fit`, `filter` and `scale` have the names of ImagePreprocess. `height` and `width` are those of the network's
    input; with fit_height the width follows the picture up to `width`, rounded up to a multiple of `bucket`, unless
    that is 0, and at least `narrowest`. With multiples both sides follow the picture up to `height` and `width`, and
    the shorter one has at least `shorter_side`. A crop is cut out of a picture whose shorter side is scaled to
    `shorter_side`, or which is stretched to `stretched`, height and width. `mean` and `std` have a number for each
    channel, or one for all.
    """

    fit: str = "letterbox"
    height: int = 0
    width: int = 0
    shorter_side: int = 0
    stretched: tuple[int, int] = (0, 0)
    channels: int = 3
    order: str = "RGB"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scale: str = "unit"
    pad: int = 114
    filter: str = "cv_linear"
    bucket: int = 0
    narrowest: int = 0

    @property
    def follows(self) -> bool:
        """Whether the size of the network's input follows the picture."""
        return self.bucket > 0 or self.fit == "multiples"

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of ImagePreprocess that differ from its defaults. A crop of a stretched picture is cut
        behind it."""
        if any(self.stretched):
            height, width = self.stretched
            return replace(self, fit="stretch", height=height, width=width, stretched=(0, 0)).attributes()
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
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise AttachError(f"--pre: expected numbers such as {word}:0.5,0.5,0.5, got '{text}'")
    return numbers


def _whole(word: str, text: str, most: int) -> int:
    if not text.isdecimal() or int(text) > most:
        raise AttachError(f"--pre: expected {word}:0 to {word}:{most}, got '{word}:{text}'")
    return int(text)


def _fit(pre: Pre, word: str, text: str) -> Pre:
    height, width = _size(word, text)
    return replace(pre, fit=FITS[word], height=height, width=width, shorter_side=0, bucket=0, narrowest=0)


def _crop(pre: Pre, word: str, text: str) -> Pre:
    height, width = _size(word, text)
    return replace(pre, fit="crop", height=height, width=width, bucket=0, narrowest=0)


def _lines(pre: Pre, word: str, text: str) -> Pre:
    height = _whole(word, text, 4096)
    if not height:
        raise AttachError("--pre: expected height:1 to height:4096, got 'height:0'")
    return replace(pre, fit="fit_height", height=height, width=WIDEST, bucket=BUCKET, shorter_side=0)


def _sides(pre: Pre, word: str, text: str) -> Pre:
    least = _whole(word, text, 65535)
    return replace(pre, fit="multiples", height=LONGEST, width=LONGEST, shorter_side=least, bucket=0, narrowest=0)


def _longest(pre: Pre, word: str, text: str) -> Pre:
    longest = _whole(word, text, 65535)
    if not longest or longest % MULTIPLE:
        raise AttachError(f"--pre: expected {word}: and a multiple of {MULTIPLE}, got '{word}:{text}'")
    return replace(pre, height=longest, width=longest)


def _resize(pre: Pre, word: str, text: str) -> Pre:
    if "x" in text:
        return replace(pre, stretched=_size(word, text), shorter_side=0)
    return replace(pre, shorter_side=_whole(word, text, 65535), stretched=(0, 0))


#: What a word with an argument does, and what it decides.
_WITH_ARGUMENT: Mapping[str, tuple[str, Callable[[Pre, str, str], Pre]]] = {
    "letterbox": ("place", _fit),
    "letterbox-start": ("place", _fit),
    "stretch": ("place", _fit),
    "crop": ("place", _crop),
    "height": ("place", _lines),
    "shortest": ("place", _sides),
    "longest": ("longest", _longest),
    "resize": ("shorter side", _resize),
    "widest": ("widest", lambda pre, word, text: replace(pre, width=_whole(word, text, 65535))),
    "narrowest": ("narrowest", lambda pre, word, text: replace(pre, narrowest=_whole(word, text, 65535))),
    "bucket": ("bucket", lambda pre, word, text: replace(pre, bucket=_whole(word, text, 65535))),
    "pad": ("pad", lambda pre, word, text: replace(pre, pad=_whole(word, text, 255))),
    "mean": ("mean", lambda pre, word, text: replace(pre, mean=_numbers(word, text))),
    "std": ("std", lambda pre, word, text: replace(pre, std=_numbers(word, text))),
}
#: What a word alone decides, and its fields.
_ALONE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{word: ("place", {"fit": name, "shorter_side": 0, "bucket": 0, "narrowest": 0}) for word, name in FITS.items()},
    "rgb": ("colours", {"order": "RGB", "channels": 3}),
    "bgr": ("colours", {"order": "BGR", "channels": 3}),
    "grey": ("colours", {"channels": 1}),
    "unit": ("range", {"scale": "unit", "mean": (), "std": ()}),
    "byte": ("range", {"scale": "byte", "mean": (), "std": ()}),
    "half": ("range", {"scale": "unit", "mean": (0.5,), "std": (0.5,)}),
    "imagenet": ("range", {"scale": "unit", "mean": IMAGENET[0], "std": IMAGENET[1]}),
    **{word: ("filter", {"filter": name}) for word, name in FILTERS.items()},
}


#: What words decide, in the order in which they are read: what stands first sets what the others change.
_ORDER = ("place", "range")
#: What belongs to a place alone, by the name of that place's word.
_BELONGS = {
    "shorter side": "crop", "widest": "height", "narrowest": "height", "bucket": "height", "longest": "shortest"
}  # fmt: skip
_FIT_OF = {"crop": "crop", "height": "fit_height", "shortest": "multiples"}


def _decides(word: str) -> str:
    """Returns what a word decides. Raises AttachError for a word that is unknown."""
    name, colon, _ = word.partition(":")
    known: Mapping[str, tuple[str, Any]] = _WITH_ARGUMENT if colon else _ALONE
    if name not in known:
        raise AttachError(
            f"--pre: what is '{word}'?{did_you_mean(word, _ALONE, _WITH_ARGUMENT)} "
            f"Expected words such as {', '.join(f'{w}:…' for w in _WITH_ARGUMENT)}, {', '.join(_ALONE)}"
        )
    return known[name][0]


def _decided(text: str) -> dict[str, str]:
    """Returns the words by what they decide, in the order in which they are read. Raises AttachError."""
    decided: dict[str, str] = {}
    for word in text.split():
        decides = _decides(word)
        if decides in decided:
            raise AttachError(f"--pre: '{decided[decides]}' and '{word}' both say the {decides}")
        decided[decides] = word
    for part in ("mean", "std"):
        if part in decided and decided.get("range") in ("half", "imagenet"):
            raise AttachError(f"--pre: '{decided['range']}' and '{decided[part]}' both say the {part}")
    return {key: decided[key] for key in (*_ORDER, *sorted(decided.keys() - _ORDER)) if key in decided}


def read(text: str, pre: Pre, size: tuple[int, int] = (0, 0)) -> Words:
    """Reads the words of a spec over a Pre. `size` is the height and width of a place without one. The order of the
    words doesn't matter.

    Raises AttachError for a word that is unknown, decides twice, or doesn't belong to the place.
    """
    decided = _decided(text)
    for word in decided.values():
        name, colon, argument = word.partition(":")
        if colon:
            pre = _WITH_ARGUMENT[name][1](pre, name, argument)
            continue
        pre = replace(pre, **_ALONE[name][1])
        if name in FITS:
            pre = replace(pre, height=size[0], width=size[1])
    if "mean" in decided and "std" not in decided:
        pre = replace(pre, std=(1.0,))
    if "std" in decided and "mean" not in decided:
        pre = replace(pre, mean=(0.0,))
    return Words(pre, decided)


def check_places(words: Words) -> None:
    """Raises AttachError for a word that belongs to another place than that of the picture."""
    for decides, place in _BELONGS.items():
        word = words.decided.get(decides, "")
        if word and words.pre.fit != _FIT_OF[place]:
            at = words.decided.get("place", "")
            raise AttachError(
                f"--pre: '{word}' belongs to '{place}:', "
                + (
                    f"and '{at}' says another place"
                    if at
                    else f"which --pre doesn't say: add a word such as {place}:48"
                )
            )


def stated_size(said: str) -> tuple[int, int] | None:
    """Returns the height and width that --pre says, None if it says none. A side that follows the picture is 0.
    Raises AttachError."""
    words = read(said, Pre())
    stated = words.pre
    if "place" in words.decided:
        check_places(words)
    if not stated.height:
        return None
    if stated.fit == "multiples":
        return 0, 0
    return stated.height, 0 if stated.bucket else stated.width
