"""Decodes JPEG, PNG, WebP, BMP and GIF as the ops define it, with zlib for PNG and Pillow for the others.

Pillow uses libjpeg-turbo and libwebp too. So the pixels of a JPEG are equal to the last bit, also if a picture is
decoded at a half, a quarter or an eighth of its size, and so are those of a WebP. Pillow reduces 16-bit PNG to 8 bits
with another rounding, so PNG is decoded here.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image, JpegImagePlugin

from opgate.ops_build.case import Array

UNKNOWN_FORMAT, CORRUPT, TOO_MANY_PIXELS, UNSUPPORTED = 1, 2, 3, 4
MESSAGES = {
    UNKNOWN_FORMAT: "not a JPEG, PNG, WebP, BMP or GIF",
    CORRUPT: "corrupt or truncated",
    TOO_MANY_PIXELS: "more than max_pixels pixels",
    UNSUPPORTED: "an unsupported kind of picture",
}
MAX_SIDE = 65535

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_BY_PILLOW = {b"RIFF": "WEBP", b"GIF8": "GIF", b"BM": "BMP"}
_ORIENTATION = 0x0112
#: The passes of an interlaced PNG (Adam7): first column, first row, step between columns, step between rows.
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


class DecodeError(Exception):
    """The bytes can't be decoded. `status` is the code that ImagePreprocess gives."""

    def __init__(self, status: int) -> None:
        super().__init__(MESSAGES[status])
        self.status = status


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded picture whose header has been read. Width and height are those in the file, before the orientation."""

    data: bytes
    width: int
    height: int
    orientation: int

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height after the orientation."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)

    def pixels(self, reduction: int, background: int) -> Array:
        """Returns the upright pixels, u8 [h, w, 3]. Raises DecodeError.

        Each side is divided by `reduction` and rounded up. Transparent pixels are composited over the grey value
        `background`.
        """
        if self.data.startswith(b"\xff\xd8\xff"):
            stored = _jpeg_pixels(self.data, reduction)
        else:
            kind = next((kind for magic, kind in _BY_PILLOW.items() if self.data.startswith(magic)), None)
            rgb = _pillow_rgb(self.data, kind, background) if kind else _png_rgb(self.data, background)
            stored = _mean(rgb, reduction)
        return upright(stored, self.orientation)


def open_picture(data: bytes, max_pixels: int) -> Picture:
    """Reads the header of a JPEG, PNG, WebP, BMP or GIF. Raises DecodeError."""
    if data.startswith(b"\xff\xd8\xff"):
        image = _open_jpeg(data)
        (width, height), exif = image.size, image.info.get("exif", b"")
    elif data.startswith(_PNG_MAGIC):
        png = _Png(data)
        width, height, exif = png.width, png.height, png.exif
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        webp = _opened(data, "WEBP")
        (width, height), exif = webp.size, webp.info.get("exif", b"")
    elif data.startswith((b"GIF87a", b"GIF89a", b"BM")):
        (width, height), exif = _opened(data, "BMP" if data.startswith(b"BM") else "GIF").size, b""
    else:
        raise DecodeError(UNKNOWN_FORMAT)
    if width * height > max_pixels:
        raise DecodeError(TOO_MANY_PIXELS)
    if max(width, height) > MAX_SIDE:
        raise DecodeError(UNSUPPORTED)
    if data.startswith(b"RIFF") and getattr(_opened(data, "WEBP"), "n_frames", 1) > 1:
        raise DecodeError(UNSUPPORTED)
    return Picture(data, width, height, _orientation(exif))


def upright(pixels: Array, orientation: int) -> Array:
    """Returns the pixels, [h, w, c], turned upright. `orientation` is EXIF's, 1..8."""
    turned = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, -1),
        7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(pixels, 1),
    }
    return turned[orientation]


def _orientation(exif: bytes) -> int:
    if not exif:
        return 1
    tags = Image.Exif()
    try:
        tags.load(exif)
        value = tags.get(_ORIENTATION, 1)
    except Exception:  # Pillow raises various errors for a broken directory
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _opened(data: bytes, kind: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(data), formats=[kind])
    except Image.DecompressionBombError:
        raise DecodeError(TOO_MANY_PIXELS) from None
    except (OSError, SyntaxError, ValueError):
        raise DecodeError(CORRUPT) from None


def _open_jpeg(data: bytes) -> JpegImagePlugin.JpegImageFile:
    image = _opened(data, "JPEG")
    assert isinstance(image, JpegImagePlugin.JpegImageFile)
    return image


def _pillow_rgb(data: bytes, kind: str, background: int) -> Array:
    """Returns u8 [h, w, 3]. Transparent pixels are composited over the grey value `background`."""
    try:
        rgba = np.array(_opened(data, kind).convert("RGBA")).astype(np.int64)
        if kind == "BMP" and not rgba[..., 3].any():  # its program knew no alpha
            rgba[..., 3] = 255
    except (OSError, SyntaxError, ValueError):
        raise DecodeError(CORRUPT) from None
    return _composited(rgba[..., :3], rgba[..., 3], background)


def _composited(colours: Array, alpha: Array, background: int) -> Array:
    weight = alpha[..., None]
    composited: Array = (colours * weight + background * (255 - weight) + 127) // 255
    return composited.astype(np.uint8)


