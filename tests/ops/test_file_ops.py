"""DecodeAudio and DecodePoints against the wave module, SciPy, soundfile and NumPy, and with damaged and hostile files."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.images.pictures import flat
from opgate.ops_build.ops.decode_audio.cases import KINDS, sound, wav
from opgate.ops_build.ops.decode_points.cases import PLY_TYPES, cloud, npy, ply
from tests.conftest import examples
from tests.ops.conftest import RunOp

wavfile = pytest.importorskip("scipy.io.wavfile")
soundfile = pytest.importorskip("soundfile")


def decoded_audio(run_op: RunOp, files: list[bytes], **attributes: int) -> list[np.ndarray]:
    data, ends = flat(files)
    return run_op("DecodeAudio", {"data": data, "ends": ends}, {"samples": 50, "sample_rate": 0, **attributes})


def decoded_points(run_op: RunOp, files: list[bytes], **attributes: int) -> list[np.ndarray]:
    data, ends = flat(files)
    return run_op("DecodePoints", {"data": data, "ends": ends}, attributes)


def padded(samples: np.ndarray) -> np.ndarray:
    return np.pad(samples[:50], (0, max(0, 50 - len(samples))))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_integers_are_those_of_the_wave_module(run_op: RunOp, width: int, channels: int) -> None:
    file = io.BytesIO()
    frames = sound(33 * channels, 8 * width)
    with wave.open(file, "wb") as writer:
        writer.setparams((channels, width, 22050, 33, "NONE", ""))
        writer.writeframes(frames)
    integers = [int.from_bytes(frames[i : i + width], "little", signed=width > 1) for i in range(0, len(frames), width)]
    full = 2 ** (8 * width - 1)
    expected = (np.array(integers, float).reshape(-1, channels).mean(1) - (128 if width == 1 else 0)) / full
    pcm, length, rate, status = decoded_audio(run_op, [file.getvalue()])
    assert (length.tolist(), rate.tolist(), status.tolist()) == ([33], [22050], [0])
    np.testing.assert_allclose(pcm[0], padded(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8"])
def test_files_of_scipy(run_op: RunOp, dtype: str) -> None:
    rng, file = np.random.default_rng(1), io.BytesIO()
    scale = {"u1": 1, "<i2": 2**15, "<i4": 2**31}.get(dtype, 1)
    samples = rng.integers(0, 256, (40, 2)) if dtype == "u1" else rng.uniform(-1, 1, (40, 2)) * scale
    samples = samples.astype(dtype)
    wavfile.write(file, 8000, samples)
    expected = samples.astype(float).mean(1)
    expected = (expected - 128) / 128 if dtype == "u1" else expected / scale
    pcm, length, rate, status = decoded_audio(run_op, [file.getvalue()])
    assert (length.tolist(), rate.tolist(), status.tolist()) == ([40], [8000], [0])
    np.testing.assert_allclose(pcm[0], padded(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_files_of_soundfile(run_op: RunOp, subtype: str, kind: str) -> None:
    file, samples = io.BytesIO(), np.random.default_rng(2).uniform(-1, 1, (64, 3))
    soundfile.write(file, samples, 44100, subtype, format=kind)
    file.seek(0)
    expected, _ = soundfile.read(file, always_2d=True)
    pcm, _, _, status = decoded_audio(run_op, [file.getvalue()])
    assert status.tolist() == [0]
    np.testing.assert_allclose(pcm[0], padded(expected.mean(1)), rtol=1e-6, atol=1e-7)
    for other in ("MS_ADPCM", "IMA_ADPCM"):
        file = io.BytesIO()
        soundfile.write(file, samples[:, 0], 44100, other, format="WAV")
        assert decoded_audio(run_op, [file.getvalue()])[3].tolist() == [3]


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_damaged_sounds_hurt_no_other_row(run_op: RunOp, data: st.DataObject) -> None:
    kind, bits = data.draw(st.sampled_from(KINDS))
    good = wav(sound(30, bits, kind), kind=kind, bits=bits)
    bad = damaged(data, good)
    pcm, length, _, status = decoded_audio(run_op, [good, bad, good])
    assert status[0] == status[2] == 0 and 0 <= status[1] <= 4
    assert np.array_equal(pcm[0], pcm[2]) and np.isfinite(pcm).all()
    assert not status[1] or (not pcm[1].any() and length[1] == 0)


def damaged(data: st.DataObject, file: bytes) -> bytes:
    """Returns the file with some of its bytes changed, and often without its end."""
    changed = bytearray(file)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.sampled_from([0, 1, 10, 32, 57, 127, 255]))
    return bytes(changed[: data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))])


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("columns", [3, 6])
def test_points_are_those_that_numpy_saved(run_op: RunOp, dtype: str, columns: int) -> None:
    array = np.random.default_rng(columns).normal(size=(20, columns)).astype(dtype)
    for file in (npy(array), npy(np.asfortranarray(array)), npy(array, (3, 0))):
        xyz, offset, status = decoded_points(run_op, [file])
        assert (offset.tolist(), status.tolist()) == ([20], [0])
        assert np.array_equal(xyz, array[:, :3].astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 30), extra=st.sampled_from(["", "uchar", "double"]), newline=st.sampled_from(["\n", "\r\n"])
)
def test_text_has_the_numbers_that_numpy_reads(run_op: RunOp, count: int, extra: str, newline: str) -> None:
    file = ply(cloud(count), text=True, kind="double", extra=extra, newline=newline)
    table = np.loadtxt(io.StringIO(file.decode().partition(f"end_header{newline}")[2]), ndmin=2)
    xyz, offset, status = decoded_points(run_op, [file])
    assert (offset.tolist(), status.tolist()) == ([count], [0])
    np.testing.assert_allclose(xyz, table[:, [0, 2, 3] if extra else [0, 1, 2]], rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(PLY_TYPES))
def test_binary_has_the_numbers_of_the_text(run_op: RunOp, kind: str) -> None:
    points = np.abs(cloud(12)) * 9
    files = [ply(points, text=text, kind=kind, extra="short") for text in (True, False)]
    xyz, offset, status = decoded_points(run_op, files)
    assert (offset.tolist(), status.tolist()) == ([12, 24], [0, 0])
    np.testing.assert_allclose(xyz[:12], xyz[12:], rtol=1e-6)
    np.testing.assert_allclose(xyz[:12], points.astype(PLY_TYPES[kind]), rtol=1e-6)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_damaged_clouds_hurt_no_other_row(run_op: RunOp, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([npy(cloud(9)), ply(cloud(9)), ply(cloud(9), text=True, extra="int")]))
    xyz, offset, status = decoded_points(run_op, [good, damaged(data, good), good])
    assert status[0] == status[2] == 0 and 0 <= status[1] <= 6
    assert np.array_equal(xyz[:9], xyz[-9:]) and np.isfinite(xyz).all()
    assert offset[0] == 9 and offset[1] > 9 and offset[2] == len(xyz) == offset[1] + 9
    if status[1]:
        assert xyz[9:-9].tolist() == [[0, 0, 0]]


def test_a_header_can_not_ask_for_memory(run_op: RunOp) -> None:
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 200000000\n" + "".join(
        f"property float {a}\n" for a in "xyz"
    )
    huge = npy(cloud(1)).replace(b"(1, 3)", b"(200000000, 3)")
    wide = npy(cloud(1)).replace(b"(1, 3)", b"(1, 18446744073709551615)")
    files = [f"{head}end_header\n".encode(), huge, wide]
    assert decoded_points(run_op, files, max_points=1 << 28)[2].tolist() == [2, 2, 2]
