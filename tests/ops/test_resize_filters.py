"""The filters of ImagePreprocess against Pillow's Image.resize and OpenCV's cv2.resize."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from opgate.ops_build.case import Array
from opgate.ops_build.images.pictures import flat, png, scene
from tests.ops.conftest import RunOp
from tests.skips import need

PILLOW = {
    f"pil_{name}": Image.Resampling[name.upper()]
    for name in ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
}
OPENCV = {"cv_nearest": 0, "cv_linear": 1, "cv_cubic": 2, "cv_area": 3, "cv_lanczos4": 4}
#: Pixels of 1000 that may differ from OpenCV by one level. OpenCV computes INTER_CUBIC in f32, or with Intel's library.
DIFFERENT = {"cv_cubic": 60}


def resized(run_op: RunOp, picture: Array, width: int, height: int, name: str, channels: int = 3) -> Array:
    """Returns the picture resized by the op, i64 [height, width, channels]."""
    data, ends = flat([png(picture, 2)])
    attributes = {"height": height, "width": width, "fit": "stretch", "filter": name, "scale": "byte"}
    attributes["channels"] = channels
    image, _, status = run_op("ImagePreprocess", {"data": data, "ends": ends}, attributes)
    assert status.tolist() == [0]
    return image[0].transpose(1, 2, 0).astype(np.int64)


def sizes(seed: int) -> list[tuple[int, int, int, int]]:
    """Returns widths and heights of pictures and of results: any, whole factors, a side that stays, and single pixels."""
    rng = np.random.default_rng(seed)
    found = [(1, 1, 9, 7), (9, 7, 1, 1), (1, 40, 30, 3), (40, 1, 3, 30), (17, 13, 17, 13), (2, 2, 3, 3), (3, 3, 2, 2)]
    for turn in range(40):
        w, h, to_w, to_h = (int(side) for side in rng.integers(1, (120, 90, 100, 80)))
        match turn % 8:
            case 0:
                w, h = to_w * int(rng.integers(1, 5)), to_h * int(rng.integers(1, 5))
            case 1:
                factor = int(rng.integers(1, 6))
                w, h = to_w * factor, to_h * factor
            case 2:
                to_w = w
            case 3:
                to_h = h
            case 4:
                to_w, to_h = 2 * w, 3 * h
        found.append((w, h, to_w, to_h))
    return found


def pictures_of(w: int, h: int) -> list[Array]:
    """Returns noise, which shows every difference, and a smooth picture."""
    return [np.random.default_rng(w * h).integers(0, 256, (h, w, 3), np.uint8), scene(w, h)]


@pytest.mark.parametrize("name", PILLOW)
def test_a_filter_equals_pillows(run_op: RunOp, name: str) -> None:
    count = 0
    for w, h, to_w, to_h in sizes(1):
        for picture in pictures_of(w, h):
            for channels in (3, 1):
                image = Image.fromarray(picture) if channels == 3 else Image.fromarray(picture).convert("L")
                expected = np.asarray(image.resize((to_w, to_h), PILLOW[name])).reshape(to_h, to_w, channels)
                found = resized(run_op, picture, to_w, to_h, name, channels)
                np.testing.assert_array_equal(found, expected, f"{w} x {h} to {to_w} x {to_h}")
                count += expected.size
    print(f"{name}: {count} values equal Pillow's")


@pytest.mark.parametrize("name", OPENCV)
def test_a_filter_equals_opencvs(run_op: RunOp, name: str) -> None:
    need("cv2")
    import cv2

    differences: Counter[int] = Counter()
    for w, h, to_w, to_h in sizes(2):
        for picture in pictures_of(w, h):
            for channels in (3, 1):
                source = picture if channels == 3 else np.asarray(Image.fromarray(picture).convert("L"))
                expected = cv2.resize(source, (to_w, to_h), interpolation=OPENCV[name]).reshape(to_h, to_w, channels)
                found = resized(run_op, picture, to_w, to_h, name, channels)
                differences.update(np.abs(found - expected).ravel().tolist())
    count = sum(differences.values())
    print(f"{name}: of {count} values, {count - differences[0]} differ from OpenCV's: {dict(differences)}")
    assert max(differences) <= 1
    assert 1000 * (count - differences[0]) <= DIFFERENT.get(name, 0) * count
