"""Writes the example cloud, and draws rooms with the labels that the served file gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from models.commands import session_of
from models.pointcloud_segmenter.files import ply
from models.pointcloud_segmenter.scenes import LABELS, Scene, held_out_scenes

_ROOMS, _TILE, _BAR = 3, (290, 210), 22
_COLOURS = ("#b9b9b9", "#7f8fa6", "#e1772d", "#c23616", "#44903c", "#7b4bb8", "#e6b800")


def write_examples(folder: Path) -> Iterator[Path]:
    """Writes the first test room, and its labels, one a line. Yields the paths."""
    (room,) = held_out_scenes(1)
    folder.mkdir(parents=True, exist_ok=True)
    cloud, labels = folder / "room.ply", folder / "room_labels.txt"
    cloud.write_bytes(ply(room))
    labels.write_text("".join(f"{LABELS[label]}\n" for label in room.labels))
    yield from (cloud, labels)


def labels_of(session: Any, file: bytes) -> npt.NDArray[np.int32]:
    """Returns the label of each point of a file."""
    feed = {"data": np.frombuffer(file, np.uint8), "ends": np.array([len(file)], np.int32)}
    labels, count, status = session.run(["labels", "count", "status"], feed)
    if status[0] != 0:
        raise ValueError(f"the model refused a cloud with status {status[0]}")
    found: npt.NDArray[np.int32] = labels[0, : count[0]]
    return found


def write_picture(repository: Path, ops_library: Path, path: Path) -> None:
    """Draws the first test rooms: the found labels above the true ones."""
    session = session_of("pointcloud_segmenter", repository, ops_library)
    width, height = _ROOMS * _TILE[0], 2 * (_TILE[1] + _BAR) + _BAR
    figure = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(figure), ImageFont.load_default(13)
    for column, room in enumerate(held_out_scenes(_ROOMS)):
        found = labels_of(session, ply(room))
        right = float((found == room.labels).mean())
        for row, (labels, text) in enumerate(((found, f"found: {right:.0%} right"), (room.labels, "true"))):
            left, top = column * _TILE[0], row * (_TILE[1] + _BAR)
            draw.text((left + 4, top + 4), text, fill="black", font=font)
            figure.paste(_tile(room, labels), (left, top + _BAR))
    for index, label in enumerate(LABELS):
        left, top = 8 + index * 120, height - _BAR + 4
        draw.rectangle((left, top + 2, left + 12, top + 14), fill=_COLOURS[index])
        draw.text((left + 18, top), label, fill="black", font=font)
    figure.quantize(32).save(path, optimize=True)


def _tile(room: Scene, labels: npt.NDArray[Any]) -> Image.Image:
    """Draws the points seen from above at an angle, the far ones first."""
    tile = Image.new("RGB", _TILE, "white")
    draw, xyz = ImageDraw.Draw(tile), room.xyz - room.xyz.min(0)
    across, up = xyz[:, 0], 0.55 * xyz[:, 1] + 0.8 * xyz[:, 2]
    scale = min((_TILE[0] - 10) / np.ptp(across), (_TILE[1] - 10) / np.ptp(up))
    for i in np.argsort(-xyz[:, 1]):
        x, y = 5 + scale * across[i], _TILE[1] - 5 - scale * (up[i] - up.min())
        draw.ellipse((x - 1.6, y - 1.6, x + 1.6, y + 1.6), fill=_COLOURS[int(labels[i])])
    return tile
