"""What the nodes of every head are made from, and what several of them add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.post import Answer, Post
from opgate.attach.model.report import AttachError, Report


class Named(Protocol):
    """The file of a network, and the texts in it."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Head:
    """What the nodes behind a network are made from. `outputs` are those of one random picture of `size`, height and
    width, or of what else a request has; `labels` those that are known so far. `others` yields what an output, by its
    name, is for others. `fixed` says that the network takes one picture at a time."""

    network: Named
    outputs: Sequence[Output]
    size: tuple[int, int]
    post: Post
    labels: Sequence[str] | None
    report: Report
    others: Callable[[str], Iterator[np.ndarray]]
    fixed: bool = False

    def rows(self, nodes: Nodes, x: str, rank: int) -> str:
        """Returns a tensor whose first axis is that of the rows. One of a network for one picture has a 1 there, from
        which the gateway would conclude that the model has no batch."""
        if not self.fixed:
            return x
        count = nodes.add("Shape", [nodes.rows], "rows")
        ones = nodes.ints("rows.others", [1] * (rank - 1))
        return nodes.add("Expand", [x, nodes.add("Concat", [count, ones], "rows.shape", axis=0)], "by_rows")

    def output(self, fits: Callable[[Output], bool], what: str) -> Output:
        """Returns the one output that fits. Raises AttachError."""
        found = [output for output in self.outputs if fits(output)]
        if len(found) != 1:
            shown = ", ".join(map(str, self.outputs))
            raise AttachError(f"--post: {self.post.kind} needs {what}, and the outputs are {shown}")
        return found[0]

    @property
    def pixels(self) -> list[float]:
        """The factors from 0..1 to pixels of the input, for x y x y."""
        height, width = self.size
        return [width, height, width, height]


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor [n, a, 4 + ...] or [n, 4 + ..., a] in f32 for DetectionPostprocess: boxes in pixels of the input, the
    objectness if there is one, `classes` probabilities, and other channels, which begin with the x and y of `points`.
    """

    name: str
    classes: int
    rows: bool
    objectness: bool = False
    corners: bool = False
    points: int = 0


#: What a decoder gives: the boxes, and from their tensor and the places of the kept ones the answers beside them.
Beside = Callable[[str], list[tuple[str, Answer]]]


def class_count(head: Head, channels: int, first: int, extra: int = 0) -> int:
    """Returns the number of classes among `channels`, of which `first` are no classes and `extra` follow them."""
    count = head.post.classes or channels - first - extra
    if not 0 < count <= channels - first:
        raise AttachError(
            f"--post: {head.post.kind} has {first} channels before its classes"
            f"{f' and {extra} behind' if extra else ''}, and the output has {channels} in all"
        )
    return count


def in_pixels(
    head: Head, value: np.ndarray, axis: int, *, corners: bool = False, scores: np.ndarray | None = None
) -> bool:
    """Returns whether boxes are in pixels, as a run shows, and reports it.

    `corners` says that the boxes are x1 y1 x2 y2. `scores`, if they are probabilities, has one for each box. Boxes
    without an area or a score are padding, and tell nothing.
    """
    words = head.post.words & {"pixels", "normalized"}
    if words:
        head.report.said("boxes", "in pixels of the input" if "pixels" in words else "within 0..1")
        return "pixels" in words
    boxes = np.moveaxis(value, axis, -1)[..., :4].reshape(-1, 4).astype(np.float64)
    sides = boxes[:, 2:] - boxes[:, :2] if corners else boxes[:, 2:]
    counts = (sides > 0).all(1) if scores is None else (sides > 0).all(1) & (scores.reshape(-1) > 0)
    if not counts.any():
        head.report.default("boxes", "in pixels of the input", "the run found none; the word normalized says otherwise")
        return True
    greatest = float(boxes[counts].max())
    pixels = greatest > 2
    head.report.ran("boxes", "in pixels of the input" if pixels else "within 0..1", f"up to {greatest:.4g}")
    return pixels


def none_there(nodes: Nodes, numbers: str) -> str:
    """Adds where i32 [n, most] are below 0, because there is no box: bool [n, most, 1, 1]."""
    below = nodes.add("Less", [numbers, nodes.constant("zero", 0, np.int32)], "points.unused")
    return nodes.reshape(below, [0, 0, 1, 1], "points.mask")


def in_source(nodes: Nodes, points: str, unused: str, *, to: str = "") -> str:
    """Adds points [n, most, k, 2] in pixels of the input as points of the source picture, 0 where `unused` is true."""
    geometry = nodes.reshape("geometry", [0, 1, 1, 6], "points.geometry")
    placed = nodes.add("Sub", [points, nodes.slice(geometry, 3, 2, 4, "points.origin")], "points.placed")
    scaled = nodes.add("Mul", [placed, nodes.slice(geometry, 3, 0, 2, "points.scale")], "points.scaled")
    return nodes.add("Where", [unused, nodes.constant("nothing", 0.0), scaled], "points.source", to=to)


def mapped_points(nodes: Nodes, kept: str, indices: str, most: int, count: int, numbers: int) -> tuple[str, Answer]:
    """Adds points [n, most, count * numbers] in pixels of the input as points of the source picture."""
    points = nodes.reshape(kept, [0, most, count, numbers], "points.each")
    unused = none_there(nodes, indices)
    xy = nodes.slice(points, 3, 0, 2, "points.xy")
    scaled = in_source(nodes, xy, unused, to="keypoints" if numbers == 2 else "")
    if numbers > 2:
        rest = nodes.slice(points, 3, 2, numbers, "points.scores")
        rest = nodes.add("Where", [unused, nodes.constant("nothing", 0.0), rest], "points.scores_used")
        nodes.add("Concat", [scaled, rest], "points.joined", to="keypoints", axis=3)
    return "keypoints", Answer("keypoints", "TYPE_FP32", (most, count, numbers))


def gathered(nodes: Nodes, x: str, indices: str, name: str) -> str:
    """Adds the rows of x [n, a, k] that `indices` i32 [n, most] name, [n, most, k]. An index of -1 gives row 0."""
    if nodes.opset < 12:
        raise AttachError(
            f"--post: this head needs opset 12, and the file has {nodes.opset}: convert it with onnx.version_converter"
        )
    held = nodes.add("Max", [indices, nodes.constant("zero", 0, np.int32)], f"{name}.held")
    wide = nodes.cast(held, 7, f"{name}.wide")
    places = nodes.reshape(wide, [0, 0, 1], f"{name}.places")
    return nodes.add("GatherND", [x, places], f"{name}.kept", batch_dims=1)


def grid(size: tuple[int, int], strides: Sequence[int], repeat: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns column and row of each cell, f32 [a, 2], and its stride, f32 [a, 1]. Each cell stands `repeat` times."""
    places, steps = [], []
    for stride in strides:
        rows, columns = np.mgrid[: size[0] // stride, : size[1] // stride]
        cell = np.stack([columns.ravel(), rows.ravel()], 1).repeat(repeat, 0)
        places.append(cell)
        steps.append(np.full((len(cell), 1), stride))
    return np.concatenate(places).astype(np.float32), np.concatenate(steps).astype(np.float32)
