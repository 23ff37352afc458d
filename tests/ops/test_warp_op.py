"""WarpAffine against SciPy's map_coordinates and OpenCV's warpAffine."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter, map_coordinates

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

BORDER = [20, 130, 240]


def interpolated(picture: Array, matrix: Array, height: int, width: int) -> Array:
    """Planes of the values at the places that `matrix` says, a map from the crop to the picture."""
    y, x = np.mgrid[:height, :width]
    places = np.tensordot(matrix, np.stack([x, y, np.ones_like(x)]).astype(np.float64), 1)[::-1]
    planes = [
        map_coordinates(picture[..., k].astype(np.float64), places, order=1, mode="grid-constant", cval=BORDER[k])
        for k in range(3)
    ]
    return np.stack(planes)


numbers = st.floats(-3, 3, width=32)


@settings(max_examples=60, deadline=None)
@given(
    turn=st.tuples(numbers, numbers, numbers, numbers),
    move=st.tuples(st.floats(-30, 50, width=32), st.floats(-30, 50, width=32)),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 30), st.integers(1, 20), st.integers(1, 150)),
    inverted=st.booleans(),
)
def test_values_are_those_of_scipy(run_op: RunOp, turn: Any, move: Any, sizes: Any, inverted: bool) -> None:
    h, w, height, width = sizes
    matrix = np.array([[*turn[:2], move[0]], [*turn[2:], move[1]]])
    if abs(np.linalg.det(matrix[:, :2])) < 0.05:
        matrix[:, :2] = np.eye(2)
    image = np.random.default_rng(h * w).integers(0, 256, (1, h, w, 3), np.uint8)
    to_image = np.linalg.inv([*matrix, [0, 0, 1]])[:2] if inverted else matrix
    attributes = {"height": height, "width": width, "border": BORDER, "maps_to": "crop" if inverted else "image"}
    (tensor,) = run_op("WarpAffine", {"image": image, "matrix": matrix[None]}, attributes)
    np.testing.assert_allclose(tensor[0] * 255, interpolated(image[0], to_image, height, width), atol=1e-3)


@pytest.mark.parametrize("maps_to", ["crop", "image"])
def test_crops_are_those_of_opencv(run_op: RunOp, maps_to: str) -> None:
    """A smooth picture: OpenCV rounds values to bytes, and places to 1/32 of a pixel."""
    rng = np.random.default_rng(1)
    image = gaussian_filter(rng.uniform(0, 255, (3, 200, 320, 3)), (0, 4, 4, 0))
    image = np.clip(128 + 8 * (image - 128), 0, 255).astype(np.uint8)
    index, matrices = np.int32([0, 2, 1, 1]), []
    for angle, scale in [(0.3, 1.2), (-0.7, 0.8), (2.0, 1.0), (0.0, 0.6)]:
        a, b = scale * np.cos(angle), scale * np.sin(angle)
        matrices.append([[a, -b, rng.uniform(50, 90)], [b, a, rng.uniform(10, 80)]])
    inputs = {"image": image, "matrix": np.float32(matrices), "index": index}
    attributes = {"height": 112, "width": 96, "maps_to": maps_to, "border": BORDER}
    (tensor,) = run_op("WarpAffine", inputs, attributes)
    flags = cv2.INTER_LINEAR | (0 if maps_to == "crop" else cv2.WARP_INVERSE_MAP)
    for crop, number, matrix in zip(tensor, index, inputs["matrix"], strict=True):
        expected = cv2.warpAffine(image[number], matrix, (96, 112), flags=flags, borderValue=BORDER)
        off = np.abs(crop.transpose(1, 2, 0) * 255 - expected)
        assert np.median(off) <= 0.5
        assert np.quantile(off, 0.98) < 3  # the edge of the picture is less smooth
