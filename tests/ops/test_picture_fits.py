"""ImagePreprocess against the preprocessing of well-known models, written with Pillow and OpenCV as their code has it."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageOps

from opgate.ops_build.case import Array
from opgate.ops_build.images.pictures import flat, jpeg, png, scene
from tests.ops.conftest import RunOp
from tests.skips import need

SIZES = [(97, 61), (61, 97), (300, 40), (40, 300), (64, 64), (20, 31), (1, 1)]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def preprocess(run_op: RunOp, encoded: list[bytes], height: int, width: int, **attributes: object) -> list[Array]:
    data, ends = flat(encoded)
    outputs = run_op("ImagePreprocess", {"data": data, "ends": ends}, {"height": height, "width": width, **attributes})
    assert not outputs[2].any()
    return outputs


def opened(encoded: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB")


def normalized(pixels: Array, mean: list[float], std: list[float]) -> Array:
    return ((pixels / 255 - mean) / std).transpose(2, 0, 1)


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("side", [0, 41, 57, 60])
def test_torchvisions_resize_and_centre_crop(run_op: RunOp, name: str, side: int) -> None:
    """Resize(side), CenterCrop(41, 50), ToTensor, Normalize. Where the resized picture is smaller, zeros surround it."""
    height, width = 41, 50
    for size in SIZES:
        for orientation in (1, 6):
            encoded = jpeg(scene(*size), orientation=orientation)
            image = opened(encoded)
            w, h = image.size
            ratio = max(width / w, height / h)
            new = (
                tuple(side if s == min(w, h) else int(side * s / min(w, h)) for s in (w, h))
                if side
                else tuple(int(s * ratio + 0.5) for s in (w, h))
            )
            resized = np.asarray(image.resize(new, Image.Resampling[name.upper()]))
            missing = [max(0, width - new[0]), max(0, height - new[1])]
            padded = np.pad(
                resized, [(missing[1] // 2, -(-missing[1] // 2)), (missing[0] // 2, -(-missing[0] // 2)), (0, 0)]
            )
            top, left = (round((padded.shape[axis] - room) / 2.0) for axis, room in ((0, height), (1, width)))
            expected = normalized(padded[top : top + height, left : left + width], *IMAGENET.values())
            attributes = {"fit": "crop", "shorter_side": side, "filter": f"pil_{name}", "pad": 0, **IMAGENET}
            found, geometry, _ = preprocess(run_op, [encoded], height, width, **attributes)
            np.testing.assert_allclose(found[0], expected, atol=1e-5)
            offsets = (missing[0] // 2 or -left, missing[1] // 2 or -top)
            np.testing.assert_allclose(geometry[0], [w / new[0], h / new[1], *offsets, w, h], rtol=1e-6)


def test_the_letterbox_of_yolo(run_op: RunOp) -> None:
    """Ultralytics' LetterBox, with OpenCV's bilinear filter."""
    need("cv2")
    import cv2

    height, width = 64, 80
    for w, h in SIZES:
        picture = scene(w, h)
        ratio = min(height / h, width / w)
        new_w, new_h = max(1, math.floor(w * ratio + 0.5)), max(1, math.floor(h * ratio + 0.5))
        resized = cv2.resize(picture, (new_w, new_h), interpolation=cv2.INTER_LINEAR)
        dw, dh = (width - new_w) / 2, (height - new_h) / 2
        top, bottom, left, right = (round(side) for side in (dh - 0.1, dh + 0.1, dw - 0.1, dw + 0.1))
        padded = cv2.copyMakeBorder(resized, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))
        found = preprocess(run_op, [png(picture, 2)], height, width, filter="cv_linear")[0]
        np.testing.assert_allclose(found[0] * 255, padded.transpose(2, 0, 1), atol=1e-3)


def test_the_text_lines_of_paddleocr(run_op: RunOp) -> None:
    """resize_norm_img: BGR, (x / 255 - 0.5) / 0.5, zeros to the right. 127.5 would be 0, which `pad` can't say."""
    need("cv2")
    import cv2

    height, width = 48, 160
    for w, h in [*SIZES, (203, 48), (77, 31), (1000, 48)]:
        picture = scene(w, h)[..., ::-1].copy()
        ratio = w / float(h)
        new_w = width if math.ceil(height * ratio) > width else math.ceil(height * ratio)
        resized = cv2.resize(picture, (new_w, height)).astype("float32")
        attributes = {
            "fit": "fit_height",
            "filter": "cv_linear",
            "order": "BGR",
            "mean": [0.5],
            "std": [0.5],
            "pad": 127,
        }
        found, geometry, _ = preprocess(run_op, [png(picture[..., ::-1], 2)], height, width, **attributes)
        np.testing.assert_allclose(found[0, :, :, :new_w], (resized.transpose(2, 0, 1) / 255 - 0.5) / 0.5, atol=1e-5)
        np.testing.assert_allclose(found[0, :, :, new_w:], (127 / 255 - 0.5) / 0.5, atol=1e-5)
        np.testing.assert_allclose(geometry[0], [w / new_w, h / height, 0, 0, w, h], rtol=1e-6)


