from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.images.bitmaps import bmp, bmp_of_every_kind, gif, gif_of_every_kind
from opgate.ops_build.images.pictures import (
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

#: Sums of a few terms of order one in f32, from pixels that agree to the last bit.
TOLERANCE = {"image": (1e-5, 1e-5), "geometry": (1e-6, 0.0)}


def case(name: str, encoded: list[bytes], height: int, width: int, **attributes: Any) -> Case:
    data, ends = flat(encoded)
    return Case(name, {"data": data, "ends": ends}, {"height": height, "width": width, **attributes}, TOLERANCE)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    yield from format_cases()
    yield from size_cases()
    yield from fit_cases()
    yield from filter_cases()
    yield from attribute_cases()
    yield from bad_cases()


def format_cases() -> Iterator[Case]:
    for name, encoded in jpeg_of_every_kind(67, 45):
        for side in (8, 16, 32, 64, 100):
            yield case(f"JPEG {name} to {side}", [encoded], side, side)
    for name, encoded in png_of_every_kind(23, 17):
        for side in (3, 8, 16, 40):
            yield case(f"PNG {name} to {side}", [encoded], side, side)
    for name, encoded in webp_of_every_kind(39, 27):
        for side in (3, 8, 40):
            yield case(f"WebP {name} to {side}", [encoded], side, side, pad=20)
    for name, encoded in bmp_of_every_kind(23, 17):
        for side in (3, 40):
            yield case(f"BMP {name} to {side}", [encoded], side, side, pad=20)
    for name, encoded in gif_of_every_kind(23, 17):
        for side in (3, 40):
            yield case(f"GIF {name} to {side}", [encoded], side, side, pad=20)


def size_cases() -> Iterator[Case]:
    for size in [(1, 1), (1, 37), (37, 1), (8, 8), (17, 33), (640, 427)]:
        picture = scene(*size)
        both = [jpeg(picture), png(picture, 2)] if size != (640, 427) else [jpeg(picture)]
        for target in [(1, 1), (7, 5), (64, 96), (128, 128)]:
            yield case(f"{size[0]} x {size[1]} to {target[1]} x {target[0]}", both, *target)
    yield case("1920 x 1080 to 640 x 640", [jpeg(scene(1920, 1080))], 640, 640)
    for orientation in range(10):
        turned = [jpeg(scene(61, 34), orientation=orientation), png(scene(20, 14), 2, orientation=orientation)]
        turned.append(webp(scene(23, 14), orientation=orientation))
        yield case(f"orientation {orientation}", turned, 32, 48)
        for name in ("pil_lanczos", "cv_area"):
            yield case(f"orientation {orientation}, {name}", turned, 13, 9, filter=name, fit="crop", shorter_side=14)
            yield case(f"orientation {orientation}, {name}, grey", turned, 13, 9, filter=name, channels=1)
        yield case(f"orientation {orientation}, crop", turned, 13, 9, fit="crop", shorter_side=14)


FITS = ("letterbox", "letterbox_start", "stretch", "crop", "fit_height")
FILTERS = (
    *("pil_nearest", "pil_box", "pil_bilinear", "pil_hamming", "pil_bicubic", "pil_lanczos"),
    *("cv_nearest", "cv_linear", "cv_area", "cv_cubic", "cv_lanczos4"),
)
#: Sizes of pictures: a wide one, a tall one, a single row, a single column, a single pixel, and one below any target.
SIZES = ((61, 23), (24, 97), (37, 1), (1, 37), (1, 1), (7, 9))


def fit_cases() -> Iterator[Case]:
    pictures = [png(scene(*size), 2) for size in SIZES]
    for fit in FITS:
        for name in ("fast", "pil_bilinear", "cv_linear"):
            for height, width in [(16, 16), (9, 31), (32, 5)]:
                yield case(f"{fit}, {name}, {width} x {height}", pictures, height, width, fit=fit, filter=name, pad=30)
    for side in (1, 9, 15, 40, 101):
        for name in ("fast", "pil_bicubic", "cv_area"):
            label = f"the centre of a shorter side of {side}, {name}"
            yield case(label, pictures[:2], 16, 21, fit="crop", shorter_side=side, filter=name)
    for side, multiple in [(0, 8), (20, 8), (60, 8), (9, 1), (30, 16)]:
        for name in ("fast", "cv_linear"):
            label = f"multiples of {multiple}, shorter side {side}, {name}"
            said = {"fit": "multiples", "shorter_side": side, "multiple": multiple, "filter": name}
            yield case(label, pictures, 48, 80, **said)
    yield case("multiples of 32", pictures, 64, 96, fit="multiples", filter="cv_linear", pad=0)
    yield case("a side too long", [png(scene(1, 300), 2)], 4, 4, fit="crop", shorter_side=65535)


def filter_cases() -> Iterator[Case]:
    pictures = [png(scene(*size), 2) for size in SIZES]
    encoded = [jpeg(scene(50, 80)), webp(scene(30, 20)), bmp(scene(16, 12), 24), gif(scene(40, 32)[..., 0] // 16)]
    for name in FILTERS:
        for height, width in [(8, 11), (40, 3), (1, 64), (100, 100)]:
            yield case(f"{name} to {width} x {height}", pictures, height, width, fit="stretch", filter=name)
        for factor in (2, 3):
            picture = png(scene(20 * factor, 14 * factor), 2)
            yield case(f"{name}, shrunk by {factor}", [picture], 14, 20, fit="stretch", filter=name)
        yield case(f"{name}, grey", pictures, 24, 18, fit="crop", filter=name, channels=1, mean=[0.5], std=[0.25])
        yield case(f"{name}, bytes", encoded, 16, 16, filter=name, scale="byte", mean=[104.0, 117.0, 124.0])
        yield case(f"{name}, BGR", encoded, 9, 33, filter=name, order="BGR", std=[0.5, 0.25, 2.0])
    yield case("grey", [*encoded, *pictures], 24, 32, channels=1)
    yield case("grey, bytes", encoded, 24, 32, channels=1, scale="byte", mean=[127.5], std=[127.5], order="BGR")
    yield case("one mean and one std", encoded, 24, 32, mean=[0.5], std=[0.25])
    yield case("bytes", encoded, 24, 32, scale="byte", fit="stretch")


def attribute_cases() -> Iterator[Case]:
    mixed = [jpeg(scene(50, 80)), png(scene(30, 20), 2), jpeg(scene(90, 31), "L")]
    imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    yield case("ImageNet's mean and std", mixed, 48, 48, **imagenet)
    yield case("BGR", mixed, 48, 48, order="BGR", **imagenet)
    transparent = png(np.dstack([scene(30, 20), np.arange(600).reshape(20, 30, 1) % 256]), 6)
    for pad in (0, 255):
        yield case(f"pad {pad}", [transparent, *mixed], 20, 48, pad=pad)
    yield case("no pictures", [], 8, 8)
    for name, value, pattern in [
        ("height", 0, r"attribute 'height': expected 1\.\.65535, got 0"),
        ("width", -1, "-1"),
        ("height", 2**40, r"attribute 'height': expected 1\.\.65535, got 1099511627776"),
        ("pad", 256, r"attribute 'pad': expected 0\.\.255, got 256"),
        ("max_pixels", 0, r"attribute 'max_pixels': expected a positive number, got 0"),
        ("std", [1.0, 0.0, 1.0], r"attribute 'std': expected finite numbers other than 0, got \[1, 0, 1\]"),
        ("order", "GBR", "attribute 'order'"),
        ("fit", "cover", "attribute 'fit'"),
        ("filter", "bilinear", "attribute 'filter'"),
        ("scale", "percent", "attribute 'scale'"),
        ("channels", 4, "attribute 'channels': expected 1 or 3, got 4"),
        ("mean", [0.5, 0.5], r"attribute 'mean': expected one number for all"),
        ("shorter_side", 65536, r"attribute 'shorter_side': expected 0\.\.65535, got 65536"),
        ("shorter_side", 9, "attribute 'shorter_side': expected 0, because fit is neither crop nor multiples, got 9"),
        ("multiple", 0, r"attribute 'multiple': expected 1\.\.65535, got 0"),
        ("fit", "multiples", "attribute 'height': expected a multiple of 32, got 8"),
    ]:
        data, ends = flat(mixed)
        attributes = {"height": 8, "width": 8, name: value}
        yield Case(f"{name} {value}", {"data": data, "ends": ends}, attributes, error=pattern)
    one_channel = {"height": 8, "width": 8, "channels": 1, "std": [1.0, 1.0, 1.0]}
    error = r"attribute 'std': expected one number, got \[1, 1, 1\]"
    yield Case(
        "three std for one channel", dict(zip(("data", "ends"), flat(mixed), strict=True)), one_channel, error=error
    )
    data, _ = flat(mixed)
    for name, bad in [("decreasing", [9, 5]), ("beyond the data", [data.size + 1]), ("negative", [-1])]:
        inputs = {"data": data, "ends": np.array(bad, np.int32)}
        yield Case(f"ends {name}", inputs, {"height": 8, "width": 8}, error="input 'ends': expected offsets")


def bad_cases() -> Iterator[Case]:
    good_jpeg, good_png = jpeg(scene(40, 30)), png(scene(20, 12), 2)
    bad = {
        "empty": b"",
        "text": b"no picture",
        "GIF": b"GIF89a" + bytes(40),
        "two bytes of a JPEG": good_jpeg[:2],
        "header of a JPEG only": good_jpeg[:20],
        "half a JPEG": good_jpeg[: len(good_jpeg) // 2],
        "half a progressive JPEG": (progressive := jpeg(scene(40, 30), progressive=True))[: len(progressive) // 2],
        "magic of a PNG only": good_png[:8],
        "half a PNG": good_png[: len(good_png) // 2],
        "PNG without its end": good_png[:-12],
        "PNG with a wrong checksum": good_png[:-20] + bytes([good_png[-20] ^ 1]) + good_png[-19:],
        "huge PNG": huge_png(100_000, 100_000),
        "huge JPEG": huge_jpeg(good_jpeg, 65_000, 65_000),
        "wide PNG": huge_png(70_000, 1),
        "half a BMP": (bitmap := bmp(scene(20, 12), 24))[: len(bitmap) // 2],
        "huge BMP": bitmap[:18] + (60_000).to_bytes(4, "little") * 2 + bitmap[26:],
        "half a GIF": (numbers := gif(scene(20, 12)[..., 0] // 16))[: len(numbers) // 2],
        "huge GIF": numbers[:6] + b"\xff\xff\xff\xff" + numbers[10:],
    }
    for name, encoded in bad.items():
        for chosen in ("fast", "pil_box", "cv_cubic"):
            yield case(f"bad: {name}, {chosen}", [good_png, encoded, good_jpeg], 16, 24, filter=chosen)
    yield case("more than max_pixels", [good_jpeg, good_png], 16, 16, max_pixels=40 * 30 - 1)
    yield case("exactly max_pixels", [good_jpeg, good_png], 16, 16, max_pixels=40 * 30)


def huge_png(width: int, height: int) -> bytes:
    """A header that promises much and a little data."""
    small = png(scene(4, 4), 2)
    header = width.to_bytes(4) + height.to_bytes(4) + small[24:29]
    return small[:8] + png_chunk(b"IHDR", header) + small[33:]


def huge_jpeg(encoded: bytes, width: int, height: int) -> bytes:
    at = encoded.index(b"\xff\xc0")
    return encoded[: at + 5] + height.to_bytes(2) + width.to_bytes(2) + encoded[at + 9 :]
