"""Post-processing: the words that describe it, and what a served model answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report, did_you_mean

#: The heads that answer with boxes, with score and IoU as in the tools of their makers.
_DETECTORS: Mapping[str, tuple[float, float]] = {
    "yolov8": (0.25, 0.7),
    "yolov5": (0.25, 0.45),
    "obb": (0.25, 0.5),
    "yolox": (0.25, 0.45),
    "end2end": (0.25, 1.0),
    "detr": (0.5, 1.0),
    "ssd": (0.5, 0.5),
    "boxes": (0.5, 1.0),
    "picodet": (0.4, 0.5),
    "nanodet": (0.35, 0.6),
    "blazeface": (0.5, 0.3),
    "scrfd": (0.5, 0.4),
}
#: The heads whose makers suppress each class by itself: an anchor may be in several.
ALL_CLASSES = ("picodet", "nanodet")
#: The heads of which the word classes: says how many channels are classes.
COUNTED = ("yolov8", "yolov5", "yolox", "obb")
#: The outputs of masks: the masks, how their cells lie in the picture, and the boxes that cut them.
MASKS = ("masks", "mask_geometry", "boxes")
#: What else is usual for some heads. BlazeFace's makers take means of boxes that overlap. The thresholds and the most
#: regions of a text detector are PaddleOCR's. With 0 a request gets no more labels than one that asks for none.
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "classify": {"most": 0},
    "segment": {"threshold": 0.5},
    "blazeface": {"nms": "weighted"},
    "db": {"threshold": 0.3, "score": 0.6, "most": 1000},
    "speech": {"score": 0.5, "most": 1000},
    "notes": {"score": 0.5, "most": 2000, "threshold": 0.3},
}
#: How many labels an answer of a classifier has, if nobody says it.
LABELS = 5
#: How many boxes an answer may have at most.
_MOST = 10_000
#: The widest beam that CTCBeamSearch takes.
_WIDEST_BEAM = 1000
#: What a report says of a threshold that a request may set.
ANY = "a request may say 0 to 1"
#: The heads of pictures, and all.
PICTURES = (*_DETECTORS, "classify", "value", "embed", "segment", "ctc", "db")
_KINDS = (*PICTURES, "outputs", "speech", "spans", "notes")


@dataclass(frozen=True, slots=True)
class Post:
    """What becomes of the outputs.

    `kind` is the head. `argument` is what stands behind its colon: the number of labels, the file of characters.
    `classes` is 0 until the head or --post says it. `lowest` is the least score threshold that a request may ask for.
    `nms` is hard, or weighted for means of the boxes that overlap. `only` names the outputs of the network that count,
    with commas, all if it is empty. `threshold` is the probability above which a pixel is inside, `unclip` that of
    DBPostprocess, `text` the least score of a text that is read, and `turn` that above which a line is turned. `beam`
    is the width of CTC's beam, 0 for the best class of each step. `hysteresis`, `min_speech_ms`, `min_silence_ms` and
    `pad_ms` are those of SpeechSegments, `onsets` and `frames` the outputs that NoteEvents takes, and `shortest` is how
    many frames no note has. `stated` are the names of the words with an argument
    in --post, `words` are the flags: agnostic, rows, xyxy, cxcywh, pixels, sigmoid, softmax, background-first,
    background-last, dilate.
    """

    kind: str
    argument: str = ""
    score: float = 0.25
    lowest: float = 1.0
    iou: float = 0.5
    most: int = 100
    classes: int = 0
    blank: int = 0
    beam: int = 0
    nms: str = "hard"
    only: str = ""
    threshold: float = 0.5
    unclip: float = 1.5
    text: float = 0.5
    turn: float = 0.9
    hysteresis: float = 0.15
    min_speech_ms: int = 250
    min_silence_ms: int = 100
    pad_ms: int = 30
    onsets: str = ""
    frames: str = ""
    shortest: int = 11
    words: frozenset[str] = frozenset()
    stated: frozenset[str] = frozenset()

    @property
    def least_score(self) -> float:
        """The least score threshold that a request may say, where `lowest` means something."""
        return min(self.score, self.lowest)

    @property
    def detects(self) -> bool:
        """Whether the answer has boxes."""
        return self.kind in _DETECTORS


@dataclass(frozen=True, slots=True)
class Answer:
    """An output of the served model: its name, its dtype in a config, its shape without the batch, whether it has the
    labels, and whether the model file has no axis for a shape of 1."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    labels: bool = False
    scalar: bool = False


