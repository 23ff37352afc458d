"""The pictures that are sent to the digit detector, and what it must find on them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

#: The longer side of each picture in pixels.
SIDES = {"small": 320, "middle": 1280, "large": 3000}
#: A prediction with this score or more counts. The detector also returns doubtful ones.
MIN_SCORE = 0.5
#: The least intersection over union of a prediction's box with the box of its object.
MIN_OVERLAP = 0.5

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Picture:
    """A JPEG and its objects: a label and a box (left, top, right, bottom in pixels) for each."""

    size: str
    jpeg: bytes
    objects: tuple[tuple[str, Box], ...]

    def problem(self, predictions: list[dict[str, Any]]) -> str | None:
        """Returns what is wrong with the predictions of /predict, or None if they are the objects."""
        left = [(p["label"], p["box"]) for p in predictions if p["score"] >= MIN_SCORE]
        for label, box in self.objects:
            found = [p for p in left if p[0] == label and overlap(p[1], box) >= MIN_OVERLAP]
            if not found:
                return f"the {label} at {', '.join(f'{edge:.0f}' for edge in box)} was not found"
            left.remove(found[0])
        return f"found a {left[0][0]} that is not there" if left else None


def overlap(a: Box, b: Box) -> float:
    """Returns the intersection over union of two boxes."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = sum((right - left) * (bottom - top) for left, top, right, bottom in (a, b))
    return width * height / (areas - width * height)


def read_pictures(path: Path) -> list[Picture]:
    """Returns the picture in each of SIDES. A file of the same name with the suffix .json lists its objects.

    Raises OSError if a file can't be read, ValueError or KeyError if the JSON file has another form.
    """
    example = Image.open(path).convert("RGB")
    objects = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["objects"]
    pictures = []
    for size, side in SIDES.items():
        scale = side / max(example.size)
        scaled = example.resize((round(example.width * scale), round(example.height * scale)))
        buffer = io.BytesIO()
        scaled.save(buffer, "JPEG", quality=90)
        boxes = tuple((thing["label"], tuple(scale * edge for edge in thing["box"])) for thing in objects)
        pictures.append(Picture(size, buffer.getvalue(), boxes))
    return pictures
