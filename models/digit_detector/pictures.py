"""Draws the pictures of the documentation: an example scene, and test scenes with the boxes that the detector finds."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from models.digit_detector.dataset import Scene, SceneMaker, SceneRange, encode_jpeg, test_scenes
from models.digit_detector.evaluate import Detections, Detector

_EXAMPLE_SEED = 99
_EXAMPLE = SceneRange(longer_side=(960, 960), aspect=(2 / 3, 2 / 3), digit_size=(0.09, 0.26), digits=(8, 8))
_TILE = (280, 210)
_COLUMNS = 3
_ROWS = 2
_BITS = 5
_BOX_COLOUR = (0, 255, 90)


def write_example(folder: Path) -> tuple[Path, Path]:
    """Writes digits.jpg, which shows test digits on the test photograph `coffee`, and digits.json with their boxes and
    labels. Returns both paths."""
    scene = SceneMaker(test=True, photographs=("coffee",)).draw(np.random.default_rng(_EXAMPLE_SEED), _EXAMPLE)
    picture, truth = folder / "digits.jpg", folder / "digits.json"
    folder.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(encode_jpeg(scene.image))
    truth.write_text(json.dumps(_truth(picture.name, scene), indent=2) + "\n")
    return picture, truth


def _truth(name: str, scene: Scene) -> dict[str, object]:
    objects = [{"box": box.tolist(), "label": str(label)} for box, label in zip(scene.boxes, scene.labels, strict=True)]
    return {"image": name, "width": scene.image.shape[1], "height": scene.image.shape[0], "objects": objects}


def write_figure(detect: Detector, path: Path) -> None:
    """Writes one PNG of 5 bits a colour with the first six landscape test scenes and their detections."""
    landscapes = (scene for scene in test_scenes() if scene.image.shape[1] > scene.image.shape[0])
    figure = Image.new("RGB", (_COLUMNS * _TILE[0], _ROWS * _TILE[1]), "white")
    for index, scene in enumerate(itertools.islice(landscapes, _COLUMNS * _ROWS)):
        tile = _drawn(scene, detect(encode_jpeg(scene.image)))
        row, column = divmod(index, _COLUMNS)
        left, top = (_TILE[0] - tile.width) // 2, (_TILE[1] - tile.height) // 2
        figure.paste(tile, (column * _TILE[0] + left, row * _TILE[1] + top))
    path.parent.mkdir(parents=True, exist_ok=True)
    ImageOps.posterize(figure, _BITS).save(path, optimize=True)


def _drawn(scene: Scene, detections: Detections) -> Image.Image:
    """Returns the scene at the size of a tile, with the box, class and score of each detection."""
    tile = Image.fromarray(scene.image)
    tile.thumbnail((_TILE[0] - 4, _TILE[1] - 4), Image.Resampling.LANCZOS)
    draw, font = ImageDraw.Draw(tile), ImageFont.load_default(11)
    for box, score, label in zip(detections.boxes, detections.scores, detections.labels, strict=True):
        x1, y1, x2, y2 = (float(side) * tile.width / scene.image.shape[1] for side in box)
        text, y = f"{label}  {score:.0%}", y1 - 13 if y1 >= 13 else y2
        draw.rectangle((x1, y1, x2, y2), outline=_BOX_COLOUR, width=2)
        draw.rectangle((x1, y, x1 + draw.textlength(text, font) + 3, y + 13), fill=_BOX_COLOUR)
        draw.text((x1 + 2, y), text, fill="black", font=font)
    return tile
