"""DecodeAudio and DecodePoints against the wave module, SciPy, soundfile and NumPy, and with damaged and hostile files."""

from __future__ import annotations

import io
import time
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.ops_build.audio.sounds import ENCODED, KINDS, checked_page, encoded, sound, tones, wav
from opgate.ops_build.images.pictures import flat
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


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("channels", [1, 2])
def test_sounds_are_those_of_soundfile(run_op: RunOp, kind: str, channels: int) -> None:
    """soundfile brings a libsndfile of its own, which rounds differently."""
    file = encoded(kind, tones(20_000, channels), 48000)
    expected, rate = soundfile.read(io.BytesIO(file), always_2d=True)
    pcm, length, of_file, status = decoded_audio(run_op, [file, file[: len(file) // 2]], samples=30_000)
    assert (length[0], of_file[0], status[0]) == (len(expected), rate, 0)
    np.testing.assert_allclose(pcm[0, : len(expected)], expected.mean(1), atol=2e-6)
    assert not pcm[0, len(expected) :].any()
    # libsndfile doesn't say that samples without frames are missing.
    lenient = kind.split(maxsplit=1)[0] in ("AIFF", "AU", "W64", "RF64", "MS", "IMA")
    assert status[1] == (0 if lenient else 2)


@pytest.mark.parametrize("kind", ENCODED)
def test_mutated_sounds_do_no_harm(run_op: RunOp, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    good = encoded(kind, tones(3000, 2), 48000)
    before, files = decoded_audio(run_op, [good], samples=4000)[0], []
    for i in range(examples(40)):
        changed = bytearray(good)
        for at in rng.integers(0, len(good) if i % 2 else 300, rng.integers(1, 9)):
            changed[at] = rng.choice([0, 1, 127, 128, 255, changed[at] ^ 4])
        files.append(with_checksums(bytes(changed[: len(good) if i % 3 else rng.integers(len(good))])))
    pcm, length, rate, status = decoded_audio(run_op, [good, *files, good], samples=4000)
    assert np.array_equal(pcm[0], before[0]) and np.array_equal(pcm[-1], before[0])
    assert np.isfinite(pcm).all() and set(status.tolist()) <= {0, 1, 2, 3}
    bad = status != 0
    assert not pcm[bad].any() and not length[bad].any() and not rate[bad].any()


def with_checksums(file: bytes) -> bytes:
    """The file with the checksums of its Ogg pages made right."""
    made, at = bytearray(file), 0
    while file[at : at + 4] == b"OggS" and at + 27 <= len(file):
        behind = at + 27 + file[at + 26] + sum(file[at + 27 : at + 27 + file[at + 26]])
        made[at:behind] = checked_page(made[at:behind])
        at = behind
    return bytes(made)


def test_a_vorbis_header_can_not_ask_for_memory(run_op: RunOp) -> None:
    """libvorbis puts a pointer for each entry of a codebook on the stack: 2^22 entries are more than it holds."""
    file = encoded("Vorbis", tones(3000))
    for books, entries, status in [(1, 1 << 15, 0), (1, 1 << 22, 3), (200, 1 << 15, 3)]:
        made = with_codebooks(file, books, entries)
        assert decoded_audio(run_op, [made], samples=4000)[3].tolist() == [status]


def with_codebooks(file: bytes, count: int, entries: int) -> bytes:
    """The Vorbis file with more codebooks behind its own, of a power of two entries, which nothing uses."""
    second = file.index(b"OggS", 1)
    third = file.index(b"OggS", second + 1)
    setup = file.index(b"\5vorbis", second) + 7
    bits, at = int.from_bytes(file[setup:third], "little"), 8

    def read(width: int) -> int:
        nonlocal at
        at += width
        return bits >> at - width & (1 << width) - 1

    own = (bits & 255) + 1
    for _ in range(own):
        assert read(24) == 0x564342
        dims, size = read(16), read(24)
        if read(1):
            read(5)
            left = size
            while left:
                left -= read(left.bit_length())
        else:
            sparse = read(1)
            for _ in range(size):
                if not sparse or read(1):
                    read(5)
        if lookup := read(4):
            read(64)
            width = read(4) + 1
            read(1)
            values = next(i for i in range(size + 1) if (i + 1) ** dims > size) if lookup == 1 else size * dims
            at += width * values
    log2 = entries.bit_length() - 1
    fields = [(0x564342, 24), (1, 16), (entries, 24), (1, 1), (log2 - 1, 5), (entries, log2 + 1), (0, 4)]
    book = sum(value << sum(width for _, width in fields[:i]) for i, (value, _) in enumerate(fields))
    size = sum(width for _, width in fields)
    made, end = own + count - 1 | (bits & (1 << at) - 1) >> 8 << 8, at
    for i in range(count):
        made |= book << end + i * size
    end += count * size
    made |= bits >> at << end
    packets = (
        file[file.index(b"\3vorbis", second) : setup - 7],
        b"\5vorbis" + made.to_bytes((made.bit_length() + 7) // 8, "little"),
    )
    lacing = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    assert len(lacing) < 256
    page = file[second : second + 26] + bytes([len(lacing)]) + lacing + b"".join(packets)
    return file[:second] + checked_page(page) + file[third:]


def test_a_small_file_of_hours_costs_no_more_than_its_samples(run_op: RunOp) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(48000 * 1800, np.int16), 48000, format="FLAC")
    content = file.getvalue()
    start = time.perf_counter()
    _, length, _, status = decoded_audio(run_op, [content] * 50, samples=1000)
    assert time.perf_counter() - start < 5  # all of it takes a minute
    assert set(length.tolist()) == {48000 * 1800} and not status.any()


def test_the_length_of_a_flac_is_only_a_statement(run_op: RunOp) -> None:
    flac = bytearray(encoded("FLAC", tones(3000)))
    flac[21] |= 15
    flac[22:26] = b"\xff" * 4  # 2^36 - 1 samples
    for samples, length, status in [(2000, 2**31 - 1, 0), (4000, 0, 2)]:
        assert decoded_audio(run_op, [bytes(flac)], samples=samples)[1].tolist() == [length]
        assert decoded_audio(run_op, [bytes(flac)], samples=samples)[3].tolist() == [status]
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)  # not stated
    for samples, length in [(2000, 2**31 - 1), (4000, 3000)]:
        assert decoded_audio(run_op, [bytes(flac)], samples=samples)[1].tolist() == [length]


def test_nothing_is_written_to_stderr(run_op: RunOp, capfd: pytest.CaptureFixture[str]) -> None:
    mp3 = encoded("MP3", tones(16000))
    junk = mp3[: len(mp3) // 2] + bytes(range(256)) * 20 + mp3[len(mp3) // 2 :]
    decoded_audio(run_op, [junk, mp3[:-500], encoded("FLAC", tones(16000))[:-500]], samples=20_000)
    assert capfd.readouterr().err == ""


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
