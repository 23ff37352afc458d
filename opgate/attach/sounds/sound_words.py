"""The words of --pre for sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opgate.attach.model import words
from opgate.attach.model.network_file import Input
from opgate.attach.model.report import AttachError
from opgate.attach.sounds import features
from opgate.attach.sounds.features import Features

#: How many seconds a sound has at most, if nobody says it.
LONGEST = 600
#: What the numbers of the samples become, by the word that says it.
SCALES = ("standard", "peak")
WITH_ARGUMENT: Mapping[str, words.Reader] = {
    "pcm": words.wholes((1, 2), "16000 or 16000,512 (samples a second, and those of a window)"),
    "hop": words.whole(1, 1 << 26),
    "context": words.whole(1, 1 << 26),
    "lead": words.whole(1, 1 << 26),
    "trim": words.whole(1, 1 << 16),
    "seconds": words.number(0.001, 3600),
    "longest": words.number(0.001, 4 * 3600),
    "gain": words.number(1e-6, 1e6),
    "rms": words.number(-100, 0),
    "lufs": words.number(-100, 0),
}
ALONE = {
    "first-channel": "channels",
    "standard": "scale",
    "peak": "scale",
    "together": "windows",
    "full-windows": "full",
}
#: How a word for a resampler is called in AudioPreprocess.
RESAMPLERS = {"kaiser": "kaiser", "sinc": "sinc_interp_hann", "soxr": "soxr_hq"}


@dataclass(frozen=True, slots=True)
class Sound:
    """How a sound becomes the input of a network.

    It has `rate` samples a second. Each window has `window` samples, `hop` behind those of the one before, and
    `context` samples before them; without a window, 0, the sound is one. `lead` samples stand before the sound: zeros
    without an `edge`, else its own first ones turned around, as "reflect" or "symmetric" of NumPy's pad.
    `trim` frames are left out at both ends of what the network gives for a window, so that windows that overlap join.
    `together` runs all windows of a sound at once. With `full` those that the sound doesn't fill are left out, but for
    the first. `resampler` is that of AudioPreprocess, its default if it is empty.
    A sound of fewer samples than `least` has zeros behind it.
    `seconds` are those to which a sound is cut or padded, 0 if it keeps its length, of at most `longest` seconds.
    `first` takes the first channel in place of the mean of all. Samples have the loudness
    `rms`, in dB below full scale, or `lufs`, in LUFS, unless that is None, and are multiplied by `gain`; `scale` is "",
    "standard" for a mean of 0 and a deviation of 1, or "peak" for a greatest magnitude of 1.
    """

    rate: int
    window: int = 0
    hop: int = 0
    context: int = 0
    lead: int = 0
    edge: str = ""
    trim: int = 0
    seconds: float = 0
    longest: float = LONGEST
    first: bool = False
    gain: float = 1
    rms: float | None = None
    lufs: float | None = None
    together: bool = False
    full: bool = False
    resampler: str = ""
    least: int = 1
    scale: str = ""

    @property
    def beyond(self) -> int:
        """What is added to the number of samples, so that as many hops are in it as there are windows."""
        return self.lead + self.hop - (self.window if self.full else 1)

    @property
    def loudness(self) -> list[str]:
        """The words that say how loud the samples are."""
        levels = [f"{name}:{value:g}" for name, value in (("rms", self.rms), ("lufs", self.lufs)) if value is not None]
        return [*filter(None, [self.scale]), *levels]

    @property
    def most(self) -> int:
        """How many samples a file has at most."""
        return round(self.longest * self.rate)

    @property
    def fixed(self) -> int:
        """How many samples each sound is cut or padded to, 0 if it keeps its length."""
        return round(self.seconds * self.rate)


def read(text: str, network: Sequence[Input]) -> tuple[Sound, Features | None, dict[str, Any]]:
    """Returns what the words of --pre say of a sound and of its features, None if the network gets samples, and their
    values by what they decide. `network` are its inputs. Raises AttachError."""
    arguments = {
        **WITH_ARGUMENT,
        **features.WITH_ARGUMENT,
        **{word: words.one_of(*presets) for word, presets in features.PRESETS.items()},
    }
    said = words.read(text, arguments, {**ALONE, **features.ALONE, **dict.fromkeys(RESAMPLERS, "resampler")})
    kinds = [word for word in ("pcm", *features.PRESETS) if word in said]
    if len(kinds) != 1:
        expected = ", ".join(("pcm:16000", *(f"{w}:{name}" for w, of in features.PRESETS.items() for name in of)))
        raise AttachError(f"--pre: expected one of {expected}, got '{text}'")
    made = features.read(said, network)
    rate, *window = said["pcm"] if made is None else (made.rate,)
    if not 1000 <= rate <= 384_000:
        raise AttachError(f"--pre: expected pcm:1000 to pcm:384000 samples a second, got pcm:{rate}")
    same = ("hop", "context", "lead", "trim", "longest", "scale", "rms", "lufs")
    sound = Sound(
        rate,
        window=window[0] if window else 0,
        seconds=said.get("seconds", made.seconds if made else 0),
        first="channels" in said,
        gain=made.gain if made else said.get("gain", 1),
        together="windows" in said,
        full="full" in said,
        resampler=RESAMPLERS.get(said.get("resampler", ""), ""),
        **{key: said[key] for key in same if key in said},
    )
    if len(sound.loudness) > 1:
        raise AttachError(f"--pre: {' and '.join(sound.loudness)} say how loud the samples are: leave all out but one")
    if sound.lufs is not None and rate < 4000:
        raise AttachError(f"--pre: lufs:{sound.lufs:g} needs a rate of 4000 or more, got {rate}")
    if "seconds" in said and said.get("longest", sound.seconds) < sound.seconds:
        raise AttachError(
            f"--pre: longest:{sound.longest:g} refuses what seconds:{sound.seconds:g} would cut: leave one out"
        )
    sound = replace(sound, longest=said.get("longest", max(sound.longest, sound.seconds)))
    if sound.seconds and window:
        raise AttachError("--pre: a window and seconds: both say how long the input is: leave one out")
    return sound, made, said
