"""Real networks that hear, tell files apart or score rows, out of packages: one command each, and the answers are those
of the package's own code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.attach.sounds.sound_proof import wav_of
from tests import PROJECT
from tests.attach.conftest import Make, Model
from tests.attach.test_packages import file_of
from tests.skips import need

RATE = 16_000
_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))


def voice(seconds: float, seed: int, rate: int = RATE) -> np.ndarray:
    """Vowels with pauses, f64 [t] as 16 bits hold it: harmonics of a voice around the formants of vowels (G. Peterson,
    H. Barney, "Control Methods Used in a Study of the Vowels", 1952)."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * rate:
        for _ in range(rng.integers(2, 7)):
            length = int(rng.uniform(0.12, 0.3) * rate)
            time = np.arange(length) / rate
            pitch = rng.uniform(90, 220)
            phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.05 * np.sin(2 * np.pi * 5 * time))) / rate
            formants = np.array(_VOWELS[rng.integers(5)])
            sizes = [np.exp(-((np.abs(formants - k * pitch).min() / 120) ** 2)) for k in range(1, 40)]
            sound = sum(size * np.sin(k * phase) for k, size in enumerate(sizes, 1))
            parts.append(0.3 * sound * np.minimum(1, np.minimum(time, time[::-1]) / 0.04))
            parts.append(0.02 * rng.standard_normal(int(0.03 * rate)))
        parts.append(0.003 * rng.standard_normal(int(rng.uniform(0.1, 2) * rate)))
    joined = np.concatenate(parts)[: int(seconds * rate)]
    return (np.clip(joined / np.abs(joined).max() * 0.7, -1, 0.999) * 32768).round() / 32768


def heard(model: Model, sounds: Sequence[bytes]) -> list[Any]:
    answers = model.send([{"content": sound, "headers": {"Content-Type": "audio/wav"}} for sound in sounds])
    assert [answer.status_code for answer in answers] == [200] * len(sounds), [each.text for each in answers]
    return [answer.json()["predictions"] for answer in answers]


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"])
def test_silero_vad(made: Make, name: str) -> None:
    need("torch", "silero_vad")
    import torch
    from silero_vad import get_speech_timestamps
    from silero_vad.utils_vad import OnnxWrapper

    file = file_of("silero_vad", f"data/{name}")
    model = made(file, pre="pcm:16000,512", state="state=stateN")
    own = OnnxWrapper(str(file))
    sounds = [voice(seconds, seed) for seed, seconds in enumerate((12, 0.4, 7.3))]
    found = heard(model, [wav_of(sound, RATE) for sound in sounds])
    for sound, segments in zip(sounds, found, strict=True):
        theirs = get_speech_timestamps(torch.from_numpy(sound.astype(np.float32)), own)
        times = [(round(each["start"] * RATE), round(each["end"] * RATE)) for each in segments]
        assert times == [(each["start"], each["end"]) for each in theirs]
    assert sum(map(len, found)) > 3
    assert "bit for bit" in model.report


def test_silero_vad_in_pieces(made: Make, library: Path) -> None:
    need("torch", "silero_vad")
    import torch
    from silero_vad.utils_vad import OnnxWrapper, VADIterator

    from tests.attach.test_sounds import events, streamed

    file = file_of("silero_vad", "data/silero_vad.onnx")
    model = made(file, pre="pcm:16000,512", state="state=stateN")
    sounds = [voice(12, seed)[: 370 * 512] for seed in range(3)]
    said = streamed(model.folder.parent, library, f"{model.name}_stream", sounds, 512)
    found = heard(model, [wav_of(sound, RATE) for sound in sounds])
    for sound, answers, segments in zip(sounds, said, found, strict=True):
        own = OnnxWrapper(str(file))
        own.reset_states()
        chunks = [torch.from_numpy(chunk) for chunk in sound.astype(np.float32).reshape(-1, 512)]
        theirs = [own(chunk, RATE).item() for chunk in chunks]
        assert [answer["output"].item() for answer in answers] == pytest.approx(theirs, abs=1e-6)
        assert events(answers) == [
            pytest.approx((each["start"], each["end"], each["score"]), abs=1e-5) for each in segments
        ]
        iterator = VADIterator(OnnxWrapper(str(file)))
        told = [iterator(chunk) or {} for chunk in chunks]
        since = [round(answer["since"].item() * RATE) if answer["since"].item() >= 0 else None for answer in answers]
        begins = [now if now != before else None for before, now in itertools.pairwise([None, *since])]
        assert begins[:-1] == [each.get("start") for each in told[:-1]]
        ended = [before is not None and now is None for before, now in itertools.pairwise([None, *since])]
        assert ended[:-1] == ["end" in each for each in told[:-1]]
    assert sum(map(len, found)) > 3


