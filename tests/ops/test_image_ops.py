"""ImagePreprocess, DecodeImage and EncodeImage against Pillow, and with damaged and hostile files."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image, ImageOps

from opgate.ops_build.case import Array
from opgate.ops_build.images import pictures
from opgate.ops_build.images.pictures import (
    animated_webp,
    flat,
    jpeg,
    jpeg_of_every_kind,
    png,
    png_chunk,
    png_of_every_kind,
    scene,
    webp,
    webp_of_every_kind,
)
from tests.ops.conftest import RunOp

GOOD, UNKNOWN_FORMAT, CORRUPT, TOO_MANY_PIXELS, UNSUPPORTED = range(5)


def preprocess(
    run_op: RunOp, encoded: list[bytes], height: int = 24, width: int = 32, **attributes: object
) -> list[Array]:
    data, ends = flat(encoded)
    return run_op("ImagePreprocess", {"data": data, "ends": ends}, {"height": height, "width": width, **attributes})


def decode(run_op: RunOp, encoded: bytes) -> Array:
    return run_op("DecodeImage", {"data": np.frombuffer(encoded, np.uint8)})[0]


def pillow_rgb(encoded: bytes, background: int = 255) -> Array:
    """Returns the RGB pixels that Pillow decodes, composited over `background` in f64."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    rgba = np.asarray(image.convert("RGBA")).astype(np.float64)
    alpha = rgba[..., 3:] / 255
    return rgba[..., :3] * alpha + background * (1 - alpha)


@pytest.mark.parametrize("kind", [name for name, _ in jpeg_of_every_kind(1, 1) if name not in ("CMYK", "YCCK")])
def test_jpeg_pixels_agree_with_pillow(run_op: RunOp, kind: str) -> None:
    for size in [(67, 45), (1, 1), (8, 17), (333, 200)]:
        encoded = dict(jpeg_of_every_kind(*size))[kind]
        np.testing.assert_array_equal(decode(run_op, encoded), pillow_rgb(encoded))


@pytest.mark.parametrize("kind", ["CMYK", "YCCK"])
def test_cmyk_is_close_to_pillow(run_op: RunOp, kind: str) -> None:
    encoded = dict(jpeg_of_every_kind(67, 45))[kind]
    # Pillow rounds the product of ink and black by another formula.
    np.testing.assert_allclose(decode(run_op, encoded), pillow_rgb(encoded), atol=1)


def test_cmyk_looks_like_the_picture_it_was_made_of(run_op: RunOp) -> None:
    picture = scene(64, 48)
    decoded = decode(run_op, jpeg(picture, "CMYK", quality=98)).astype(int)
    assert np.abs(decoded - picture).mean() < 3


def pillow_agrees(kind: str) -> bool:
    """Returns whether Pillow decodes this kind of PNG as the op does.

    Pillow takes the upper byte of 16 bits. For grey of less than 8 bits it compares the transparent value with the scaled sample.
    """
    return "16 bit" not in kind and not (kind.startswith("grey") and "8 bit" not in kind and "tRNS" in kind)


@pytest.mark.parametrize("kind", [name for name, _ in png_of_every_kind(4, 4) if pillow_agrees(name)])
def test_png_pixels_agree_with_pillow(run_op: RunOp, kind: str) -> None:
    for size in [(23, 17), (1, 1), (3, 64)]:
        encoded = dict(png_of_every_kind(*size))[kind]
        np.testing.assert_allclose(decode(run_op, encoded), pillow_rgb(encoded), atol=0.501)


WEBPS = [name for name, _ in webp_of_every_kind(4, 4)]


@pytest.mark.parametrize("kind", WEBPS)
def test_webp_pixels_agree_with_pillow(run_op: RunOp, kind: str) -> None:
    for size in [(67, 45), (1, 1), (8, 17), (333, 200)]:
        encoded = dict(webp_of_every_kind(*size))[kind]
        opaque = Image.open(io.BytesIO(encoded)).mode == "RGB"
        np.testing.assert_allclose(decode(run_op, encoded), pillow_rgb(encoded), atol=0 if opaque else 0.501)


