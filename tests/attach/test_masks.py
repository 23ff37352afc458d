"""Masks: what is served is what NumPy computes around the network's own file, pixel by pixel of the picture."""

from __future__ import annotations

import io
from pathlib import Path

import jsonschema
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image
from pycocotools import mask as coco

from opgate.attach.attach import attach
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError
from opgate.attach.model.serving import Served
from opgate.attach.model.wish import Wish
from opgate.attach.pictures.painting import painted
from opgate.service.wire.run_lengths import run_lengths
from tests.attach import networks
from tests.attach.conftest import Make, png
from tests.attach.test_detectors import check, corners, letterbox, scales, source, suppressed

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools


def disc(height: int, width: int, centre: tuple[int, int], radius: int, channel: int) -> np.ndarray:
    """A dark picture [h, w, 3] with a disc of one colour."""
    pixels = np.full((height, width, 3), 20, np.uint8)
    rows, columns = np.mgrid[:height, :width]
    pixels[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2, channel] = 255
    return pixels


PICTURES = [
    disc(96, 128, (48, 64), 30, 0),
    disc(70, 100, (20, 70), 18, 1),
    disc(200, 90, (150, 40), 35, 2),
    disc(64, 64, (32, 32), 20, 0),
    disc(31, 57, (15, 20), 12, 1),  # enlarged
]


def whole(cells: np.ndarray, pixels: np.ndarray, box: np.ndarray, cell: float = 4) -> np.ndarray:
    """The mask [h, w] of a picture: probabilities of cells [mh, mw], interpolated, cut to the box, above one half."""
    height, width = pixels.shape[:2]
    (_, _, left, top), (across, down) = letterbox(pixels), scales(pixels)
    columns, rows = (np.arange(width) + 0.5) * across + left, (np.arange(height) + 0.5) * down + top
    centres = [(np.arange(size) + 0.5) * cell for size in cells.shape]
    wide = np.stack([np.interp(columns, centres[1], row) for row in cells])
    values = np.stack([np.interp(rows, centres[0], column) for column in wide.T], 1)
    x, y = np.arange(width), np.arange(height)
    inside = ((y >= box[1]) & (y < box[3]))[:, None] & ((x >= box[0]) & (x < box[2]))
    return (values > 0.5) & inside


def decoded(mask: dict) -> np.ndarray:
    """The pixels [h, w] of run lengths, as pycocotools reads them."""
    assert sum(mask["counts"]) == mask["size"][0] * mask["size"][1] and min(mask["counts"][1:], default=1) > 0
    return coco.decode(coco.frPyObjects(mask, *mask["size"])).astype(bool)


def expected(session: onnxruntime.InferenceSession, pixels: np.ndarray, objectness: bool = False) -> list:
    """(box, class, score, mask) of each thing: suppression, then product, sigmoid, interpolation, cut, one half."""
    canvas, _, left, top = letterbox(pixels)
    head, prototypes = session.run(None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255})
    rows = head[0] if objectness else head[0].T
    first = 5 if objectness else 4
    scores = rows[:, first : first + 3] * (rows[:, 4:5] if objectness else 1)
    boxes = corners(rows[:, :4])
    found = []
    for box, kind, score in suppressed(boxes, scores, 0.25, 0.45 if objectness else 0.7):
        numbers = rows[np.flatnonzero((boxes == box).all(1))[0], first + 3 :]
        cells = 1 / (1 + np.exp(-np.tensordot(numbers, prototypes[0], 1)))
        place = source(box, scales(pixels), left, top, pixels)
        found.append((place, kind, score, whole(cells, pixels, place)))
    return found


def check_masks(records: list, wanted: list, pixels: np.ndarray) -> None:
    check(records, [thing[:3] for thing in wanted])
    for record in records:
        own = [thing for thing in wanted if np.abs(thing[0] - record["box"]).max() < 0.02]
        mask = decoded(record["mask"])
        assert mask.shape == pixels.shape[:2]
        differing = min((mask != thing[3]).sum() for thing in own)
        assert differing <= 2, f"{differing} of {mask.sum()} pixels"  # where a probability of 1/255 decides


@pytest.mark.parametrize("fixed", [False, True], ids=["open batch", "fixed batch"])
def test_masks_are_those_of_the_network_in_the_picture(made: Make, tmp_path: Path, fixed: bool) -> None:
    file = networks.yolov8_seg(tmp_path / "net.onnx", fixed=fixed)
    model, session = made(file), onnxruntime.InferenceSession(file)
    answers = model.predict(*map(png, PICTURES))
    for pixels, answer in zip(PICTURES, answers, strict=True):
        check_masks(answer["predictions"], expected(session, pixels), pixels)
    assert "16 x 16 cells for each box" in model.report and "max_batch_size: 8" in model.attached.config
    assert [model.predict(png(pixels))[0] for pixels in PICTURES] == answers  # alone as together