def _jpeg_pixels(data: bytes, reduction: int) -> Array:
    image = _open_jpeg(data)
    # Image.draft() does the same, but chooses the reduction itself.
    size = (-(-image.width // reduction), -(-image.height // reduction))
    image.tile = [image.tile[0]._replace(extents=(0, 0, *size))]
    image._size = size
    image.decoderconfig = (reduction, 0)
    try:
        image.load()
    except (OSError, SyntaxError):
        raise DecodeError(CORRUPT) from None
    if image.mode != "CMYK":
        return np.asarray(image.convert("RGB"))
    inverted = 255 - np.asarray(image).astype(np.int64)
    return ((inverted[..., :3] * inverted[..., 3:] + 127) // 255).astype(np.uint8)


def _mean(pixels: Array, reduction: int) -> Array:
    """Returns the rounded means of blocks of reduction x reduction pixels. Blocks at the right and bottom edges may be
    smaller."""
    if reduction == 1:
        return pixels
    rows, columns = (np.arange(0, side, reduction) for side in pixels.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(pixels.astype(np.int64), rows, axis=0), columns, axis=1)
    heights, widths = (
        np.diff(np.append(starts, side)) for starts, side in zip((rows, columns), pixels.shape[:2], strict=True)
    )
    counts = np.outer(heights, widths)[..., None]
    means: Array = (sums + counts // 2) // counts
    return means.astype(np.uint8)


class _Png:
    """The header and the chunks of a PNG. Raises DecodeError if they are broken."""

    def __init__(self, data: bytes) -> None:
        self.palette, self.transparency, self.exif, self.idat = b"", b"", b"", b""
        position, ended = len(_PNG_MAGIC), False
        try:
            while not ended:
                size, kind = struct.unpack_from(">I4s", data, position)
                body = data[position + 8 : position + 8 + size]
                (checksum,) = struct.unpack_from(">I", data, position + 8 + size)
                if zlib.crc32(kind + body) != checksum:
                    raise DecodeError(CORRUPT)
                ended = self._read_chunk(kind, body)
                position += 12 + size
        except struct.error:
            raise DecodeError(CORRUPT) from None

    def _read_chunk(self, kind: bytes, body: bytes) -> bool:
        """Reads a chunk and returns whether it is the last one."""
        match kind:
            case b"IHDR":
                header = struct.unpack(">IIBBBBB", body)
                self.width, self.height, self.depth, self.kind = header[:4]
                self.interlaced = bool(header[6])
            case b"PLTE":
                self.palette = body
            case b"tRNS":
                self.transparency = body
            case b"eXIf":
                self.exif = b"Exif\0\0" + body
            case b"IDAT":
                self.idat += body
        return kind == b"IEND"

    def samples(self) -> Array:
        """Returns the samples as stored, i64 [h, w, c]."""
        channels = CHANNELS[self.kind]
        try:
            raw = zlib.decompress(self.idat)
        except zlib.error:
            raise DecodeError(CORRUPT) from None
        samples = np.zeros((self.height, self.width, channels), np.int64)
        position = 0
        for left, top, across, down in ADAM7 if self.interlaced else ((0, 0, 1, 1),):
            target = samples[top::down, left::across]
            if target.size == 0:
                continue
            row_bytes = -(-target.shape[1] * channels * self.depth // 8)
            size = target.shape[0] * (row_bytes + 1)
            if len(raw) < position + size:
                raise DecodeError(CORRUPT)
            filtered = np.frombuffer(raw, np.uint8, size, position).reshape(target.shape[0], row_bytes + 1)
            rows = _unfilter(filtered, max(1, channels * self.depth // 8))
            target[...] = _unpack(rows, self.depth)[:, : target.shape[1] * channels].reshape(target.shape)
            position += size
        return samples


def _unfilter(filtered: Array, step: int) -> Array:
    rows = np.zeros((filtered.shape[0] + 1, filtered.shape[1] - 1 + step), np.int64)
    for y, line in enumerate(filtered):
        above, row, kind = rows[y], rows[y + 1], line[0]
        for i, value in enumerate(line[1:].astype(np.int64)):
            a, b, c = row[i], above[i + step], above[i]
            if kind == 4:
                p = a + b - c
                nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            else:
                nearest = (0, a, b, (a + b) // 2)[kind]
            row[i + step] = (value + nearest) % 256
    return rows[1:, step:]


def _unpack(rows: Array, depth: int) -> Array:
    if depth == 16:
        return rows[:, ::2] * 256 + rows[:, 1::2]
    if depth == 8:
        return rows
    shifts = np.arange(8 - depth, -1, -depth)
    return (rows[..., None] >> shifts & (1 << depth) - 1).reshape(rows.shape[0], -1)


def _png_rgb(data: bytes, background: int) -> Array:
    """Returns u8 [h, w, 3]. 16 bits are scaled to 8 with rounding, and transparent pixels are composited over the grey
    value `background`."""
    png = _Png(data)
    samples = png.samples()
    most = (1 << png.depth) - 1
    alpha = np.full(samples.shape[:2], 255, np.int64)
    if png.kind == 3:
        palette = np.frombuffer(png.palette, np.uint8).reshape(-1, 3).astype(np.int64)
        opacity = np.full(len(palette), 255, np.int64)
        opacity[: len(png.transparency)] = np.frombuffer(png.transparency, np.uint8)
        colours, alpha = palette[samples[..., 0]], opacity[samples[..., 0]]
    else:
        count = 3 if png.kind in (2, 6) else 1
        scaled = (samples * 255 + most // 2) // most
        colours = np.broadcast_to(scaled[..., :count], (*samples.shape[:2], 3))
        if png.kind in (4, 6):
            alpha = scaled[..., -1]
        elif png.transparency:
            hidden = np.array(struct.unpack(f">{count}H", png.transparency)) & most
            alpha = np.where((samples[..., :count] == hidden).all(-1), 0, 255)
    return _composited(colours, alpha, background)
