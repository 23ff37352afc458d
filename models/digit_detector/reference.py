"""The detector without the op library: the network in plain ONNX Runtime, pre- and postprocessing in NumPy."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from PIL import Image

from models.digit_detector.dataset import INPUT_SIZE, PAD, Floats
from models.graph_builder import DOMAIN


def network_session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Opens `digit_network` with the standard operator Mish in place of opgate::Mish. Both compute the same."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.domain = ""
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def preprocess(jpeg: bytes) -> tuple[Floats, Floats]:
    """Computes ImagePreprocess for one JPEG: returns image f32 (1, 3, 320, 320) and geometry f32 (1, 6)."""
    picture = Image.open(io.BytesIO(jpeg))
    w, h = picture.size
    ratio = min(INPUT_SIZE / w, INPUT_SIZE / h)
    nw, nh = (max(1, math.floor(side * ratio + 0.5)) for side in (w, h))
    left, top = (INPUT_SIZE - nw) // 2, (INPUT_SIZE - nh) // 2
    reduction = next(s for s in (8, 4, 2, 1) if s == 1 or (math.ceil(w / s) >= nw and math.ceil(h / s) >= nh))
    picture.draft("RGB", (w // reduction, h // reduction))
    pixels = np.asarray(picture.convert("RGB"), np.float32)
    resized = _resize(_resize(pixels, nh, 0), nw, 1)
    image = np.full((1, 3, INPUT_SIZE, INPUT_SIZE), PAD / 255, np.float32)
    image[0, :, top : top + nh, left : left + nw] = resized.transpose(2, 0, 1) / 255
    return image, np.array([[w / nw, h / nh, left, top, w, h]], np.float32)


def _resize(pixels: Floats, size: int, axis: int) -> Floats:
    """Resizes along one axis by bilinear interpolation with two taps and half-pixel centres."""
    length = pixels.shape[axis]
    where = np.clip((np.arange(size) + 0.5) * (length / size) - 0.5, 0, length - 1)
    low = np.floor(where).astype(np.int64)
    high = np.minimum(low + 1, length - 1)
    shape = [1, 1, 1]
    shape[axis] = size
    part = (where - low).astype(np.float32).reshape(shape)
    resized: Floats = np.take(pixels, low, axis) * (1 - part) + np.take(pixels, high, axis) * part
    return resized


def postprocess(
    head: Floats, geometry: Floats, *, score_threshold: float, iou_threshold: float = 0.5, max_detections: int = 100
) -> tuple[Floats, Floats, npt.NDArray[np.int32]]:
    """Computes DetectionPostprocess for one picture: head (1, 14, a) -> boxes (k, 4), scores (k,), labels (k,)."""
    centre, size = head[0, :2].T, head[0, 2:4].T
    boxes = np.concatenate([centre - size / 2, centre + size / 2], 1)
    labels, anchors = np.nonzero(head[0, 4:] > score_threshold)
    scores = head[0, 4:][labels, anchors]
    order = np.lexsort((labels, anchors, -scores))
    kept: list[int] = []
    for candidate in order:
        same = [k for k in kept if labels[k] == labels[candidate]]
        if not same or _iou(boxes[anchors[candidate]], boxes[anchors[same]]).max() <= iou_threshold:
            kept.append(int(candidate))
        if len(kept) == max_detections:
            break
    ratio, offset, limit = geometry[0, :2], geometry[0, 2:4], geometry[0, 4:]
    corners = boxes[anchors[kept]].reshape(-1, 2, 2)
    placed = np.clip((corners - offset) * ratio, 0, limit).reshape(-1, 4)
    return placed.astype(np.float32), scores[kept], labels[kept].astype(np.int32)


def _iou(box: Floats, others: Floats) -> Floats:
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.maximum(sides, 0).prod(1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - common
    iou: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return iou
