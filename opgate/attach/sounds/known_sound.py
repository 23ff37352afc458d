"""What is known of a network that hears before nodes are put around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opgate.attach.model import graph, network_file
from opgate.attach.model.network_file import Feed, Input, NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.attach.sounds import features, sound_words
from opgate.attach.sounds.features import FeatureInput, Features
from opgate.attach.sounds.sound_words import Sound
from opgate.attach.sounds.windows import PCM, State, Wave
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: What inputs for the sample rate are called.
_RATES = ("sr", "rate", "sample_rate", "sampling_rate", "samplerate", "fs")
#: The rate and the window of basic-pitch, the half of the samples that its windows share, and their frames.
_BASIC_PITCH, _OVERLAP, _TRIM = (22_050, 43_844), 3840, 15
#: The samples before each window that silero-vad puts there, by the samples of a window.
_SILERO = {512: 64, 256: 32}
#: Words that make windows of a network's features.
_WINDOWED = {"frames", "hop", "trim", "windows", "full"}


@dataclass(frozen=True, slots=True)
class Known:
    """A network and what is known of it: how a sound becomes its input `taking`, out of `features` or samples, its
    states, and the name of its input for lengths, "" without one."""

    network: NetworkFile
    sound: Sound
    features: Features | None
    taking: Wave | FeatureInput
    states: Sequence[State]
    lengths: str

    @property
    def batch(self) -> int | None:
        """The axis of the rows in the input, None without one."""
        return self.taking.batch

    @property
    def size(self) -> int:
        """How long a window is for the network, in samples or frames."""
        taking = self.taking
        return (taking.frames or 0) if isinstance(taking, FeatureInput) else self.sound.window + self.sound.context

    def add(self, nodes: Nodes, samples: str) -> None:
        """Adds the inputs of the network, but for its states, from the samples f32 [n, t] of a window."""
        self.taking.add(nodes, samples)
        if self.lengths:
            size = nodes.constant("length", [self.size], DTYPES[self.network.inputs[self.lengths].dtype].numpy)
            rows = nodes.slice(nodes.add("Shape", [samples], "window.shape"), 0, 0, 1, "window.rows")
            nodes.add("Expand", [size, rows], "lengths", to=self.lengths)

    @property
    def of_the_whole(self) -> Sequence[str]:
        """What is computed of all of a sound, so that no piece of it can know it."""
        return [*self.sound.loudness, *(self.features.of_the_whole if self.features else ())]

    @property
    def follows(self) -> bool:
        """Whether the input is as long as the file, and the network isn't told how long each row is."""
        fixed = self.sound.fixed or (isinstance(self.taking, FeatureInput) and self.taking.frames is not None)
        return not (self.sound.window or fixed or self.lengths)

    def feed(self, rows: int, kind: int) -> Feed:
        """Returns what the network gets of rows of a kind: noise, a loud one, silence, a tone."""
        values = self.taking.noise(rows, kind) * (1 if self.features else self.sound.gain)
        given: dict[str, Array] = {self.taking.name: self.taking.shaped(values.astype(np.float32))}
        given |= {state.input: state.zeros(rows) for state in self.states}
        if self.lengths:
            dtype = DTYPES[self.network.inputs[self.lengths].dtype].numpy
            given[self.lengths] = np.full(rows, values.shape[-1], dtype)
        return given

    def feeds(self) -> Iterator[Feed]:
        """Yields one row of each kind, also a longer one if the network takes any length. The last is a tone."""
        if self.follows or (self.lengths and not self.sound.fixed):
            yield replace(self, taking=self.taking.longer()).feed(1, 0)
        yield from (self.feed(1, kind) for kind in range(4))


def known(wish: Wish, network: NetworkFile, report: Report) -> Known:
    """Returns what the file, defaults and the user say of a network. Raises AttachError."""
    sound, made_of, said = sound_words.read(wish.pre, list(network.inputs.values()))
    states = _states(wish.state, network)
    names = [state.input for state in states]
    network, lengths = _with_constants(network, sound, names, report)
    taken = _input(network, wish.input, names, lengths)
    if made_of:
        taking = features.input_of(taken, made_of, network.path.name)
        if states or _WINDOWED & said.keys():
            sound, taking = _frames_of_windows(sound, made_of, taking, said, network.path.name)
        sound = _of_features(sound, made_of, taking, said, network, states, report)
        found = Known(network, sound, made_of, taking, states, lengths)
    else:
        wave = _wave(taken, network)
        sound = _settled(sound, said, network, wave, states, report)
        samples = sound.window + sound.context if sound.window else sound.fixed or sound.rate
        found = Known(network, sound, None, replace(wave, samples=samples), states, lengths)
    if states and not sound.window:
        raise AttachError("--state goes with a window: say its samples behind the rate, such as pcm:16000,512")
    return found


