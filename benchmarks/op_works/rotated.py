"""What is turned: rotated boxes, their features, and crops of pictures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.op_works import Array, Call, Inputs, Work, torch_peer
from benchmarks.op_works.images import opencv, photograph

IOU, BINS, SAMPLES = 0.3, 7, 2


def opencv_nms(cv2: object, inputs: Inputs) -> Call:
    boxes, scores = inputs["boxes"][0].tolist(), inputs["scores"][0, 0].tolist()
    rectangles = [((x, y), (w, h), float(np.degrees(angle))) for x, y, w, h, angle in boxes]
    return lambda: cv2.dnn.NMSBoxesRotated(rectangles, scores, 0.05, IOU)  # type: ignore[attr-defined]


def grid_sample(image: Tensor, rois: Tensor) -> Tensor:
    """One picture: the samples of all regions are below one another."""
    _, c, h, w = image.shape
    cx, cy, width, height, angle = rois[:, 1:].T
    cosine, sine = torch.cos(angle), torch.sin(angle)
    across = torch.stack([width * cosine / w, -height * sine / w, 2 * cx / w - 1], 1)
    down = torch.stack([width * sine / h, height * cosine / h, 2 * cy / h - 1], 1)
    side = BINS * SAMPLES
    grid = functional.affine_grid(torch.stack([across, down], 1), [len(rois), c, side, side], align_corners=False)
    samples = functional.grid_sample(image, grid.reshape(1, -1, side, 2), padding_mode="border", align_corners=False)
    return functional.avg_pool2d(samples.reshape(c, -1, side, side).transpose(0, 1), SAMPLES)


def opencv_crops(cv2: object, inputs: Inputs) -> Call:
    image, matrices = inputs["image"][0], inputs["matrix"]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP  # type: ignore[attr-defined]

    def call() -> object:
        crops = [cv2.warpAffine(image, one, (112, 112), flags=flags) for one in matrices]  # type: ignore[attr-defined]
        return cv2.dnn.blobFromImages(crops, 1 / 255)  # type: ignore[attr-defined]

    return call


def boxes(rng: np.random.Generator, count: int, spread: float) -> Array:
    centres = rng.uniform(0, spread, (count // 8, 2))[rng.integers(0, count // 8, count)] + rng.normal(0, 3, (count, 2))
    sides, angles = rng.uniform(8, 40, (count, 2)), rng.uniform(-1.5, 1.5, (count, 1))
    return np.concatenate([centres, sides, angles], 1).astype(np.float32)


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for count, spread in [(300, 200), (2000, 500), (10_000, 2000)]:
        inputs = {
            "boxes": boxes(rng, count, spread)[None],
            "scores": rng.uniform(0.1, 1, (1, 1, count)).astype(np.float32),
        }
        yield Work(
            "NMSRotated", f"{count} boxes", inputs, (opencv("cv2.dnn.NMSBoxesRotated", opencv_nms),),
            {"iou_threshold": IOU, "max_detections": count}, moved=0,
        )  # fmt: skip
    for count, c, h, w in [(8, 64, 50, 76), (100, 256, 25, 38), (512, 256, 100, 152)]:
        low, high = [[10], [10], [3], [3], [-3]], [[w - 10], [h - 10], [30], [30], [3]]
        rois = np.stack([np.zeros(count), *rng.uniform(low, high, (5, count))], 1).astype(np.float32)
        yield Work(
            "RoiAlignRotated", f"{count} of {c} x {h} x {w}",
            {"input": rng.standard_normal((1, c, h, w), np.float32), "rois": rois},
            (torch_peer("torch's grid_sample and avg_pool2d", grid_sample, "input", "rois"),),
            {"output_height": BINS, "output_width": BINS, "sampling_ratio": SAMPLES, "clockwise": True},
        )  # fmt: skip
    for count in (1, 16, 64):
        matrices = []
        for _ in range(count):
            angle, scale = rng.uniform(-0.5, 0.5), rng.uniform(0.6, 1.5)
            a, b = scale * np.cos(angle), scale * np.sin(angle)
            matrices.append([[a, -b, rng.uniform(300, 900)], [b, a, rng.uniform(300, 500)]])
        yield Work(
            "WarpAffine", f"{count} crops of 112 x 112 of 1080p",
            {"image": photograph(1920, 1080)[None], "matrix": np.array(matrices, np.float32)},
            (opencv("cv2.warpAffine and blobFromImages", opencv_crops),),
            {"height": 112, "width": 112, "maps_to": "image"}, moved=0,
        )  # fmt: skip
