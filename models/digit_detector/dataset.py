"""Makes scenes: handwritten digits drawn on photographs, with the box and the class of each digit.

The digits are those of scikit-learn's `load_digits` (8x8, 17 grey levels). The photographs come with the wheels of
scikit-learn and scikit-image. Train and test scenes share neither writers nor photographs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES = 10
INPUT_SIZE = 320
PAD = 114

FIRST_TEST_DIGIT = 1415
"""`load_digits` doesn't name the writers. The digits from this index on are by writers who wrote none before it."""

TRAIN_PHOTOGRAPHS = (
    "flower",
    "astronaut",
    "motorcycle_left",
    "motorcycle_right",
    "camera",
    "brick",
    "grass",
    "gravel",
    "cell",
    "coins",
    "hubble_deep_field",
    "immunohistochemistry",
    "moon",
    "retina",
)
TEST_PHOTOGRAPHS = ("china", "coffee", "chelsea", "rocket")
TEST_SEED = 1415
TEST_SCENES = 500

_LONGEST_PHOTOGRAPH_SIDE = 720
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True, slots=True)
class Scene:
    """image: u8 (h, w, 3) RGB; boxes: f32 (k, 4) x1, y1, x2, y2 in pixels; labels: i64 (k,) 0..9."""

    image: Bytes
    boxes: Floats
    labels: Ints


@dataclass(frozen=True, slots=True)
class SceneRange:
    """The ranges from which the properties of a scene are drawn.

    longer_side: the longer side of the scene in pixels. aspect: shorter side / longer side. digit_size: the longer side
    of a digit before rotation, as a fraction of the side to which the scene is letterboxed. digits: how many digits are
    tried; a digit without a free position is left out.
    """

    longer_side: tuple[int, int]
    aspect: tuple[float, float]
    digit_size: tuple[float, float]
    digits: tuple[int, int]


TEST_RANGE = SceneRange(longer_side=(480, 960), aspect=(0.6, 1.0), digit_size=(0.055, 0.32), digits=(1, 12))


def _photograph(name: str) -> Bytes:
    if name in ("china", "flower"):
        from sklearn import datasets  # it takes seconds

        return np.asarray(datasets.load_sample_image(f"{name}.jpg"), np.uint8)
    from skimage import data  # it takes a second

    of_skimage: Any = data
    if name in ("motorcycle_left", "motorcycle_right"):
        left, right, _ = of_skimage.stereo_motorcycle()
        return np.asarray(left if name == "motorcycle_left" else right, np.uint8)
    pixels = np.asarray(getattr(of_skimage, name)(), np.uint8)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)


def load_photographs(names: tuple[str, ...]) -> list[Image.Image]:
    """Returns the named photographs as RGB pictures, at most 720 pixels long."""
    pictures = [Image.fromarray(_photograph(name)) for name in names]
    for picture in pictures:
        picture.thumbnail((_LONGEST_PHOTOGRAPH_SIDE, _LONGEST_PHOTOGRAPH_SIDE), Image.Resampling.LANCZOS)
    return pictures


def load_digits(*, test: bool) -> tuple[Floats, Ints]:
    """Returns the digits of one split: f32 (n, 8, 8) ink in 0..1, and i64 (n,) classes."""
    from sklearn import datasets  # it takes seconds

    bunch = datasets.load_digits()
    chosen = slice(FIRST_TEST_DIGIT, None) if test else slice(0, FIRST_TEST_DIGIT)
    return (bunch.images[chosen] / 16).astype(np.float32), bunch.target[chosen].astype(np.int64)


class SceneMaker:
    """Draws scenes with the digits and photographs of one split.

    All randomness comes from the generator that the caller passes to `draw`.
    """

    def __init__(self, *, test: bool, photographs: tuple[str, ...] | None = None) -> None:
        names = photographs or (TEST_PHOTOGRAPHS if test else TRAIN_PHOTOGRAPHS)
        self.photographs = load_photographs(names)
        ink, self.labels = load_digits(test=test)
        self.ink = [Image.fromarray(np.pad(digit, 2)) for digit in ink]

    def draw(self, rng: np.random.Generator, scene_range: SceneRange) -> Scene:
        """Draws one scene."""
        longer = int(rng.integers(scene_range.longer_side[0], scene_range.longer_side[1] + 1))
        shorter = round(longer * rng.uniform(*scene_range.aspect))
        size = (longer, shorter) if rng.random() < 0.65 else (shorter, longer)
        canvas = self._background(rng, size)
        boxes: list[tuple[float, float, float, float]] = []
        labels: list[int] = []
        for _ in range(int(rng.integers(scene_range.digits[0], scene_range.digits[1] + 1))):
            fraction = np.exp(rng.uniform(*np.log(scene_range.digit_size)))
            index = int(rng.integers(len(self.ink)))
            alpha = _digit_alpha(rng, self.ink[index], float(fraction) * longer)
            position = _free_position(rng, alpha.shape, size, boxes)
            if position is not None:
                _paint(rng, canvas, alpha, position)
                boxes.append((position[0], position[1], position[0] + alpha.shape[1], position[1] + alpha.shape[0]))
                labels.append(int(self.labels[index]))
        image = _camera(rng, canvas, longer)
        return Scene(image, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64))

    def _background(self, rng: np.random.Generator, size: tuple[int, int]) -> Floats:
        """Returns f32 (h, w, 3) in 0..255: a random crop of a photograph, resized, maybe mirrored, in other light."""
        photograph = self.photographs[rng.integers(len(self.photographs))]
        fit = min(photograph.width / size[0], photograph.height / size[1]) * rng.uniform(0.4, 1.0)
        w, h = size[0] * fit, size[1] * fit
        x, y = rng.uniform(0, photograph.width - w), rng.uniform(0, photograph.height - h)
        crop = photograph.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
        pixels = np.asarray(crop, np.float32)
        if rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        gain = rng.uniform(0.6, 1.1) * rng.uniform(0.9, 1.1, 3)
        canvas: Floats = np.clip(pixels * gain.astype(np.float32) + np.float32(rng.uniform(-20, 40)), 0, 255)
        return canvas


