"""The bird's-eye segmenter: the served file on streets, and /predict with forms of four pictures, good and hostile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.bev_segmenter.files import jpeg, png
from models.bev_segmenter.pictures import feed_of
from models.bev_segmenter.rig import CAMERAS, CELL, CELLS, cell_centres, cell_of, rays
from models.bev_segmenter.scenes import held_out_scenes
from tests import PROJECT
from tests.models.serving import Served

STREET = PROJECT / "docs" / "examples" / "street"


@pytest.fixture(scope="module")
def served(library: Path) -> Served:
    return Served("bev_segmenter", library)


def occupancy(served: Served, files: list[list[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    found, status = served.session.run(["occupancy", "status"], feed_of(files))
    return found, status


def test_the_rig_looks_around_and_cells_have_their_numbers() -> None:
    middle = rays(2, 2).mean((1, 2))[:, :2]
    np.testing.assert_allclose(middle, [[1, 0], [0, 1], [-1, 0], [0, -1]], atol=1e-9)
    x, y = cell_centres()
    assert np.array_equal(cell_of(x, y).reshape(-1), np.arange(CELLS * CELLS))
    assert cell_of(np.array([CELLS * CELL]), np.array([0.0])).tolist() == [-1]


def test_the_served_file_finds_what_is_occupied_in_held_out_streets(served: Served) -> None:
    """Checks the intersection over union on the first 100 of the 500 streets that the README measures."""
    streets = held_out_scenes(100)
    found = np.concatenate([
        occupancy(served, [[png(picture) for picture in street.pictures] for street in streets[first : first + 20]])[0]
        for first in range(0, len(streets), 20)
    ])  # fmt: skip
    assert found.shape == (100, CELLS, CELLS)
    truth = np.stack([street.occupied for street in streets])
    assert ((found > 0.5) & truth).sum() / ((found > 0.5) | truth).sum() > 0.5


def test_a_ragged_batch_is_its_rows(served: Served) -> None:
    streets = [*held_out_scenes(3), *held_out_scenes(1, scale=3)]
    files = [
        [jpeg(picture) if row % 2 else png(picture) for picture in street.pictures]
        for row, street in enumerate(streets)
    ]
    files[1] = [files[1][0], b"bad", *files[1][2:]]
    together, status = occupancy(served, files)
    assert status.tolist() == [0, 1, 0, 0]
    for row, of_row in enumerate(files):
        np.testing.assert_allclose(occupancy(served, [of_row])[0][0], together[row], rtol=1e-3, atol=1e-5)


def form(**changes: bytes) -> dict[str, tuple[str, bytes, str]]:
    files = {camera: (STREET / f"{camera}.jpg").read_bytes() for camera in CAMERAS} | changes
    return {camera: (f"{camera}.jpg", file, "image/jpeg") for camera, file in files.items() if file}


def test_predict_takes_a_form_of_four_pictures(served: Served) -> None:
    answer = served.predict(files=form())
    assert answer.status_code == 200, answer.text
    found = np.array(answer.json()["outputs"]["occupancy"])
    (street,) = held_out_scenes(1, scale=3)
    assert found.shape == (CELLS, CELLS) and 0 <= found.min() <= found.max() <= 1
    assert found[street.occupied].mean() > 0.4 and found[~street.occupied].mean() < 0.1


def test_requests_at_the_same_time_get_their_own_answers(served: Served) -> None:
    turned = dict(
        zip(CAMERAS, [(STREET / f"{camera}.jpg").read_bytes() for camera in (*CAMERAS[1:], CAMERAS[0])], strict=True)
    )
    forms = [form(), form(**turned), form(left=b"bad"), form()]
    first, second, bad, again = served.send([{"url": "/predict/bev_segmenter", "files": files} for files in forms])
    assert [answer.status_code for answer in (first, second, bad, again)] == [200, 200, 400, 200]
    maps = [np.array(answer.json()["outputs"]["occupancy"]) for answer in (first, second, again)]
    np.testing.assert_allclose(maps[0], maps[2], rtol=1e-3, atol=1e-5)
    assert np.abs(maps[0] - maps[1]).max() > 0.2


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"front": b"no picture"}, 400, "a picture is not a JPEG, PNG, WebP, BMP or GIF"),
        ({"right": (STREET / "right.jpg").read_bytes()[:900]}, 400, "a picture is corrupt or truncated"),
        ({"back": b""}, 400, "input 'back' of model 'bev_segmenter' is missing"),
    ],
)
def test_predict_refuses_what_is_no_picture(served: Served, changes: dict[str, bytes], status: int, text: str) -> None:
    answer = served.predict(files=form(**changes))
    assert answer.status_code == status and text in answer.json()["error"]


def test_predict_refuses_a_picture_alone(served: Served) -> None:
    answer = served.predict(content=(STREET / "front.jpg").read_bytes(), headers={"content-type": "image/jpeg"})
    assert answer.status_code == 415 and "takes no file" in answer.json()["error"]