def _states(said: str, network: NetworkFile) -> list[State]:
    """Returns the states that --state names. Raises AttachError."""
    outputs = [value.name for value in network.model.graph.output]
    known = {*network.inputs, *outputs}
    states: list[State] = []
    for pair in filter(None, said.replace(",", " ").split()):
        name, equals, output = pair.partition("=")
        name, output = (each if each in known else graph.free_name(each) for each in (name, output))
        if not equals or name not in network.inputs or output not in outputs:
            raise AttachError(
                f"--state: expected input=output, such as state=stateN, got '{pair}': the inputs are "
                f"{', '.join(network.inputs)}, and the outputs {', '.join(outputs)}"
            )
        if any(name == state.input or output == state.output for state in states):
            raise AttachError(f"--state: '{pair}' names an input or an output that another pair has")
        taken = network.inputs[name]
        if taken.dtype not in ("f32", "f16", "f64", "i64", "i32"):
            raise AttachError(f"--state: expected a state of floats or of integers, got {taken}")
        unknown = [axis for axis, size in enumerate(taken.shape) if size is None]
        if len(unknown) > 1:
            raise AttachError(f"--state: {taken} leaves several sizes open: export it with those of its state")
        ones = [axis for axis, size in enumerate(taken.shape) if size == 1]
        axis = next(iter([*unknown, *ones]), None)
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


def _input(network: NetworkFile, name: str, states: Sequence[str], lengths: str) -> Input:
    """Returns the input for the sound. Raises AttachError."""
    others = [each for each in network.inputs.values() if each.name not in (*states, lengths)]
    chosen = [each for each in others if each.name == name] if name else others
    if len(chosen) != 1 or len(others) != 1:
        hint = "" if states else ". Those that are states are named by --state, such as --state state=stateN"
        hint += ". Others need a default in the file: an initializer of their name"
        raise AttachError(f"{network.path.name}: expected one input for samples, got {network.described}{hint}")
    return chosen[0]


def _wave(taken: Input, network: NetworkFile) -> Wave:
    """Returns how the network takes samples. Raises AttachError."""
    rank, shape = len(taken.shape), taken.shape
    if taken.dtype in ("f32", "f16", "f64"):
        if rank == 1:
            return Wave(taken.name, taken.dtype, 1, 0, None)
        if rank == 2 or (rank == 3 and shape[1] == 1 and shape[2] != 1):
            return Wave(taken.name, taken.dtype, rank, rank - 1)
        if rank == 3 and shape[2] == 1:
            return Wave(taken.name, taken.dtype, 3, 1)
    raise AttachError(
        f"{network.path.name}: expected an input of floats [n, samples], [n, 1, samples] or [n, samples, 1], got "
        f"{taken}. Features have words of their own: {', '.join(f'{word}:' for word in features.PRESETS)}"
    )


def _frames_of_windows(
    sound: Sound, made_of: Features, taking: FeatureInput, said: dict[str, Any], path: str
) -> tuple[Sound, FeatureInput]:
    """Returns the sound and the input of a network that takes windows of frames: their samples are windows, too, of
    all that their frames need. Raises AttachError."""
    if whole := " and ".join(made_of.of_the_whole):
        raise AttachError(
            f"--pre: {whole}: computed of all frames of a sound, and a window has only its own. The word unnormalized "
            "leaves a normalization out"
        )
    if "seconds" in said:
        raise AttachError("--pre: windows of frames and seconds: both say how long the input is: leave one out")
    size = said.get("frames") or taking.frames
    if size is None:
        raise AttachError(f"--pre: how many frames does a window have? {path} takes any number: say it, as frames:45")
    if taking.frames not in (None, size):
        raise AttachError(f"--pre: windows of frames:{size}, and {path} takes {taking.frames}")
    hop = said.get("hop", size)
    if hop > size:
        raise AttachError(f"--pre: windows of frames:{size} with a hop:{hop} would leave frames out")
    lead, edge = made_of.edge
    window = (size - 1) * made_of.step + made_of.size
    if lead < 0 or hop * made_of.step > window:
        raise AttachError(
            f"--pre: frames of {made_of.size} samples, {made_of.step} apart, leave samples out: windows need frames "
            "that lie side by side or overlap"
        )
    least = lead + 1 if edge else 1  # so many are turned around
    sound = replace(sound, window=window, hop=hop * made_of.step, lead=lead, edge=edge, least=least, seconds=0)
    return sound, replace(taking, frames=size, source=PCM, of=made_of.inside())