def test_a_lossless_webp_is_the_picture_it_was_made_of(run_op: RunOp) -> None:
    picture = scene(64, 48)
    np.testing.assert_array_equal(decode(run_op, webp(picture, lossless=True)), picture)


def test_16_bits_are_rounded_to_8(run_op: RunOp) -> None:
    samples = np.arange(65536, dtype=np.int64).reshape(256, 256, 1)
    expected = np.round(samples / 257).repeat(3, axis=2)
    np.testing.assert_array_equal(decode(run_op, png(samples, 0, 16)), expected)


@pytest.mark.parametrize("kind", ["RGB 16 bit", "RGB 16 bit, interlaced"])
def test_16_bits_differ_by_one_at_most_from_their_upper_byte(run_op: RunOp, kind: str) -> None:
    """Pillow takes the upper byte, for which there is a nearer value where the lower one is far from it."""
    encoded = dict(png_of_every_kind(67, 45))[kind]
    difference = decode(run_op, encoded).astype(int) - pillow_rgb(encoded)
    assert np.abs(difference).max() == 1 and (difference == 0).mean() > 0.4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_stands_the_picture_upright(run_op: RunOp, orientation: int) -> None:
    for turned in (webp(scene(80, 50), orientation=orientation), jpeg(scene(80, 50), orientation=orientation)):
        upright = pillow_rgb(turned)
        np.testing.assert_array_equal(decode(run_op, turned), upright)
    image, geometry, _ = preprocess(run_op, [turned], 40, 40)
    height, width = upright.shape[:2]
    assert geometry[0].tolist() == [
        width / min(40, width / 2),
        height / min(40, height / 2),
        *geometry[0, 2:4],
        width,
        height,
    ]
    stored, stored_geometry, _ = preprocess(run_op, [png(upright.astype(np.int64), 2)], 40, 40)
    # The op shrinks a JPEG in its transform and a PNG by block means, so the pixels are similar and not equal.
    assert np.abs(image - stored).mean() < 0.02
    np.testing.assert_array_equal(geometry, stored_geometry)


def test_a_broken_exif_is_ignored(run_op: RunOp) -> None:
    picture = scene(20, 10)
    for tiff in [
        b"",
        b"II",
        b"II*\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        pictures.exif(6)[:-8],
        b"XX" + bytes(40),
    ]:
        for encoded in (jpeg(picture, exif=b"Exif\0\0" + tiff), webp(picture, exif=tiff)):
            assert decode(run_op, encoded).shape == picture.shape


def test_pixels_of_the_same_size_pass_unchanged(run_op: RunOp) -> None:
    picture = scene(32, 24)
    image, geometry, status = preprocess(run_op, [png(picture, 2)])
    np.testing.assert_allclose(image[0] * 255, picture.transpose(2, 0, 1), atol=1e-4)
    assert geometry.tolist() == [[1, 1, 0, 0, 32, 24]]
    assert status.tolist() == [GOOD]


def test_geometry_maps_a_models_coordinates_back(run_op: RunOp) -> None:
    """The geometry maps a bright spot back to its position in the source."""
    picture = np.zeros((300, 500, 3), np.uint8)
    picture[120:140, 400:420] = 255
    image, geometry, _ = preprocess(run_op, [png(picture, 2)], 64, 96, pad=0)
    y, x = np.nonzero(image[0, 0] > 0.5)
    scale_x, scale_y, left, top, w, h = geometry[0]
    assert (w, h) == (500, 300)
    assert abs((x.mean() + 0.5 - left) * scale_x - 410) < scale_x
    assert abs((y.mean() + 0.5 - top) * scale_y - 130) < scale_y


def test_a_row_is_the_same_in_a_batch_and_alone(run_op: RunOp) -> None:
    encoded = [jpeg(scene(60 + i, 90 - i, i)) for i in range(20)] + [b"bad"] + [png(scene(9, 9), 2)] * 11
    together = preprocess(run_op, encoded)
    for i, one in enumerate(encoded):
        for batched, single in zip(together, preprocess(run_op, [one]), strict=True):
            np.testing.assert_array_equal(batched[i], single[0])