def test_sides_of_paddles_text_detectors(run_op: RunOp) -> None:
    """DetResizeForTest with limit_type min: the shorter side has at least 64 pixels, and both are multiples of 32."""
    need("cv2")
    import cv2

    for w, h in [*SIZES, (203, 48), (77, 131), (64, 90)]:
        picture = scene(w, h)
        ratio = max(1.0, 64 / min(w, h))
        new_w, new_h = (max(32, round(int(side * ratio) / 32) * 32) for side in (w, h))
        attributes = {"fit": "multiples", "shorter_side": 64, "filter": "cv_linear", "pad": 0}
        found, geometry, _ = preprocess(run_op, [png(picture, 2)], 640, 640, **attributes)
        assert max(new_w, new_h) <= 640
        expected = cv2.resize(picture, (new_w, new_h)).transpose(2, 0, 1) / 255
        np.testing.assert_allclose(found[0, :, :new_h, :new_w], expected, atol=1e-5)
        assert not found[0, :, new_h:].any() and not found[0, :, :, new_w:].any()
        np.testing.assert_allclose(geometry[0], [w / new_w, h / new_h, 0, 0, w, h], rtol=1e-6)


def test_grey_digits(run_op: RunOp) -> None:
    """convert("L"), resize to 28 x 28, (x / 255 - 0.1307) / 0.3081."""
    for size in SIZES:
        encoded = jpeg(scene(*size))
        image = opened(encoded).convert("L").resize((28, 28), Image.Resampling.BILINEAR)
        attributes = {"fit": "stretch", "filter": "pil_bilinear", "channels": 1, "mean": [0.1307], "std": [0.3081]}
        found = preprocess(run_op, [encoded], 28, 28, **attributes)[0]
        np.testing.assert_allclose(found[0, 0], (np.asarray(image) / 255 - 0.1307) / 0.3081, atol=1e-5)


def test_bytes_less_the_means_of_caffe(run_op: RunOp) -> None:
    """Stretched, BGR, 0..255 less 104, 117, 123; divided by 1."""
    means = [104.0, 117.0, 123.0]
    for size in SIZES:
        encoded = jpeg(scene(*size))
        image = np.asarray(opened(encoded).resize((30, 20), Image.Resampling.BICUBIC))[..., ::-1]
        attributes = {"fit": "stretch", "filter": "pil_bicubic", "scale": "byte", "order": "BGR", "mean": means}
        found = preprocess(run_op, [encoded], 20, 30, **attributes)[0]
        np.testing.assert_array_equal(found[0], (image - np.array(means)).transpose(2, 0, 1))


@pytest.mark.parametrize("filter", ["fast", "pil_lanczos", "cv_area"])
def test_letterbox_start_is_the_picture_at_the_top_left(run_op: RunOp, filter: str) -> None:
    """Its size is rounded down, as YOLOX has it."""
    for w, h in SIZES:
        encoded = [png(scene(w, h), 2)]
        ratio = min(56 / w, 40 / h)
        new_w, new_h = max(1, int(w * ratio)), max(1, int(h * ratio))
        picture = preprocess(run_op, encoded, new_h, new_w, fit="stretch", scale="byte", filter=filter)[0]
        found, geometry, _ = preprocess(
            run_op, encoded, 40, 56, pad=9, fit="letterbox_start", scale="byte", filter=filter
        )
        expected = np.full_like(found, 9)
        expected[..., :new_h, :new_w] = picture
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(geometry[0], [w / new_w, h / new_h, 0, 0, w, h], rtol=1e-6)


def test_a_letterbox_rounds_halves_to_even(run_op: RunOp) -> None:
    """As Python's round has it, and so Ultralytics: 481 rows at a scale of a half are 240."""
    encoded = [png(scene(1280, 481), 2)]
    for fit, rows in (("letterbox", 240), ("letterbox_start", 240)):
        _, geometry, _ = preprocess(run_op, encoded, 640, 640, fit=fit, filter="cv_linear")
        assert geometry[0, 1] == np.float32(481 / rows)


@pytest.mark.parametrize("filter", ["fast", "pil_bilinear", "pil_nearest", "cv_linear", "cv_area", "cv_cubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_is_a_part_of_the_whole(run_op: RunOp, filter: str, channels: int) -> None:
    """Only the pixels of the part are computed, and they are those of the whole picture."""
    for orientation in range(1, 9):
        w, h, side = 75, 52, 39
        encoded = [jpeg(scene(w, h), orientation=orientation)]
        upright = opened(encoded[0]).size
        new_w, new_h = (side * s // min(w, h) for s in upright)
        attributes = {"filter": filter, "channels": channels, "scale": "byte"}
        whole = preprocess(run_op, encoded, new_h, new_w, fit="stretch", **attributes)[0]
        part, geometry, _ = preprocess(run_op, encoded, 20, 31, fit="crop", shorter_side=side, **attributes)
        left, top = (-geometry[0, 2:4]).astype(int)
        assert left >= 0 and top >= 0
        np.testing.assert_array_equal(part, whole[:, :, top : top + 20, left : left + 31])
        x, y = 12, 7  # the source of a pixel, as of the whole picture
        assert (x - geometry[0, 2]) * geometry[0, 0] == pytest.approx((x + left) * upright[0] / new_w)
        assert (y - geometry[0, 3]) * geometry[0, 1] == pytest.approx((y + top) * upright[1] / new_h)


def test_a_model_of_an_earlier_version_still_runs(run_op: RunOp) -> None:
    """It stores the attributes that there were, three numbers each for mean and std."""
    encoded = [jpeg(scene(64, 40)), png(scene(9, 9), 2)]
    old = preprocess(run_op, encoded, 32, 32, pad=114, mean=[0.0] * 3, std=[1.0] * 3, order="RGB", max_pixels=50000000)
    for found, expected in zip(old, preprocess(run_op, encoded, 32, 32), strict=True):
        np.testing.assert_array_equal(found, expected)
