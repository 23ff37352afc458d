"""The nodes behind networks that hear: speech, labels, vectors, text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from opgate.attach.model import heads_without_boxes, settings
from opgate.attach.model.head import Head
from opgate.attach.model.nodes import Nodes, Setting
from opgate.attach.model.outputs import Output, are_probabilities
from opgate.attach.model.post import ANY, Answer, Answers
from opgate.attach.model.report import AttachError, Report
from opgate.attach.sounds.sound_words import Sound
from opgate.attach.sounds.windows import COUNTS, PCM

#: What the class of the blank is called, and what else says nothing.
_BLANKS = ("<blank>", "[blank]", "blank", "<pad>", "[pad]", "<blk>", "_")
_SILENT = (*_BLANKS[:-1], "<s>", "</s>", "<unk>", "[unk]", "[cls]", "[sep]")
#: The heads that go with a sound.
HEADS = ("speech", "notes", "classify", "embed", "ctc", "value", "outputs")


def usual(outputs: Sequence[Output], sound: Sound) -> str:
    """Returns the head that the outputs tell."""
    if len(outputs) != 1:
        return "outputs"
    (output,) = outputs
    if sound.window and output.value.size == 1:
        return "speech"
    return "classify" if output.value.ndim == 2 else "outputs"


def add(nodes: Nodes, head: Head, sound: Sound, speech: Speech | None, length: str) -> tuple[Answers, int]:
    """Adds the nodes behind a network that hears. `length` i32 [n] has the samples of each row. Returns the answers and
    the number of classes, 0 without any. Raises AttachError."""
    if speech:
        return _speech(nodes, head, speech, length), 0
    if head.post.kind == "ctc" and not sound.window:
        return _words(nodes, head, sound, length), 0
    if head.post.kind == "notes":
        return _notes(nodes, head, sound, length), 128
    if sound.window and head.post.kind in ("classify", "embed", "value"):
        return _pooled(nodes, head)
    if sound.window and head.post.kind == "outputs":
        answers, classes = heads_without_boxes.add(nodes, head)
        answers.outputs = [_each_window(answer) for answer in answers.outputs]
        nodes.add("Identity", [COUNTS], "windows", to="count")
        answers.outputs.append(Answer("count", "TYPE_INT32", (1,), scalar=True))
        return answers, classes
    if sound.window and head.post.kind != "outputs":
        raise AttachError(
            f"--post: {head.post.kind} doesn't go with windows: expected speech, notes, classify, embed, value or "
            "outputs"
        )
    return heads_without_boxes.add(nodes, head)


def _each_window(answer: Answer) -> Answer:
    return Answer(answer.name, answer.datatype, (-1, *answer.dims[1:]))


@dataclass(frozen=True, slots=True)
class Speech:
    """How speech is found: the output with a number for each window, whether a sigmoid makes it a probability, from
    which probability on it is speech, and the other attributes of SpeechSegments."""

    output: Output
    sigmoid: bool
    score: float
    attributes: Mapping[str, int | float]

    def probabilities(self, nodes: Nodes, name: str) -> str:
        """Adds the probabilities of a tensor like the output, in f32."""
        x = nodes.float(name, self.output.dtype, "scores")
        return nodes.add("Sigmoid", [x], "probabilities") if self.sigmoid else x


def speech_of(head: Head, sound: Sound) -> Speech | None:
    """Returns how speech is found, and reports it; None if the head finds none. Raises AttachError."""
    if head.post.kind != "speech":
        return None
    if not sound.window:
        raise AttachError("--post: speech needs a probability for each window: say its samples, such as pcm:16000,512")
    output = head.output(lambda output: output.value.size == 1, "one output with a number for each window")
    heads_without_boxes.check_floats(head, output)
    sigmoid = heads_without_boxes.activation(head, output, 1) == "sigmoid"
    told = head.report.said if "score" in head.post.stated else head.report.default
    told("score threshold", f"{head.post.score:g}", f"from which speech begins; {ANY}")
    attributes = {
        "step": sound.hop,
        "rate": sound.rate,
        "max_segments": head.post.most,
        "hysteresis": head.post.hysteresis,
        "min_speech_ms": head.post.min_speech_ms,
        "min_silence_ms": head.post.min_silence_ms,
        "pad_ms": head.post.pad_ms,
    }
    for word, subject, value in (
        ("hysteresis", "hysteresis", f"{head.post.hysteresis:g}"),
        ("min-speech", "shortest speech", f"{head.post.min_speech_ms} ms"),
        ("min-silence", "shortest silence", f"{head.post.min_silence_ms} ms"),
        ("pad", "pad", f"{head.post.pad_ms} ms at both sides"),
        ("max", "segments at most", f"{head.post.most}"),
    ):
        (head.report.said if word in head.post.stated else head.report.default)(subject, value)
    return Speech(output, sigmoid, head.post.score, attributes)


def _speech(nodes: Nodes, head: Head, speech: Speech, length: str) -> Answers:
    """Adds the stretches of speech: when each starts and ends, in seconds, and its mean probability."""
    x = head.rows(nodes, speech.probabilities(nodes, speech.output.name), speech.output.value.ndim)
    level = settings.add(nodes, settings.SCORE, Setting(speech.score))
    inputs = [nodes.reshape(x, [0, -1], "each_window"), length, settings.each_picture(nodes, level)]
    outputs = [f"{nodes.prefix}segments", "scores", "count"]
    nodes.add_op("SpeechSegments", inputs, outputs, "segments", **speech.attributes)
    times = segment_times(nodes, int(speech.attributes["max_segments"]))
    return Answers(times, [("start", "start"), ("end", "end"), ("score", "scores")], "count")


def segment_times(nodes: Nodes, most: int) -> list[Answer]:
    """Adds `start` and `end` f32 [n, most] of the output `segments` of SpeechSegments. Returns all that is said of
    segments."""
    for place, name in enumerate(("start", "end")):
        part = nodes.slice(f"{nodes.prefix}segments", 2, place, place + 1, name)
        nodes.reshape(part, [0, most], f"{name}.flat", to=name)
    return [
        *(Answer(name, "TYPE_FP32", (most,)) for name in ("start", "end", "scores")),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]


def names(labels: Sequence[str], classes: int, said: int | None, report: Report) -> tuple[list[str], int, str]:
    """Returns the text of each class of a reader of sounds, the class of the blank, and what stands between two words.
    `labels` are those of a file, `said` is what the word blank: says. Raises AttachError."""
    found = list(labels)
    blank = next((place for place, name in enumerate(found) if name.lower() in _BLANKS), None)
    if said is not None:
        blank = said
        report.said("blank", said)
    elif blank is not None:
        report.found("blank", blank, f"called {found[blank]!r}")
    elif len(found) == classes - 1:  # NeMo's vocabulary has none
        blank = len(found)
        found.append("")
        report.default("blank", blank, "behind the characters, of which there is one less than classes")
    else:
        raise AttachError("--post: which class is the blank? Say it, such as ctc:vocab.json blank:0")
    if not 0 <= blank < classes:
        raise AttachError(f"--post: expected blank:0 to blank:{classes - 1}, got blank:{blank}")
    if len(found) != classes:
        raise AttachError(f"--post: expected {classes} characters, one for each class, got {len(found)}")
    between = "|" if "|" in found else "\u2581" if any(name.startswith("\u2581") for name in found) else " "
    report.default("between words", repr(between))
    return ["" if name.lower() in _SILENT else name for name in found], blank, between


def _words(nodes: Nodes, head: Head, sound: Sound, length: str) -> Answers:
    """Adds the words of a sound: their text, when each starts and ends, in seconds, and its mean probability."""
    output = head.output(lambda output: output.value.ndim == 3, "one output [n, steps, classes]")
    heads_without_boxes.check_floats(head, output)
    if head.labels is None:
        raise AttachError(
            f"--post: {output} is read as steps with a score for each character: which characters does it write? Say "
            "ctc:vocab.json, a file with one character a line or a vocabulary in JSON"
        )
    if head.post.beam:
        raise AttachError("--post: the word beam: goes with lines of a picture")
    said = head.post.blank if "blank" in head.post.stated else None
    texts, blank, between = names(head.labels, output.shape[2], said, head.report)
    x = nodes.float(output.name, output.dtype, "scores.f32") if output.dtype == "f64" else output.name
    x = head.rows(nodes, x, 3)
    stated = head.post.words & {"softmax", "probabilities"}
    kind = "softmax" if "softmax" in stated or not (stated or are_probabilities(output.value)) else "none"
    (head.report.said if stated else head.report.ran)("scores", "probabilities" if kind == "none" else "logits")
    attributes = {"names": "\n".join(texts), "blank": blank, "delimiter": between, "activation": kind}
    made = [f"{nodes.prefix}{name}" for name in ("begin", "end")]
    steps, samples = (
        nodes.cast(nodes.slice(nodes.add("Shape", [each], "shape"), 0, 1, 2, "size"), TensorProto.FLOAT, "size.f32")
        for each in (x, PCM)
    )
    samples = nodes.add("Max", [samples, nodes.constant("one", 1.0)], "samples.held")
    steps = nodes.add("Max", [steps, nodes.constant("one", 1.0)], "steps.held")
    share = nodes.add("Div", [nodes.cast(length, TensorProto.FLOAT, "length.f32"), samples], "share")
    used = nodes.add("Ceil", [nodes.add("Mul", [share, steps], "used.f32")], "used.whole")
    used = nodes.cast(nodes.add("Min", [used, steps], "used.held"), TensorProto.INT32, "used")
    nodes.add_op("CTCWords", [x, used], ["words", *made, "scores", "count"], "words", **attributes)
    whole = nodes.add("Div", [samples, nodes.constant("rate", sound.rate)], "seconds")
    step = nodes.add("Div", [whole, steps], "step")
    for place, to in zip(made, ("start", "end"), strict=True):
        nodes.add("Mul", [nodes.cast(place, TensorProto.FLOAT, f"{to}.f32"), step], f"{to}.seconds", to=to)
    outputs = [
        Answer("words", "TYPE_STRING", (-1,)),
        *(Answer(name, "TYPE_FP32", (-1,)) for name in ("start", "end", "scores")),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    fields = [("text", "words"), ("start", "start"), ("end", "end"), ("score", "scores")]
    return Answers(outputs, fields, "count")


def _joined(nodes: Nodes, head: Head, output: Output, sound: Sound) -> tuple[str, int]:
    """Adds the frames of all windows, f32 [n, frames, k], of an output [n, windows, frames, k] without those that
    `trim` leaves out. Returns them and how many each window has."""
    x = head.rows(nodes, nodes.float(output.name, output.dtype, "each"), 4)
    count = output.shape[2] - 2 * sound.trim
    if count < 1:
        raise AttachError(f"--pre: trim:{sound.trim} leaves none of the {output.shape[2]} frames of a window")
    if sound.trim:
        x = nodes.slice(x, 2, sound.trim, sound.trim + count, "trimmed")
    return nodes.reshape(x, [0, -1, output.shape[3]], "frames"), count


def _two_outputs(head: Head) -> tuple[Output, Output]:
    """Returns the outputs of onsets and of frames: what --post says, else the one that is smaller for a sound of tones.
    Raises AttachError."""
    named = {output.name: output for output in head.outputs if output.value.ndim == 4}
    said = {"onsets": head.post.onsets, "frames": head.post.frames}
    for word, name in said.items():
        if name and name not in named:
            raise AttachError(f"--post: {word}:{name}: expected one of {', '.join(named)}")
    if all(said.values()):
        return named[said["onsets"]], named[said["frames"]]
    shapes = [output.shape for output in named.values()]
    pair = [name for name, output in named.items() if shapes.count(output.shape) == 2]
    if len(pair) != 2:
        raise AttachError(
            f"--post: notes needs onsets and frames, two outputs [n, frames, pitches] of one shape: say which of "
            f"{', '.join(named)} are onsets:NAME and frames:NAME"
        )
    loudness = {name: float([*head.others(name)][-1].mean()) for name in pair}  # the last is a tone
    onsets, frames = sorted(pair, key=lambda name: loudness[name])
    head.report.ran("onsets", onsets, f"smaller than {frames} for a tone; onsets:{frames} says otherwise")
    return named[onsets], named[frames]


def _notes(nodes: Nodes, head: Head, sound: Sound, length: str) -> Answers:
    """Adds notes: when each starts and ends, in seconds, its pitch and its mean amplitude."""
    if not sound.window:
        raise AttachError("--post: notes needs windows: say their samples, such as pcm:22050,43844")
    onsets, frames = _two_outputs(head)
    begun, each = _joined(nodes, head, onsets, sound)
    sounding, _ = _joined(nodes, head, frames, sound)
    pitches = frames.shape[3]
    lowest = 21 if pitches == 88 else 0
    if lowest + pitches > 128:
        raise AttachError(f"--post: notes takes up to 128 pitches, and {frames} has {pitches}")
    whole = nodes.cast(length, TensorProto.DOUBLE, "length.wide")
    rate = nodes.constant("frames_a_sample", each / sound.hop, np.float64)
    used = nodes.cast(nodes.add("Mul", [whole, rate], "frames.used"), TensorProto.INT32, "frames.whole")
    there = nodes.slice(nodes.add("Shape", [begun], "frames.shape"), 0, 1, 2, "frames.there")
    used = nodes.add("Min", [used, nodes.cast(there, TensorProto.INT32, "frames.most")], "frames.held")
    level = settings.add(nodes, settings.SCORE, Setting(head.post.score))
    told = head.report.said if "score" in head.post.stated else head.report.default
    told("score threshold", f"{head.post.score:g}", f"of an onset; {ANY}")
    for word, subject, value in (
        ("threshold", "frame threshold", f"{head.post.threshold:g}"),
        ("shortest", "shortest note", f"more than {head.post.shortest} frames"),
        ("max", "notes at most", f"{head.post.most}"),
    ):
        (head.report.said if word in head.post.stated else head.report.default)(subject, value)
    made = {name: f"{nodes.prefix}{name}" for name in ("begin", "end", "pitch")}
    inputs = [begun, sounding, used, settings.each_picture(nodes, level)]
    attributes = {
        "max_notes": head.post.most,
        "frame_threshold": head.post.threshold,
        "min_frames": head.post.shortest,
    }
    nodes.add_op("NoteEvents", inputs, [*made.values(), "scores", "count"], "notes", **attributes)
    for name, to in (("begin", "start"), ("end", "end")):
        _seconds(nodes, made[name], each, onsets, sound, to)
    nodes.add("Add", [made["pitch"], nodes.constant("lowest", lowest, np.int32)], "midi", to="labels")
    nodes.add("Identity", ["labels"], "pitch.midi", to="pitch")
    most = head.post.most
    outputs = [
        *(Answer(name, "TYPE_FP32", (most,)) for name in ("start", "end", "scores")),
        Answer("labels", "TYPE_INT32", (most,), labels=True),
        Answer("pitch", "TYPE_INT32", (most,)),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    fields = [("start", "start"), ("end", "end"), ("note", "labels"), ("pitch", "pitch"), ("score", "scores")]
    return Answers(outputs, fields, "count")


def _seconds(nodes: Nodes, frame: str, each: int, output: Output, sound: Sound, to: str) -> None:
    """Adds when frames i32 [n, k] begin, in seconds. Each window has `each` frames behind those that are trimmed."""
    count = nodes.constant("frames_of_a_window", each, np.int32)
    window = nodes.add("Div", [frame, count], f"{to}.window")
    inside = nodes.add("Sub", [frame, nodes.add("Mul", [window, count], f"{to}.before")], f"{to}.inside")
    step = sound.lead / sound.trim if sound.lead and sound.trim else sound.window / output.shape[2]
    parts = []
    for x, scale in ((window, sound.hop), (inside, step)):
        wide = nodes.cast(x, TensorProto.FLOAT, f"{to}.f32")
        parts.append(nodes.add("Mul", [wide, nodes.constant(f"{to}.scale", scale / sound.rate)], f"{to}.scaled"))
    offset = nodes.constant(f"{to}.offset", (sound.trim * step - sound.lead) / sound.rate)
    moved = nodes.add("Add", [nodes.add("Add", parts, f"{to}.sum"), offset], f"{to}.moved")
    nodes.add("Max", [moved, nodes.constant("begin", 0.0)], f"{to}.held", to=to)


def _pooled(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds the mean over the windows of each row, and the nodes of a classifier or of a vector behind it."""
    output = head.output(lambda output: output.value.ndim >= 3, "one output with numbers for each window")
    heads_without_boxes.check_floats(head, output)
    classes = output.shape[-1]
    x = head.rows(nodes, nodes.float(output.name, output.dtype, "each"), output.value.ndim)
    if head.post.kind == "classify":
        kind = heads_without_boxes.activation(head, output, classes)
        if kind != "none":
            x = nodes.add("Sigmoid", [x], "sure") if kind == "sigmoid" else nodes.softmax(x, output.value.ndim, "sure")
    if output.value.ndim > 3:  # frames of a window
        flat = nodes.reshape(x, [0, 0, -1, classes], "frames")
        x = nodes.reduce("ReduceMean", flat, 2, "frames.mean", keepdims=False)
    there = nodes.reshape(nodes.mask(x, 1, COUNTS), [0, 0, 1], "there")
    total = nodes.reduce("ReduceSum", nodes.add("Mul", [x, there], "used"), 1, "sum", keepdims=False)
    count = nodes.reshape(nodes.cast(COUNTS, TensorProto.FLOAT, "count"), [-1, 1], "count.rows")
    mean = nodes.add("Div", [total, count], "mean")
    head.report.default("windows", "the mean over the windows of a sound")
    if head.post.kind == "embed":
        heads_without_boxes.vector(nodes, head, mean, classes)
        return Answers([Answer("embedding", "TYPE_FP32", (classes,))]), 0
    if head.post.kind == "value":
        return heads_without_boxes.values(nodes, head, mean, classes)
    return heads_without_boxes.best(nodes, head, mean, classes, "none"), classes