def test_bad_rows_are_padded_and_spare_the_others(run_op: RunOp) -> None:
    good = jpeg(scene(40, 30))
    rows = {good: GOOD, b"": UNKNOWN_FORMAT, b"GIF89a": CORRUPT, good[:300]: CORRUPT, good + b"tail": GOOD}
    image, geometry, status = preprocess(run_op, list(rows), mean=[0.5, 0.5, 0.5], std=[0.25, 0.5, 1.0], pad=51)
    assert status.tolist() == list(rows.values())
    for i in np.flatnonzero(status):
        for k, std in enumerate([0.25, 0.5, 1.0]):
            np.testing.assert_allclose(image[i, k], (0.2 - 0.5) / std, rtol=1e-6)
        assert geometry[i].tolist() == [1, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(image[0], image[4])


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "CMYK"}, {"restart_marker_blocks": 1}])
def test_a_truncated_jpeg_is_never_good(run_op: RunOp, options: dict[str, object]) -> None:
    encoded = jpeg(scene(64, 48), **options)  # type: ignore[arg-type]
    cuts = sorted({*range(3, len(encoded), 41), len(encoded) - 3, len(encoded) - 2})
    status = preprocess(run_op, [encoded[:cut] for cut in cuts])[2]
    assert set(status.tolist()) == {CORRUPT}


@pytest.mark.parametrize("interlaced", [False, True])
def test_a_truncated_png_is_never_good(run_op: RunOp, interlaced: bool) -> None:
    encoded = png(scene(33, 21), 2, interlaced=interlaced)
    cuts = range(8, len(encoded), 13)
    status = preprocess(run_op, [encoded[:cut] for cut in cuts])[2]
    assert set(status.tolist()) == {CORRUPT}


@pytest.mark.parametrize("kind", WEBPS)
def test_a_truncated_webp_is_never_good(run_op: RunOp, kind: str) -> None:
    encoded = dict(webp_of_every_kind(33, 21))[kind]
    status = preprocess(run_op, [encoded[:cut] for cut in range(12, len(encoded) - 1)])[2]
    assert set(status.tolist()) == {CORRUPT}


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + len(data).to_bytes(4, "little") + data + bytes(len(data) % 2) for name, data in chunks)
    return b"RIFF" + (4 + len(body)).to_bytes(4, "little") + b"WEBP" + body


def test_the_size_of_a_webp_is_refused_before_its_memory_is_taken(run_op: RunOp) -> None:
    lossless = riff((b"VP8L", b"\x2f" + (16382 | 16382 << 14).to_bytes(4, "little") + bytes(20)))
    frame = bytes([0x10, 2, 0, 0x9D, 1, 0x2A]) + (16383).to_bytes(2, "little") * 2 + bytes(20)
    canvas = (1 << 20).to_bytes(3, "little") + (1 << 11).to_bytes(3, "little")
    animated = riff((b"VP8X", b"\x02\0\0\0" + canvas), (b"ANIM", bytes(6)))
    status = preprocess(run_op, [lossless, riff((b"VP8 ", frame)), animated])[2]
    assert status.tolist() == [TOO_MANY_PIXELS] * 3
    # The sides in the header of the file are not those of the picture.
    still = riff((b"VP8X", bytes(4) + canvas), *[(b"VP8L", webp(scene(8, 8), lossless=True)[20:])])
    assert preprocess(run_op, [still])[2].tolist() == [CORRUPT]


def test_an_animated_webp_is_unsupported(run_op: RunOp) -> None:
    assert preprocess(run_op, [animated_webp()])[2].tolist() == [UNSUPPORTED]


