"""Detectors: what is served is what NumPy and OpenCV compute around the network's own file."""

from __future__ import annotations

import cv2
import numpy as np
import onnxruntime
import pytest

from opgate.attach.attach import attach
from opgate.attach.model.report import RAN, AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import Make, png, squares

PICTURES = [squares(), squares((70, 100), (10, 60), 1), squares((200, 90), (150, 30), 2), squares((64, 64), (0, 16))]


def letterbox(pixels: np.ndarray, size: int = 64, *, centred: bool = True) -> tuple[np.ndarray, float, int, int]:
    """The letterbox of Ultralytics' and Megvii's tools with OpenCV. Returns the picture, its scale, left and top."""
    height, width = pixels.shape[:2]
    scale = min(size / height, size / width)
    w, h = (round(width * scale), round(height * scale)) if centred else (int(width * scale), int(height * scale))
    left, top = ((size - w) // 2, (size - h) // 2) if centred else (0, 0)
    canvas = np.full((size, size, 3), 114, np.uint8)
    canvas[top : top + h, left : left + w] = cv2.resize(pixels, (w, h), interpolation=cv2.INTER_LINEAR)
    return canvas, scale, left, top


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    inside = np.maximum(high - low, 0).prod(1)
    return inside / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - inside)


def suppressed(boxes: np.ndarray, scores: np.ndarray, threshold: float, iou: float, *, agnostic: bool = False):
    """Boxes [a, 4] as corners and scores [a, c] to the (box, class, score) that stay, one class for an anchor."""
    kinds, best = scores.argmax(1), scores.max(1)
    order = [i for i in np.argsort(-best, kind="stable") if best[i] > threshold]
    kept: list[int] = []
    for i in order:
        rivals = [j for j in kept if agnostic or kinds[j] == kinds[i]]
        if not rivals or overlap(boxes[i], boxes[rivals]).max() <= iou:
            kept.append(i)
    return [(boxes[i], int(kinds[i]), float(best[i])) for i in kept]


