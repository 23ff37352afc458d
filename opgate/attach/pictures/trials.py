"""Pictures on which a network is tried: noise, coarse shapes, plain colours, and examples of the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from opgate.attach.model.examples import PICTURES, files
from opgate.attach.pictures.facts import Network
from opgate.onnx_tools.row_dependence import ROWS
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

_CELLS = 5


def examples_in(folder: Path | None) -> list[Path]:
    """Returns the pictures of a folder, none without a folder. Raises AttachError."""
    return [example.path for example in files(folder, PICTURES) if example.path] if folder else []


def batches(network: Network, size: tuple[int, int], bytes_: bool, examples: Sequence[Path] = ()) -> Iterator[Array]:
    """Yields batches of ROWS pictures: noise first, then pictures in which a network may rather find something.

    `size` are their height and width, `bytes_` says that they have 0..255.
    """
    yield network.pictures(ROWS, *size, bytes_=bytes_, seed=1)
    shape = (*size, network.channels)
    for pictures in (_coarse(shape), _plain(shape), _read(examples, shape)):
        if pictures:
            yield _fitted(np.stack([pictures[row % len(pictures)] for row in range(ROWS)]), network, bytes_)


def plain_and_examples(
    network: Network, size: tuple[int, int], bytes_: bool, examples: Sequence[Path]
) -> Iterator[Array]:
    """Yields plain pictures and those of the user, one at a time."""
    shape = (*size, network.channels)
    for picture in (*_plain(shape), *_read(examples, shape)):
        yield _fitted(picture[None], network, bytes_)


def outputs(network: Network, size: tuple[int, int], name: str) -> Iterator[Array]:
    """Yields what an output is for one picture, of many kinds, also some beyond the range of the usual ones."""
    opened = network.open(network.model)
    for pictures in (signed(network, size), *batches(network, size, network.scales)):
        for row in pictures:
            yield opened.run([name], {network.input: row[None]})[0]


def signed(network: Network, size: tuple[int, int]) -> Array:
    """Returns pictures as a mean and a deviation leave them: normally distributed. Bytes stay noise."""
    if network.dtype == "u8" or network.scales:
        return network.pictures(ROWS, *size, bytes_=True, seed=2)
    values = np.random.default_rng(2).standard_normal((ROWS, *size, network.channels)) * 2
    return _fitted(values + np.linspace(-1, 1, ROWS).reshape(-1, 1, 1, 1), network, bytes_=False)


def _fitted(pictures: Array, network: Network, bytes_: bool) -> Array:
    """Returns pictures [n, h, w, c] of 0..1 in the range, the layout and the type of the input."""
    scaled = pictures * 255 if bytes_ or network.dtype == "u8" else pictures
    placed = scaled.transpose(0, 3, 1, 2) if network.layout == "NCHW" else scaled
    return np.ascontiguousarray(placed).astype(DTYPES[network.dtype].numpy)


def _coarse(shape: tuple[int, int, int]) -> list[Array]:
    """Large cells of random colours, a gradient, and cells that are black or white."""
    height, width, channels = shape
    cells = np.random.default_rng(3).random((2, _CELLS, _CELLS, channels))
    rows, columns = np.arange(height) * _CELLS // height, np.arange(width) * _CELLS // width
    large, other = (each[rows][:, columns] for each in cells)
    slope = np.broadcast_to(np.linspace(0, 1, width)[None, :, None], shape)
    return [large, slope, (other[..., :1] > 0.5) * np.ones(channels)]


def _plain(shape: tuple[int, int, int]) -> list[Array]:
    """White, black, and a white square on black."""
    height, width, _ = shape
    square = np.zeros(shape)
    square[height // 4 : height * 3 // 4, width // 4 : width * 3 // 4] = 1
    return [np.ones(shape), np.zeros(shape), square]


def _read(examples: Sequence[Path], shape: tuple[int, int, int]) -> list[Array]:
    """The first pictures of the user, stretched."""
    from PIL import Image, UnidentifiedImageError

    height, width, channels = shape
    found: list[Array] = []
    for path in examples:
        try:
            image = Image.open(path).convert("L" if channels == 1 else "RGB").resize((width, height))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
            continue
        found.append(np.asarray(image, np.float64).reshape(shape) / 255)
        if len(found) == ROWS:
            break
    return found