def test_the_exif_of_a_webp_counts_if_the_header_announces_it(run_op: RunOp) -> None:
    plain = webp(scene(20, 10), lossless=True)
    picture = (plain[12:16], plain[20:])
    canvas = (19).to_bytes(3, "little") + (9).to_bytes(3, "little")
    tiff = pictures.exif(6)
    for flags, exif, turned in [
        (8, tiff, True),
        (8, b"Exif\0\0" + tiff, True),
        (0, tiff, False),
        (8, tiff[:-8], False),
    ]:
        encoded = riff((b"VP8X", bytes([flags, 0, 0, 0]) + canvas), picture, (b"odd ", b"odd"), (b"EXIF", exif))
        assert decode(run_op, encoded).shape == ((20, 10, 3) if turned else (10, 20, 3))


def test_a_png_with_one_bit_wrong_is_never_good(run_op: RunOp) -> None:
    encoded = png(scene(12, 9), 2)
    broken = []
    for at in range(8, len(encoded)):
        copy = bytearray(encoded)
        copy[at] ^= 1 << at % 8
        broken.append(bytes(copy))
    status = preprocess(run_op, broken)[2]
    assert GOOD not in status


def scans(count: int) -> bytes:
    """Returns a JPEG of three components with one scan each. The scan of the last one is there `count` - 2 times."""
    grey = jpeg(np.full((16, 16, 3), 90, np.uint8), "L")
    frame, scan, end = grey.index(b"\xff\xc0"), grey.index(b"\xff\xda"), grey.rindex(b"\xff\xd9")
    components = b"".join(bytes([c, 0x11, 0]) for c in (1, 2, 3))
    header = (
        grey[:frame] + b"\xff\xc0\0\x11" + grey[frame + 4 : frame + 9] + b"\3" + components + grey[frame + 13 : scan]
    )
    one = [grey[scan : scan + 5] + bytes([c]) + grey[scan + 6 : end] for c in (1, 2, 3)]
    return header + one[0] + one[1] + one[2] * (count - 2) + b"\xff\xd9"


def test_the_number_of_scans_is_limited(run_op: RunOp) -> None:
    assert preprocess(run_op, [scans(3), scans(50), scans(5000)])[2].tolist() == [GOOD, GOOD, UNSUPPORTED]


def test_a_jpeg_of_two_components_is_unsupported(run_op: RunOp) -> None:
    three = scans(3)
    frame = three.index(b"\xff\xc0")
    two = (
        three[: frame + 2]
        + b"\0\x0e"
        + three[frame + 4 : frame + 9]
        + b"\2"
        + three[frame + 10 : frame + 16]
        + three[frame + 19 :]
    )
    assert preprocess(run_op, [two])[2].tolist() == [UNSUPPORTED]


def test_twelve_bits_are_unsupported(run_op: RunOp) -> None:
    encoded = bytearray(jpeg(scene(8, 8)))
    at = encoded.index(b"\xff\xc0")
    encoded[at + 1], encoded[at + 4] = 0xC1, 12
    assert preprocess(run_op, [bytes(encoded)])[2].tolist() == [UNSUPPORTED]


def test_a_text_that_inflates_without_end_is_skipped(run_op: RunOp) -> None:
    good = png(scene(12, 9), 2)
    bomb = png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(200_000_000)))
    profile = png_chunk(b"iCCP", b"k\0\0" + zlib.compress(b"no profile"))
    image, _, status = preprocess(run_op, [good, good[:33] + bomb + profile + good[33:]])
    assert status.tolist() == [GOOD, GOOD]
    np.testing.assert_array_equal(image[0], image[1])


