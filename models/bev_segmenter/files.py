"""Pictures as files, as clients send them."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image


def png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Returns a picture [height, width, 3] as a PNG."""
    return _encoded(picture, "PNG")


def jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    """Returns a picture [height, width, 3] as a JPEG of quality 92."""
    return _encoded(picture, "JPEG", quality=92)


def _encoded(picture: npt.NDArray[np.uint8], kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, **options)
    return file.getvalue()
