"""Encodes pictures as BMP and GIF in many ways, for the cases and tests of the ops that decode."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.images.pictures import scene

RGB, RLE8, RLE4, BIT_FIELDS, JPEG_INSIDE = 0, 1, 2, 3, 4
#: The headers of Windows: their sizes, of which the longer ones have room for the masks.
INFO, V4, V5 = 40, 108, 124


def bmp(
    pixels: Array,
    bits: int,
    *,
    palette: Array | None = None,
    top_down: bool = False,
    compression: int = RGB,
    masks: tuple[int, ...] = (),
    header: int = INFO,
) -> bytes:
    """Encodes [h, w] numbers of colours or of pixels, or [h, w, 3] for 24 bits, as a BMP. `palette` is u8 [n, 3]."""
    height, width = pixels.shape[:2]
    rows = pixels if top_down else pixels[::-1]
    match compression:
        case 1:
            body = b"".join(_runs(row) + b"\0\0" for row in rows.tolist()) + b"\0\1"
        case 2:
            body = b"".join(_nibble_runs(row) + b"\0\0" for row in rows.tolist()) + b"\0\1"
        case _:
            body = b"".join(_packed(row, bits) for row in rows)
    colours = b""
    if palette is not None:
        filled = np.zeros((len(palette), 4), np.uint8)
        filled[:, :3] = palette[:, ::-1]
        colours = filled.tobytes()
    stated = 0 if palette is None or len(palette) == 1 << bits else len(palette)
    info = struct.pack(
        "<IiiHHIIiiII",
        header,
        width,
        -height if top_down else height,
        1,
        bits,
        compression,
        len(body),
        2835,
        2835,
        stated,
        0,
    )
    info += struct.pack(f"<{len(masks)}I", *masks)
    info += bytes(max(0, header - len(info)))
    return _with_file_header(info + colours, body)


def os2_bmp(numbers: Array, bits: int, palette: Array) -> bytes:
    """Encodes [h, w] numbers of colours with OS/2's first header, whose palette has three bytes for a colour."""
    height, width = numbers.shape
    info = struct.pack("<IHHHH", 12, width, height, 1, bits) + palette[:, ::-1].astype(np.uint8).tobytes()
    return _with_file_header(info, b"".join(_packed(row, bits) for row in numbers[::-1]))


def _with_file_header(info: bytes, body: bytes) -> bytes:
    begin = 14 + len(info)
    return b"BM" + struct.pack("<IHHI", begin + len(body), 0, 0, begin) + info + body


def _packed(row: Array, bits: int) -> bytes:
    """Returns a row, filled up to four bytes."""
    if bits == 24:
        line = row[:, ::-1].astype(np.uint8).tobytes()
    elif bits >= 16:
        line = row.astype(f"<u{bits // 8}").tobytes()
    else:
        per_byte = 8 // bits
        numbers = np.pad(row.astype(np.int64), (0, -len(row) % per_byte)).reshape(-1, per_byte)
        line = (numbers << np.arange(8 - bits, -1, -bits)).sum(-1).astype(np.uint8).tobytes()
    return line + bytes(-len(line) % 4)


def _runs(row: list[int]) -> bytes:
    """Returns a row in runs: the first 5 pixels as they are, then runs of equal ones."""
    encoded = b""
    if len(row) >= 5:
        encoded, row = b"\0\5" + bytes(row[:5]) + b"\0", row[5:]
    while row:
        count = next((i for i, value in enumerate(row) if value != row[0]), len(row))
        encoded += bytes([min(count, 255), row[0]])
        row = row[min(count, 255) :]
    return encoded


def _nibble_runs(row: list[int]) -> bytes:
    """The same for 4 bits: the first 3 pixels as they are, then pairs."""
    encoded = b""
    if len(row) >= 3:
        encoded, row = bytes([0, 3, row[0] << 4 | row[1], row[2] << 4]), row[3:]
    for pair in (row[at : at + 2] for at in range(0, len(row), 2)):
        encoded += bytes([len(pair), pair[0] << 4 | pair[-1]])
    return encoded


