"""Writes the example clips, and draws them with what the served file hears."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from models.commands import session_of
from models.keyword_spotter import noise, words
from opgate.ops_build.ops.log_mel_spectrogram.reference import reference as log_mel

_SEED = 5
_OTHERS = ("water", "seven")
_COLUMNS, _TILE, _GAP = 4, (200, 120), 22


def write_examples(recordings: Path, folder: Path) -> Iterator[Path]:
    """Writes one second of each keyword and of two other words at 10 dB, of the test voices. Yields the paths."""
    spoken = words.recordings(recordings, test=True)
    rng = np.random.default_rng(_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    for word in (*words.KEYWORDS, *_OTHERS):
        index = int(rng.choice(np.flatnonzero(spoken.words == word)))
        pcm, _ = noise.draw(rng, spoken, index, 10.0)
        path = folder / f"{word}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(1)
            file.setframerate(words.SAMPLE_RATE)
            file.writeframes(np.clip(np.round(pcm * 128) + 128, 0, 255).astype(np.uint8).tobytes())
        yield path


def write_picture(repository: Path, ops_library: Path, clips: Path, path: Path) -> None:
    """Draws the log-mel spectrogram of each clip, with its word and the likeliest label of the served file."""
    session = session_of("keyword_spotter", repository, ops_library)
    files = sorted(clips.glob("*.wav"))
    width, height = _TILE[0] + 8, _TILE[1] + _GAP + 8
    figure = Image.new("RGB", (_COLUMNS * width, -(-len(files) // _COLUMNS) * height), "white")
    for index, file in enumerate(files):
        data = np.frombuffer(file.read_bytes(), np.uint8)
        feed = {"data": data, "ends": np.array([len(data)], np.int32)}
        labels, scores, status = session.run(["labels", "scores", "status"], feed)
        if status[0] != 0:
            raise ValueError(f"the model refused {file} with status {status[0]}")
        text = f"“{file.stem}”: {words.LABELS[labels[0, 0]]} {scores[0, 0]:.0%}"
        row, column = divmod(index, _COLUMNS)
        figure.paste(_tile(file, text), (column * width + 4, row * height + 4))
    ImageOps.posterize(figure, 5).save(path, optimize=True)


def _tile(file: Path, text: str) -> Image.Image:
    with wave.open(str(file)) as sound:
        pcm = (np.frombuffer(sound.readframes(-1), np.uint8).astype(np.float32) - 128) / 128
    mel = log_mel(
        pcm[None], None, sample_rate=words.SAMPLE_RATE, n_fft=400, win_length=0, hop_length=160, n_mels=40, f_min=60.0,
        f_max=7600.0, mel_scale="slaney", norm="slaney", center=1, pad="reflect", log="ln", floor=1e-5,
        guard="clamp", power=2, preemphasis=0.0, window="hann", periodic=1,
    )[0][0]  # fmt: skip
    low, high = np.percentile(mel, [2, 99.5])
    levels = np.clip((mel[::-1] - low) / (high - low), 0, 1)
    colours = np.stack([levels, levels**2, np.sqrt(levels) * 0.6 * (1 - levels) + 0.2 * levels], -1)
    tile = Image.new("RGB", (_TILE[0], _TILE[1] + _GAP), "white")
    tile.paste(Image.fromarray((colours * 255).astype(np.uint8)).resize(_TILE, Image.Resampling.NEAREST), (0, _GAP))
    ImageDraw.Draw(tile).text((2, 3), text, fill="black", font=ImageFont.load_default(13))
    return tile
