"""The digit detector's scenes, its exported graph and the way it is evaluated."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra that trains the models")
pytest.importorskip("skimage", reason="needs the extra that trains the models")
pytest.importorskip("pycocotools", reason="needs the extra that trains the models")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402

from models.digit_detector import dataset, reference  # noqa: E402
from models.digit_detector.evaluate import Detections, precision  # noqa: E402
from models.digit_detector.graphs import digit_network  # noqa: E402
from models.digit_detector.loss import DetectionLoss, Truth, complete_iou, pairwise_iou  # noqa: E402
from models.digit_detector.network import DigitNetwork  # noqa: E402


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


def test_exported_network_computes_what_the_trained_one_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DigitNetwork()
    network(torch.rand(4, 3, 64, 64))
    network.eval()
    path = tmp_path / "model.onnx"
    onnx.save(digit_network(network), path)
    image = np.random.default_rng(0).random((2, 3, 320, 320), np.float32)
    (head,) = reference.network_session(path, onnxruntime.SessionOptions()).run(None, {"image": image})
    with torch.no_grad():
        boxes, logits = network(torch.from_numpy(image))
    centre, size = head[:, :2].transpose(0, 2, 1), head[:, 2:4].transpose(0, 2, 1)
    np.testing.assert_allclose(np.concatenate([centre - size / 2, centre + size / 2], -1), boxes.numpy(), atol=1e-3)
    np.testing.assert_allclose(head[:, 4:].transpose(0, 2, 1), logits.sigmoid().numpy(), atol=1e-5)


def test_perfect_detections_have_precision_one() -> None:
    truth = list(itertools.islice(dataset.test_scenes(), 40))
    found = [Detections(s.boxes, np.ones(len(s.labels), np.float32), s.labels.astype(np.int32)) for s in truth]
    assert precision(truth, found).at_50_95 == pytest.approx(1)


def test_preprocess_of_one_colour_is_that_colour_between_pads() -> None:
    image, geometry = reference.preprocess(dataset.encode_jpeg(np.full((300, 600, 3), 200, np.uint8)))
    assert geometry.tolist() == [[600 / 320, 300 / 160, 0, 80, 600, 300]]
    np.testing.assert_allclose(image[0, :, 80:240], 200 / 255, atol=1 / 255)
    np.testing.assert_array_equal(image[0, :, :80], np.float32(dataset.PAD / 255))


def test_loss_is_least_where_boxes_and_classes_are_right() -> None:
    truth = Truth(torch.tensor([[[8.0, 8.0, 40.0, 40.0]]]), torch.tensor([[3]]), torch.tensor([[True]]))
    loss = DetectionLoss(64)
    anchors = len(loss.centres)
    right = torch.tensor([8.0, 8.0, 40.0, 40.0]).expand(1, anchors, 4)
    logits = torch.full((1, anchors, dataset.CLASSES), -6.0)
    assert loss(right, logits, truth) < loss(right + 6, logits, truth)


def test_overlaps() -> None:
    box, half = torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[0.0, 0.0, 2.0, 1.0]])
    assert pairwise_iou(box, half).item() == pytest.approx(0.5)
    assert complete_iou(box, box).item() == pytest.approx(1)
    assert complete_iou(box, half) < 0.5
