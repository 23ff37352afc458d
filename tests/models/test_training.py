"""The training and the export of the digit detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs the extra that trains the models")

from models.digit_detector import dataset, reference  # noqa: E402
from models.digit_detector.graphs import digit_network  # noqa: E402
from models.digit_detector.loss import DetectionLoss, Truth, complete_iou, pairwise_iou  # noqa: E402
from models.digit_detector.network import DigitNetwork  # noqa: E402


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
