"""Attaches to a network that hears: a sound file of any kind in, labels, text or times out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from opgate.attach import (
    examples,
    graph,
    labels,
    network_file,
    post,
    sound_heads,
    sound_proof,
    sound_streams,
    sound_words,
    takes,
    windows,
)
from opgate.attach.attached import Attached, attached
from opgate.attach.facts import listed
from opgate.attach.head import Head
from opgate.attach.network_file import Feed, Input, NetworkFile
from opgate.attach.nodes import Nodes
from opgate.attach.report import AttachError, Report
from opgate.attach.sound_words import Sound
from opgate.attach.windows import LENGTH, PCM, State, Wave
from opgate.attach.wish import Wish
from opgate.onnx_tools.row_dependence import ROWS
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: The words that begin --pre for a sound.
_FIRST = ("pcm",)
#: Files that are sounds.
ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64")
MEDIA_TYPES = "audio/wav,audio/flac,audio/mpeg,audio/ogg,audio/opus,audio/aiff"
_MAX_BATCH_SIZE = 8
#: The status of a sound that is too long.
_TOO_LONG = 4
#: What inputs for the sample rate are called.
_RATES = ("sr", "rate", "sample_rate", "sampling_rate", "samplerate", "fs")
#: The rate and the window of basic-pitch, the half of the samples that its windows share, and their frames.
_BASIC_PITCH, _OVERLAP, _TRIM = (22_050, 43_844), 3840, 15
#: The samples before each window that silero-vad puts there, by the samples of a window.
_SILERO = {512: 64, 256: 32}


def wanted(wish: Wish, network: NetworkFile) -> bool:
    """Returns whether --pre says that the network takes a sound."""
    return any(word.partition(":")[0] in _FIRST for word in wish.pre.split()) or bool(wish.state)


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    sound, said = sound_words.read(wish.pre)
    states = _states(wish.state, network)
    network, lengths = _with_constants(network, sound, [state.input for state in states], report)
    wave = _wave(network, wish.input, [state.input for state in states], lengths)
    sound = _settled(sound, said, network, wave, states, report)
    if states and not sound.window:
        raise AttachError("--state goes with a window: say its samples behind the rate, such as pcm:16000,512")
    feed, feeds = _feeds(wave, sound, states, lengths, network)
    ran = network_file.outputs(network, feed(1, 0), "a sound")
    handed = {state.output for state in states}
    ran = tuple(output for output in ran if output.name not in handed)
    head_post, found = post.settled(wish.post, ran, sound_heads.HEADS, sound_heads.usual(ran, sound), report)
    own = head_post.argument if head_post.kind == "ctc" else ""
    stated = labels.read(
        wish.labels or own, network.metadata, head_post.kind, report, beside=_labels_beside(network, head_post.kind)
    )
    axes = {state.input: state.axis for state in states}
    opened, batched, why = network_file.open_batch(network, feed(ROWS, 0), report, 2, axes)
    if sound.together and (states or not batched):
        raise AttachError(f"--pre: together: the windows run one after the other: {why or 'they hand a state on'}")
    alone = not sound.window and not sound.fixed and not lengths
    before, after = (Nodes(graph.opset_of(network.model), prefix) for prefix in (graph.PRE, graph.POST))
    _add(before, sound)
    if sound.window:
        windows.pad(before, sound, PCM, LENGTH)
        if sound.together:
            model, heard = windows.at_once(opened, wave, sound, found)
        else:
            model, heard = windows.scanned(opened, wave, sound, states, found)
    else:
        wave.add(before, PCM)
        if lengths:
            before.cast(LENGTH, _ints(network.inputs[lengths]), "lengths", to=lengths)
        model, heard = opened.model, list(found)
    tried = network_file.tried(network, feeds)

    def others(output: str) -> Iterator[Array]:
        for value in tried(output):
            yield value[:, None] if sound.window and value.ndim else value

    head = Head(network, heard, (0, 0), head_post, stated, report, others, fixed=not batched)
    answers, classes = sound_heads.add(after, head, sound, LENGTH)
    fitted = None if head_post.kind == "ctc" else labels.fitted(stated, classes, head_post.kind, 0, report)
    batch = _batch_size(wish, batched, why, alone, report)
    beside, notes = sound_streams.models(name, opened, wave, sound, states, found, batched, report)
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
    sound_proof.prove(made.model, network, wave, sound, states, heard, lengths, report)
    return made


def _batch_size(wish: Wish, batched: bool, why: str, alone: bool, report: Report) -> int:
    if batched and alone and wish.max_batch_size is None:
        report.default("max_batch_size", 1, "because a longer sound beside it would change its answer")
        return 1
    return network_file.batch_size(wish.max_batch_size, _MAX_BATCH_SIZE, batched, why, report)


def _states(said: str, network: NetworkFile) -> list[State]:
    """Returns the states that --state names. Raises AttachError."""
    outputs = [value.name for value in network.model.graph.output]
    states = []
    for pair in filter(None, said.replace(",", " ").split()):
        name, equals, output = pair.partition("=")
        if not equals or name not in network.inputs or output not in outputs:
            raise AttachError(
                f"--state: expected input=output, such as state=stateN, got '{pair}': the inputs are "
                f"{', '.join(network.inputs)}, and the outputs {', '.join(outputs)}"
            )
        taken = network.inputs[name]
        if taken.dtype not in ("f32", "f16", "f64"):
            raise AttachError(f"--state: expected a state of floats, got {taken}")
        unknown = [axis for axis, size in enumerate(taken.shape) if size is None]
        if len(unknown) > 1:
            raise AttachError(f"--state: {taken} leaves several sizes open: export it with those of its state")
        ones = [axis for axis, size in enumerate(taken.shape) if size == 1]
        axis = (unknown or ones or [0])[0]
        states.append(State(name, output, taken.dtype, tuple(size or 1 for size in taken.shape), axis))
    return states


def _with_constants(
    network: NetworkFile, sound: Sound, states: Sequence[str], report: Report
) -> tuple[NetworkFile, str]:
    """Returns the network with the sample rate in place of an input for it, and the name of an input for lengths, "" if
    there is none."""
    values, lengths = {}, ""
    for each in network.inputs.values():
        if each.name in states or each.dtype not in ("i32", "i64", "f32") or len(each.shape) > 1:
            continue
        name = each.name.lower().rpartition("/")[2]
        if name in _RATES:
            values[each.name] = np.full([1] * len(each.shape), sound.rate, DTYPES[each.dtype].numpy)
        elif "len" in name and each.dtype != "f32":
            lengths = each.name
    return (network_file.fixed(network, values, report, "the rate of --pre") if values else network), lengths


def _wave(network: NetworkFile, name: str, states: Sequence[str], lengths: str) -> Wave:
    """Returns the input for samples. Raises AttachError."""
    others = [each for each in network.inputs.values() if each.name not in (*states, lengths)]
    chosen = [each for each in others if each.name == name] if name else others
    if len(chosen) != 1 or len(others) != 1:
        hint = "" if states else ". Those that are states are named by --state, such as --state state=stateN"
        raise AttachError(f"{network.path.name}: expected one input for samples, got {network.described}{hint}")
    (only,) = chosen
    rank = len(only.shape)
    if only.dtype not in ("f32", "f16", "f64") or rank not in (1, 2, 3):
        raise AttachError(f"{network.path.name}: expected an input of floats [n, samples], got {only}")
    if rank == 1:
        return Wave(only.name, only.dtype, 1, 0, None)
    if rank == 2:
        return Wave(only.name, only.dtype, 2, 1)
    if only.shape[1] == 1 and only.shape[2] != 1:
        return Wave(only.name, only.dtype, 3, 2)
    if only.shape[2] == 1:
        return Wave(only.name, only.dtype, 3, 1)
    raise AttachError(
        f"{network.path.name}: expected an input [n, samples], [n, 1, samples] or [n, samples, 1], got {only}"
    )


def _settled(
    sound: Sound, said: dict[str, object], network: NetworkFile, wave: Wave, states: Sequence[State], report: Report
) -> Sound:
    """Returns the sound with what the file and defaults say, and reports it. Raises AttachError."""
    size = network.inputs[wave.name].shape[wave.axis]
    report.found("input", network.described)
    report.said("rate", f"{sound.rate} samples a second", "files of another rate are resampled")
    if sound.fixed and size not in (None, sound.fixed):
        raise AttachError(f"--pre: {sound.seconds:g} seconds are {sound.fixed} samples, and the network takes {size}")
    window = sound.window
    if not window and not sound.fixed and size is not None:
        window = size - sound.context
        report.found("window", f"{window} samples", "the shape of the input")
    elif window:
        report.said("window", f"{window} samples")
    if not window:
        for word in ("hop", "context", "lead", "trim"):
            if word in said:
                raise AttachError(f"--pre: {word}: goes with a window, such as pcm:16000,512")
        report.default("sound", f"{sound.seconds:g} seconds" if sound.fixed else "as long as the file")
        return sound
    sound = _known(replace(sound, window=window, hop=sound.hop or window), said, network, states, report)
    if sound.hop > sound.window:
        raise AttachError(f"--pre: windows of {window} samples with a hop of {sound.hop} would leave samples out")
    if size not in (None, sound.window + sound.context):
        raise AttachError(
            f"--pre: a window of {window} samples and a context of {sound.context} are "
            f"{sound.window + sound.context}, and the network takes {size}"
        )
    stated = {
        "context": f"{sound.context} samples before each window",
        "lead": f"{sound.lead} zeros before the sound",
        "trim": f"{sound.trim} frames of a window",
    }
    for word in sorted(stated.keys() & said.keys()):
        report.said(word, stated[word])
    (report.said if "hop" in said else report.default)("hop", f"{sound.hop} samples")
    if sound.together:
        report.said("windows", "all of a sound at once", "which takes memory for all of them")
    elif not states:
        report.default("windows", "one after the other", "the word together runs all of a sound at once")
    for state in states:
        report.said("state", f"{state.input} = {state.output}", "zeros before the first window")
    return sound


def _known(
    sound: Sound, said: dict[str, object], network: NetworkFile, states: Sequence[State], report: Report
) -> Sound:
    """Returns the sound with what the packages of two networks do, unless --pre says otherwise, and reports it."""
    if "context" not in said and _is_silero(network, states) and sound.window in _SILERO:
        report.default(
            "context", f"{_SILERO[sound.window]} samples", "what the package silero-vad puts before a window"
        )
        return replace(sound, context=_SILERO[sound.window])
    if (sound.rate, sound.window) == _BASIC_PITCH and not {"hop", "lead", "trim"} & said.keys():
        report.default("overlap", f"{2 * _OVERLAP} samples, {_TRIM} frames at both ends", "as the package basic-pitch")
        return replace(sound, hop=sound.window - 2 * _OVERLAP, lead=_OVERLAP, trim=_TRIM)
    return sound


def _is_silero(network: NetworkFile, states: Sequence[State]) -> bool:
    return [(state.input, state.output, state.shape) for state in states] == [("state", "stateN", (2, 1, 128))]


def _labels_beside(network: NetworkFile, kind: str) -> tuple[str, list[str]]:
    if kind == "ctc":
        file, vocabulary = network.beside("vocab.json")
        return file, listed(json.dumps(vocabulary)) or []
    file, config = network.beside("config.json")
    return file, labels.of_config_object(config) or []


def _ints(taken: Input) -> int:
    return TensorProto.INT64 if taken.dtype == "i64" else TensorProto.INT32


def _feeds(
    wave: Wave, sound: Sound, states: Sequence[State], lengths: str, network: NetworkFile
) -> tuple[Callable[[int, int], Feed], Callable[[], Iterator[Feed]]]:
    """Returns what makes a feed of some rows and kind: noise, a loud one, silence, a tone; and what yields one row of
    each."""
    samples = sound.window + sound.context if sound.window else sound.fixed or sound.rate

    def feed(rows: int, kind: int) -> Feed:
        rng = np.random.default_rng(kind)
        noise = rng.standard_normal((rows, samples))
        tone = np.sin(np.arange(samples) * 0.05)[None] * np.linspace(0.1, 1, rows)[:, None]
        values = (noise * 0.1, noise * 3, noise * 0, tone)[kind] * sound.gain
        given: dict[str, Array] = {wave.name: wave.shaped(values.astype(np.float32))}
        given |= {state.input: state.zeros(rows) for state in states}
        if lengths:
            given[lengths] = np.full(rows, samples, DTYPES[network.inputs[lengths].dtype].numpy)
        return given

    def feeds() -> Iterator[Feed]:
        yield from (feed(1, kind) for kind in range(4))

    return feed, feeds


def _add(nodes: Nodes, sound: Sound) -> None:
    """Adds the samples PCM f32 [n, t] and the number of them LENGTH i32 [n] from `data` and `ends`."""
    changes = sound.gain != 1 or sound.scale or sound.fixed
    pcm, length = (f"{nodes.prefix}file", f"{nodes.prefix}file_length") if changes else (PCM, LENGTH)
    attributes: dict[str, int | str] = {"sample_rate": sound.rate, "max_samples": sound.most}
    if sound.first:
        attributes["channel"] = "first"
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
    if sound.scale:
        pcm = sound_heads.scaled(nodes, pcm, length, sound.scale)
    if sound.gain != 1:
        pcm = nodes.add("Mul", [pcm, nodes.constant("gain", sound.gain)], "louder")
    if sound.fixed:
        fixed = nodes.ints("fixed", [sound.fixed])
        there = nodes.slice(nodes.add("Shape", [pcm], "shape"), 0, 1, 2, "there")
        missing = nodes.add("Max", [nodes.add("Sub", [fixed, there], "missing"), nodes.ints("none", [0])], "behind")
        pads = nodes.add("Concat", [nodes.ints("before", [0, 0, 0]), missing], "pads", axis=0)
        pcm = nodes.slice(nodes.add("Pad", [pcm, pads], "longer"), 1, 0, sound.fixed, "cut")
        length = nodes.add("Min", [length, nodes.constant("fixed.most", sound.fixed, np.int32)], "cut_length")
    nodes.add("Identity", [pcm], "samples", to=PCM)
    nodes.add("Identity", [length], "samples_length", to=LENGTH)


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
