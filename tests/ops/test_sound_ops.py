"""Ops for sound against librosa, SciPy, torchaudio and kaldi-native-fbank."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.audio.sounds import encoded, tones, wav
from opgate.ops_build.images.pictures import flat
from opgate.ops_build.ops.log_mel_spectrogram.reference import bands
from tests.conftest import thorough
from tests.skips import need

need("librosa", "scipy")  # each takes seconds to import


def sound(samples: int, seed: int) -> np.ndarray:
    """Noise and two tones."""
    time = np.arange(samples) / 16000
    tones = np.sin(2 * np.pi * 440 * time) + 0.3 * np.sin(2 * np.pi * 3000 * time)
    return (tones + 0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


@thorough("numba compiles librosa for minutes")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_log_mel_spectrogram_is_librosas(run_op, data) -> None:
    import librosa

    n_fft = data.draw(st.sampled_from([256, 400, 441, 512, 1000, 1024]))
    rate = data.draw(st.sampled_from([8000, 16000, 22050, 44100]))
    samples = data.draw(st.integers(n_fft, 6000))
    htk, zero = data.draw(st.booleans()), data.draw(st.booleans())
    hop = data.draw(st.integers(1, n_fft))
    window = data.draw(st.sampled_from([0, n_fft // 2, n_fft - 1]))
    n_mels = data.draw(st.integers(1, 100))
    f_min = data.draw(st.sampled_from([0.0, 80.0]))
    f_max = data.draw(st.sampled_from([0.0, 3500.0]))
    norm = data.draw(st.sampled_from(["slaney", "none"]))
    power = data.draw(st.sampled_from([1, 2]))
    shape = data.draw(st.sampled_from(["hann", "hamming", "blackman"]))
    pcm = sound(samples, samples)
    energy = librosa.feature.melspectrogram(
        y=pcm.astype(np.float64), sr=rate, n_fft=n_fft, hop_length=hop, win_length=window or None, n_mels=n_mels,
        fmin=f_min, fmax=f_max or None, htk=htk, norm=norm if norm == "slaney" else None,
        pad_mode="constant" if zero else "reflect", dtype=np.float64, power=power, window=shape,
    )  # fmt: skip
    attributes = {
        "sample_rate": rate, "n_fft": n_fft, "hop_length": hop, "win_length": window, "n_mels": n_mels, "f_min": f_min,
        "f_max": f_max, "mel_scale": "htk" if htk else "slaney", "norm": norm, "pad": "zero" if zero else "reflect",
        "power": power, "window": shape,
    }  # fmt: skip
    mel, _ = run_op("LogMelSpectrogram", {"pcm": pcm[None]}, attributes)
    assert mel.shape == (1, *energy.shape)
    # Energies below a millionth of the loudest are rounding errors of the f32 transform.
    quiet = energy < 1e-6 ** (power / 2) * energy.max()
    expected = np.log(np.maximum(energy, 1e-10))
    assert np.abs(mel[0] - expected)[~quiet].max(initial=0) < 2e-3
    assert (mel[0][quiet] < np.log(2 * 1e-6 ** (power / 2) * energy.max())).all()


def frames_of(pcm: np.ndarray, n_fft: int, hop: int, window: np.ndarray, pad: str) -> np.ndarray:
    """torch.stft's magnitudes [n_fft // 2 + 1, frames] with its centred window, computed in f64."""
    around = np.zeros(n_fft)
    first = (n_fft - len(window)) // 2
    around[first : first + len(window)] = window
    padded = np.pad(pcm.astype(np.float64), n_fft // 2, pad)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop] * around
    return np.abs(np.fft.rfft(frames, axis=-1)).T


def test_features_are_whispers(run_op) -> None:
    """WhisperFeatureExtractor of transformers: 30 seconds, log10, 8 below the maximum, and a scale."""
    speech = sound(50_000, 3)
    padded = np.pad(speech, (0, 480_000 - len(speech)))
    weights = bands(16000, 400, 80, 0, 8000, "slaney", "slaney")
    of_whisper = np.log10(np.maximum(weights @ frames_of(padded, 400, 160, hann(400), "reflect")[:, :-1] ** 2, 1e-10))
    of_whisper = (np.maximum(of_whisper, of_whisper.max() - 8) + 4) / 4
    # The frames behind a row are those of silence.
    pcm, length = np.pad(speech[None], ((0, 0), (0, 480_000 - len(speech)))), np.array([len(speech)], np.int32)
    for inputs in ({"pcm": pcm}, {"pcm": pcm, "length": length}):
        mel, frames = run_op("LogMelSpectrogram", inputs, {"log": "log10"})
        mel = mel[0, :, :-1]
        mel = (np.maximum(mel, mel.max() - 8) + 4) / 4
        alone = len(speech) // 160 - 1  # frames that reach no padding
        np.testing.assert_allclose(mel[:, :alone], of_whisper[:, :alone], atol=2e-4)
        np.testing.assert_allclose(mel[:, alone + 5 :], of_whisper[:, alone + 5 :], atol=2e-4)
    assert frames.tolist() == [1 + len(speech) // 160]


def hann(length: int, period: int = 0) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (period or length))


@pytest.mark.parametrize(("pad", "power", "guard"), [("zero", 2, "add"), ("reflect", 2, "add"), ("zero", 1, "clamp")])
def test_features_are_nemos(run_op, pad: str, power: int, guard: str) -> None:
    """FilterbankFeatures of NeMo, with the settings of its Conformer and Parakeet models, each row alone: preemphasis, a
    symmetric window of 400 in 512, and each band normalized over the frames of its row."""
    lengths = np.array([16000, 9000, 12345], np.int32)
    pcm = np.stack([sound(16000, seed) for seed in range(3)])
    attributes = {
        "n_fft": 512, "win_length": 400, "n_mels": 80, "pad": pad, "power": power, "guard": guard, "floor": 2.0**-24,
        "preemphasis": 0.97, "periodic": 0,
    }  # fmt: skip
    mel, frames = run_op("LogMelSpectrogram", {"pcm": pcm, "length": lengths}, attributes)
    weights = bands(16000, 512, 80, 0, 8000, "slaney", "slaney")
    for row, (samples, length) in enumerate(zip(pcm, lengths, strict=True)):
        x = samples[:length].astype(np.float64)
        x = np.concatenate([x[:1], x[1:] - 0.97 * x[:-1]])
        energy = frames_of(x, 512, 160, hann(400, 399), "constant" if pad == "zero" else pad) ** power
        of_nemo = weights @ energy
        of_nemo = np.log(of_nemo + 2**-24) if guard == "add" else np.log(np.maximum(of_nemo, 2**-24))
        valid = length // 160  # NeMo's length leaves the last frame out
        assert frames[row] == of_nemo.shape[1] == valid + 1
        np.testing.assert_allclose(normalized(mel[row, :, :valid]), normalized(of_nemo[:, :valid]), atol=1e-3)
        np.testing.assert_allclose(mel[row, :, valid + 1 :], np.log(2**-24), rtol=1e-6)


def normalized(mel: np.ndarray) -> np.ndarray:
    """NeMo's normalization "per_feature"."""
    return (mel - mel.mean(1, keepdims=True)) / (mel.std(1, ddof=1, keepdims=True) + 1e-5)


def test_a_row_with_a_length_is_as_alone(run_op) -> None:
    pcm, lengths = np.stack([sound(5000, seed) for seed in range(4)]), np.array([5000, 300, 150, 2801], np.int32)
    together, frames = run_op("LogMelSpectrogram", {"pcm": pcm, "length": lengths})
    for row, length in enumerate(lengths):
        if length <= 200:  # too short to be reflected
            assert frames[row] == 0 and (together[row] == together[row, 0, 0]).all()
            continue
        alone, _ = run_op("LogMelSpectrogram", {"pcm": pcm[row : row + 1, :length]})
        assert frames[row] == alone.shape[2]
        np.testing.assert_allclose(together[row, :, : frames[row]], alone[0], atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_kaldi_fbank_is_kaldis(run_op, data) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    rate = data.draw(st.sampled_from([8000, 11025, 16000, 44100]))
    milliseconds = data.draw(st.sampled_from([(25.0, 10.0), (20.0, 12.5), (32.0, 10.0), (25.0, 7.3), (10.0, 25.0)]))
    win_length, hop_length = (int(rate * 0.001 * each) for each in milliseconds)
    attributes = {
        "window": data.draw(st.sampled_from(["povey", "hamming", "hanning", "rectangular", "blackman"])),
        "snip_edges": data.draw(st.integers(0, 1)), "remove_dc": data.draw(st.booleans()),
        "preemphasis": data.draw(st.sampled_from([0.0, 0.5, 0.97])), "power": data.draw(st.integers(1, 2)),
        "use_energy": data.draw(st.integers(0, 1)), "raw_energy": data.draw(st.booleans()),
        "energy_floor": data.draw(st.sampled_from([0.0, 1e9])), "n_mels": data.draw(st.sampled_from([3, 10])),
        "f_min": data.draw(st.sampled_from([0.0, 20.0, 300.0])), "f_max": data.draw(st.sampled_from([0.0, -400.0, 3400.0])),
    }  # fmt: skip
    samples = 3000 * sound(data.draw(st.integers(win_length, 4 * win_length)), win_length)
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = rate
    options.frame_opts.frame_length_ms, options.frame_opts.frame_shift_ms = milliseconds
    options.frame_opts.window_type = attributes["window"]
    options.frame_opts.snip_edges = attributes["snip_edges"] == 1
    options.frame_opts.remove_dc_offset = attributes["remove_dc"]
    options.frame_opts.preemph_coeff = attributes["preemphasis"]
    options.mel_opts.num_bins = attributes["n_mels"]
    options.mel_opts.low_freq, options.mel_opts.high_freq = attributes["f_min"], attributes["f_max"]
    options.use_power = attributes["power"] == 2
    options.use_energy = attributes["use_energy"] == 1
    options.raw_energy = attributes["raw_energy"]
    options.energy_floor = attributes["energy_floor"]
    kaldi = knf.OnlineFbank(options)
    kaldi.accept_waveform(rate, samples.tolist())
    kaldi.input_finished()
    width = attributes["n_mels"] + attributes["use_energy"]
    expected = np.array([kaldi.get_frame(i) for i in range(kaldi.num_frames_ready)]).reshape(-1, width)
    (fbank, frames) = run_op(
        "KaldiFbank",
        {"pcm": samples[None]},
        {"sample_rate": rate, "win_length": win_length, "hop_length": hop_length, **attributes},
    )
    assert fbank.shape == (1, *expected.shape) and frames.tolist() == [len(expected)]
    np.testing.assert_allclose(fbank[0], expected, atol=2e-3)


def test_a_row_of_kaldi_fbank_is_as_alone(run_op) -> None:
    pcm, lengths = np.stack([sound(5000, seed) for seed in range(4)]), np.array([5000, 300, 0, 2801], np.int32)
    for snip_edges in (0, 1):
        attributes = {"snip_edges": snip_edges, "use_energy": 1}
        together, frames = run_op("KaldiFbank", {"pcm": pcm, "length": lengths}, attributes)
        silence, _ = run_op("KaldiFbank", {"pcm": 0 * pcm[:1]}, attributes)
        for row, length in enumerate(lengths):
            alone, _ = run_op("KaldiFbank", {"pcm": pcm[row : row + 1, :length]}, attributes)
            assert frames[row] == alone.shape[1]
            np.testing.assert_allclose(together[row, : frames[row]], alone[0], atol=1e-6)
            np.testing.assert_allclose(together[row, frames[row] :], silence[0, frames[row] :], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_sliding_window_is_unfold(run_op, data) -> None:
    torch = pytest.importorskip("torch")
    t = data.draw(st.integers(1, 700))
    size, step = data.draw(st.integers(1, t)), data.draw(st.integers(1, 50))
    ddof = data.draw(st.sampled_from([0, 1])) if size > 1 else 0
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    x = (np.random.default_rng(t).standard_normal((2, t)) * 10 + 3).astype(dtype)
    outputs = run_op("SlidingWindow", {"x": x}, {"size": size, "step": step, "ddof": ddof})
    windows = torch.from_numpy(x).double().unfold(1, size, step)
    expected = windows.mean(-1), windows.std(-1, correction=ddof), windows.amin(-1), windows.amax(-1)
    for output, of_torch in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, of_torch.numpy(), rtol=1e-6 if dtype == np.float32 else 1e-12, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    from_rate=st.sampled_from([1, 2, 3, 7, 8000, 11025, 16000, 44100, 48000]),
    to_rate=st.sampled_from([1, 2, 5, 8000, 16000, 22050, 44100]),
    samples=st.integers(1, 800),
)
def test_resample_audio_is_scipys(run_op, from_rate: int, to_rate: int, samples: int) -> None:
    from scipy import signal

    x = sound(samples, samples)
    (y,) = run_op("ResampleAudio", {"x": x[None]}, {"from_rate": from_rate, "to_rate": to_rate})
    common = math.gcd(from_rate, to_rate)
    expected = signal.resample_poly(x.astype(np.float64), to_rate // common, from_rate // common)
    np.testing.assert_allclose(y[0], expected, atol=2e-6)


def preprocessed(run_op, files: list[bytes], **attributes) -> list[np.ndarray]:
    data, ends = flat(files)
    return run_op("AudioPreprocess", {"data": data, "ends": ends}, attributes)


@settings(max_examples=25, deadline=None)
@given(
    rate=st.sampled_from([8000, 11025, 22050, 44100, 48000, 16000]),
    to_rate=st.sampled_from([8000, 16000, 22050, 24000]),
    frames=st.integers(1, 40_000),
    kind=st.sampled_from(["FLAC", "FLAC of 24 bits", "AIFF of floats", "IMA ADPCM"]),
    channels=st.sampled_from([1, 2]),
)
def test_audio_preprocess_is_librosas_load(
    run_op, rate: int, to_rate: int, frames: int, kind: str, channels: int
) -> None:
    import librosa

    file = encoded(kind, tones(frames, channels, rate), rate)
    pcm, length, of_file, status = preprocessed(run_op, [file], sample_rate=to_rate, resampler="soxr_hq")
    expected, _ = librosa.load(io.BytesIO(file), sr=to_rate)
    assert (length.tolist(), of_file.tolist(), status.tolist()) == ([len(expected)], [rate], [0])
    np.testing.assert_allclose(pcm[0], expected, atol=1e-6)


#: torchaudio.functional.resample (2.11) of sin(0.7 i).
OF_TORCHAUDIO = {
    (44100, 16000, 60): [
        0.2163476, 0.8897462, -0.6335116, -0.4907118, 0.9994868, -0.2216893, -0.8395710, 0.8104770, 0.2707068, -1.0004823,
        0.4315174, 0.6976032, -0.9211588, -0.0510585, 0.9569944, -0.6206478, -0.5214511, 0.9878857, -0.1732350, -0.8683865,
        0.7927366, 0.2997300,
    ],
    (8000, 16000, 12): [
        0.0018439, 0.2797504, 0.6424406, 0.8941265, 0.9869055, 0.9710458, 0.8623556, 0.6432510, 0.3354935, -0.0091730,
        -0.3508215, -0.6502956, -0.8716649, -0.9853225, -0.9831817, -0.8673869, -0.6293592, -0.3014735, 0.0135734, 0.3033712,
        0.6615770, 1.0003964, 0.9829963, 0.5126493,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("rate", "to_rate", "samples"), OF_TORCHAUDIO)
def test_audio_preprocess_is_torchaudios_resample(run_op, rate: int, to_rate: int, samples: int) -> None:
    x = np.sin(0.7 * np.arange(samples)).astype("<f4")
    file = wav(x.tobytes(), kind=3, bits=32, rate=rate)
    pcm = preprocessed(run_op, [file], sample_rate=to_rate, resampler="sinc_interp_hann")[0]
    np.testing.assert_allclose(pcm[0], OF_TORCHAUDIO[rate, to_rate, samples], atol=1e-5)


@pytest.mark.parametrize("resampler", ["kaiser", "sinc_interp_hann", "soxr_hq"])
def test_a_long_file_of_a_high_rate_costs_what_it_gives(run_op, resampler: str) -> None:
    import soundfile

    made = io.BytesIO()
    soundfile.write(made, np.zeros(384_000 * 60, np.int16), 384_000, format="FLAC")
    claims = bytearray(made.getvalue())
    claims[21:26] = bytes([claims[21] & 0xF0, 0, 0, 0, 0])  # without its length
    pcm, length, _, status = preprocessed(
        run_op, [bytes(claims), made.getvalue()], max_samples=16_000, resampler=resampler
    )
    assert pcm.shape == (2, 1) and status.tolist() == [5, 5] and length.tolist() == [0, 0]


def test_a_tone_stays_a_tone(run_op) -> None:
    (y,) = run_op("ResampleAudio", {"x": np.sin(2 * np.pi * 440 * np.arange(44100) / 44100).astype(np.float32)[None]},
                  {"from_rate": 44100, "to_rate": 16000})  # fmt: skip
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(y[0] - expected)[100:-100].max() < 2e-3


def test_a_tone_is_in_its_band(run_op) -> None:
    pcm = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    mel, frames = run_op("LogMelSpectrogram", {"pcm": np.stack([pcm, pcm])})
    assert frames.tolist() == [101, 101]
    assert mel.shape == (2, 80, 101) and (mel[:, :, 5:-5].argmax(1) == 26).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_pieces_of_speech_are_those_of_the_whole(run_op, data) -> None:
    """The segments that windows give piece by piece are, one behind the other, those that they give together."""
    seed, windows = data.draw(st.integers(0, 10_000)), data.draw(st.integers(1, 150))
    noise = np.random.default_rng(seed).standard_normal((2, windows))
    heard = (1 / (1 + np.exp(-0.6 * np.cumsum(noise, 1) - noise[:, ::-1]))).astype(np.float32)
    settings = {
        "step": 512, "rate": 16000, "max_segments": 200, "min_speech_ms": data.draw(st.sampled_from([0, 50, 250])),
        "min_silence_ms": data.draw(st.sampled_from([0, 30, 100])), "pad_ms": data.draw(st.sampled_from([0, 30, 300])),
    }  # fmt: skip
    rest = data.draw(st.integers(1, 512))  # samples of the last window
    length = np.full(2, (windows - 1) * 512 + rest, np.int32)
    segments, scores, count = run_op("SpeechSegments", {"probabilities": heard, "length": length}, settings)[:3]
    whole = [[(*segments[row, i], scores[row, i]) for i in range(count[row])] for row in range(2)]
    pieces: list[list[tuple[float, float, float]]] = [[], []]
    state, at = np.zeros((2, 10)), 0
    while at < windows:
        until = min(windows, at + data.draw(st.integers(1, 5)))
        last = until == windows
        inputs = {
            "probabilities": heard[:, at:until], "state": state, "last": np.full(2, last, np.int32),
            "length": np.full(2, (until - at) * 512 - (512 - rest) * last, np.int32),
        }  # fmt: skip
        segments, scores, count, state, since = run_op("SpeechSegments", inputs, settings)
        for row in range(2):
            pieces[row] += [(*segments[row, i], scores[row, i]) for i in range(count[row])]
        at = until
    assert (since == -1).all()
    assert [np.ravel(row).tolist() for row in pieces] == [pytest.approx(np.ravel(row).tolist()) for row in whole]


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_a_loudness_is_that_of_ebu_r_128(run_op, rate: int) -> None:
    """Speech-like noise with pauses, held to pyloudnorm with the filters of the standard, and near its own default."""
    need("pyloudnorm")
    import pyloudnorm

    loud = np.repeat([0.3, 0.002, 0.1, 0.3, 0.00001], rate)
    samples = np.random.default_rng(rate).standard_normal(len(loud)) * loud
    samples = (np.clip(samples, -1, 0.999) * 32767).astype("<i2")
    file = wav(samples.tobytes(), rate=rate)
    inputs = {"data": np.frombuffer(file, np.uint8), "ends": np.array([len(file)], np.int32)}
    settings = {"sample_rate": rate, "normalize": "lufs", "loudness": -30.0}
    pcm = run_op("AudioPreprocess", inputs, settings)[0][0]
    gain = 20 * np.log10(np.abs(pcm).max() / np.abs(samples / 32768).max())
    loudness = pyloudnorm.Meter(rate, filter_class="DeMan").integrated_loudness(samples / 32768)
    assert gain == pytest.approx(-30 - loudness, abs=1e-4)
    assert pyloudnorm.Meter(rate).integrated_loudness(samples / 32768) == pytest.approx(loudness, abs=0.3)
