"""Measures the mean average precision on the 500 test scenes with pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from rich.progress import track

from models.digit_detector import reference
from models.digit_detector.dataset import CLASSES, TEST_SCENES, Floats, Scene, encode_jpeg, test_scenes
from models.graph_builder import DOMAIN


@dataclass(frozen=True, slots=True)
class Detections:
    """The detections in a picture: boxes f32 (k, 4) xyxy in its pixels, scores f32 (k,) descending, labels i32 (k,)."""

    boxes: Floats
    scores: Floats
    labels: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Precision:
    """Mean average precision over the classes at IoU 0.5 and at IoU 0.5:0.95, and the average precision of each class
    at IoU 0.5."""

    at_50: float
    at_50_95: float
    of_class: tuple[float, ...]


Detector = Callable[[bytes], Detections]
"""A function that returns the detections in an encoded picture."""


def fused_detector(repository: Path, ops_library: Path, score_threshold: float | None) -> Detector:
    """Returns a detector that runs the served file `digit_detector/1/model.onnx` with the op library."""
    model = onnx.load(repository / "digit_detector" / "1" / "model.onnx")
    if score_threshold is not None:
        _set_score_threshold(model, score_threshold)
    options = _options()
    options.register_custom_ops_library(str(ops_library.resolve()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def detect(encoded: bytes) -> Detections:
        data = np.frombuffer(encoded, np.uint8)
        feed = {"data": data, "ends": np.array([data.size], np.int32)}
        boxes, scores, labels, count, status = session.run(["boxes", "scores", "labels", "count", "status"], feed)
        if status[0] != 0:
            raise ValueError(f"the detector refused a picture with status {status[0]}")
        detected = int(count[0])
        return Detections(boxes[0, :detected], scores[0, :detected], labels[0, :detected])

    return detect


def reference_detector(repository: Path, score_threshold: float) -> Detector:
    """Returns a detector that runs `digit_network/1/model.onnx` in ONNX Runtime and the rest in NumPy.

    It needs no op library.
    """
    session = reference.network_session(repository / "digit_network" / "1" / "model.onnx", _options())

    def detect(encoded: bytes) -> Detections:
        image, geometry = reference.preprocess(encoded)
        (head,) = session.run(["head"], {"image": image})
        return Detections(*reference.postprocess(head, geometry, score_threshold=score_threshold))

    return detect


def evaluate(detect: Detector, scenes: int = TEST_SCENES) -> Precision:
    """Runs a detector on the first so many test scenes, as JPEGs of quality 90, and returns its precision."""
    truth: list[Scene] = []
    found: list[Detections] = []
    for scene in track(islice(test_scenes(), scenes), "evaluate", total=scenes):
        truth.append(scene)
        found.append(detect(encode_jpeg(scene.image)))
    return precision(truth, found)


def precision(truth: list[Scene], found: list[Detections]) -> Precision:
    """Returns COCO's mean average precision of the detections `found` in the scenes `truth`."""
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, (scene, detections) in enumerate(zip(truth, found, strict=True)):
        for box, label in zip(scene.boxes, scene.labels, strict=True):
            xywh = _xywh(box)
            annotation = {"id": len(annotations) + 1, "image_id": index, "category_id": int(label)}
            annotations.append(annotation | {"bbox": xywh, "area": xywh[2] * xywh[3], "iscrowd": 0})
        for box, score, label in zip(detections.boxes, detections.scores, detections.labels, strict=True):
            result = {"image_id": index, "category_id": int(label)}
            results.append(result | {"bbox": _xywh(box), "score": float(score)})
    if not results:
        raise ValueError("the detector found nothing in any scene")
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": i, "width": s.image.shape[1], "height": s.image.shape[0]} for i, s in enumerate(truth)],
            "categories": [{"id": label, "name": str(label)} for label in range(CLASSES)],
            "annotations": annotations,
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    curves = evaluation.eval["precision"][0, :, :, 0, -1]
    return Precision(float(evaluation.stats[1]), float(evaluation.stats[0]), tuple(curves.mean(0).tolist()))


def _xywh(box: Floats) -> list[float]:
    x1, y1, x2, y2 = (float(side) for side in box)
    return [x1, y1, x2 - x1, y2 - y1]


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def _set_score_threshold(model: onnx.ModelProto, value: float) -> None:
    """Changes the score_threshold of DetectionPostprocess in the model."""
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == "DetectionPostprocess":
            kept = [attribute for attribute in node.attribute if attribute.name != "score_threshold"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("score_threshold", value)])