def test_masks_are_drawn(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8_seg(tmp_path / "net.onnx"), "seg", post="yolov8 score:0.9", draw=True)
    for pixels, least in ((disc(480, 640, (240, 320), 150, 0), 5_000), (np.full((40, 50, 3), 20, np.uint8), 0)):
        (answer,) = model.send(
            [{"content": png(pixels), "headers": {"Content-Type": "image/png", "Accept": "image/*"}}]
        )
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg"), answer.text
        drawn = np.asarray(Image.open(io.BytesIO(answer.content)), np.int64)
        marked = np.zeros(pixels.shape[:2], bool)  # outlines and tags
        covered = marked.copy()
        for record in model.predict(png(pixels))[0]["predictions"]:
            covered |= decoded(record["mask"])
            x1, y1, x2, y2 = (round(side) for side in record["box"])
            inner = marked[y1 + 20 : y2 - 6, x1 + 6 : x2 - 6].copy()
            marked[max(y1 - 20, 0) : y2 + 6, max(x1 - 6, 0) : max(x2 + 6, x1 + 120)] = True
            marked[y1 + 20 : y2 - 6, x1 + 6 : x2 - 6] = inner
        half = np.where(covered[..., None], (pixels + np.array([230, 57, 70])) // 2, pixels)
        assert (covered & ~marked).sum() >= least
        assert np.abs(drawn - half)[~marked].mean() < 3


def test_what_is_painted_are_the_pixels_of_the_run_lengths() -> None:
    rng = np.random.default_rng(0)
    picture, labels = rng.integers(0, 256, (50, 70, 3), np.uint8), np.array([3, 18, 0], np.int32)
    masks = rng.integers(0, 256, (3, 9, 12)).astype(np.uint8)
    geometry = np.array([7.1, 6.3, 1.5, 0.5, 70, 50], np.float32)
    boxes = np.array([[3.5, 4, 30, 30.2], [45, 10, 70, 50], [0, 0, 70, 50]], np.float32)
    masks[0, :, 6:], masks[1, :, :7] = 0, 0  # of two things that do not touch
    feed = {"labels": labels, "masks": masks, "geometry": geometry, "boxes": boxes, "picture": picture}
    shapes = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feed.items()}
    for count in (0, 2):
        nodes = Nodes(17, "draw/")
        out = painted(nodes, "picture", "labels", "count", ("masks", "geometry", "boxes"))
        graph = helper.make_graph(
            nodes.nodes,
            "painting",
            [helper.make_tensor_value_info(*each, None) for each in (*shapes.items(), ("count", TensorProto.INT32))],
            [helper.make_tensor_value_info(out, TensorProto.UINT8, None)],
            list(nodes.constants.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        used = np.where(np.arange(3)[:, None, None] < count, masks, 0).astype(
            np.uint8
        )  # as the graph of a model has it
        (drawn,) = session.run(None, {**feed, "masks": used, "count": np.array([count], np.int32)})
        expected = picture.copy()
        for place, colour in ((1, (67, 170, 80)), (0, (255, 183, 3)))[2 - count :]:
            size, counts = run_lengths(masks[place], geometry, boxes[place])
            inside = decoded({"size": list(size), "counts": counts.tolist()})
            expected[inside] = ((picture.astype(np.float32) + colour) / 2).astype(np.uint8)[inside]
        np.testing.assert_array_equal(drawn, expected)


def test_run_lengths_begin_outside_and_join_columns() -> None:
    full = np.full((2, 2), 255, np.uint8)
    place = np.array([2, 2, 0, 0, 4, 4], np.float32)
    for box, lengths in (
        ((0, 0, 4, 4), [0, 16]),
        ((1, 0, 3, 4), [4, 8, 4]),
        ((1, 1, 3, 4), [5, 3, 1, 3, 4]),
        ((1.2, 0, 1.8, 4), [16]),  # between two columns
        ((4, 4, 4, 4), [16]),
        ((float("nan"), 0, 4, 4), [16]),
    ):
        size, counts = run_lengths(full, place, np.array(box, np.float32))
        assert (size, counts.tolist()) == ((4, 4), lengths)
    half = np.array([[255, 0], [255, 0]], np.uint8)
    assert run_lengths(half, place, np.array([0, 0, 4, 4]))[1].tolist() == [0, 8, 8]
    assert run_lengths(half.T, place, np.array([0, 0, 4, 4]))[1].tolist() == [0, 2, 2, 2, 2, 2, 2, 2, 2]


def test_a_broken_picture_beside_masks_fails_alone(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8_seg(tmp_path / "net.onnx"))
    bodies = [png(PICTURES[0]), b"no picture", png(PICTURES[1])]
    answers = model.send([{"content": body, "headers": {"Content-Type": "image/png"}} for body in bodies])
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    for pixels, answer in ((PICTURES[0], answers[0]), (PICTURES[1], answers[2])):
        assert decoded(answer.json()["predictions"][0]["mask"]).shape == pixels.shape[:2]
    outputs = model.run(*map(png, PICTURES[:2]))
    assert outputs["masks"].shape == (2, 100, 16, 16) and outputs["mask_geometry"].shape == (2, 6)
    for masks, count in zip(outputs["masks"], outputs["count"], strict=True):
        assert not masks[count:].any() and masks[:count].any((1, 2)).all()


def test_a_request_has_masks_of_the_boxes_that_it_asks_for(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8_seg(tmp_path / "net.onnx"))
    file = {"data": ("picture.png", png(PICTURES[0]), "image/png")}
    few, none = (
        answer.json()["predictions"]
        for answer in model.send([{"files": file, "data": {"score_threshold": text}} for text in ("0.95", "1")])
    )
    assert few == [record for record in model.predict(png(PICTURES[0]))[0]["predictions"] if record["score"] > 0.95]
    assert few and none == []


@pytest.mark.parametrize("head", ["yolov5", "end2end"])
def test_other_heads_have_masks(made: Make, tmp_path: Path, head: str) -> None:
    file = getattr(networks, f"{head}_seg")(tmp_path / "net.onnx")
    model, session = made(file, labels=",".join(networks.NAMES)), onnxruntime.InferenceSession(file)
    pixels = PICTURES[0]
    records = model.predict(png(pixels))[0]["predictions"]
    if head == "yolov5":
        check_masks(records, expected(session, pixels, objectness=True), pixels)
    else:
        canvas, _, left, top = letterbox(pixels)
        rows, prototypes = session.run(None, {"x": canvas.transpose(2, 0, 1)[None].astype(np.float32) / 255})
        wanted = []
        for row in rows[0][rows[0][:, 4] > 0.25]:
            cells = 1 / (1 + np.exp(-np.tensordot(row[6:], prototypes[0], 1)))
            box = source(row[:4], scales(pixels), left, top, pixels)
            wanted.append((box, int(row[5]), row[4], whole(cells, pixels, box)))
        check_masks(records, wanted, pixels)
    assert head in model.report and "16 x 16 cells for each box" in model.report


@pytest.mark.parametrize("opset", [12, 18])
def test_masks_in_other_opsets(made: Make, tmp_path: Path, opset: int) -> None:
    file = networks.yolov8_seg(tmp_path / "net.onnx", opset=opset)
    check_masks(
        made(file).predict(png(PICTURES[1]))[0]["predictions"],
        expected(onnxruntime.InferenceSession(file), PICTURES[1]),
        PICTURES[1],
    )


def test_masks_have_a_limit(tmp_path: Path) -> None:
    file = networks.yolov8_seg(tmp_path / "net.onnx", size=512)
    with pytest.raises(AttachError, match=r"masks of 5000 boxes have 81920000 bytes .* expected max:1 to max:4096"):
        attach(Wish(file, post="yolov8 max:5000"), "model")


def test_masks_may_be_left_out(made: Make, tmp_path: Path) -> None:
    model = made(networks.yolov8_seg(tmp_path / "net.onnx"), post="yolov8 output:output0 classes:3")
    (record, *_) = model.predict(png(PICTURES[0]))[0]["predictions"]
    assert record.keys() == {"box", "label", "score"} and "masks" not in model.run(png(PICTURES[0]))


def test_masks_are_described_and_checked(made: Make, tmp_path: Path, library: Path) -> None:
    model = made(networks.yolov8_seg(tmp_path / "net.onnx"))
    answer = model.predict(png(PICTURES[0]))[0]
    described = model.get("/openapi.json")["paths"]["/predict/model"]["post"]["responses"]["200"]["content"]
    schema = described["application/json"]["schema"]["anyOf"][0]
    jsonschema.validate(answer, schema)
    assert schema["properties"]["predictions"]["items"]["properties"]["mask"]["required"] == ["size", "counts"]
    config = model.folder / "config.pbtxt"
    text = config.read_text()
    for wrong, message in (
        ("masks,boxes,mask_geometry", r"expected three outputs, UINT8 \[k, h, w\], .* got masks UINT8 \[100, 16, 16\]"),
        ("masks,mask_geometry", "expected three outputs"),
        ("scores,mask_geometry,boxes", "expected three outputs"),
        ("masks,places,boxes", "'places' is not an output"),
    ):
        config.write_text(text.replace("masks,mask_geometry,boxes", wrong))
        with pytest.raises(AttachError, match=f"parameter 'predict_mask_outputs': {message}"):
            Served(model.folder, library)
