from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.bitmaps import JPEG_INSIDE, bmp, bmp_of_every_kind, gif, gif_of_every_kind
from opgate.ops_build.images.pictures import (
    animated_webp,
    jpeg,
    jpeg_of_every_kind,
    png,
    png_of_every_kind,
    scene,
    webp,
    webp_of_every_kind,
)


def array(encoded: bytes) -> Array:
    return np.frombuffer(encoded, np.uint8)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for name, encoded in jpeg_of_every_kind(67, 45):
        yield Case(f"JPEG {name}", {"data": array(encoded)})
    for name, encoded in png_of_every_kind(23, 17):
        yield Case(f"PNG {name}", {"data": array(encoded)})
    for name, encoded in webp_of_every_kind(39, 27):
        yield Case(f"WebP {name}", {"data": array(encoded)})
    for name, encoded in bmp_of_every_kind(23, 17):
        yield Case(f"BMP {name}", {"data": array(encoded)})
    for name, encoded in gif_of_every_kind(23, 17):
        yield Case(f"GIF {name}", {"data": array(encoded)})
    for size in [(1, 1), (1, 37), (37, 1), (640, 427)]:
        yield Case(f"JPEG {size[0]} x {size[1]}", {"data": array(jpeg(scene(*size)))})
    for orientation in range(10):
        for name, encoded in [
            ("JPEG", jpeg(scene(21, 34), orientation=orientation)),
            ("PNG", png(scene(20, 14), 2, orientation=orientation)),
            ("WebP", webp(scene(20, 14), orientation=orientation)),
        ]:
            yield Case(f"{name}, orientation {orientation}", {"data": array(encoded)})
    good = jpeg(scene(40, 30))
    lossless = webp(scene(40, 30), lossless=True)
    bitmap = bmp(scene(40, 30), 24)
    numbers = gif(np.arange(1200).reshape(30, 40) % 256)
    for name, encoded, attributes, message in [
        ("empty", b"", {}, r"not a JPEG, PNG, WebP, BMP or GIF \(0 bytes\)"),
        ("text", b"no picture", {}, "not a JPEG, PNG, WebP, BMP or GIF"),
        ("truncated", good[: len(good) // 2], {}, "corrupt or truncated"),
        ("a truncated WebP", lossless[: len(lossless) // 2], {}, "corrupt or truncated"),
        ("a WebP without its type", lossless[:11], {}, "not a JPEG, PNG, WebP, BMP or GIF"),
        ("another RIFF", lossless[:8] + b"WAVE" + lossless[12:], {}, "not a JPEG, PNG, WebP, BMP or GIF"),
        ("an animated WebP", animated_webp(), {}, "an unsupported kind of picture"),
        ("a WebP that is too large", lossless, {"max_pixels": 1199}, "more than max_pixels pixels"),
        ("a truncated BMP", bitmap[:-1], {}, "corrupt or truncated"),
        ("a BMP that is a JPEG", bmp(scene(4, 4), 24, compression=JPEG_INSIDE), {}, "an unsupported kind of picture"),
        ("a BMP that is too large", bitmap, {"max_pixels": 1199}, "more than max_pixels pixels"),
        ("a text", b"BMW builds cars and motorcycles", {}, "not a JPEG, PNG, WebP, BMP or GIF"),
        ("a truncated GIF", numbers[:-3], {}, "corrupt or truncated"),
        ("a GIF that is too large", numbers, {"max_pixels": 1199}, "more than max_pixels pixels"),
        ("too large", good, {"max_pixels": 1199}, "more than max_pixels pixels"),
        ("max_pixels 0", good, {"max_pixels": 0}, "attribute 'max_pixels': expected a positive number, got 0"),
    ]:
        yield Case(f"bad: {name}", {"data": array(encoded)}, attributes, error=message)