@dataclass(slots=True)
class Answers:
    """The outputs of a served model, and how /predict shows them: pairs of a field and an output. `masks` are those of
    which the first has masks, `status` is the one that says whether a row is good."""

    outputs: list[Answer] = field(default_factory=list)
    fields: list[tuple[str, str]] = field(default_factory=list)
    count: str = ""
    text: str = ""
    masks: tuple[str, ...] = ()
    status: str = "status"


def _number(word: str, text: str, most: float = 1) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise AttachError(f"--post: expected {word}:0 to {word}:{most:g}, got '{word}:{text}'")
    return value


def _count(word: str, text: str) -> int:
    if not text.isdecimal():
        raise AttachError(f"--post: expected a number such as {word}:1, got '{word}:{text}'")
    return int(text)


def _from_one(word: str, text: str, most: int) -> int:
    count = _count(word, text)
    if not 1 <= count <= most:
        raise AttachError(f"--post: expected {word}:1 to {word}:{most}, got '{word}:{text}'")
    return count


def _milliseconds(word: str, text: str) -> int:
    count = _count(word, text)
    if count > 3_600_000:
        raise AttachError(f"--post: expected {word}:0 to {word}:3600000 milliseconds, got '{word}:{text}'")
    return count


def _one_of(word: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise AttachError(f"--post: expected {' or '.join(f'{word}:{one}' for one in known)}, got '{word}:{text}'")
    return text


_WORDS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "score": lambda text: {"score": _number("score", text)},
    "lowest": lambda text: {"lowest": _number("lowest", text)},
    "iou": lambda text: {"iou": _number("iou", text)},
    "nms": lambda text: {"nms": _one_of("nms", text, ("hard", "weighted"))},
    "max": lambda text: {"most": _from_one("max", text, _MOST)},
    "classes": lambda text: {"classes": _count("classes", text)},
    "output": lambda text: {"only": text},
    "blank": lambda text: {"blank": _count("blank", text)},
    "beam": lambda text: {"beam": _from_one("beam", text, _WIDEST_BEAM)},
    "threshold": lambda text: {"threshold": _number("threshold", text)},
    "unclip": lambda text: {"unclip": _number("unclip", text, 10)},
    "text": lambda text: {"text": _number("text", text)},
    "turn": lambda text: {"turn": _number("turn", text)},
    "onsets": lambda text: {"onsets": text},
    "frames": lambda text: {"frames": text},
    "shortest": lambda text: {"shortest": _count("shortest", text)},
    "hysteresis": lambda text: {"hysteresis": _number("hysteresis", text)},
    "min-speech": lambda text: {"min_speech_ms": _milliseconds("min-speech", text)},
    "min-silence": lambda text: {"min_silence_ms": _milliseconds("min-silence", text)},
    "pad": lambda text: {"pad_ms": _milliseconds("pad", text)},
}
#: What makes one vector of those of several tokens or windows: the mean, the first, the last, the greatest numbers.
POOLS = ("mean-pool", "cls-pool", "last-pool", "max-pool")
_FLAGS = (
    "agnostic", "per-class", "rows", "xyxy", "cxcywh", "pixels", "normalized", "sigmoid", "softmax", "probabilities",
    "background-first", "background-last", "dilate", *POOLS, "normalize", "unscaled",
)  # fmt: skip