def bmp_of_every_kind(width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a BMP for every number of bits, order of rows, header and compression."""
    rng = np.random.default_rng(8)
    for bits in (1, 4, 8):
        palette = rng.integers(0, 256, (1 << bits, 3), np.uint8)
        numbers = rng.integers(0, 1 << bits, (height, width))
        for top_down in (False, True):
            name = f"{bits} bit{', top down' if top_down else ''}"
            yield name, bmp(numbers, bits, palette=palette, top_down=top_down)
        yield f"{bits} bit, OS/2", os2_bmp(numbers, bits, palette)
    few = rng.integers(0, 3, (height, width)) + 7
    yield "8 bit, 10 colours", bmp(few, 8, palette=rng.integers(0, 256, (10, 3), np.uint8))
    for bits, compression in ((8, RLE8), (4, RLE4)):
        palette = rng.integers(0, 256, (1 << bits, 3), np.uint8)
        yield f"{bits} bit, runs", bmp(few, bits, palette=palette, compression=compression)
    yield "16 bit", bmp(rng.integers(0, 1 << 15, (height, width)), 16)
    sixteen = rng.integers(0, 1 << 16, (height, width))
    yield "16 bit, 565", bmp(sixteen, 16, compression=BIT_FIELDS, masks=(0xF800, 0x7E0, 0x1F))
    for top_down in (False, True):
        yield f"24 bit{', top down' if top_down else ''}", bmp(scene(width, height), 24, top_down=top_down)
    pixels = rng.integers(0, 1 << 32, (height, width))
    yield "32 bit", bmp(pixels, 32)
    bgr, alpha = (0xFF0000, 0xFF00, 0xFF), 0xFF000000
    yield "32 bit, masks", bmp(pixels, 32, compression=BIT_FIELDS, masks=bgr)
    for header in (V4, V5):
        yield (
            f"32 bit, alpha, header of {header}",
            bmp(pixels, 32, compression=BIT_FIELDS, masks=(*bgr, alpha), header=header),
        )
    opaque = bmp(pixels & 0xFFFFFF, 32, compression=BIT_FIELDS, masks=(*bgr, alpha), header=V5)
    yield "32 bit, alpha that is 0 everywhere", opaque


def gif(
    numbers: Array,
    palette: Array | None = None,
    *,
    own_palette: Array | None = None,
    transparent: int | None = None,
    interlaced: bool = False,
    at: tuple[int, int] = (0, 0),
    canvas: tuple[int, int] | None = None,
    bits: int = 8,
    clear_after: int = 5000,
    more: bytes = b"",
) -> bytes:
    """Encodes [h, w] numbers of colours as a GIF of one picture.

    `palette`, u8 [2^k, 3], is that of the file, `own_palette` that of the picture. The picture lies `at` (left, top) in
    a canvas of (width, height). After `clear_after` codes the table of strings is cleared. `more` goes before the
    trailer.
    """
    height, width = numbers.shape
    screen = canvas or (at[0] + width, at[1] + height)
    encoded = b"GIF89a" + struct.pack("<HHBBB", *screen, _table_flags(palette), 0, 0) + _table(palette)
    encoded += b"\x21\xfe\x07a scene\x00"
    if transparent is not None:
        encoded += b"\x21\xf9\x04" + struct.pack("<BHBB", 1, 0, transparent, 0)
    flags = _table_flags(own_palette) | (0x40 if interlaced else 0)
    encoded += b"\x2c" + struct.pack("<HHHHB", *at, width, height, flags) + _table(own_palette)
    order = [y for first, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for y in range(first, height, step)]
    rows = numbers[order] if interlaced else numbers
    codes = _lzw(rows.ravel().tolist(), bits, clear_after)
    blocks = [codes[i : i + 255] for i in range(0, len(codes), 255)]
    return encoded + bytes([bits]) + b"".join(bytes([len(b)]) + b for b in blocks) + b"\0" + more + b"\x3b"


def _table_flags(palette: Array | None) -> int:
    return 0 if palette is None else 0x80 | (len(palette).bit_length() - 2)


def _table(palette: Array | None) -> bytes:
    return b"" if palette is None else palette.astype(np.uint8).tobytes()


def _lzw(numbers: list[int], bits: int, clear_after: int) -> bytes:
    clear = 1 << bits
    packed, filled, count = 0, 0, 0

    def reset() -> tuple[dict[tuple[int, ...], int], int]:
        return {(i,): i for i in range(clear)}, bits + 1

    strings, size = reset()
    codes = [(clear, size)]
    string: tuple[int, ...] = ()
    for number in numbers:
        if (*string, number) in strings:
            string = (*string, number)
            continue
        codes.append((strings[string], size))
        count += 1
        if len(strings) + 2 < 4096:
            strings[(*string, number)] = len(strings) + 2
            size = max(size, (len(strings) + 1).bit_length())
        if count % clear_after == 0:
            codes.append((clear, size))
            strings, size = reset()
        string = (number,)
    codes.append((strings[string], size))
    # The reader adds one string more before it reads the last code.
    codes.append((clear + 1, max(size, min(12, (len(strings) + 2).bit_length()))))
    for code, width in codes:
        packed |= code << filled
        filled += width
    return packed.to_bytes(-(-filled // 8), "little")


def gif_of_every_kind(width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a GIF: with palettes of the file and of the picture, interlaced, transparent, displaced."""
    rng = np.random.default_rng(9)
    palette, other = rng.integers(0, 256, (2, 256, 3), np.uint8)
    smooth = (scene(width, height)[..., 0] // 16).astype(np.int64)
    noise = rng.integers(0, 256, (height, width))
    yield "plain", gif(smooth, palette)
    yield "noise", gif(noise, palette)
    yield "cleared often", gif(noise, palette, clear_after=7)
    yield "palette of its own", gif(smooth, palette, own_palette=other)
    yield "no palette", gif(noise)
    yield "interlaced", gif(smooth, palette, interlaced=True)
    yield "transparent", gif(smooth, palette, transparent=int(smooth[0, 0]))
    yield "16 colours", gif(smooth, palette[:16], bits=4)
    yield "2 colours", gif(noise % 2, palette[:2], bits=2)
    yield "displaced", gif(smooth, palette, at=(3, 2), canvas=(width + 5, height + 4))
    yield "displaced, transparent", gif(smooth, palette, at=(3, 2), canvas=(width + 5, height + 4), transparent=3)
    yield "beyond its canvas", gif(smooth, palette, at=(2, 1), canvas=(1, 1))
    second = gif(noise, palette)[13 + 768 :]
    yield "animated", gif(smooth, palette, more=second[second.index(b"\x2c") : -1])
