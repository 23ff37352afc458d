"""Masks: what is served is what NumPy computes around the network's own file, pixel by pixel of the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from pycocotools import mask as coco

from opgate.attach.attach import Wish, attach
from opgate.attach.report import AttachError
from tests.attach import networks
from tests.attach.conftest import Make, png, squares
from tests.attach.test_detectors import check, corners, letterbox, scales, source, suppressed


def disc(height: int, width: int, centre: tuple[int, int], radius: int, channel: int) -> np.ndarray:
    """A dark picture [h, w, 3] with a disc of one colour."""
    pixels = np.full((height, width, 3), 20, np.uint8)
    rows, columns = np.mgrid[:height, :width]
    pixels[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2, channel] = 255
    return pixels


PICTURES = [
    disc(96, 128, (48, 64), 30, 0),
    disc(70, 100, (20, 70), 18, 1),
    disc(200, 90, (150, 40), 35, 2),
    disc(64, 64, (32, 32), 20, 0),
    disc(31, 57, (15, 20), 12, 1),  # enlarged
]


def whole(cells: np.ndarray, pixels: np.ndarray, box: np.ndarray, cell: float = 4) -> np.ndarray:
    """The mask [h, w] of a picture: probabilities of cells [mh, mw], interpolated, cut to the box, above one half."""
    height, width = pixels.shape[:2]
    (_, _, left, top), (across, down) = letterbox(pixels), scales(pixels)
    columns, rows = (np.arange(width) + 0.5) * across + left, (np.arange(height) + 0.5) * down + top
    centres = [(np.arange(size) + 0.5) * cell for size in cells.shape]
    wide = np.stack([np.interp(columns, centres[1], row) for row in cells])
    values = np.stack([np.interp(rows, centres[0], column) for column in wide.T], 1)
    x, y = np.arange(width), np.arange(height)
    inside = ((y >= box[1]) & (y < box[3]))[:, None] & ((x >= box[0]) & (x < box[2]))
    return (values > 0.5) & inside


def decoded(mask: dict) -> np.ndarray:
    """The pixels [h, w] of run lengths, as pycocotools reads them."""
    assert sum(mask["counts"]) == mask["size"][0] * mask["size"][1] and min(mask["counts"][1:], default=1) > 0
    return coco.decode(coco.frPyObjects(mask, *mask["size"])).astype(bool)


def expected(session: onnxruntime.InferenceSession, pixels: np.ndarray, objectness: bool = False) -> list:
    """(box, class, score, mask) of each thing: suppression, then product, sigmoid, interpolation, cut, one half."""
    canvas, _, left, top = letterbox(pixels)
    head, prototypes = session.run(None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255})
    rows = head[0] if objectness else head[0].T
    first = 5 if objectness else 4
    scores = rows[:, first : first + 3] * (rows[:, 4:5] if objectness else 1)
    boxes = corners(rows[:, :4])
    found = []
    for box, kind, score in suppressed(boxes, scores, 0.25, 0.45 if objectness else 0.7):
        numbers = rows[np.flatnonzero((boxes == box).all(1))[0], first + 3 :]
        cells = 1 / (1 + np.exp(-np.tensordot(numbers, prototypes[0], 1)))
        place = source(box, scales(pixels), left, top, pixels)
        found.append((place, kind, score, whole(cells, pixels, place)))
    return found


def check_masks(records: list, wanted: list, pixels: np.ndarray) -> None:
    check(records, [thing[:3] for thing in wanted])
    for record in records:
        own = [thing for thing in wanted if np.abs(thing[0] - record["box"]).max() < 0.02]
        mask = decoded(record["mask"])
        assert mask.shape == pixels.shape[:2]
        differing = min((mask != thing[3]).sum() for thing in own)
        assert differing <= 2, f"{differing} of {mask.sum()} pixels"  # where a probability of 1/255 decides


@pytest.mark.parametrize("fixed", [False, True], ids=["open batch", "fixed batch"])
def test_masks_are_those_of_the_network_in_the_picture(made: Make, tmp_path: Path, fixed: bool) -> None:
    file = networks.yolov8_seg(tmp_path / "net.onnx", fixed=fixed)
    model, session = made(file), onnxruntime.InferenceSession(file)
    answers = model.predict(*map(png, PICTURES))
    for pixels, answer in zip(PICTURES, answers, strict=True):
        check_masks(answer["predictions"], expected(session, pixels), pixels)
    assert "16 x 16 cells for each box" in model.report and "max_batch_size: 8" in model.attached.config
    assert [model.predict(png(pixels))[0] for pixels in PICTURES] == answers  # alone as together