#: The heads whose boxes may be means of those that overlap.
_WEIGHTED = ("ssd", "blazeface")
_BOXES = ("output", "score", "lowest", "iou", "max")
_CLASSES = ("classes", "agnostic", "per-class")
_PLACES = ("pixels", "normalized")
_QUERIES = (
    *_BOXES, *_CLASSES, *_PLACES, "xyxy", "cxcywh", "sigmoid", "softmax", "probabilities", "background-first",
    "background-last",
)  # fmt: skip
#: The words that mean something to each head.
_OWN: Mapping[str, tuple[str, ...]] = {
    "yolov8": (*_BOXES, *_CLASSES, *_PLACES, "rows"),
    "yolov5": (*_BOXES, *_CLASSES, *_PLACES),
    "obb": (*_BOXES, *_CLASSES, *_PLACES),
    "yolox": (*_BOXES, *_CLASSES),
    "end2end": (*_BOXES, *_PLACES),
    "detr": _QUERIES,
    "ssd": (*_QUERIES, "nms"),
    "boxes": (*_BOXES, *_PLACES),
    "picodet": (*_BOXES, *_CLASSES),
    "nanodet": (*_BOXES, *_CLASSES),
    "blazeface": (*_BOXES, "nms"),
    "scrfd": _BOXES,
    "classify": ("output", "score", "max", "sigmoid", "softmax", "probabilities"),
    "embed": ("output", *POOLS, "normalize", "unscaled"),
    "outputs": ("output",),
    "value": ("output",),
    "speech": ("output", "score", "max", "hysteresis", "min-speech", "min-silence", "pad"),
    "notes": ("onsets", "frames", "score", "threshold", "max", "shortest"),
    "spans": ("output",),
    "segment": ("output", "threshold", "sigmoid", "probabilities"),
    "ctc": ("output", "score", "blank", "beam", "softmax", "probabilities"),
    "db": (
        "output", "threshold", "score", "lowest", "unclip", "max", "text", "turn", "beam", "blank", "dilate",
        "sigmoid", "probabilities",
    ),
}  # fmt: skip
#: The heads with something behind a colon of their own.
_WITH_ARGUMENT = ("classify", "ctc")
#: What flags say. Of those that say the same only one may be there. A word with an argument says what it is called.
_SAYS = {
    flag: what
    for what, flags in (
        ("suppression", ("agnostic", "per-class")),
        ("box form", ("xyxy", "cxcywh")),
        ("unit of boxes", _PLACES),
        ("kind of scores", ("sigmoid", "softmax", "probabilities")),
        ("background", ("background-first", "background-last")),
        ("pool", POOLS),
        ("length of a vector", ("normalize", "unscaled")),
    )
    for flag in flags
}


def _names(kind: str, words: Sequence[str]) -> dict[str, str]:
    """Returns the words behind a head by their names. Raises AttachError for a word that is unknown, that means nothing
    to the head, or that says what another one says."""
    names, says = dict[str, str](), dict[str, str]()
    for word in words:
        name, colon, _ = word.partition(":")
        if name not in (_WORDS if colon else _FLAGS):
            alone, said = ([own for own in _OWN[kind] if own in each] for each in (_FLAGS, _WORDS))
            expected = ", ".join((*(f"{own}:…" for own in said), *alone)) or "no words"
            near = did_you_mean(word, alone, said)
            raise AttachError(f"--post: what is '{word}'?{near} Expected words of {kind}: {expected}")
        if name not in _OWN[kind]:
            raise AttachError(f"--post: '{word}' means nothing to {kind}")
        what = _SAYS.get(name, name)
        if what in says:
            raise AttachError(f"--post: '{says[what]}' and '{word}' both say the {what}")
        says[what] = names[name] = word
    return names


def _check(post: Post, names: Mapping[str, str]) -> None:
    """Raises AttachError for a word that means nothing beside the others."""
    if "lowest" in names and post.lowest > post.score:
        raise AttachError(f"--post: '{names['lowest']}' is above the score threshold, {post.score:g}")
    asked = post.argument or f"{LABELS}"
    if "max" in names and post.kind == "classify" and asked.isdecimal() and post.most < int(asked):
        raise AttachError(f"--post: '{names['max']}' is less than the {asked} labels of an answer: say classify:1")
    if post.detects and post.iou >= 1:
        for flag in sorted(post.words & {"agnostic", "per-class"}):
            raise AttachError(f"--post: '{flag}' goes with suppression: add a word such as iou:0.5")


def kind_of(text: str) -> str:
    """Returns the head that --post names. Raises AttachError."""
    kind = (text.split(maxsplit=1) or [""])[0].partition(":")[0]
    if kind in POOLS:  # words of embed that say all
        return "embed"
    if kind not in _KINDS:
        near = did_you_mean(kind, _KINDS)
        raise AttachError(f"--post: what is '{kind}'?{near} Expected one of {', '.join(_KINDS)}")
    return kind


def read(text: str, origin: Callable[[str, object, str], None], why: str, report: Report) -> Post:
    """Returns what --post, or the guess of a head, says. `origin` reports the head itself: found or said.

    Raises AttachError.
    """
    kind, (first, *words) = kind_of(text), text.split()
    if first in POOLS:
        first, words = kind, [first, *words]
    score, iou = _DETECTORS.get(kind, (0.0, 0.0))
    post = replace(Post(kind, first.partition(":")[2], score, iou=iou), **_USUAL.get(kind, {}))
    origin("head", first, why)
    if ":" in first and kind not in _WITH_ARGUMENT:
        raise AttachError(f"--post: what stands behind the colon of '{first}' means nothing to {kind}")
    names = _names(kind, words)
    said = {name: word for name, word in names.items() if name in _WORDS}
    for name, word in said.items():
        post = replace(post, **_WORDS[name](word.partition(":")[2]))
    post = replace(post, words=frozenset(names.keys() - said), stated=frozenset(said))
    _check(post, names)
    if kind == "yolox" and "per-class" not in names:
        post = replace(post, words=post.words | {"agnostic"})
    if post.detects:
        _report_thresholds(post, said, words, report)
    if kind == "db":
        _report_regions(post, said, report)
    return post


