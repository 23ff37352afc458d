"""Features of sounds: what a network gets in place of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from opgate.attach.model import words
from opgate.attach.model.graph import PRE
from opgate.attach.model.network_file import Input
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import type_of
from opgate.attach.model.report import AttachError
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: The features of all rows, f32 [n, bands, frames], and how many frames each row has, i32 [n].
FEATURES, FRAMES = f"{PRE}features", f"{PRE}frames"
_NUMBERS = ("f32", "f16", "f64")
#: The words that change a preset.
WITH_ARGUMENT: Mapping[str, words.Reader] = {
    "rate": words.whole(1000, 384_000),
    "bands": words.whole(1, 4096),
    "fft": words.whole(2, 1 << 16),
    "win": words.whole(1, 1 << 16),
    "step": words.whole(1, 1 << 20),
    "low": words.number(0, 1e6),
    "high": words.number(1, 1e6),
    "mean": words.number(-1e6, 1e6),
    "std": words.number(1e-6, 1e6),
    "frames": words.whole(1, 1 << 20),
    "top-db": words.number(0, 1000),
}
ALONE = {"cmvn": "normalization", "cmn": "normalization", "unnormalized": "normalization"}


@dataclass(frozen=True, slots=True)
class Features:
    """How frames become features. `op` is LogMelSpectrogram or KaldiFbank, and `attributes` are its own. `rate` is that
    of the samples, `step` how many lie between two frames. `normalization` is that of Whisper, or of each band over the
    frames of a row: cmvn (mean 0, deviation 1), cmn (mean 0) or nemo, whose deviation is that of a sample, or
    unnormalized. With `top_db` no feature is further below the greatest one of a row, in dB. Then `mean`
    is taken away, and all is divided by `std`. `seconds` are those to which a sound is cut or padded, 0 if it keeps its
    length. With `without_last` the last frame is left out. Samples are multiplied by `gain` before. `cepstra` says that
    the bands are those of MFCC."""

    op: str
    rate: int
    bands: int
    step: int
    attributes: Mapping[str, Any]
    normalization: str = ""
    mean: float = 0
    std: float = 1
    seconds: float = 0
    without_last: bool = False
    gain: float = 1
    cepstra: bool = False
    top_db: float | None = None

    @property
    def size(self) -> int:
        """How many samples a frame has."""
        return int(self.attributes.get("n_fft" if self.op == "LogMelSpectrogram" else "win_length", 400))

    @property
    def edge(self) -> tuple[int, str]:
        """How many samples before the sound the first frame begins, and what stands there: that of Sound."""
        if self.op == "LogMelSpectrogram":
            return self.size // 2, "" if self.attributes.get("pad") == "zero" else "reflect"
        return (0, "") if self.attributes.get("snip_edges", 1) else (self.size // 2 - self.step // 2, "symmetric")

    @property
    def of_the_whole(self) -> list[str]:
        """What is computed of all frames of a sound, so that no piece of it can know it."""
        levels = [] if self.top_db is None else [f"top-db:{self.top_db:g}"]
        return levels if self.normalization in ("", "unnormalized") else [*levels, self.normalization]

    def inside(self) -> Features:
        """Returns the same of samples that have all that their frames need."""
        edges = {"center": 0} if self.op == "LogMelSpectrogram" else {"snip_edges": 1}
        return replace(self, attributes={**self.attributes, **edges}, without_last=False)


_WHISPER = Features(
    "LogMelSpectrogram", 16_000, 80, 160, {"log": "log10"}, "whisper", seconds=30, without_last=True
)  # fmt: skip
_NEMO = Features(
    "LogMelSpectrogram",
    16_000,
    80,
    160,
    {
        "n_fft": 512, "win_length": 400, "window": "hann", "periodic": 0, "preemphasis": 0.97, "pad": "zero",
        "floor": 2.0**-24, "guard": "add",
    },
    "nemo",
)  # fmt: skip
_LIBROSA = Features("LogMelSpectrogram", 22_050, 128, 512, {"n_fft": 2048, "pad": "zero", "log": "db"})
_KALDI = Features("KaldiFbank", 16_000, 80, 160, {}, gain=32_768)
_ICEFALL = replace(_KALDI, attributes={"snip_edges": 0, "f_max": -400.0}, gain=1)
_AST = replace(_KALDI, bands=128, attributes={"window": "hanning"}, gain=1, mean=-4.2677393, std=2 * 4.5689974)
_MFCC = replace(_KALDI, bands=13, cepstra=True)
#: The features by the words that name them, with what stands behind the colon.
PRESETS: Mapping[str, Mapping[str, Features]] = {
    "log-mel": {"whisper": _WHISPER, "nemo": _NEMO, "librosa": _LIBROSA},
    "fbank": {"kaldi": _KALDI, "icefall": _ICEFALL, "ast": _AST},
    "mfcc": {"kaldi": _MFCC},
}
#: The words that are fields.
_FIELDS = ("rate", "step", "normalization", "mean", "std", "seconds", "gain")
#: How many bands of the mel scale cepstra are made of, and their lifter.
_CEPSTRA_OF, _LIFTER = 23, 22


def read(said: Mapping[str, Any], network: Sequence[Input]) -> Features | None:
    """Returns the features that the words of --pre say, None if they say none. `network` are the inputs, which may tell
    the number of bands. Raises AttachError."""
    word = next((word for word in PRESETS if word in said), "")
    if not word:
        for other in (*WITH_ARGUMENT, *set(ALONE.values())):
            if other in said:
                raise AttachError(f"--pre: the {other} is one of features, such as log-mel:whisper")
        return None
    base = PRESETS[word][said[word]]
    names = {"fft": "n_fft", "win": "win_length", "low": "f_min", "high": "f_max"}
    if base.op == "KaldiFbank" and "fft" in said:
        raise AttachError("--pre: fft: goes with log-mel: Kaldi's is the window's size, rounded up to a power of 2")
    if base.attributes.get("log") != "db" and "top-db" in said:
        raise AttachError("--pre: top-db: goes with decibels, those of log-mel:librosa")
    changed = {names[key]: value for key, value in said.items() if key in names}
    made = replace(
        base,
        bands=said.get("bands") or _bands(network, base.bands),
        attributes={**base.attributes, **changed},
        top_db=said.get("top-db"),
        **{key: said[key] for key in _FIELDS if key in said},
    )
    _check(made)
    return made


def _check(features: Features) -> None:
    """Raises AttachError for words that contradict each other."""
    low, high = features.attributes.get("f_min", 0), features.attributes.get("f_max", 0)
    half = features.rate / 2
    high = high if high > 0 else half + high  # Kaldi counts from the end
    if high > half:
        raise AttachError(
            f"--pre: high:{high:g}: sounds with a rate of {features.rate} have no frequencies above {half:g} Hz"
        )
    if low >= high:
        raise AttachError(f"--pre: expected low: below high:, got low:{low:g} and high:{high:g} Hz")
    of_log_mel = features.op == "LogMelSpectrogram"
    win = features.attributes.get("win_length", 400)
    if of_log_mel and win > features.size and "win_length" in features.attributes:
        raise AttachError(f"--pre: win:{win} is longer than the transform, fft:{features.size}")
    if not of_log_mel and win < 2:
        raise AttachError(f"--pre: expected win:2 or more samples, got win:{win}")
    lead, edge = features.edge
    if edge == "reflect" and 0 < features.seconds * features.rate <= lead:
        raise AttachError(
            f"--pre: seconds:{features.seconds:g} are {features.seconds * features.rate:g} samples, and frames of "
            f"fft:{features.size} need more than {lead}"
        )


def _bands(network: Sequence[Input], usual: int) -> int:
    """Returns the number of bands: that of the input if one of its dims is one of the usual numbers."""
    sizes = [size for each in network if len(each.shape) in (3, 4) for size in each.shape[1:] if size is not None]
    return next((size for size in sizes if size in (usual, 20, 40, 64, 80, 96, 128)), usual)


@dataclass(frozen=True, slots=True)
class FeatureInput:
    """The input of a network for features: its name, its type and rank, the axes of bands and of frames, and how many
    frames it takes, None for any number: then it is tried with `tried`. `source` is the tensor that becomes the input:
    FEATURES, or samples if it takes windows, whose features are `of`."""

    name: str
    dtype: str
    rank: int
    bands: int
    axes: tuple[int, int]
    frames: int | None
    source: str = FEATURES
    tried: int = 100
    of: Features | None = None

    @property
    def batch(self) -> int:
        """The axis of the rows."""
        return 0

    def longer(self) -> FeatureInput:
        """Returns the same, tried with more frames."""
        return replace(self, tried=self.tried * 3 // 2)

    def shaped(self, features: Array) -> Array:
        """Returns features [n, bands, frames] in the form and the type of the input."""
        moved = features if self.axes[0] < self.axes[1] else features.transpose(0, 2, 1)
        sizes = [1] * self.rank
        sizes[0], sizes[min(self.axes)], sizes[max(self.axes)] = moved.shape
        return np.ascontiguousarray(moved.reshape(sizes)).astype(DTYPES[self.dtype].numpy)

    def noise(self, rows: int, kind: int) -> Array:
        """Returns random features of some rows and kind: noise, louder, silence, plain levels."""
        rng = np.random.default_rng(kind)
        values = rng.standard_normal((rows, self.bands, self.frames or self.tried))
        return (values, values * 4, values * 0, values * 0.1 + np.linspace(-2, 2, rows)[:, None, None])[kind]

    def add(self, nodes: Nodes, samples: str = "") -> None:
        """Adds the input of the network from FEATURES, or from the samples f32 [n, t] of a window."""
        if self.of:
            add(nodes, self.of, samples, "", None)
        x = FEATURES
        if self.axes[0] > self.axes[1]:
            x = nodes.add("Transpose", [x], "frames_first", perm=[0, 2, 1])
        if self.rank == 4:
            first, second = (self.bands, -1) if self.axes[0] < self.axes[1] else (-1, self.bands)
            x = nodes.reshape(x, [0, 1, first, second], "planes")
        if self.dtype == "f32":
            nodes.add("Identity", [x], "input", to=self.name)
        else:
            nodes.cast(x, type_of(self.dtype), "typed", to=self.name)


def input_of(each: Input, features: Features, path: str) -> FeatureInput:
    """Returns how a network takes features. Raises AttachError."""
    rank, bands = len(each.shape), features.bands
    places = [axis for axis in range(1, rank) if each.shape[axis] == bands]
    if each.dtype not in _NUMBERS or rank not in (3, 4) or (rank == 4 and each.shape[1] not in (1, None)) or not places:
        raise AttachError(
            f"{path}: expected an input of floats [n, {bands}, frames] or [n, frames, {bands}], got {each}; "
            "the word bands: says how many bands there are"
        )
    band = places[0] if rank == 3 else max(places[0], 2)
    frame = next(axis for axis in range(rank - 2, rank) if axis != band)
    return FeatureInput(each.name, each.dtype, rank, bands, (band, frame), each.shape[frame])


def add(nodes: Nodes, features: Features, pcm: str, length: str, frames: int | None) -> None:
    """Adds FEATURES and FRAMES of samples f32 [n, t], of which each row has `length` i32 [n]. They are cut or padded to
    a number of `frames`, unless that is None. Without a `length` all samples are there."""
    made, count = f"{nodes.prefix}spectrum", f"{nodes.prefix}spectrum_frames"
    mels = max(features.bands, _CEPSTRA_OF) if features.cepstra else features.bands
    attributes = {"sample_rate": features.rate, "n_mels": mels, "hop_length": features.step, **features.attributes}
    nodes.add_op(features.op, [pcm, *filter(None, [length])], [made, count], "spectrum", **attributes)
    x = made
    if features.cepstra:
        x = nodes.add("MatMul", [x, nodes.constant("cosines", _cosines(mels, features.bands))], "cepstra")
    if features.op == "KaldiFbank":
        x = nodes.add("Transpose", [x], "bands_first", perm=[0, 2, 1])
    if features.without_last:
        count = nodes.add("Sub", [count, nodes.constant("last", 1, np.int32)], "frames.less")
        x = nodes.slice(x, 2, 0, -1, "without_last")
    if features.top_db is not None:
        x = _held(nodes, x, features.top_db, "top_db")
    x = _normalized(nodes, features.normalization, x, count)
    if frames is not None:
        x = nodes.fitted(x, 3, 2, frames, nodes.constant("silence", 0.0), "cut")
        count = nodes.add("Min", [count, nodes.constant("frames.most", frames, np.int32)], "frames.held")
    if features.mean:
        x = nodes.add("Sub", [x, nodes.constant("mean", features.mean)], "centred")
    if features.std != 1:
        x = nodes.add("Div", [x, nodes.constant("std", features.std)], "scaled")
    nodes.add("Identity", [x], "features.all", to=FEATURES)
    nodes.add("Identity", [count], "frames.all", to=FRAMES)


def _cosines(mels: int, cepstra: int) -> Array:
    """Returns Kaldi's cosine transform with its lifter, f64 [mels, cepstra]."""
    numbers = np.arange(cepstra)
    lifter = 1 + _LIFTER / 2 * np.sin(np.pi * numbers / _LIFTER)
    matrix: Array = np.sqrt(2 / mels) * np.cos(np.pi * numbers[None] * (np.arange(mels)[:, None] + 0.5) / mels)
    matrix[:, 0] = np.sqrt(1 / mels)
    matrix *= lifter
    return matrix


