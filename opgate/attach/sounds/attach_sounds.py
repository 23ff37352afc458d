"""Attaches to a network that hears: a sound file of any kind in, labels, text or times out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto

from opgate.attach.model import examples, graph, labels, network_file, post, takes
from opgate.attach.model.attached import Attached, attached
from opgate.attach.model.head import Head
from opgate.attach.model.labels import listed
from opgate.attach.model.network_file import Input, NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.attach.sounds import features, sound_heads, sound_proof, sound_streams, windows
from opgate.attach.sounds.features import FeatureInput
from opgate.attach.sounds.known_sound import Known, known
from opgate.attach.sounds.sound_words import Sound
from opgate.attach.sounds.windows import LENGTH, PCM, Wave
from opgate.onnx_tools.row_dependence import ROWS
from opgate.ops_build.case import Array

#: The words that begin --pre for a sound.
_FIRST = ("pcm", *features.PRESETS)
#: Files that are sounds.
ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64")
MEDIA_TYPES = "audio/wav,audio/flac,audio/mpeg,audio/ogg,audio/opus,audio/aiff"
_MAX_BATCH_SIZE = 8
#: The status of a sound that is too long.
_TOO_LONG = 4


def wanted(wish: Wish, network: NetworkFile) -> bool:
    """Returns whether --pre says that the network takes a sound."""
    return any(word.partition(":")[0] in _FIRST for word in wish.pre.split()) or bool(wish.state)


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    of = known(wish, network, report)
    network, sound = of.network, of.sound
    handed = {state.output for state in of.states}
    outputs = network_file.outputs(network, of.feed(1, 0), "a sound")
    sound = _with_a_least(of, report)
    of = replace(of, sound=sound)
    ran = [output for output in outputs if output.name not in handed]
    said, found = post.settled(wish.post, ran, sound_heads.HEADS, sound_heads.usual(ran, sound), report)
    if said.kind != "notes" and any(word.startswith("trim:") for word in wish.pre.split()):
        raise AttachError(f"--pre: trim: goes with --post notes, which joins frames, not with {said.kind}")
    own = said.argument if said.kind == "ctc" else ""
    near = _labels_beside(network, said.kind)
    stated = labels.read(wish.labels or own, network.metadata, said.kind, report, beside=near)
    opened, batched, why = _open_batch(of, report)
    if sound.together and (of.states or not batched):
        raise AttachError(f"--pre: together: the windows run one after the other: {why or 'they hand a state on'}")
    before, after = (Nodes(graph.opset_of(network.model), prefix) for prefix in (graph.PRE, graph.POST))
    model, heard = _before(before, of, opened, found)
    tried = network_file.tried(network, of.feeds)

    def others(output: str) -> Iterator[Array]:
        for value in tried(output):
            yield windows.with_axes(of, value) if sound.window else value

    head = Head(network, heard, (0, 0), said, stated, report, others, fixed=not batched)
    speech = sound_heads.speech_of(head, sound)
    answers, classes = sound_heads.add(after, head, sound, speech, LENGTH)
    fitted = None if said.kind == "ctc" else labels.fitted(stated, classes, said.kind, 0, report)
    batch = _batch_size(wish, batched, why, of.follows, answers, report)
    stream = sound_streams.stream_of(opened, of, found, speech, batched, report)
    beside, notes = sound_streams.beside(name, stream, report)
    made = attached(
        name,
        _takes(sound),
        model,
        (before, after),
        answers,
        batch,
        fitted,
        report,
        beside=beside,
        notes=notes,
    )
    sound_proof.prove(made.model, of, heard, stream, report)
    return made


def _open_batch(of: Known, report: Report) -> tuple[NetworkFile, bool, str]:
    """Returns the network with an open batch, and true, as `network_file.open_batch` does."""
    if alone := next((state.input for state in of.states if state.axis is None), ""):
        why = f"its state {alone} has no axis of rows"
        report.proved(f"batch: one request at a time: {why}")
        return of.network, False, why
    axes = {state.input: state.axis for state in of.states if state.axis is not None}
    return network_file.open_batch(of.network, of.feed(ROWS, 0), report, 2, axes)


def _with_a_least(of: Known, report: Report) -> Sound:
    """Returns the sound with the fewest samples that the network takes, of some numbers that are tried."""
    if not of.follows or of.features:
        return of.sound
    assert isinstance(of.taking, Wave)
    opened = of.network.open(of.network.model)
    for least in (1, *(of.sound.rate // part for part in (1000, 100, 40, 20, 10, 4, 2, 1))):
        feed = {of.taking.name: of.taking.shaped(np.zeros((1, least), np.float32))}
        try:
            opened.run(None, feed)
        except Exception:  # the classes of onnxruntime's exceptions share no other base
            continue
        if least > 1:
            report.ran("shortest sound", f"{least} samples", "shorter ones have silence behind them")
        return replace(of.sound, least=least)
    return of.sound


def _before(
    nodes: Nodes, of: Known, opened: NetworkFile, outputs: Sequence[Output]
) -> tuple[onnx.ModelProto, list[Output]]:
    """Adds the nodes from a file to the input of the network. Returns the model between them and those of a head, and
    its outputs."""
    _add(nodes, of.sound)
    if of.sound.window:
        windows.pad(nodes, of.sound, PCM, LENGTH)
        if of.sound.together:
            return windows.at_once(opened, of, outputs)
        return windows.scanned(opened, of, outputs)
    if of.features and isinstance(of.taking, FeatureInput):
        features.add(nodes, of.features, PCM, _length(nodes, of.sound), of.taking.frames)
    of.taking.add(nodes)
    if of.lengths:
        counts = features.FRAMES if of.features else LENGTH
        nodes.cast(counts, _ints(of.network.inputs[of.lengths]), "lengths", to=of.lengths)
    return opened.model, list(outputs)


def _batch_size(wish: Wish, batched: bool, why: str, alone: bool, answers: post.Answers, report: Report) -> int:
    if batched and alone and wish.max_batch_size is None:
        report.default("max_batch_size", 1, "because a longer sound beside it would change its answer")
        return 1
    return network_file.batch_size(wish.max_batch_size, _MAX_BATCH_SIZE, batched, why, report, answers)


def _length(nodes: Nodes, sound: Sound) -> str:
    """Returns how many samples of each row have features: all of a sound that is cut or padded to some seconds."""
    if not sound.fixed:
        return LENGTH
    none = nodes.add("Mul", [LENGTH, nodes.constant("none", 0, np.int32)], "no_samples")
    return nodes.add("Add", [none, nodes.constant("all", sound.fixed, np.int32)], "all_samples")


def _labels_beside(network: NetworkFile, kind: str) -> tuple[str, list[str]]:
    if kind == "ctc":
        file, vocabulary = network.beside("vocab.json")
        return file, listed(json.dumps(vocabulary)) or []
    file, config = network.beside("config.json")
    return file, labels.of_config_object(config) or []


def _ints(taken: Input) -> int:
    return TensorProto.INT64 if taken.dtype == "i64" else TensorProto.INT32


def _add(nodes: Nodes, sound: Sound) -> None:
    """Adds the samples PCM f32 [n, t] and the number of them LENGTH i32 [n] from `data` and `ends`."""
    changes = sound.gain != 1 or sound.fixed or sound.rms is not None
    pcm, length = (f"{nodes.prefix}file", f"{nodes.prefix}file_length") if changes else (PCM, LENGTH)
    attributes: dict[str, int | float | str] = {"sample_rate": sound.rate, "max_samples": sound.most}
    if sound.first:
        attributes["channel"] = "first"
    if sound.least > 1:
        attributes["min_samples"] = sound.least
    if sound.scale:
        attributes["normalize"] = sound.scale
    if sound.lufs is not None:
        attributes |= {"normalize": "lufs", "loudness": float(sound.lufs)}
    if sound.resampler:
        attributes["resampler"] = sound.resampler
    status = f"{nodes.prefix}file_status"
    nodes.add_op(
        "AudioPreprocess", ["data", "ends"], [pcm, length, f"{nodes.prefix}rate", status], "sound", **attributes
    )
    too_long = nodes.add("Equal", [status, nodes.constant("too_long", 5, np.int32)], "too_long")
    codes = nodes.constant("code", _TOO_LONG, np.int32), status  # 5 is that of a setting
    nodes.add("Where", [too_long, *codes], "status", to=graph.STATUS)
    if not changes:
        return
    if sound.rms is not None:
        pcm = _as_loud(nodes, pcm, length, sound.rms)
    if sound.gain != 1:
        pcm = nodes.add("Mul", [pcm, nodes.constant("gain", sound.gain)], "louder")
    if sound.fixed:
        pcm = nodes.fitted(pcm, 2, 1, sound.fixed, nodes.constant("silence", 0.0), "cut")
        length = nodes.add("Min", [length, nodes.constant("fixed.most", sound.fixed, np.int32)], "cut_length")
    nodes.add("Identity", [pcm], "samples", to=PCM)
    nodes.add("Identity", [length], "samples_length", to=LENGTH)


def _as_loud(nodes: Nodes, pcm: str, length: str, rms: float) -> str:
    """Adds samples f32 [n, t] whose root mean square over the `length` of each row is `rms` dB below full scale.
    Silence stays silence."""
    count = nodes.reshape(nodes.cast(length, TensorProto.FLOAT, "count"), [-1, 1], "count.rows")
    energy = nodes.reduce("ReduceSum", nodes.add("Mul", [pcm, pcm], "squares"), 1, "energy")
    mean = nodes.add("Div", [energy, nodes.add("Max", [count, nodes.constant("one", 1.0)], "count.held")], "mean")
    held = nodes.add("Max", [nodes.add("Sqrt", [mean], "rms"), nodes.constant("quiet", 1e-8)], "rms.held")
    return nodes.add(
        "Mul", [pcm, nodes.add("Div", [nodes.constant("loud", 10 ** (rms / 20)), held], "factor")], "as_loud"
    )


def _takes(sound: Sound) -> takes.Takes:
    return takes.file(
        "sound",
        sound_proof.wav_of(_chirp(sound.rate), sound.rate),
        "a second of a rising tone",
        "sound.wav",
        "audio/wav",
        "1=not a WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF, AU, CAF or W64;2=corrupt or truncated;"
        "3=an unsupported kind of sound, or a rate that is not 1000 to 384000;"
        f"{_TOO_LONG}=longer than {sound.longest:g} seconds",
        media_types=MEDIA_TYPES,
        wrong="Sounds are WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF and others, of any rate and any number of channels. A "
        "file that is none, or a broken one, is answered with 400 and the reason, also among others in a batch.",
        examples=lambda place: examples.files(place, ENDINGS),
    )


def _chirp(rate: int) -> Array:
    time = np.arange(rate) / rate
    return 0.3 * np.sin(2 * np.pi * (200 + 400 * time) * time)
