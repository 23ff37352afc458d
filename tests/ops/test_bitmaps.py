"""BMP and GIF in DecodeImage and ImagePreprocess against Pillow, and with damaged and hostile files."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from opgate.ops_build.case import Array
from opgate.ops_build.images.bitmaps import JPEG_INSIDE, RLE8, bmp, bmp_of_every_kind, gif, gif_of_every_kind
from opgate.ops_build.images.pictures import png, scene
from tests.ops.conftest import RunOp
from tests.ops.test_image_ops import (
    CORRUPT,
    GOOD,
    TOO_MANY_PIXELS,
    UNKNOWN_FORMAT,
    UNSUPPORTED,
    check_harmless,
    decode,
    mutations,
    preprocess,
)

BMPS = [name for name, _ in bmp_of_every_kind(4, 4)]
GIFS = [name for name, _ in gif_of_every_kind(4, 4)]
SIZES = [(67, 45), (1, 1), (8, 17), (2, 64), (301, 40)]


def over(encoded: bytes, background: int) -> Array:
    """Returns the RGB pixels that Pillow decodes, composited over `background` and rounded."""
    rgba = np.array(Image.open(io.BytesIO(encoded)).convert("RGBA")).astype(np.int64)
    if encoded.startswith(b"BM") and not rgba[..., 3].any():  # the alpha of a program that knew none
        rgba[..., 3] = 255
    composited: Array = (rgba[..., :3] * rgba[..., 3:] + background * (255 - rgba[..., 3:]) + 127) // 255
    return composited


@pytest.mark.parametrize("kind", BMPS)
def test_bmp_pixels_equal_pillows(run_op: RunOp, kind: str) -> None:
    for size in SIZES:
        encoded = dict(bmp_of_every_kind(*size))[kind]
        np.testing.assert_array_equal(decode(run_op, encoded), over(encoded, 255))


@pytest.mark.parametrize("kind", GIFS)
def test_gif_pixels_equal_pillows(run_op: RunOp, kind: str) -> None:
    for size in SIZES:
        encoded = dict(gif_of_every_kind(*size))[kind]
        np.testing.assert_array_equal(decode(run_op, encoded), over(encoded, 255))


@pytest.mark.parametrize("kind", ["BMP", "GIF"])
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_what_pillow_writes_is_read(run_op: RunOp, kind: str, mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(scene(90, 70)).convert(mode).save(buffer, kind)
    np.testing.assert_array_equal(decode(run_op, buffer.getvalue()), over(buffer.getvalue(), 255))


def test_transparent_pixels_get_the_colour_of_the_pad(run_op: RunOp) -> None:
    kinds = [
        dict(gif_of_every_kind(24, 16))["transparent"],
        dict(bmp_of_every_kind(24, 16))["32 bit, alpha, header of 124"],
    ]
    for encoded in kinds:
        image, _, status = preprocess(run_op, [encoded], 16, 24, pad=77, scale="byte")
        assert status.tolist() == [GOOD]
        np.testing.assert_allclose(image[0].transpose(1, 2, 0), over(encoded, 77), atol=1e-4)


@pytest.mark.parametrize("filter", ["fast", "pil_bilinear"])
def test_a_bitmap_gives_what_the_same_pixels_in_a_png_give(run_op: RunOp, filter: str) -> None:
    for encoded in (*dict(bmp_of_every_kind(61, 44)).values(), *dict(gif_of_every_kind(61, 44)).values()):
        same = png(over(encoded, 50), 2)
        for found, expected in zip(
            *(preprocess(run_op, [one], 7, 9, pad=50, filter=filter) for one in (encoded, same)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", BMPS)
def test_a_truncated_bmp_is_never_good(run_op: RunOp, kind: str) -> None:
    """Only what no pixel needs may be missing: the rest of the last row, and the mark of the end behind runs."""
    encoded = dict(bmp_of_every_kind(13, 9))[kind]
    status = preprocess(run_op, [encoded[:cut] for cut in range(2, len(encoded) - 4)])[2]
    assert set(status.tolist()) == {CORRUPT}


@pytest.mark.parametrize("kind", GIFS)
def test_a_truncated_gif_is_never_good(run_op: RunOp, kind: str) -> None:
    """Only what follows the first picture may be missing."""
    encoded = dict(gif_of_every_kind(13, 9))[kind]
    end = len(dict(gif_of_every_kind(13, 9))["plain"]) - 1 if kind == "animated" else len(encoded) - 1
    status = preprocess(run_op, [encoded[:cut] for cut in range(6, end + 1)])[2].tolist()
    assert status == [CORRUPT] * (end - 6) + [GOOD]


def test_what_is_no_bitmap_and_what_is_not_supported(run_op: RunOp) -> None:
    picture = bmp(scene(20, 12), 24)

    def changed(at: int, *values: int) -> bytes:
        return picture[:at] + bytes(values) + picture[at + len(values) :]

    numbers = scene(20, 12)[..., 0].astype(np.int64)
    plain = gif(numbers)
    rows = {
        b"BMW builds cars and motorcycles": UNKNOWN_FORMAT,
        b"GIF90a" + plain[6:]: UNKNOWN_FORMAT,
        changed(18, 0, 0, 0, 0): CORRUPT,  # no width
        changed(18, 255, 255, 255, 255): CORRUPT,  # a negative one
        changed(22, 0, 0, 0, 0): CORRUPT,
        changed(22, 0, 0, 0, 128): TOO_MANY_PIXELS,  # the most negative height
        changed(18, 0, 0, 1, 0): UNSUPPORTED,  # a side of 65536
        changed(10, 255, 255, 255, 255): CORRUPT,  # the pixels begin behind the end
        changed(28, 2): UNSUPPORTED,
        changed(30, JPEG_INSIDE): UNSUPPORTED,
        changed(30, RLE8): UNSUPPORTED,  # runs of 24 bits
        bmp(numbers, 32, compression=3, masks=(0xFF0000, 0xFF00, 0x5)): UNSUPPORTED,  # bits that lie apart
        plain[:6] + b"\xff\xff\xff\xff" + plain[10:]: TOO_MANY_PIXELS,
        plain.replace(b"\x2c" + bytes(4), b"\x2c" + b"\xff\xff\0\0", 1): UNSUPPORTED,  # a canvas wider than 65535
        plain[:13] + b"\x3b": CORRUPT,  # no picture
    }
    status = preprocess(run_op, list(rows))[2].tolist()
    assert status == list(rows.values())


def test_bad_codes_of_a_gif_are_corrupt(run_op: RunOp) -> None:
    plain = gif(np.zeros((4, 4), np.int64))
    at = plain.index(b"\x2c") + 10
    for bits, codes in [
        (8, 0x100 | 0x102 << 9),  # a string before there is one
        (8, 0x100 | 0x005 << 9 | 0x180 << 18),  # a string that is not there yet
        (8, 0x100 | 0x101 << 9),  # the end before the pixels
        (9, 0x200),
        (0, 0),
    ]:
        encoded = plain[:at] + bytes([bits]) + b"\x08" + codes.to_bytes(8, "little") + b"\0\x3b"
        assert preprocess(run_op, [encoded])[2].tolist() == [CORRUPT], (bits, codes)


@pytest.mark.parametrize("kind", ["8 bit, runs", "4 bit, runs", "4 bit", "16 bit, 565", "32 bit, alpha, header of 108"])
def test_mutated_bmps_do_no_harm(run_op: RunOp, kind: str) -> None:
    encoded = dict(bmp_of_every_kind(31, 22))[kind]
    check_harmless(run_op, list(mutations(encoded, 400, seed=len(kind))))


@pytest.mark.parametrize("kind", ["plain", "noise", "interlaced", "displaced, transparent", "animated"])
def test_mutated_gifs_do_no_harm(run_op: RunOp, kind: str) -> None:
    encoded = dict(gif_of_every_kind(31, 22))[kind]
    check_harmless(run_op, list(mutations(encoded, 400, seed=len(kind))))