def test_magika(made: Make) -> None:
    need("magika")
    from magika import Magika

    model = made(file_of("magika", "models/standard_v3_3/model.onnx"))
    files = sorted(path for path in PROJECT.rglob("*.*") if path.is_file() and ".git" not in path.parts)
    files = [path for path in files if "build" not in path.parts and 8 <= path.stat().st_size < 1 << 20][::23][:60]
    assert len({path.suffix for path in files}) > 5
    sent = [{"content": path.read_bytes(), "headers": {"Content-Type": "application/octet-stream"}} for path in files]
    own = Magika()
    for path, answer in zip(files, model.send(sent), strict=True):
        theirs = own.identify_bytes(path.read_bytes())
        if theirs.prediction.dl.label == "undefined":  # too few bytes without white space
            assert answer.status_code == 400
            continue
        best = answer.json()["predictions"][0]
        assert (best["label"], best["score"]) == (
            theirs.prediction.dl.label, pytest.approx(theirs.prediction.score, abs=1e-3)
        )  # fmt: skip


def melody(seconds: float, rate: int = 22_050) -> np.ndarray:
    """Notes of several harmonics that fade, as 16 bits hold them."""
    rng = np.random.default_rng(0)
    time = np.arange(int(seconds * rate)) / rate
    sound = np.zeros_like(time)
    for _ in range(int(2 * seconds)):
        hertz = 440 * 2 ** ((rng.integers(48, 80) - 69) / 12)
        begin, length = rng.uniform(0.2, seconds - 1), rng.uniform(0.3, 0.9)
        there = (time >= begin) & (time < begin + length)
        since = time[there] - begin
        for k, size in ((1, 1), (2, 0.5), (3, 0.3), (4, 0.15)):
            sound[there] += size * np.exp(-2 * since) * np.sin(2 * np.pi * hertz * k * since)
    return (sound / np.abs(sound).max() * 0.8 * 32768).round() / 32768


@pytest.mark.parametrize("more", ["", " together"])
def test_basic_pitch(made: Make, more: str) -> None:
    need("basic_pitch", "mir_eval", "resampy", "pretty_midi")
    import onnxruntime
    from basic_pitch.inference import unwrap_output
    from basic_pitch.note_creation import model_frames_to_time, output_to_notes_polyphonic

    file = file_of("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
    model = made(file, pre=f"pcm:22050{more}", post="notes")
    sound = melody(9)
    (found,) = heard(model, [wav_of(sound, 22_050)])
    own = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    padded = np.concatenate([np.zeros(3840), sound]).astype(np.float32)
    names = {"note": "StatefulPartitionedCall:1", "onset": "StatefulPartitionedCall:2"}
    said: dict[str, list[Any]] = {name: [] for name in names}
    for begin in range(0, len(padded), 43_844 - 7680):
        window = np.zeros((1, 43_844, 1), np.float32)
        window[0, : len(padded[begin : begin + 43_844]), 0] = padded[begin : begin + 43_844]
        for name, value in zip(
            names, own.run(list(names.values()), {"serving_default_input_2:0": window}), strict=True
        ):
            said[name].append(value)
    frames = {name: unwrap_output(np.concatenate(values), len(sound), 30) for name, values in said.items()}
    times = model_frames_to_time(len(frames["note"]))
    theirs = [
        (float(times[begin]), float(times[end]), pitch, float(amplitude))
        for begin, end, pitch, amplitude in output_to_notes_polyphonic(
            frames["note"], frames["onset"], 0.5, 0.3, 11, True, None, None
        )
    ]
    # Times of the package drift by a few milliseconds, and its frames end before the sound does.
    ours = sorted((each["pitch"], each["start"], each["end"], each["score"]) for each in found)
    own_notes = sorted((pitch, begin, end, amplitude) for begin, end, pitch, amplitude in theirs)
    same = [
        any(one[0] == other[0] and one[1:3] == pytest.approx(other[1:3], abs=0.03) for other in own_notes)
        for one in ours
    ]
    assert len(ours) > 15 and np.mean(same) > 0.95 and abs(len(ours) - len(own_notes)) <= 1
    assert "smaller than StatefulPartitionedCall:1 for a tone" in model.report


def test_scikit_learn(made: Make, tmp_path: Path) -> None:
    need("skl2onnx", "sklearn")
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris, load_wine
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for name, data, own in (
        ("iris", load_iris(), make_pipeline(StandardScaler(), LogisticRegression())),
        ("wine", load_wine(), RandomForestClassifier(20, random_state=0)),
    ):
        x, labels = data.data.astype(np.float32), data.target_names[data.target]
        own.fit(x, labels)
        (tmp_path / f"{name}.onnx").write_bytes(to_onnx(own, x[:1]).SerializeToString())
        columns = [each.replace(",", " ") for each in data.feature_names]
        model = made(tmp_path / f"{name}.onnx", name, pre=f"columns:{','.join(columns)}")
        rows = [dict(zip(columns, row.tolist(), strict=True)) for row in x[::7]]
        (answer,) = model.send([{"json": rows}])
        for each, expected in zip(answer.json()["results"], own.predict_proba(x[::7]), strict=True):
            scores = {record["label"]: record["score"] for record in each["predictions"]}
            assert [scores[label] for label in own.classes_] == pytest.approx(expected, abs=1e-5)