def mutations(encoded: bytes, count: int, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        copy = bytearray(encoded)
        # Half of the copies are damaged in their first 700 bytes, where the headers are.
        reach = min(len(copy), 700) if rng.random() < 0.5 else len(copy)
        for _ in range(rng.integers(1, 6)):
            at = int(rng.integers(0, min(reach, len(copy)) or 1))
            size = int(rng.integers(1, 40))
            match rng.integers(0, 6):
                case 0 | 1:
                    copy[at : at + 1] = bytes([int(rng.integers(0, 256))])
                case 2:
                    copy[at : at + size] = bytes(size)
                case 3:
                    copy[at : at + size] = rng.bytes(size)
                case 4:
                    copy[at:at] = copy[at : at + size]
                case 5:
                    del copy[at : at + size]
        yield bytes(copy)


def repaired(encoded: bytes) -> bytes:
    """Returns the PNG with correct checksums, so that the decoder gets past them to the damage."""
    at, chunks = 8, [encoded[:8]]
    while at + 12 <= len(encoded):
        size = int.from_bytes(encoded[at : at + 4])
        chunks.append(png_chunk(encoded[at + 4 : at + 8], encoded[at + 8 : at + 8 + size]))
        at += 12 + size
    return b"".join(chunks)


@pytest.mark.parametrize("name", ["4:2:0", "4:4:4, progressive", "YCCK", "restart markers", "grey", "many scans"])
def test_mutated_jpegs_do_no_harm(run_op: RunOp, name: str) -> None:
    encoded = scans(5) if name == "many scans" else dict(jpeg_of_every_kind(48, 40))[name]
    with_exif = (
        encoded[:2]
        + b"\xff\xe1"
        + (8 + len(pictures.exif(6))).to_bytes(2)
        + b"Exif\0\0"
        + pictures.exif(6)
        + encoded[2:]
    )
    check_harmless(run_op, list(mutations(with_exif, 400, seed=len(name))))


@pytest.mark.parametrize(
    "name", ["RGB 8 bit", "palette 4 bit, interlaced, tRNS", "RGBA 16 bit, interlaced", "grey 1 bit, tRNS"]
)
def test_mutated_pngs_do_no_harm(run_op: RunOp, name: str) -> None:
    encoded = dict(png_of_every_kind(24, 20))[name]
    mutated = list(mutations(encoded, 300, seed=len(name)))
    check_harmless(run_op, mutated + [repaired(one) for one in mutated])


@pytest.mark.parametrize("kind", WEBPS)
def test_mutated_webps_do_no_harm(run_op: RunOp, kind: str) -> None:
    encoded = dict(webp_of_every_kind(48, 40))[kind]
    check_harmless(run_op, list(mutations(encoded, 300, seed=len(kind))))


def check_harmless(run_op: RunOp, encoded: list[bytes]) -> None:
    image, geometry, status = preprocess(run_op, encoded, 16, 16, max_pixels=1_000_000)
    assert set(status.tolist()) <= set(range(5))
    assert len(set(status.tolist())) > 1, "every mutation has the same status"
    assert np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1
    assert np.isfinite(geometry).all()
    for one, code in zip(encoded[:100], status[:100], strict=True):
        try:
            decode(run_op, one)
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument:
            pass
        else:
            assert code in (GOOD, TOO_MANY_PIXELS)


def test_decode_image_says_what_is_wrong(run_op: RunOp) -> None:
    with pytest.raises(
        Exception,
        match=r"opgate::DecodeImage: input 'data': expected a JPEG, PNG, WebP, BMP or GIF, got one that is not a JPEG",
    ):
        decode(run_op, b"text")


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (64, 64), (301, 199)])
@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_lossless(run_op: RunOp, size: tuple[int, int], channels: int) -> None:
    picture = scene(*size)[..., :channels].copy()
    (data,) = run_op("EncodeImage", {"image": picture}, {"format": "png"})
    image = Image.open(io.BytesIO(data.tobytes()))
    assert image.format == "PNG" and image.mode == ("RGB" if channels == 3 else "L")
    np.testing.assert_array_equal(np.asarray(image).reshape(picture.shape), picture)
    np.testing.assert_array_equal(decode(run_op, data.tobytes()), picture.repeat(3 // channels, axis=2))


@pytest.mark.parametrize("quality", [1, 75, 100])
def test_an_encoded_jpeg_equals_pillows_and_fits_its_bound(run_op: RunOp, quality: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3)).astype(np.uint8)
    (data,) = run_op("EncodeImage", {"image": noise}, {"quality": quality})
    assert data.tobytes() == jpeg(noise, quality=quality, subsampling="4:2:0")
    assert data.size <= 65536 + 8 * (120 + 16) * (160 + 16)