def _of_features(
    sound: Sound,
    made_of: Features,
    taking: FeatureInput,
    said: dict[str, Any],
    network: NetworkFile,
    states: Sequence[State],
    report: Report,
) -> Sound:
    """Returns the sound of features, and reports them. Raises AttachError."""
    for word in ("context", "lead"):
        if word in said:
            raise AttachError(f"--pre: the {word} goes with windows of samples, such as pcm:16000,512")
    report.found("input", network.described)
    word = next(word for word in features.PRESETS if word in said)
    report.said("features", f"{word}:{said[word]}", f"{made_of.bands} bands, a frame for {made_of.step} samples")
    told = report.said if "rate" in said else report.default
    told("rate", f"{sound.rate} samples a second", "files of another rate are resampled")
    if made_of.gain != 1:
        told = report.said if "gain" in said else report.default
        told("gain", f"{made_of.gain:g}", "samples are multiplied by it; the word gain: says otherwise")
    if taking.of:
        (report.said if "frames" in said else report.found)("window", f"{taking.frames} frames")
        (report.said if "hop" in said else report.default)("hop", f"{sound.hop // made_of.step} frames")
        _report_windows(sound, states, report)
    elif sound.fixed:
        told = report.said if "seconds" in said else report.default
        told("sound", f"{sound.seconds:g} seconds", "longer ones are cut, shorter ones have silence behind them")
    elif taking.frames is not None:
        report.found("frames", taking.frames, "more are cut, fewer have zeros behind them")
    else:
        report.default("sound", "as long as the file")
    return sound


def _settled(
    sound: Sound, said: dict[str, Any], network: NetworkFile, wave: Wave, states: Sequence[State], report: Report
) -> Sound:
    """Returns the sound with what the file and defaults say, and reports it. Raises AttachError."""
    size = network.inputs[wave.name].shape[wave.axis]
    report.found("input", network.described)
    report.said("rate", f"{sound.rate} samples a second", "files of another rate are resampled")
    if sound.fixed and size not in (None, sound.fixed):
        raise AttachError(f"--pre: {sound.seconds:g} seconds are {sound.fixed} samples, and the network takes {size}")
    window = sound.window
    if not window and not sound.fixed and size is not None:
        if sound.context >= size:
            raise AttachError(f"--pre: a context:{sound.context} leaves no window of the {size} that the network takes")
        window = size - sound.context
        report.found("window", f"{window} samples", "the shape of the input")
    elif window:
        report.said("window", f"{window} samples")
    if not window:
        for word in ("hop", "context", "lead", "trim", "windows", "full"):
            if word in said:
                name = {"windows": "together", "full": "full-windows"}.get(word, f"{word}:")
                raise AttachError(f"--pre: {name} goes with a window, such as pcm:16000,512")
        report.default("sound", f"{sound.seconds:g} seconds" if sound.fixed else "as long as the file")
        return sound
    sound = _as_its_package(replace(sound, window=window, hop=sound.hop or window), said, network, states, report)
    if sound.hop > sound.window:
        raise AttachError(f"--pre: windows of {window} samples with a hop of {sound.hop} would leave samples out")
    if sound.lead >= sound.window:
        raise AttachError(f"--pre: lead:{sound.lead} leaves no sound in the first window, of {sound.window} samples")
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
    _report_windows(sound, states, report)
    return sound


def _report_windows(sound: Sound, states: Sequence[State], report: Report) -> None:
    if sound.full:
        report.said("last windows", "left out", "unless the sound fills them")
    if sound.together:
        report.said("windows", "all of a sound at once", "which takes memory for all of them")
    elif not states:
        report.default("windows", "one after the other", "the word together runs all of a sound at once")
    for state in states:
        report.said("state", f"{state.input} = {state.output}", "zeros before the first window")


def _as_its_package(
    sound: Sound, said: dict[str, Any], network: NetworkFile, states: Sequence[State], report: Report
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