def corners(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def source(box: np.ndarray, scale: tuple[float, float], left: int, top: int, pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape[:2]
    moved = (box - [left, top, left, top]) / [*scale, *scale]
    return np.clip(moved, 0, [width, height, width, height])


def scales(pixels: np.ndarray, size: int = 64, *, centred: bool = True) -> tuple[float, float]:
    """The scale of each side after its length was rounded."""
    canvas = min(size / pixels.shape[0], size / pixels.shape[1])
    rounded = round if centred else int
    return rounded(pixels.shape[1] * canvas) / pixels.shape[1], rounded(pixels.shape[0] * canvas) / pixels.shape[0]


def check(found, expected, names=networks.NAMES) -> None:
    """Compares records of /predict with (box, class, score)."""
    assert len(found) == len(expected) > 0

    def key(record):
        return -round(record[2], 3), record[1], *np.round(record[0], 1)

    ours = sorted(((np.array(r["box"]), r["label"], r["score"]) for r in found), key=key)
    theirs = sorted(((box, names[kind], score) for box, kind, score in expected), key=key)
    for (box, label, score), (wants, kind, value) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(box, wants, atol=0.02)
        assert label == kind and score == pytest.approx(value, abs=0.002)


@pytest.mark.parametrize("fixed", [False, True], ids=["open batch", "fixed batch"])
def test_yolov8_over_http_is_its_pipeline_in_opencv(made: Make, tmp_path, fixed: bool) -> None:
    file = networks.yolov8(tmp_path / "net.onnx", fixed=fixed)
    model = made(file)
    session = onnxruntime.InferenceSession(file)
    for pixels, answer in zip(PICTURES, model.predict(*map(png, PICTURES)), strict=True):
        canvas, _, left, top = letterbox(pixels)
        (head,) = session.run(None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255})
        kept = suppressed(corners(head[0, :4].T), head[0, 4:].T, 0.25, 0.7)
        check(
            answer["predictions"],
            [(source(box, scales(pixels), left, top, pixels), kind, score) for box, kind, score in kept],
        )
    assert "max_batch_size" in model.report and "bit for bit" in model.report
    assert ("opened (3 Reshape)" in model.report) == fixed


def test_a_broken_picture_among_others_fails_alone(made: Make, tmp_path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"))
    good = png(PICTURES[0])
    headers = {"Content-Type": "image/png"}
    bodies = [good, b"no picture", good, good[: len(good) // 2]]
    answers = model.send([{"content": body, "headers": headers} for body in bodies])
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400]
    assert answers[1].json()["error"] == "input 'data' of model 'model': not a JPEG, PNG, WebP, BMP or GIF"
    assert "corrupt" in answers[3].text


def test_a_request_may_raise_the_score_threshold(made: Make, tmp_path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"), post="yolov8 score:0.5 lowest:0.3")
    file = {"data": ("picture.png", png(squares(at=(30, 37))), "image/png")}
    requests = [
        {"files": file},
        *({"files": file, "data": {"score_threshold": text}} for text in ("0.9", "0.3", "0.29")),
    ]
    *answers, below = model.send(requests)
    usual, fewer, more = ([r["score"] for r in each.json()["predictions"]] for each in answers)
    assert fewer == [score for score in usual if score > 0.9] and len(fewer) < len(usual) < len(more)
    assert min(usual) > 0.5 and 0.3 < min(more) < 0.5
    assert below.status_code == 400
    assert below.json()["error"] == "model 'model': score_threshold is not within 0.3 to 1"
    assert "a request may say 0.3 to 1" in model.report
    assert "score_threshold from 0.3 to 1" in (model.folder / "README.md").read_text()


def test_a_request_may_set_the_iou_threshold(made: Make, tmp_path) -> None:
    file = networks.yolov8(tmp_path / "net.onnx")
    model = made(file, post="yolov8 iou:0.2")
    pixels = squares(at=(30, 37))
    canvas, _, left, top = letterbox(pixels)
    (head,) = onnxruntime.InferenceSession(file).run(
        None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255}
    )
    picture = {"data": ("picture.png", png(pixels), "image/png")}
    said = [{}, {"iou_threshold": "0"}, {"iou_threshold": "0.24"}, {"iou_threshold": "1"}]
    answers = [each.json()["predictions"] for each in model.send([{"files": picture, "data": data} for data in said])]
    for found, iou in zip(answers, (0.2, 0, 0.24, 1), strict=True):
        kept = suppressed(corners(head[0, :4].T), head[0, 4:].T, 0.25, iou)
        check(found, [(source(box, scales(pixels), left, top, pixels), kind, score) for box, kind, score in kept])
    assert len({len(found) for found in answers}) >= 3
    data = {"iou_threshold": "0", "score_threshold": "0.9"}
    (both,) = model.send([{"files": picture, "data": data}])
    assert both.json()["predictions"] == [record for record in answers[1] if record["score"] > 0.9]
    assert "a request may say 0 to 1" in model.report


@pytest.mark.parametrize("value", ["-0.01", "-5", "1.01", "1e9"])
@pytest.mark.parametrize("name", ["score_threshold", "iou_threshold"])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_threshold_is_within_0_to_1(made: Make, tmp_path, name: str, value: str, fixed: bool) -> None:
    """One that isn't costs its own request alone. A negative score would find boxes that are none."""
    model = made(networks.yolov8(tmp_path / "net.onnx", fixed=fixed), post="yolov8 lowest:0")
    picture = {"data": ("picture.png", png(squares()), "image/png")}
    usual, wrong, least = model.send(
        [{"files": picture, "data": data} for data in ({}, {name: value}, {"score_threshold": "0"})]
    )
    assert wrong.status_code == 400 and f"{name} is not within 0 to 1" in wrong.json()["error"]
    assert usual.status_code == least.status_code == 200
    assert all(record["label"] != -1 for record in least.json()["predictions"])


def test_yolov5_has_objectness(made: Make, tmp_path) -> None:
    file = networks.yolov5(tmp_path / "net.onnx")
    model = made(file, labels=",".join(networks.NAMES))
    canvas, _, left, top = letterbox(PICTURES[0])
    (head,) = onnxruntime.InferenceSession(file).run(
        None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255}
    )
    rows = head[0]
    kept = suppressed(corners(rows[:, :4]), rows[:, 5:] * rows[:, 4:5], 0.25, 0.45)
    pixels = PICTURES[0]
    expected = [(source(box, scales(pixels), left, top, pixels), kind, score) for box, kind, score in kept]
    check(model.predict(png(pixels))[0]["predictions"], expected)
    assert "yolov5" in model.report and "objectness" in model.report


def test_a_detector_may_answer_with_a_picture(made: Make, tmp_path) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx"), "colours", draw=True)
    headers = {"Content-Type": "image/png", "Accept": "image/jpeg"}
    (answer,) = model.send([{"content": png(PICTURES[0]), "headers": headers}])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg"), answer.text
    assert cv2.imdecode(np.frombuffer(answer.content, np.uint8), 1).shape == PICTURES[0].shape
    assert {path.name for path in model.folder.parent.iterdir()} == {"colours", "colours_draw", "colours_picture"}
    with pytest.raises(AttachError, match="--draw: the network gives neither boxes, polygons nor a map"):
        attach(Wish(networks.classifier(tmp_path / "other.onnx"), draw=True), "model")


def test_other_outputs_are_left_out(made: Make, tmp_path) -> None:
    model = made(networks.yolov5_with_maps(tmp_path / "net.onnx"), labels=",".join(networks.NAMES))
    assert model.predict(png(PICTURES[0]))[0]["predictions"][0]["label"] == "red"
    assert "pooled8, pooled16" in model.report and "not served" in model.report
    with pytest.raises(AttachError, match="--post: there is no output 'pooled9': expected output, pooled8, pooled16"):
        attach(Wish(tmp_path / "net.onnx", post="segment output:pooled9"), "model")
    maps = made(tmp_path / "net.onnx", "maps", post="segment output:pooled8", pre="stretch unit")
    assert "classes" in maps.predict(png(PICTURES[0]))[0]["outputs"]


def test_yolox_takes_bytes_in_the_corner_and_decodes_its_grid(made: Make, tmp_path) -> None:
    file = networks.yolox(tmp_path / "net.onnx")
    model = made(file, labels=",".join(networks.NAMES), post="yolox score:0.3")
    session = onnxruntime.InferenceSession(file)
    grid, strides = networks.Net().grid()
    pictures = [PICTURES[0], squares((128, 64), (60, 16), 1), PICTURES[3]]  # of sizes that need no rounding
    for pixels, answer in zip(pictures, model.predict(*map(png, pictures)), strict=True):
        canvas, _, left, top = letterbox(pixels, centred=False)
        (head,) = session.run(None, {"x": canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32)})
        rows = head[0]
        boxes = np.concatenate([(rows[:, :2] + grid) * strides, np.exp(rows[:, 2:4]) * strides], 1)
        kept = suppressed(corners(boxes), rows[:, 5:] * rows[:, 4:5], 0.3, 0.45, agnostic=True)
        scale = scales(pixels, centred=False)
        expected = [(source(box, scale, left, top, pixels), kind, score) for box, kind, score in kept]
        check(answer["predictions"], expected)
    assert "offsets in the grid" in attach(Wish(file), "model").report.lines()[4] and "bgr" in model.report


def test_end2end_needs_no_suppression(made: Make, tmp_path) -> None:
    file = networks.end2end(tmp_path / "net.onnx")
    pixels = squares((64, 64), (0, 16), 1)
    model = made(file, labels=",".join(networks.NAMES))
    x = pixels.transpose(2, 0, 1)[None].astype(np.float32) / 255
    (rows,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    expected = [(row[:4], int(row[5]), float(row[4])) for row in rows[0] if row[4] > 0.25]
    check(model.predict(png(pixels))[0]["predictions"], expected)
    outputs = model.run(png(pixels))
    assert (outputs["labels"][0, int(outputs["count"][0]) :] == -1).all()


@pytest.mark.parametrize("logits", [False, True], ids=["probabilities", "logits"])
def test_detr_has_boxes_within_one(made: Make, tmp_path, logits: bool) -> None:
    file = networks.detr(tmp_path / "net.onnx", logits=logits)
    model = made(file, labels=",".join(networks.NAMES), pre="stretch:64 cv-linear")
    pixels = PICTURES[1]
    x = cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)[None].astype(np.float32) / 255
    boxes, scores = onnxruntime.InferenceSession(file).run(None, {"x": x})
    scores = 1 / (1 + np.exp(-scores[0])) if logits else scores[0]
    best, kinds = scores.max(1), scores.argmax(1)
    size = np.array([pixels.shape[1], pixels.shape[0]] * 2)
    expected = [(corners(boxes[0])[i] * size, int(kinds[i]), float(best[i])) for i in np.where(best > 0.5)[0]]
    check(model.predict(png(pixels))[0]["predictions"], expected)


def test_boxes_of_padding_tell_nothing(made: Make, tmp_path) -> None:
    model = made(networks.padded(tmp_path / "net.onnx", batch=1), pre="stretch")
    assert "the word normalized says otherwise" in model.report
    found = model.predict(png(np.full((64, 64, 3), 255, np.uint8)))[0]["predictions"]
    assert [record["box"] for record in found] == [[10, 10, 40, 40], [20, 30, 60, 50]]
    seen = made(networks.end2end(tmp_path / "seen.onnx"), "seen")
    assert "in pixels of the input" in seen.report and RAN in seen.report


def test_maps_beside_a_head_of_yolov8_are_masks_only_if_they_fit(made: Make, tmp_path) -> None:
    names = str({i: f"c{i}" for i in range(80)})
    for number, (classes, maps, metadata, served) in enumerate(
        [
            (200, (144, 8), {}, 200),  # the maps that the head is made of
            (80, (40, 4), {"names": names}, 80),  # of the size of prototypes, and all channels have labels
            (112, (32, 4), {"names": names}, 80),
            (112, (32, 4), {}, 80),
        ]
    ):
        file = networks.head_of_yolov8(tmp_path / f"{number}.onnx", classes, maps=maps, **metadata)
        model = made(file, f"m{number}")
        (operation,) = (node for node in model.attached.model.graph.node if node.op_type == "DetectionPostprocess")
        assert {each.name: each.i for each in operation.attribute}["classes"] == served
        assert ("other outputs" in model.report) == (served == classes)
        assert ("16 x 16 cells for each box" in model.report) == (served < classes)


@pytest.mark.parametrize("shape", ["[17, 'x']", "[17]", "[5, 1]", "seventeen", "[0, 3]"])
def test_odd_shapes_of_keypoints_are_left_out(tmp_path, shape: str) -> None:
    file = networks.head_of_yolov8(tmp_path / "net.onnx", 3, kpt_shape=shape)
    report = "\n".join(attach(Wish(file), "model").report.lines())
    assert f"the metadata 'kpt_shape' is {shape}: expected a number of points and 2 or 3" in report
    file = networks.head_of_yolov8(tmp_path / "pose.onnx", 3, kpt_shape=shape, task="pose")
    with pytest.raises(AttachError, match="say classes:1 behind yolov8"):
        attach(Wish(file), "model")


def test_only_heads_that_count_classes_hint_at_their_word(tmp_path) -> None:
    with pytest.raises(AttachError, match="--labels: expected 3 labels") as error:
        attach(Wish(networks.detr(tmp_path / "net.onnx", logits=False), labels="a,b"), "model")
    assert "classes:" not in str(error.value)