def settled(
    text: str, outputs: Sequence[Output], heads: Sequence[str], usual: str, report: Report
) -> tuple[Post, Sequence[Output]]:
    """Returns what --post says of a network that takes no pictures, or else the `usual` words, and the outputs that
    count. `heads` are those that go with what the network takes. Raises AttachError."""
    report.ran(
        "output", ", ".join(f"{output.name} {output.dtype}{list(output.shape)}" for output in outputs), "of a run"
    )
    if text and (kind := kind_of(text)) not in heads:
        raise AttachError(f"--post: {kind} doesn't go with what this network takes: expected one of {', '.join(heads)}")
    said = read(text or usual, report.said if text else report.default, "", report)
    if not text:
        said = replace(said, argument="")
    return said, chosen(outputs, said.only)


def chosen(outputs: Sequence[Output], names: str) -> Sequence[Output]:
    """Returns the outputs that the word output: names. Raises AttachError."""
    wanted = names.split(",") if names else [output.name for output in outputs]
    if unknown := set(wanted) - {output.name for output in outputs}:
        raise AttachError(
            f"--post: there is no output '{min(unknown)}': expected {', '.join(output.name for output in outputs)}"
        )
    return [output for output in outputs if output.name in wanted]


def _lowest(post: Post) -> str:
    """Returns which score threshold a request may ask for."""
    return f"a request may say {post.least_score:g} to 1"


def _report_regions(post: Post, said: Mapping[str, str], report: Report) -> None:
    for word, subject, value, why in (
        ("threshold", "threshold", f"{post.threshold:g}", f"above which a pixel is text; {ANY}"),
        ("score", "score threshold", f"{post.score:g}", f"of the mean in a region; {_lowest(post)}"),
        ("unclip", "unclip ratio", f"{post.unclip:g}", "how far a region grows"),
        ("max", "regions at most", f"{post.most}", ""),
    ):
        (report.said if word in said else report.default)(subject, value, why)
    if "dilate" in post.words:
        report.said("dilation", "by a pixel")


def _report_thresholds(post: Post, said: Mapping[str, str], words: Sequence[str], report: Report) -> None:
    usual = f"usual for {post.kind}"

    def tell(stated: bool, subject: str, value: object, *why: str) -> None:
        """Reports what is said, or is usual for the head."""
        (report.said if stated else report.default)(subject, value, "; ".join(why if stated else (usual, *why)))

    tell("score" in said, "score threshold", f"{post.score:g}", _lowest(post))
    (report.said if "max" in said else report.default)("boxes at most", post.most, "a request may say fewer")
    if post.iou >= 1:
        (report.said if "iou" in said else report.default)("suppression", "none", f"the network {post.kind} needs none")
        return
    tell("iou" in said, "IoU threshold", f"{post.iou:g}", *(() if post.kind == "obb" else (ANY,)))
    alone = "agnostic" not in post.words and "agnostic" in _OWN[post.kind]
    suppressed = "in each class" if alone else "across classes"
    if alone and post.kind not in ALL_CLASSES:
        suppressed += "; an anchor has its best class alone"
    tell(not {"agnostic", "per-class"}.isdisjoint(words), "suppression", suppressed)
    if post.kind in _WEIGHTED:
        kept = "the mean of boxes that overlap, weighted by their scores" if post.nms == "weighted" else "the best box"
        tell("nms" in said, "nms", post.nms, kept)


def detections(most: int, with_labels: bool, more: Sequence[tuple[str, Answer]] = ()) -> Answers:
    """Returns the answers of a detector: boxes, labels, scores and a count, and what else belongs to each box. What has
    no name for a field is no field."""
    outputs = [
        Answer("boxes", "TYPE_FP32", (most, 4)),
        Answer("scores", "TYPE_FP32", (most,)),
        Answer("labels", "TYPE_INT32", (most,), labels=with_labels),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
        *(answer for _, answer in more),
    ]
    fields = [("box", "boxes"), ("label", "labels"), ("score", "scores")]
    fields += [(name, answer.name) for name, answer in more if name]
    masks = MASKS if {*MASKS} <= {answer.name for answer in outputs} else ()
    return Answers(outputs, fields, "count", masks=masks)
