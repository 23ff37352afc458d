from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.images.pictures import scene


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    """JPEG only: the bytes of a PNG depend on the zlib that wrote it. PNG is tried in tests/ops by decoding."""
    for size in [(1, 1), (1, 37), (17, 33), (640, 427)]:
        picture = scene(*size)
        yield Case(f"{size[0]} x {size[1]}", {"image": picture})
        yield Case(f"{size[0]} x {size[1]}, grey", {"image": picture[..., :1].copy()})
    for quality in (1, 50, 95, 100):
        yield Case(f"quality {quality}", {"image": scene(70, 50)}, {"quality": quality})
    bad: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
        ("two channels", (4, 4, 2), {}, r"input 'image': expected 1 \(grey\) or 3 \(RGB\) channels, got 2"),
        ("no rows", (0, 4, 3), {}, r"input 'image': expected sides of 1\.\.65500 pixels, got 0 x 4"),
        ("no columns", (4, 0, 3), {"format": "png"}, r"expected sides of 1\.\.65535 pixels, got 4 x 0"),
        ("too wide", (1, 65501, 3), {}, r"expected sides of 1\.\.65500 pixels, got 1 x 65501"),
        ("quality 0", (4, 4, 3), {"quality": 0}, r"attribute 'quality': expected 1\.\.100, got 0"),
        ("quality 101", (4, 4, 3), {"quality": 101}, r"attribute 'quality': expected 1\.\.100, got 101"),
        ("format gif", (4, 4, 3), {"format": "gif"}, "attribute 'format'"),
    ]
    for name, shape, attributes, message in bad:
        yield Case(name, {"image": np.zeros(shape, np.uint8)}, attributes, error=message)
