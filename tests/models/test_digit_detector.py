"""The digit detector: its scenes, its evaluation, and how well the served file finds digits."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from models.digit_detector import dataset, reference
from models.digit_detector.dataset import TEST_SCENES
from models.digit_detector.evaluate import Detections, evaluate, fused_detector, precision
from tests.conftest import ALL

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def test_splits_share_no_photograph_and_no_digit() -> None:
    assert not set(dataset.TRAIN_PHOTOGRAPHS) & set(dataset.TEST_PHOTOGRAPHS)
    train, test = dataset.load_digits(test=False)[0], dataset.load_digits(test=True)[0]
    assert (len(train), len(test)) == (1415, 1797 - 1415)


def test_test_scenes_are_always_the_same_and_their_boxes_lie_inside() -> None:
    first, again = (list(itertools.islice(dataset.test_scenes(), 5)) for _ in range(2))
    for scene, same in zip(first, again, strict=True):
        assert np.array_equal(scene.image, same.image) and np.array_equal(scene.boxes, same.boxes)
        height, width = scene.image.shape[:2]
        assert len(scene.boxes) == len(scene.labels)
        assert (scene.boxes[:, :2] >= 0).all() and (scene.boxes[:, 2:] <= (width, height)).all()


def test_perfect_detections_have_precision_one() -> None:
    truth = list(itertools.islice(dataset.test_scenes(), 40))
    detections = [Detections(s.boxes, np.ones(len(s.labels), np.float32), s.labels.astype(np.int32)) for s in truth]
    assert precision(truth, detections).at_50_95 == pytest.approx(1)


def test_preprocess_of_one_colour_is_that_colour_between_pads() -> None:
    image, geometry = reference.preprocess(dataset.encode_jpeg(np.full((300, 600, 3), 200, np.uint8)))
    assert geometry.tolist() == [[600 / 320, 300 / 160, 0, 80, 600, 300]]
    np.testing.assert_allclose(image[0, :, 80:240], 200 / 255, atol=1 / 255)
    np.testing.assert_array_equal(image[0, :, :80], np.float32(dataset.PAD / 255))


def test_the_served_file_finds_the_digits_of_the_test_scenes(library: Path) -> None:
    """Checks mAP@0.5 of the fused model, from JPEG bytes. `make test-all` takes all test scenes."""
    assert evaluate(fused_detector(REPOSITORY, library, None), TEST_SCENES if ALL else 60).at_50 > 0.9
