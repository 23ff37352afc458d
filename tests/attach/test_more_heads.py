"""Heads with keypoints, lists of boxes, anchors with a background, and maps."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
from pycocotools import mask as coco

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import Make, png, squares
from tests.attach.test_detectors import check, corners, suppressed


def red_square(size: int = 64) -> np.ndarray:
    pixels = np.zeros((size, size, 3), np.uint8)
    pixels[32:48, 16:32, 0] = 255
    return pixels


def test_boxes_labels_and_scores_of_one_picture(made: Make, tmp_path) -> None:
    file = networks.boxes_in_three(tmp_path / "net.onnx")
    pixels = squares((128, 128), (0, 32), 1)
    model = made(file, labels=",".join(networks.NAMES), pre="stretch cv-linear")
    x = cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)[None].astype(np.float32) / 255
    boxes, labels, scores = onnxruntime.InferenceSession(file).run(None, {"x": x})
    assert len(boxes) == 4
    expected = [(box * 2, int(label), float(score)) for box, label, score in zip(boxes, labels, scores, strict=True)]
    check(model.predict(png(pixels))[0]["predictions"], expected)
    assert model.predict(png(np.zeros_like(pixels)))[0]["predictions"] == []
    assert "max_batch_size: 1\n" in model.attached.config


def test_a_network_that_asks_for_the_size_of_the_picture(made: Make, tmp_path) -> None:
    file = networks.boxes_in_three(tmp_path / "net.onnx", sizes=True)
    pixels = squares((128, 192), (0, 32), 1)
    model = made(file, labels=",".join(networks.NAMES), pre="stretch cv-linear")
    x = cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)[None].astype(np.float32) / 255
    size = np.array([[192, 128]])
    boxes, labels, scores = onnxruntime.InferenceSession(file).run(None, {"x": x, "orig_target_sizes": size})
    expected = [(boxes[0, i], int(labels[0, i]), float(scores[0, i])) for i in np.where(scores[0] > 0.5)[0]]
    answers = model.predict(png(pixels), png(pixels))
    for answer in answers:
        check(answer["predictions"], expected)
    assert "orig_target_sizes" in model.report and "max_batch_size: 8" in model.attached.config


def test_ssd_has_a_background(made: Make, tmp_path) -> None:
    file = networks.ssd(tmp_path / "net.onnx")
    pixels = red_square()
    model = made(file, post="ssd", labels=",".join(networks.NAMES), pre="stretch unit")
    x = pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255
    boxes, logits = onnxruntime.InferenceSession(file).run(None, {"x": x})
    scores = np.exp(logits[0]) / np.exp(logits[0]).sum(1, keepdims=True)
    expected = suppressed(boxes[0] * 64, scores[:, 1:], 0.5, 0.5)
    check(model.predict(png(pixels))[0]["predictions"], expected)
    assert "background-first" in model.report


def test_rt_detr_in_one_output(made: Make, tmp_path) -> None:
    file = networks.rt_detr(tmp_path / "net.onnx")
    pixels = squares((96, 96), (8, 16), 2)
    model = made(file, pre="pil-nearest")
    (rows,) = onnxruntime.InferenceSession(file).run(
        None, {"x": pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255}
    )
    best, kinds = rows[0, :, 4:].max(1), rows[0, :, 4:].argmax(1)
    expected = [(corners(rows[0, :, :4])[i] * 96, int(kinds[i]), float(best[i])) for i in np.where(best > 0.5)[0]]
    check(model.predict(png(pixels))[0]["predictions"], expected)
    assert "queries, boxes within 0..1" in model.report


def test_yolov8_with_keypoints(made: Make, tmp_path) -> None:
    file = networks.yolov8_pose(tmp_path / "net.onnx")
    pixels = np.kron(red_square(), np.ones((2, 2, 1), np.uint8))
    model = made(file)
    (head,) = onnxruntime.InferenceSession(file).run(
        None, {"x": cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)[None].astype(np.float32) / 255}
    )
    expected = suppressed(corners(head[0, :4].T), head[0, 4:5].T, 0.25, 0.7)
    records = model.predict(png(pixels))[0]["predictions"]
    check(records, [(box * 2, kind, score) for box, kind, score in expected], ("person",))
    for record in records:
        left, top, right, bottom = record["box"]
        centre = [(left + right) / 2, (top + bottom) / 2, 0.8]
        np.testing.assert_allclose(record["keypoints"], [[left, top, 0.9], centre], atol=1e-3)


@pytest.mark.parametrize("kind", ["blazeface", "scrfd"])
def test_faces_have_points(made: Make, tmp_path, kind: str) -> None:
    file = getattr(networks, kind)(tmp_path / "net.onnx")
    size = 128 if kind == "blazeface" else 64
    pixels = red_square(size)
    pixels[32:48, 16:32] = (255, 0, 0)
    model = made(file, post=f"{kind} iou:0.9", pre="stretch unit")
    records = model.predict(png(pixels))[0]["predictions"]
    assert {record["label"] for record in records} == {"face"} and kind in model.report
    boxes = sorted({tuple(round(side) for side in record["box"]) for record in records})
    if kind == "blazeface":
        cells = {(x + 2, y) for x in (20, 28) for y in (36, 44)} | {(26, 40)}
        assert boxes == sorted((x - 10, y - 12, x + 10, y + 12) for x, y in cells)
        record = next(record for record in records if round(record["box"][0]) == 12 and round(record["box"][1]) == 24)
        np.testing.assert_allclose(record["keypoints"], np.add(np.arange(12).reshape(6, 2), (20, 36)), atol=1e-3)
    else:
        assert (16, 32, 32, 48) in boxes and (16, 32, 24, 40) in boxes
        record = next(record for record in records if tuple(map(round, record["box"])) == (16, 32, 32, 48))
        np.testing.assert_allclose(record["keypoints"], np.arange(10).reshape(5, 2) * 1.6 + [16, 32], atol=1e-3)


@pytest.mark.parametrize(("kind", "offset"), [("picodet", 0.5), ("nanodet", 0)])
def test_distributions_of_distances(made: Make, tmp_path, kind: str, offset: float) -> None:
    """Each cell that is red has a box from 1 stride left of its centre, or corner, to 1 right of it and 2 below."""
    file = getattr(networks, kind)(tmp_path / "net.onnx")
    size = 96 if kind == "picodet" else 128
    pixels = np.zeros((size, size, 3), np.uint8)
    pixels[32:64, 32:64] = (255, 0, 0)
    model = made(file, post=f"{kind} score:0.9 iou:1", pre="stretch rgb unit cv-nearest")
    records = model.predict(png(pixels))[0]["predictions"]
    found = sorted({tuple(round(side) for side in record["box"]) for record in records})
    expected = []
    for stride in (8, 16, 32):
        for x in range(32, 64, stride):
            for y in range(32, 64, stride):
                left, top = x + offset * stride, y + offset * stride
                box = (left - stride, top, left + stride, top + 2 * stride)
                expected.append(tuple(round(min(max(side, 0), size)) for side in box))
    assert found == sorted(set(expected)) and kind in model.report
    assert {record["label"] for record in records} == ({0} if kind == "picodet" else {0, 1})


@pytest.mark.parametrize("fixed", [False, True])
def test_rotated_boxes(made: Make, tmp_path, fixed: bool) -> None:
    """Corners lie in the picture that was sent, which is twice as large and has a border at the top."""
    angle = 0.3
    model = made(networks.yolov8_obb(tmp_path / "net.onnx", angle, fixed=fixed), post="obb score:0.9 iou:0.9")
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[32:64, 32:64] = (0, 255, 0)  # 16..32 x 24..40 in the network's pixels
    records = model.predict(png(pixels))[0]["predictions"]
    assert {record["label"] for record in records} == {"green"} and records
    expected = set()
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    for y in (28, 36):
        for x in (20, 28):
            corners = np.array([(-8, -4), (8, -4), (8, 4), (-8, 4)]) @ turn.T + (x, y)
            expected.add(tuple(np.round((corners - (0, 8)) * 2, 2).ravel()))
    found = {
        tuple(np.round(record["polygon"], 2).ravel()) for record in records if np.ptp(record["polygon"], 0).max() < 40
    }
    assert len(found) == len(expected)
    np.testing.assert_allclose(sorted(found), sorted(expected), atol=0.02)


def test_rotated_boxes_are_found_by_their_task(made: Make, tmp_path) -> None:
    assert "obb" in made(networks.yolov8_obb(tmp_path / "net.onnx", 0.1)).report
    with pytest.raises(AttachError, match="say obb for rotated boxes"):
        made(networks.yolov8_obb(tmp_path / "other.onnx", 0.1), post="yolov8")


def test_picodet_is_found_by_its_outputs(made: Make, tmp_path) -> None:
    report = made(networks.picodet(tmp_path / "net.onnx"), pre="stretch unit").report
    assert "picodet" in report and "for each of 4 strides" in report


def test_a_crop_of_a_stretched_picture(made: Make, tmp_path) -> None:
    """Both sides become 48, and the centre of 32 x 32 is what the classifier sees."""
    pixels = np.zeros((96, 192, 3), np.uint8)
    pixels[16:80, 32:160] = (0, 255, 0)
    model = made(networks.classifier(tmp_path / "net.onnx"), pre="resize:48x48 crop:32 unit cv-nearest")
    assert model.predict(png(pixels))[0]["predictions"][0]["label"] == 1
    assert "resize:48x48 crop:32" in model.report
    with pytest.raises(AttachError, match="a picture of 24 x 48 is smaller than the crop"):
        made(networks.classifier(tmp_path / "net.onnx"), pre="resize:24x48 crop:32 unit")


def test_a_map_of_classes(made: Make, tmp_path) -> None:
    model = made(networks.segmenter(tmp_path / "net.onnx"), pre="stretch unit cv-nearest")
    pixels = red_square()
    pixels[:, 32:] = (0, 10, 200)
    classes = np.array(model.predict(png(pixels))[0]["outputs"]["classes"])
    assert classes.shape == (8, 8) and (classes[:, 4:] == 2).all() and (classes[:, :4] == 0).all()
    assert "segment" in model.report


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_the_classes_of_a_map_are_found_by_the_size_of_the_picture(made: Make, tmp_path, last: bool) -> None:
    model = made(networks.maps(tmp_path / "net.onnx", channels=3, last=last), pre="stretch unit cv-nearest")
    pixels = red_square()
    pixels[:, 32:] = (0, 10, 200)
    classes = np.array(model.predict(png(pixels))[0]["outputs"]["classes"])
    assert classes.shape == (8, 8) and (classes[:, 4:] == 2).all() and (classes[:, :4] == 0).all()


@pytest.mark.parametrize("logits", [False, True], ids=["probabilities", "logits"])
def test_a_map_of_one_class(made: Make, tmp_path, logits: bool) -> None:
    file = networks.maps(tmp_path / "net.onnx", channels=1, logits=logits)
    model = made(file, post="segment", pre="stretch unit cv-nearest")
    classes = np.array(model.predict(png(red_square()))[0]["outputs"]["classes"])
    expected = np.zeros((8, 8))
    expected[4:6, 2:4] = 1
    np.testing.assert_array_equal(classes, expected)
    assert ("a sigmoid is added" in model.report) == logits


def test_maps_of_another_form_are_refused(tmp_path) -> None:
    net = networks.Net()
    net.add("AveragePool", ["x"], "maps", kernel_shape=[8, 16], strides=[8, 16])
    file = net.save(tmp_path / "net.onnx", {"maps": [3, 8, 4]})
    with pytest.raises(AttachError, match=r"segment needs maps in the form of the picture, 64 x 64: .*\[1, 3, 8, 4\]"):
        attach(Wish(file, post="segment"), "model")


def test_keypoints_of_a_list_of_boxes(made: Make, tmp_path) -> None:
    file = networks.listed(tmp_path / "net.onnx", keypoints=True)
    model = made(file, labels=",".join(networks.NAMES), pre="stretch cv-linear")
    records = model.predict(png(squares((128, 128), (0, 32), 1)))[0]["predictions"]
    assert len(records) == 4
    for record in records:
        left, top, right, bottom = record["box"]
        np.testing.assert_allclose(record["keypoints"], [[left, top, 1], [right, bottom, 1]], atol=1e-3)
    assert model.predict(png(np.zeros((128, 128, 3), np.uint8)))[0]["predictions"] == []
    assert "keypoints_scores" in model.report and "not served" in model.report


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools
def test_masks_of_a_list_of_boxes(made: Make, tmp_path) -> None:
    file = networks.listed(tmp_path / "net.onnx", masks=True)
    model = made(file, labels=",".join(networks.NAMES), pre="stretch cv-linear")
    pixels = np.zeros((128, 192, 3), np.uint8)
    pixels[0:32, 48:96, 0] = 255
    records = model.predict(png(pixels))[0]["predictions"]
    assert len(records) == 4
    for record in records:  # red everywhere in the boxes
        left, top, right, bottom = (round(side) for side in record["box"])
        mask = coco.decode(coco.frPyObjects(record["mask"], 128, 192)).astype(bool)
        assert mask[top:bottom, left:right].mean() > 0.95 and mask.sum() == mask[top:bottom, left:right].sum()
    assert model.predict(png(np.zeros((128, 128, 3), np.uint8)))[0]["predictions"] == []
    assert "16 x 16 cells for each box" in model.report


def test_which_of_several_outputs_counts_is_asked(made: Make, tmp_path) -> None:
    file = networks.two_maps(tmp_path / "net.onnx")
    message = r"fits segment output:out \(.*\) or segment output:aux \(.*\): say which"
    with pytest.raises(AttachError, match=message):
        attach(Wish(file), "model")
    model = made(file, post="segment output:out", pre="stretch unit cv-nearest")
    assert np.array(model.predict(png(red_square()))[0]["outputs"]["classes"]).shape == (8, 8)
    with pytest.raises(AttachError, match="is no head that opgate knows by its shape"):
        attach(Wish(networks.two_maps(tmp_path / "levels.onnx", side=4)), "model")


def test_a_map_of_one_class_is_asked_for(tmp_path) -> None:
    file = networks.maps(tmp_path / "net.onnx", channels=1)
    with pytest.raises(AttachError, match=r"fits segment \(\[1, 1, 8, 8\]: a map of one class\): say so if that is"):
        attach(Wish(file), "model")


@pytest.mark.parametrize("rank", [3, 4])
def test_a_map_of_the_numbers_of_classes(made: Make, tmp_path, rank: int) -> None:
    net = networks.Net()
    best = net.add("ArgMax", ["x"], "best" if rank == 3 else "numbers", axis=1, keepdims=int(rank == 4))
    if rank == 3:
        net.add("Cast", [best], "numbers", to=6)
    dims, kind = ([64, 64], 6) if rank == 3 else ([1, 64, 64], 7)
    file = net.save(tmp_path / "net.onnx", {"numbers": dims}, types={"numbers": kind})
    model = made(file, pre="stretch unit cv-nearest", labels="a,b,c,d")
    pixels = red_square()
    pixels[:, 40:] = (0, 10, 200)
    classes = np.array(model.predict(png(pixels))[0]["outputs"]["classes"])
    np.testing.assert_array_equal(classes, pixels.argmax(2))
    assert "the number of a class for each pixel" in model.report and "max_batch_size: 8" in model.attached.config


def test_a_map_without_an_axis_of_classes(made: Make, tmp_path) -> None:
    net = networks.Net()
    gathered = net.add("Gather", ["x", net.constant("red", 0, np.int64)], "red_of_x", axis=1)
    net.add("Sigmoid", [net.add("Sub", [gathered, net.constant("half", 0.5)], "moved")], "depth")
    file = net.save(tmp_path / "net.onnx", {"depth": [64, 64]})
    with pytest.raises(AttachError, match=r"fits segment \(\[1, 64, 64\]: a map of one class\)"):
        attach(Wish(file), "model")
    classes = made(file, post="segment", pre="stretch unit cv-nearest").predict(png(red_square()))[0]["outputs"][
        "classes"
    ]
    np.testing.assert_array_equal(np.array(classes), red_square()[..., 0] > 127)


def test_steps_without_characters_are_said(tmp_path) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=False)
    with pytest.raises(AttachError, match=r"out \[1, 40, 6\] is read as steps .* Say ctc:FILE, .* or another head"):
        attach(Wish(file, pre="height:16 grey", post="ctc"), "model")


def test_offsets_to_anchors_are_refused(tmp_path) -> None:
    net = networks.Net(size=256)
    pooled = net.add("AveragePool", ["x"], "pooled", kernel_shape=[8, 8], strides=[8, 8])
    less = net.add("Sub", [pooled, net.constant("half", 0.5)], "less")
    rows = net.add("Reshape", [less, net.constant("rows", [0, -1, 1], np.int64)], "column")
    for name, count in (("cls_logits", 20), ("bbox_regression", 4)):
        signs = np.where(np.arange(count) % 3, 5, -5).reshape(1, 1, -1)
        net.add("Mul", [rows, net.constant(f"{name}_signs", signs)], name)
    file = net.save(tmp_path / "net.onnx", {"cls_logits": [3072, 20], "bbox_regression": [3072, 4]})
    with pytest.raises(AttachError, match="they are offsets to anchors, which the file doesn't have"):
        attach(Wish(file), "model")


def test_a_coarse_map_is_asked_for(tmp_path) -> None:
    """It may be the grid of a detector."""

    def maps(side: int, **metadata: str) -> Path:
        net = networks.Net()
        net.add("AveragePool", ["x"], "maps", kernel_shape=[side] * 2, strides=[side] * 2)
        file = net.save(tmp_path / f"{side}{''.join(metadata)}.onnx", {"maps": [3, 64 // side, 64 // side]})
        return networks.with_metadata(file, **metadata)

    with pytest.raises(AttachError, match=r"\[1, 3, 4, 4\] fits segment \(.*\) or the grid of a detector \("):
        attach(Wish(maps(16)), "model")
    with pytest.raises(AttachError, match=r"\[1, 3, 1, 1\] fits classify:3 \(3 classes\) or embed \("):
        attach(Wish(maps(64)), "model")
    for file in (maps(16, task="semantic segmentation"), maps(16, names="red,green,blue"), maps(8)):
        assert "segment" in "\n".join(attach(Wish(file), "model").report.lines())
    assert attach(Wish(maps(16), post="segment"), "model")


def test_labels_of_another_number_than_the_file_has(tmp_path) -> None:
    file = networks.with_metadata(networks.end2end(tmp_path / "net.onnx"), names="red,green,blue")
    with pytest.raises(AttachError, match=r"^--labels: expected 3 labels, one for each class .*, got 2"):
        attach(Wish(file, labels="a,b"), "model")
    assert attach(Wish(file, labels="a,b,c"), "model").labels == ["a", "b", "c"]
    vector = networks.classifier(tmp_path / "vector.onnx", name="embedding")
    with pytest.raises(AttachError, match=r"^--labels: embed answers with a vector, which has no labels"):
        attach(Wish(vector, labels="a,b,c"), "model")


def test_queries_have_as_many_classes_as_is_said(tmp_path) -> None:
    file = networks.rt_detr(tmp_path / "net.onnx")
    with pytest.raises(AttachError, match=r"^--post: 'classes:2', and the scores of detr have 3"):
        attach(Wish(file, post="detr sigmoid classes:2", labels="a,b,c"), "model")
    assert attach(Wish(file, post="detr sigmoid classes:3", labels="a,b,c"), "model").labels == ["a", "b", "c"]
