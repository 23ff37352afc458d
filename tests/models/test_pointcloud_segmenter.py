"""The point cloud segmenter: the served file on rooms, and /predict with PLY and NPY files, good and hostile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.pointcloud_segmenter.files import npy, ply
from models.pointcloud_segmenter.scenes import LABELS, Scene, held_out_scenes, scene
from opgate.ops_build.ops.decode_points import cases
from tests import PROJECT
from tests.models.serving import REPOSITORY, Served

ROOM = PROJECT / "docs" / "examples" / "room.ply"
TRUTH = PROJECT / "docs" / "examples" / "room_labels.txt"


@pytest.fixture(scope="module")
def served(library: Path) -> Served:
    return Served("pointcloud_segmenter", library)


def test_held_out_rooms_are_always_the_same() -> None:
    first, again = held_out_scenes(3), held_out_scenes(3)
    for room, same in zip(first, again, strict=True):
        assert np.array_equal(room.xyz, same.xyz) and np.array_equal(room.labels, same.labels)
        assert 600 <= len(room.xyz) <= 1400
    assert (REPOSITORY / "pointcloud_segmenter" / "labels.txt").read_text().split() == list(LABELS)


def test_the_served_file_labels_the_points_of_held_out_rooms(served: Served) -> None:
    """Checks the mean IoU on the first 40 of the 200 rooms that the README measures."""
    rooms = held_out_scenes(40)
    counts = np.zeros((len(LABELS), len(LABELS)))
    for first in range(0, len(rooms), 8):
        batch = rooms[first : first + 8]
        answer = served.run([npy(room) for room in batch])
        for row, room in enumerate(batch):
            assert answer["count"][row] == len(room.labels)
            np.add.at(counts, (room.labels, answer["labels"][row, : len(room.labels)]), 1)
    right = np.diag(counts)
    assert (right / (counts.sum(0) + counts.sum(1) - right)).mean() > 0.9


def test_a_ragged_batch_is_its_rows(served: Served) -> None:
    rng = np.random.default_rng(1)
    rooms = [scene(rng, points) for points in (700, 1, 300, 5, 4096)]
    files = [npy(rooms[0]), ply(rooms[1]), ply(rooms[2]), b"bad", npy(rooms[3]), npy(rooms[4])]
    together = served.run(files)
    assert together["status"].tolist() == [0, 0, 0, 1, 0, 0]
    for row, file in enumerate(files):
        alone, count = served.run([file]), together["count"][row]
        assert alone["count"][0] == count
        np.testing.assert_allclose(alone["scores"][0], together["scores"][row], rtol=1e-3, atol=1e-4)
        assert np.mean(alone["labels"][0] == together["labels"][row]) > 0.999
        assert (together["labels"][row, count:] == -1).all() and (together["scores"][row, count:] == 0).all()


@pytest.mark.parametrize("media", ["application/ply", "model/ply", "application/octet-stream"])
def test_predict_takes_a_ply(served: Served, media: str) -> None:
    answer = served.predict(content=ROOM.read_bytes(), headers={"content-type": media})
    assert answer.status_code == 200, answer.text
    found, truth = [record["label"] for record in answer.json()["predictions"]], TRUTH.read_text().split()
    assert len(found) == len(truth) and np.mean(np.array(found) == truth) > 0.9


def test_every_kind_of_file_gets_the_same_labels(served: Served) -> None:
    (room,) = held_out_scenes(1)
    rounded = Scene(np.round(room.xyz, 3), room.labels)
    headers = {"content-type": "application/octet-stream"}
    files = [npy(rounded), ply(rounded), ply(rounded, text=True)]
    answers = served.send(
        [{"url": "/predict/pointcloud_segmenter", "content": file, "headers": headers} for file in files]
    )
    assert [answer.status_code for answer in answers] == [200] * 3
    labels = [[record["label"] for record in answer.json()["predictions"]] for answer in answers]
    assert labels[0] == labels[1] and np.mean(np.array(labels[0]) == labels[2]) > 0.999
    form = served.predict(files={"data": ("room.npy", files[0], "application/octet-stream")})
    assert form.json() == answers[0].json()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"no points at all", "neither a PLY nor an NPY"),
        (cases.npy(np.zeros((9, 3)))[:-1], "corrupt or truncated"),
        (cases.npy(np.zeros((4097, 3))), "more than 4096 points"),
        (cases.npy(np.zeros((9, 2))), "an unsupported kind of cloud"),
        (cases.npy(np.full((9, 3), np.nan)), "a coordinate that is not finite"),
        (cases.npy(np.zeros((0, 3))), "no points"),
    ],
)
def test_predict_refuses_what_is_no_such_cloud(served: Served, content: bytes, text: str) -> None:
    answer = served.predict(content=content, headers={"content-type": "application/octet-stream"})
    assert answer.status_code == 400 and text in answer.json()["error"]


def test_points_at_one_place_and_far_away_get_labels(served: Served) -> None:
    for xyz in (np.zeros((50, 3)), np.array([[0, 0, 0], [1e30, -1e30, 1e30]]), np.full((3, 3), -3e38)):
        answer = served.run([cases.npy(xyz)])
        assert answer["status"].tolist() == [0] and answer["count"].tolist() == [len(xyz)]
        assert (answer["labels"][0, : len(xyz)] >= 0).all()


def test_the_document_names_the_clouds(served: Served) -> None:
    body = served.document()["requestBody"]["content"]
    kinds = {"application/ply", "model/ply", "application/octet-stream", "multipart/form-data", "application/json"}
    assert set(body) == kinds
