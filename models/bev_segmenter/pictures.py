"""Writes the example pictures, and draws streets with the map that the served file gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from models.bev_segmenter.files import jpeg
from models.bev_segmenter.rig import CAMERAS, CELLS
from models.bev_segmenter.scenes import Scene, held_out_scenes
from models.commands import session_of

_SCALE = 3
_STREETS, _CELL = 2, 5
_WIDTH, _HEIGHT, _BAR = 240, 96, 18


def write_examples(folder: Path) -> Iterator[Path]:
    """Writes what the four cameras see of the first large test street. Yields the paths."""
    (street,) = held_out_scenes(1, scale=_SCALE)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in zip(CAMERAS, street.pictures, strict=True):
        path = folder / f"{name}.jpg"
        path.write_bytes(jpeg(picture))
        yield path


def feed_of(files: Sequence[Sequence[bytes]]) -> dict[str, npt.NDArray[Any]]:
    """Returns the inputs of the model for the four encoded pictures of each street."""
    feed: dict[str, npt.NDArray[Any]] = {}
    for name, of_camera in zip(CAMERAS, zip(*files, strict=True), strict=True):
        feed[name] = np.frombuffer(b"".join(of_camera), np.uint8)
        feed[f"{name}_ends"] = np.cumsum([len(file) for file in of_camera]).astype(np.int32)
    return feed


def write_picture(repository: Path, ops_library: Path, path: Path) -> None:
    """Draws the first large test streets: four pictures, what the served file finds, and the truth."""
    session = session_of("bev_segmenter", repository, ops_library)
    side = CELLS * _CELL
    row_height = 2 * (_HEIGHT + _BAR)
    figure = Image.new("RGB", (2 * _WIDTH + 2 * (side + 12), _STREETS * row_height), "white")
    draw, font = ImageDraw.Draw(figure), ImageFont.load_default(12)
    for row, street in enumerate(held_out_scenes(_STREETS, scale=_SCALE)):
        top = row * row_height
        (occupancy,) = session.run(["occupancy"], feed_of([[jpeg(picture) for picture in street.pictures]]))
        for index, (name, picture) in enumerate(zip(CAMERAS, street.pictures, strict=True)):
            left, down = index % 2 * _WIDTH, top + index // 2 * (_HEIGHT + _BAR)
            draw.text((left + 4, down + 2), name, fill="black", font=font)
            figure.paste(Image.fromarray(picture).resize((_WIDTH - 4, _HEIGHT)), (left, down + _BAR))
        for index, (text, shown) in enumerate((("found", occupancy[0]), ("true", street.occupied.astype(np.float32)))):
            left = 2 * _WIDTH + 8 + index * (side + 8)
            draw.text((left, top + 2), text, fill="black", font=font)
            figure.paste(_map(shown), (left, top + _BAR))
    figure.quantize(96).save(path, optimize=True)


def _map(occupancy: npt.NDArray[np.float32]) -> Image.Image:
    """Draws a map with the cameras in its middle, front up."""
    levels = (255 - 225 * np.clip(occupancy, 0, 1)).astype(np.uint8)
    side = CELLS * _CELL
    picture = Image.fromarray(levels).resize((side, side), Image.Resampling.NEAREST).convert("RGB")
    draw, middle = ImageDraw.Draw(picture), side // 2
    draw.rectangle((0, 0, side - 1, side - 1), outline="#888888")
    draw.polygon([(middle, middle - 6), (middle - 4, middle + 4), (middle + 4, middle + 4)], fill="#d22d2d")
    return picture


def occupancy_of(session: Any, streets: Sequence[Scene]) -> npt.NDArray[np.float32]:
    """Returns what the served file finds in streets, f32 (n, 32, 32)."""
    found: npt.NDArray[np.float32]
    found, status = session.run(
        ["occupancy", "status"], feed_of([[jpeg(picture) for picture in street.pictures] for street in streets])
    )
    if status.any():
        raise ValueError(f"the model refused pictures with status {status.tolist()}")
    return found
