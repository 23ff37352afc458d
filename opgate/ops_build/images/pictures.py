"""Generates pictures and encodes them in many ways, for the cases and tests of the ops that decode."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from opgate.ops_build.case import Array
from opgate.ops_build.images.reference import ADAM7


def scene(width: int, height: int, seed: int = 0) -> Array:
    """Returns a picture, u8 [height, width, 3], with gradients, a bright disc and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    u, v = x / max(width - 1, 1), y / max(height - 1, 1)
    picture = np.stack([255 * u, 255 * v, 255 * (1 - u) * (1 - v)], axis=-1)
    disc = (u - 0.3) ** 2 + (v - 0.6) ** 2 < 0.04
    picture[disc] = (250, 240, 40)
    picture += rng.normal(0, 12, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def exif(orientation: int, *, little: bool = True) -> bytes:
    """Returns EXIF data: a TIFF header and a directory with two tags. The second tag is the orientation."""
    order = "<" if little else ">"
    entries = struct.pack(order + "HHII", 0x0100, 4, 1, 1) + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return (b"II" if little else b"MM") + struct.pack(order + "HIH", 42, 8, 2) + entries + bytes(4)


def jpeg(
    pixels: Array, mode: str = "RGB", *, orientation: int | None = None, quality: int = 90, **options: Any
) -> bytes:
    """Encodes u8 [h, w, 3] as a JPEG in a Pillow mode. `options` go to Pillow's encoder (subsampling, progressive)."""
    if orientation is not None:
        options["exif"] = b"Exif\0\0" + exif(orientation, little=orientation % 2 == 0)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    image = Image.fromarray(cmyk(pixels), "CMYK") if mode == "CMYK" else image.convert(mode)
    image.save(buffer, "JPEG", quality=quality, **options)
    return buffer.getvalue()


def cmyk(pixels: Array) -> Array:
    """Converts a picture to CMYK, u8 [h, w, 4], so that R = (255 - C)(255 - K) / 255. K is half of the largest possible
    value."""
    light = pixels.astype(np.float64)
    black = (255 - light.max(axis=-1, keepdims=True)) // 2
    inks = 255 - light * 255 / (255 - black)
    return np.concatenate([inks, black], axis=-1).round().astype(np.uint8)


def ycck(pixels: Array, **options: Any) -> bytes:
    """Returns a JPEG that declares its four channels as YCCK, as Adobe's programs do.

    It is a CMYK JPEG with the transform in its Adobe marker set to 2. Its colours look strange, but every decoder must
    give the same ones.
    """
    data = bytearray(jpeg(pixels, "CMYK", **options))
    marker = data.index(b"Adobe")
    data[marker + 11] = 2
    return bytes(data)


def png(
    samples: Array,
    kind: int,
    depth: int = 8,
    *,
    interlaced: bool = False,
    palette: Array | None = None,
    transparency: bytes = b"",
    orientation: int | None = None,
) -> bytes:
    """Encodes [h, w, channels] as a PNG of colour type `kind`. Its rows use the five filters in turn."""
    height, width, _ = samples.shape
    body = b"".join(
        _filtered_rows(samples[top::down, left::across], depth)
        for left, top, across, down in (ADAM7 if interlaced else ((0, 0, 1, 1),))
    )
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))]
    if palette is not None:
        chunks.append((b"PLTE", palette.astype(np.uint8).tobytes()))
    if transparency:
        chunks.append((b"tRNS", transparency))
    if orientation is not None:
        chunks.append((b"eXIf", exif(orientation)))
    chunks += [(b"tEXt", b"Title\0A scene"), (b"IDAT", zlib.compress(body)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(name, data) for name, data in chunks)


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _filtered_rows(samples: Array, depth: int) -> bytes:
    height, width, channels = samples.shape
    if height == 0 or width == 0:
        return b""
    flat = samples.reshape(height, -1).astype(np.int64)
    if depth == 16:
        rows = np.stack([flat >> 8, flat & 255], axis=-1).reshape(height, -1)
    elif depth == 8:
        rows = flat
    else:
        per_byte = 8 // depth
        padded = np.pad(flat, ((0, 0), (0, -flat.shape[1] % per_byte))).reshape(height, -1, per_byte)
        rows = (padded << np.arange(8 - depth, -1, -depth)).sum(-1)
    step = max(1, channels * depth // 8)
    above = np.pad(rows, ((1, 0), (0, 0)))[:-1]
    left = np.pad(rows, ((0, 0), (step, 0)))[:, : rows.shape[1]]
    corner = np.pad(above, ((0, 0), (step, 0)))[:, : rows.shape[1]]
    p = left + above - corner
    to_left, to_above, to_corner = abs(p - left), abs(p - above), abs(p - corner)
    paeth = np.where(
        (to_left <= to_above) & (to_left <= to_corner), left, np.where(to_above <= to_corner, above, corner)
    )
    guesses = np.stack([np.zeros_like(rows), left, above, (left + above) // 2, paeth])
    kinds = np.arange(height) % 5
    filtered = (rows - guesses[kinds, np.arange(height)]) % 256
    return np.concatenate([kinds[:, None], filtered], axis=1).astype(np.uint8).tobytes()


def png_of_every_kind(width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a PNG for every colour type and bit depth: plain, interlaced, and with tRNS if allowed."""
    pixels = scene(width, height, seed=3).astype(np.int64)
    rng = np.random.default_rng(4)
    for kind, name, depths in (
        (0, "grey", (1, 2, 4, 8, 16)),
        (2, "RGB", (8, 16)),
        (3, "palette", (1, 2, 4, 8)),
        (4, "grey+alpha", (8, 16)),
        (6, "RGBA", (8, 16)),
    ):
        for depth in depths:
            wide = pixels * 257 + rng.integers(-128, 128, pixels.shape)
            samples = wide.clip(0, 65535) >> (16 - depth)
            if kind in (0, 3, 4):
                samples = samples[..., :1]
            if kind in (4, 6):
                alpha = rng.integers(0, 1 << depth, (height, width, 1))
                samples = np.concatenate([samples, alpha], axis=-1)
            palette = rng.integers(0, 256, (1 << depth, 3)) if kind == 3 else None
            hidden = b""
            if kind == 3:
                hidden = bytes(rng.integers(0, 256, max(1, (1 << depth) // 2)).tolist())
            elif kind in (0, 2):
                hidden = struct.pack(f">{samples.shape[2]}H", *samples[height // 2, width // 2].tolist())
            for interlaced in (False, True):
                suffix = f"{name} {depth} bit{', interlaced' if interlaced else ''}"
                yield suffix, png(samples, kind, depth, interlaced=interlaced, palette=palette)
                if hidden:
                    yield (
                        f"{suffix}, tRNS",
                        png(samples, kind, depth, interlaced=interlaced, palette=palette, transparency=hidden),
                    )


def jpeg_of_every_kind(width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a JPEG for each of the common colour spaces, subsamplings and orders of scans."""
    pixels = scene(width, height, seed=5)
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for progressive in (False, True):
            suffix = ", progressive" if progressive else ""
            yield f"{subsampling}{suffix}", jpeg(pixels, subsampling=subsampling, progressive=progressive)
    yield "grey", jpeg(pixels, "L")
    yield "grey, progressive", jpeg(pixels, "L", progressive=True)
    yield "RGB, not YCbCr", jpeg(pixels, keep_rgb=True)
    yield "restart markers", jpeg(pixels, restart_marker_blocks=2)
    yield "CMYK", jpeg(pixels, "CMYK")
    yield "YCCK", ycck(pixels)


def webp(pixels: Array, *, orientation: int | None = None, **options: Any) -> bytes:
    """Encodes u8 [h, w, 3 or 4] as a WebP. `options` go to Pillow's encoder (lossless, quality)."""
    if orientation is not None:
        options["exif"] = exif(orientation, little=orientation % 2 == 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", **options)
    return buffer.getvalue()


def webp_of_every_kind(width: int, height: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a WebP, lossy and lossless, with and without alpha."""
    pixels = scene(width, height, seed=6)
    alpha = np.random.default_rng(7).integers(0, 256, (height, width, 1), np.uint8)
    for name, one in [("RGB", pixels), ("RGBA", np.concatenate([pixels, alpha], axis=-1))]:
        yield f"{name}, lossy", webp(one, quality=70)
        yield f"{name}, lossless", webp(one, lossless=True, exact=True)
    # Few colours become a palette, of which a byte has several pixels.
    yield "palette, lossless", webp(pixels // 100 * 100, lossless=True)
    yield "hidden colours, lossless", webp(np.concatenate([pixels, alpha // 128], axis=-1), lossless=True, exact=True)


def animated_webp() -> bytes:
    """Returns a WebP of two pictures."""
    buffer = io.BytesIO()
    first, second = (Image.fromarray(scene(16, 12, seed)) for seed in (0, 1))
    first.save(buffer, "WEBP", save_all=True, append_images=[second])
    return buffer.getvalue()


def flat(encoded: list[bytes]) -> tuple[Array, Array]:
    """Returns the inputs `data` and `ends` of ImagePreprocess for encoded pictures."""
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return data, np.cumsum([len(one) for one in encoded], dtype=np.int64).astype(np.int32)