def _normalized(nodes: Nodes, kind: str, x: str, count: str) -> str:
    if kind in ("", "unnormalized"):
        return x
    if kind != "whisper":
        return _each_band(nodes, kind, x, count)
    moved = nodes.add("Add", [_held(nodes, x, 8.0, "held"), nodes.constant("up", 4.0)], "moved")
    return nodes.add("Div", [moved, nodes.constant("down", 4.0)], "scaled")


def _held(nodes: Nodes, x: str, below: float, name: str) -> str:
    """Adds features of which none is further `below` the greatest one of a row."""
    most = nodes.reduce("ReduceMax", nodes.reduce("ReduceMax", x, 2, f"{name}.frame"), 1, f"{name}.most")
    least = nodes.add("Sub", [most, nodes.constant(f"{name}.range", below)], f"{name}.least")
    return nodes.add("Max", [x, least], name)


def _each_band(nodes: Nodes, kind: str, x: str, count: str) -> str:
    """Adds features whose bands have a mean of 0 over the frames of a row, and a deviation of 1. Those behind the
    frames of a row are 0."""
    there = nodes.reshape(nodes.mask(x, 2, count), [0, 1, -1], "mask.bands")
    number = nodes.reshape(nodes.cast(count, TensorProto.FLOAT, "count"), [-1, 1, 1], "count.rows")
    number = nodes.add("Max", [number, nodes.constant("one", 1.0)], "count.least")
    used = nodes.add("Mul", [x, there], "used")
    mean = nodes.add("Div", [nodes.reduce("ReduceSum", used, 2, "sum"), number], "band.mean")
    centred = nodes.add("Mul", [nodes.add("Sub", [x, mean], "band.moved"), there], "band.centred")
    if kind == "cmn":
        return centred
    if kind == "nemo":
        less = nodes.add("Sub", [number, nodes.constant("one", 1.0)], "count.less")
        number = nodes.add("Max", [less, nodes.constant("one", 1.0)], "count.sample")
    squares = nodes.reduce("ReduceSum", nodes.add("Mul", [centred, centred], "squares"), 2, "squares.sum")
    deviation = nodes.add("Sqrt", [nodes.add("Div", [squares, number], "variance")], "deviation")
    above = nodes.add("Add", [deviation, nodes.constant("tiny", 1e-5)], "deviation.above")
    return nodes.add("Div", [centred, above], "band.scaled")