def _digit_alpha(rng: np.random.Generator, ink: Image.Image, size: float) -> Floats:
    """Returns one digit as f32 (h, w) in 0..1: about `size` pixels long, rotated, slanted, cut to its visible ink."""
    angle = np.deg2rad(rng.uniform(-25, 25))
    stretch = np.exp(rng.uniform(-0.18, 0.18))
    shear = rng.uniform(-0.2, 0.2)
    scale = size / 8
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    forward = rotation @ np.array([[scale * stretch, shear * scale], [0, scale / stretch]])
    inverse = np.linalg.inv(forward)
    side = int(size * 1.9) + 4
    offset = np.array([6.0, 6.0]) - inverse @ np.array([side / 2, side / 2])
    matrix = (*inverse[0], offset[0], *inverse[1], offset[1])
    warped = ink.transform((side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    low = rng.uniform(0.3, 0.5)
    alpha: Floats = np.clip((np.asarray(warped, np.float32) - low) / rng.uniform(0.25, 0.5), 0, 1).astype(np.float32)
    rows, columns = np.nonzero(alpha.max(1) > 0.3)[0], np.nonzero(alpha.max(0) > 0.3)[0]
    return alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _free_position(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    size: tuple[int, int],
    boxes: list[tuple[float, float, float, float]],
) -> tuple[int, int] | None:
    """Returns left and top of a digit that hides at most a twentieth of any other box, None if 20 tries find no such
    position."""
    h, w = shape[:2]
    if w > size[0] or h > size[1]:
        return None
    for _ in range(20):
        x, y = int(rng.integers(size[0] - w + 1)), int(rng.integers(size[1] - h + 1))
        for x1, y1, x2, y2 in boxes:
            common = max(0, min(x + w, x2) - max(x, x1)) * max(0, min(y + h, y2) - max(y, y1))
            if common > 0.05 * min(w * h, (x2 - x1) * (y2 - y1)):
                break
        else:
            return x, y
    return None


def _paint(rng: np.random.Generator, canvas: Floats, alpha: Floats, position: tuple[int, int]) -> None:
    """Paints one digit on the canvas, lighter or darker than its background. If there is room, the difference is larger
    than the variation of the background."""
    patch = canvas[position[1] : position[1] + alpha.shape[0], position[0] : position[0] + alpha.shape[1]]
    grey = patch @ _LUMA
    behind, least = float(grey.mean()), 45 + 1.2 * float(grey.std())
    room = (behind, 255 - behind)
    lighter = int(rng.random() < 0.5) if min(room) > least else int(room[1] > room[0])
    contrast = rng.uniform(min(least, room[lighter]), room[lighter])
    chroma = rng.normal(0, 40, 3).astype(np.float32)
    colour = np.clip(behind + (contrast if lighter else -contrast) + chroma - chroma @ _LUMA, 0, 255)
    opacity = alpha[..., None] * np.float32(rng.uniform(0.85, 1.0))
    patch += opacity * (colour.astype(np.float32) - patch)


def _camera(rng: np.random.Generator, canvas: Floats, longer: int) -> Bytes:
    """Returns the canvas as a camera would see it, u8 (h, w, 3): sometimes a little out of focus or with noise."""
    image = canvas
    if rng.random() < 0.3:
        blurred = Image.fromarray(image.astype(np.uint8)).filter(
            ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9) * longer / INPUT_SIZE)
        )
        image = np.asarray(blurred, np.float32)
    if rng.random() < 0.6:
        image = image + rng.standard_normal(image.shape, np.float32) * np.float32(rng.uniform(0, 8))
    pixels: Bytes = np.clip(image + 0.5, 0, 255).astype(np.uint8)
    return pixels


def test_scenes() -> Iterator[Scene]:
    """Yields the 500 test scenes. They are always the same."""
    maker = SceneMaker(test=True)
    for index in range(TEST_SCENES):
        yield maker.draw(np.random.default_rng([TEST_SEED, index]), TEST_RANGE)


def encode_jpeg(image: Bytes, quality: int = 90) -> bytes:
    """Returns a picture as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
