"""Finds out what the outputs of a network are: the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opgate.attach.model.labels import KEYS, listed
from opgate.attach.model.outputs import Output, are_probabilities, class_axis
from opgate.attach.model.post import LABELS
from opgate.attach.model.report import AttachError, shape_text
from opgate.attach.pictures.facts import Network

#: The strides of the grids of most detectors, and with one for larger pictures.
STRIDES, STRIDES_P6 = (8, 16, 32), (8, 16, 32, 64)
#: How many queries a detector without anchors has at most.
_MOST_QUERIES = 1000
#: How many pixels of a side are a cell of a map that may be the grid of a detector.
_COARSE = 16
#: The least numbers of the distributions of four distances.
_DISTANCES = 8
_CLASS_NAMES = ("logit", "prob", "class", "softmax", "pred", "score", "label", "fetch_name")
_VECTOR_NAMES = ("embed", "feature", "vector", "pooler", "descriptor")


@dataclass(frozen=True, slots=True)
class Guess:
    """What a head may be: the word of --post, and why. `ran` says that the values of a run told it. One that is not
    `sure` has to be said."""

    kind: str
    why: str
    ran: bool = False
    sure: bool = True


def cells(height: int, width: int, strides: Sequence[int] = STRIDES) -> int:
    """Returns the number of cells of the grids over a picture."""
    return sum((height // stride) * (width // stride) for stride in strides)


def levels_of(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the rows and columns of the grids of 8, 16, 32 and 64 whose last cells may go beyond the picture."""
    return [(-(-size[0] // stride), -(-size[1] // stride)) for stride in STRIDES_P6]


def paired_levels(outputs: Sequence[Output], size: tuple[int, int]) -> list[tuple[Output, Output]]:
    """Returns for each stride the output with probabilities and the one with distributions of four distances, none if
    they aren't there."""
    anchors = [rows * columns for rows, columns in levels_of(size)][: len(outputs) // 2]
    if len(anchors) < len(STRIDES) or any(len(each.shape) != 3 for each in outputs):
        return []
    found = []
    for count in anchors:
        pair = [each for each in outputs if each.shape[1] == count]
        inside = [each for each in pair if float(each.value.min()) >= 0 and float(each.value.max()) <= 1]
        others = [
            each for each in pair if each not in inside and each.shape[2] % 4 == 0 and each.shape[2] >= _DISTANCES
        ]
        if len(pair) != 2 or len(inside) != 1 or len(others) != 1:
            return []
        found.append((inside[0], others[0]))
    return found if len(found) * 2 == len(outputs) else []


def recognise(network: Network, outputs: Sequence[Output], size: tuple[int, int]) -> list[Guess]:
    """Returns what the head may be, the likeliest first. One guess alone that is sure needs no word of the user.
    `outputs` are those of one random picture of `size`, height and width."""
    shapes = [output.shape for output in outputs]
    ranks = sorted(len(shape) for shape in shapes)
    if ranks == [3, 4] and (guess := _with_masks(outputs, size)):
        return [guess]
    if listed_boxes(outputs):
        return [Guess("boxes", "boxes, labels (integers) and scores")]
    if len(outputs) == 2 and (found := _boxes_and_scores(outputs)):
        return found
    if levels := paired_levels(outputs, size):
        return [Guess("picodet", f"for each of {len(levels)} strides probabilities and distributions, {levels[0][1]}")]
    if len(outputs) in (6, 9) and all(len(shape) in (2, 3) for shape in shapes):
        return [Guess("scrfd", f"{len(outputs)} outputs, for each stride scores, distances and points")]
    if len(outputs) == 1:
        if len(shapes[0]) == 3:
            return _three_axes(network, outputs[0], size) if shapes[0][1:] != size else _maps(network, outputs[0], size)
        if len(shapes[0]) == 2:
            return _two_axes(network, outputs[0])
        if len(shapes[0]) == 4:
            return _maps(network, outputs[0], size)
    return _one_of_several(network, outputs, size)


def _one_of_several(network: Network, outputs: Sequence[Output], size: tuple[int, int]) -> list[Guess]:
    """Returns the guess of the one output that is a head of YOLO among others, such as the maps that it is made of.
    Otherwise it returns what each output may be alone, and none of that is sure. Maps of different sizes are nothing:
    boxes may be made of them."""
    heads = [output for output in outputs if len(output.shape) == 3]
    found = _three_axes(network, heads[0], size) if len(heads) == 1 else []
    if len(found) == 1 and found[0].kind in ("yolov8", "yolov5"):
        return found
    maps = {output.shape for output in outputs if len(output.shape) == 4}
    if len(outputs) == 1 or len(maps) > 1:
        return []
    alone = [(output, recognise(network, [output], size)) for output in outputs]
    return [
        Guess(f"{guesses[0].kind} output:{output.name}", guesses[0].why, sure=False)
        for output, guesses in alone
        if len(guesses) == 1
    ]


def _with_masks(outputs: Sequence[Output], size: tuple[int, int]) -> Guess | None:
    """Returns a guess if one output has boxes and another the prototypes of their masks."""
    head, masks = sorted(outputs, key=lambda output: len(output.shape))
    if masks.shape[2:] != (size[0] // 4, size[1] // 4):
        return None
    anchors, (_, first, second) = (cells(*size), cells(*size, STRIDES_P6)), head.shape
    beside = f"and beside it the prototypes of masks {masks}"
    if second in anchors:
        return Guess("yolov8", f"{head} with the grids 8, 16, 32, {beside}")
    if first in [3 * count for count in anchors]:
        return Guess("yolov5", f"{head} with three anchors a cell, {beside}")
    if second == 6 + masks.shape[1] and first <= _MOST_QUERIES:
        return Guess("end2end", f"{head}: x1 y1 x2 y2 score class, and numbers for masks, {beside}")
    return None


def listed_boxes(outputs: Sequence[Output]) -> tuple[Output, Output, Output] | None:
    """Returns the outputs with boxes [k, 4] or [n, k, 4], their labels and their scores. None if they aren't there."""
    boxes = [each for each in outputs if each.shape[-1:] == (4,) and len(each.shape) in (2, 3)]
    if len(boxes) != 1:
        return None
    beside = [each for each in outputs if each.shape == boxes[0].shape[:-1]]
    labels, scores = ([each for each in beside if each.value.dtype.kind in kinds] for kinds in ("iu", "f"))
    return (boxes[0], labels[0], scores[0]) if len(labels) == len(scores) == 1 else None


def _boxes_and_scores(outputs: Sequence[Output]) -> list[Guess]:
    """Returns the guesses for boxes [n, a, 4] and scores [n, a, c], in any order."""
    if any(len(output.shape) != 3 for output in outputs) or outputs[0].shape[1] != outputs[1].shape[1]:
        return []
    a = outputs[0].shape[1]
    if a in (896, 2304) and sorted(output.shape[2] for output in outputs) == [1, 16]:
        return [Guess("blazeface", f"{a} anchors with 16 numbers for a box and 6 points, and a score")]
    if not any(output.shape[2] == 4 for output in outputs):
        return []
    if a <= _MOST_QUERIES:
        return [Guess("detr", f"{a} queries with boxes and a score for each class")]
    return [Guess("ssd", f"{a} boxes and a score for each class")]


def _three_axes(network: Network, output: Output, size: tuple[int, int]) -> list[Guess]:
    rows, first, second = output.shape
    anchors, larger = cells(*size), cells(*size, STRIDES_P6)
    grids = "anchors of the strides 8, 16, 32"
    if second in (anchors, larger) and first > 5 and network.metadata.get("task") == "obb":
        return [Guess("obb", f"{shape_text(output.shape)}: channels first, {second} {grids}, metadata 'task'")]
    if second in (anchors, larger) and first > 4:
        return [Guess("yolov8", f"{shape_text(output.shape)}: channels first, {second} {grids}")]
    if first in (3 * anchors, 3 * larger) and second > 5:
        return [Guess("yolov5", f"{shape_text(output.shape)}: 3 x {first // 3} {grids}, objectness")]
    if first in (anchors, larger) and second > 5:
        return _one_anchor_a_cell(network, output)
    if second == 6 and first <= _MOST_QUERIES and rows == 1:
        return [Guess("end2end", f"{shape_text(output.shape)}: x1 y1 x2 y2 score class of {first} detections")]
    character = listed(network.metadata.get("character", "")) or []
    if character and second in (len(character), len(character) + 1, len(character) + 2):
        return [Guess("ctc", f"{second} classes for the {len(character)} entries of the metadata 'character'")]
    if first <= _MOST_QUERIES and second > 4 and rows == 1 and _normalized(output.value[..., :4]) and second != 6:
        sums = _sums_to_one(output)
        if not sums and float(output.value[..., :4].min()) >= 0:
            detr = Guess("detr", f"{shape_text(output.shape)}: {first} queries, boxes within 0..1", ran=True)
            named = len(listed(network.metadata.get("names", "")) or ()) == second - 4
            return [detr] if named else [detr, Guess("ctc", f"{first} steps of {second} classes")]
    if second > 5:
        return [Guess("ctc", f"{shape_text(output.shape)}: steps and a score for each class")]
    return []


def _one_anchor_a_cell(network: Network, output: Output) -> list[Guess]:
    """[n, cells, 5 + classes]: the values of the boxes tell whether they are offsets in the grid."""
    boxes, channels = output.value[..., :4].astype(np.float64), output.shape[2]
    text = shape_text(output.shape)
    if (boxes[..., 2:] < 0).any() or boxes[..., :2].max() < 32:
        return [
            Guess("yolox", f"{text}: one anchor a cell, objectness, and its boxes are offsets in the grid", ran=True)
        ]
    names = listed(network.metadata.get("names", "")) or []
    if len(names) == channels - 4:
        return [Guess("yolov8 rows", f"{text}: boxes in pixels, {len(names)} classes", ran=True)]
    decoded = Guess("yolov5", f"boxes in pixels, objectness and {channels - 5} classes", ran=True)
    return [decoded] if len(names) == channels - 5 else [decoded, Guess("yolov8 rows", f"{channels - 4} classes")]


def _normalized(boxes: np.ndarray) -> bool:
    return bool(boxes.size) and float(np.abs(boxes).max()) <= 1.5


def _sums_to_one(output: Output) -> bool:
    return are_probabilities(output.value)


def _two_axes(network: Network, output: Output) -> list[Guess]:
    rows, count = output.shape
    name = output.name.lower()
    labels = [
        key for key, text in network.metadata.items() if (listed(text) or []) and len(listed(text) or []) == count
    ]
    classify = f"classify:{min(LABELS, count)}"
    if count > 1 and are_probabilities(output.value):
        return [Guess(classify, f"{shape_text(output.shape)}: its values sum to 1", ran=True)]
    if labels:
        return [Guess(classify, f"{count} classes, as the metadata '{labels[0]}' has")]
    if any(word in name for word in _VECTOR_NAMES):
        return [Guess("embed", f"the output is called {output.name}")]
    if count == 1000 or any(word in name for word in _CLASS_NAMES):
        return [Guess(classify, f"{count} classes, and the output is called {output.name}")]
    if rows != 1:
        return []
    return [Guess(classify, f"{count} classes"), Guess("embed", f"a vector of {count} numbers")]


def finds_text(network: Network) -> bool:
    """Returns whether the file may be a text detector of PaddleOCR: one map for a picture of any size."""
    if network.height is not None or network.width is not None or not of_paddle(network):
        return False
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in network.model.graph.output]
    return len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][1] in (0, 1)


def of_paddle(network: Network) -> bool:
    """Returns whether the file comes from Paddle, as the names in it tell."""
    graph = network.model.graph
    sides = [dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim]
    return (
        network.model.producer_name == "PaddlePaddle"
        or any(node.name.startswith("p2o.") for node in graph.node)
        or any(side.startswith(("p2o.", "DynamicDimension.")) for side in sides)
    )


def _maps(network: Network, output: Output, size: tuple[int, int]) -> list[Guess]:
    shape, values = shape_text(output.shape), output.value
    axis = class_axis(output.shape, size) if len(output.shape) == 4 else None
    classes = 1 if len(output.shape) == 3 else output.shape[axis] if axis else 0
    if classes == 1 and values.dtype.kind in "iu":
        return [Guess("segment", f"{shape}: the number of a class for each pixel")]
    if output.shape[1:] == (1, *size) and values.size and float(values.min()) >= 0 and float(values.max()) <= 1:
        text = Guess("db", f"{shape}: the probability of text for each pixel of a picture of any size")
        return [text] if finds_text(network) else [Guess("segment", f"{shape}: a map of one class"), text]
    if classes > 1:
        coarse = size[0] >= _COARSE * output.shape[2 if axis == 1 else 1]
        if not coarse or _says_segment(network, classes):
            return [Guess("segment", f"{shape}: a map for each of {classes} classes")]
        if output.shape[2:] == (1, 1):
            classify = f"classify:{min(LABELS, classes)}"
            return [Guess(classify, f"{classes} classes"), Guess("embed", f"a vector of {classes} numbers")]
        return [
            Guess("segment", f"a map for each of {classes} classes"),
            Guess("the grid of a detector", "its boxes aren't decoded: export it with them"),
        ]
    return [Guess("segment", f"{shape}: a map of one class", sure=False)] if classes else []


def _says_segment(network: Network, classes: int) -> bool:
    """Returns whether the metadata tell that maps of classes are there: by the task, or by as many labels."""
    counts = [len(listed(network.metadata.get(key, "")) or ()) for key in KEYS]
    return "segment" in network.metadata.get("task", "") or classes in counts


def unknown(outputs: Sequence[Output], guesses: Sequence[Guess]) -> AttachError:
    """Returns the error for a head that the file doesn't tell, with the two best guesses."""
    shown = " and ".join(f"'{output.name}' {shape_text(output.shape)}" for output in outputs)
    if guesses:
        best = " or ".join(f"{guess.kind} ({guess.why})" for guess in guesses[:2])
        said = "say which" if len(guesses) > 1 else "say so if that is what it is"
        return AttachError(f"--post: the output {shown} fits {best}: {said}")
    return AttachError(
        f"--post: the output {shown} is no head that opgate knows by its shape. Say it if it is one of yolov8, obb, "
        "yolov5, yolox, end2end, detr, ssd, boxes, picodet, nanodet, blazeface, scrfd, classify:5, embed, segment, db "
        "or ctc:FILE; otherwise export the network with another head, or serve it as it is"
    )
