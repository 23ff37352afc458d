"""Small networks that find colours: what a head of each kind gives, without weights that somebody trained.

Each cell of the grids with the strides 8, 16 and 32 is an anchor. The probability of a class is the mean of a colour channel over the cell, so that a red
square in a picture is a detection of class 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STRIDES = (8, 16, 32)
NAMES = ("red", "green", "blue")


@dataclass
class Net:
    """A network in the making: x is the picture, [n, 3, size, size]."""

    size: int = 64
    batch: int | str = "batch"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: object, dtype: type = np.float32) -> str:
        if name not in {tensor.name for tensor in self.constants}:
            self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def save(
        self,
        path: Path,
        outputs: Mapping[str, Sequence[int | str]],
        *,
        metadata: Mapping[str, str] | None = None,
        shape: Sequence[int | str] | None = None,
        opset: int = 17,
        dtype: int = TensorProto.FLOAT,
        types: Mapping[str, int] | None = None,
    ) -> Path:
        graph = helper.make_graph(
            self.nodes,
            "colours",
            [helper.make_tensor_value_info("x", dtype, shape or [self.batch, 3, self.size, self.size])],
            [
                helper.make_tensor_value_info(name, (types or {}).get(name, TensorProto.FLOAT), [self.batch, *dims])
                for name, dims in outputs.items()
            ],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        for key, value in (metadata or {}).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(model, path)
        return path

    @property
    def anchors(self) -> int:
        return sum((self.size // stride) ** 2 for stride in STRIDES)

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Column and row of each cell [a, 2], and its stride [a, 1]."""
        places, strides = [], []
        for stride in STRIDES:
            rows, columns = np.mgrid[: self.size // stride, : self.size // stride]
            places.append(np.stack([columns.ravel(), rows.ravel()], 1))
            strides.append(np.full((places[-1].shape[0], 1), stride))
        return np.concatenate(places).astype(np.float32), np.concatenate(strides).astype(np.float32)

    def boxes(self) -> np.ndarray:
        """Centre and size of each cell in pixels [a, 4]."""
        places, strides = self.grid()
        return np.concatenate([(places + 0.5) * strides, strides, strides], 1)

    def probabilities(self, x: str = "x", last: int | str = -1) -> str:
        """Adds the mean of each channel over each cell, [n, 3, a]. `last` is what stands for the batch in Reshape."""
        parts = []
        first = 0 if last == -1 else 1
        for stride in STRIDES:
            pooled = self.add("AveragePool", [x], f"pooled{stride}", kernel_shape=[stride] * 2, strides=[stride] * 2)
            shape = self.constant("cells", [first, 3, -1], np.int64)
            parts.append(self.add("Reshape", [pooled, shape], f"flat{stride}"))
        return self.add("Concat", parts, "probabilities", axis=2)

    def beside(self, probabilities: str, values: np.ndarray, name: str) -> str:
        """Adds constants [k, a] for each picture, [n, k, a]."""
        one = self.add("Slice", [probabilities, *self._ends()], f"{name}_one")
        zero = self.add("Mul", [one, self.constant("nothing", 0)], f"{name}_zero")
        return self.add("Add", [zero, self.constant(f"{name}_values", values[None])], name)

    def _ends(self) -> list[str]:
        return [self.constant(f"int{i}", [i], np.int64) for i in (0, 1, 1)]


def yolov8(path: Path, *, fixed: bool = False, **options: object) -> Path:
    """[n, 4 + 3, a]: centre and size in pixels, probabilities."""
    net = Net(batch=1 if fixed else "batch")
    found = net.probabilities(last=1 if fixed else -1)
    net.add("Concat", [net.beside(found, net.boxes().T, "boxes"), found], "output0", axis=1)
    names = "{" + ", ".join(f"{i}: '{name}'" for i, name in enumerate(NAMES)) + "}"
    metadata = {"names": names, "imgsz": "[64, 64]", "stride": "32", "task": "detect"}
    return net.save(path, {"output0": [7, net.anchors]}, metadata=metadata, **options)  # type: ignore[arg-type]


def _rows(net: Net, found: str, columns: np.ndarray, name: str) -> str:
    """Adds [n, a, k + 3]: k constants for each anchor, and the probabilities."""
    joined = net.add("Concat", [net.beside(found, columns.T, "columns"), found], "joined", axis=1)
    return net.add("Transpose", [joined], name, perm=[0, 2, 1])


def yolov5(path: Path) -> Path:
    """[n, 3 a, 5 + 3]: three anchors a cell, of which the last two have no object."""
    net = Net()
    found = net.probabilities()
    ones = np.ones((net.anchors, 1), np.float32)
    first = _rows(net, found, np.concatenate([net.boxes(), ones], 1), "first")
    none = net.add("Mul", [first, net.constant("no_object", [[[1, 1, 1, 1, 0, 1, 1, 1]]])], "none")
    net.add("Concat", [first, none, none], "output", axis=1)
    return net.save(path, {"output": [3 * net.anchors, 8]})


def yolov5_with_maps(path: Path) -> Path:
    """The head of YOLOv5 beside the maps that it was made of."""
    model = onnx.load(yolov5(path))
    model.graph.output.append(helper.make_tensor_value_info("pooled8", TensorProto.FLOAT, ["batch", 3, 8, 8]))
    model.graph.output.append(helper.make_tensor_value_info("pooled16", TensorProto.FLOAT, ["batch", 3, 4, 4]))
    onnx.save(model, path)
    return path


def yolox(path: Path, *, fixed: bool = True) -> Path:
    """[n, a, 5 + 3] for pictures of bytes in BGR: offsets in the grid, logarithms of sizes, objectness."""
    net = Net(batch=1 if fixed else "batch")
    scaled = net.add("Mul", ["x", net.constant("byte", 1 / 254.99)], "scaled")
    # A network without a first Mul by a constant, which would tell that it takes bytes.
    net.nodes[-1].op_type = "Div"
    net.constants[-1].CopyFrom(numpy_helper.from_array(np.float32(254.99), "byte"))
    channels = net.add("Gather", [scaled, net.constant("rgb", [2, 1, 0], np.int64)], "rgb_x", axis=1)
    found = net.probabilities(channels, last=1 if fixed else -1)
    a = net.anchors
    columns = np.concatenate([np.full((a, 2), 0.5), np.zeros((a, 2)), np.ones((a, 1))], 1).astype(np.float32)
    _rows(net, found, columns, "output")
    return net.save(path, {"output": [a, 8]})


def end2end(path: Path, *, count: int = 20) -> Path:
    """[n, 20, 6]: x1 y1 x2 y2 score class of the best class of the first cells of stride 8."""
    net = Net()
    found = net.probabilities()
    boxes = net.boxes()
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    best = net.add("ReduceMax", [found], "best", axes=[1], keepdims=1)
    kind = net.add("ArgMax", [found], "kind", axis=1, keepdims=1)
    kind = net.add("Cast", [kind], "kind_f", to=TensorProto.FLOAT)
    joined = net.add("Concat", [net.beside(found, corners.T, "corners"), best, kind], "joined", axis=1)
    rows = net.add("Transpose", [joined], "all_rows", perm=[0, 2, 1])
    ends = [net.constant(name, [value], np.int64) for name, value in (("zero", 0), ("count", count), ("rows_axis", 1))]
    net.add("Slice", [rows, *ends], "output0")
    return net.save(path, {"output0": [count, 6]})


def detr(path: Path, *, logits: bool) -> Path:
    """boxes [n, a, 4] within 0..1, and probabilities or logits [n, a, 3]."""
    net = Net()
    found = net.probabilities()
    boxes = net.beside(found, net.boxes().T / net.size, "boxes_columns")
    net.add("Transpose", [boxes], "pred_boxes", perm=[0, 2, 1])
    rows = net.add("Transpose", [found], "scores_rows", perm=[0, 2, 1])
    if logits:
        moved = net.add("Sub", [rows, net.constant("half", 0.5)], "moved")
        net.add("Mul", [moved, net.constant("steep", 20)], "logits")
    else:
        net.add("Identity", [rows], "logits")
    return net.save(path, {"pred_boxes": [net.anchors, 4], "logits": [net.anchors, 3]})


def rt_detr(path: Path) -> Path:
    """[n, a, 4 + 3]: boxes within 0..1 and probabilities in one output, as Ultralytics exports RT-DETR."""
    net = Net(size=96)
    found = net.probabilities()
    joined = net.add("Concat", [net.beside(found, net.boxes().T / net.size, "boxes"), found], "joined", axis=1)
    rows = net.add("Transpose", [joined], "rows", perm=[0, 2, 1])
    ends = [net.constant(name, [value], np.int64) for name, value in (("zero", 0), ("hundred", 100), ("one", 1))]
    net.add("Slice", [rows, *ends], "output0")
    return net.save(path, {"output0": [100, 7]}, metadata={"names": "{0: 'red', 1: 'green', 2: 'blue'}"})


def classifier(path: Path, *, softmax: bool = False, name: str = "logits", **options: object) -> Path:
    """[n, 3]: how much of each colour there is."""
    net = Net(size=32)
    pooled = net.add("GlobalAveragePool", ["x"], "pooled")
    flat = net.add("Flatten", [pooled], "flat" if softmax else name)
    if softmax:
        net.add("Softmax", [flat], name, axis=1)
    return net.save(path, {name: [3]}, **options)  # type: ignore[arg-type]


def lines(
    path: Path,
    *,
    steps_first: bool,
    width: int | str = "width",
    channels: int = 1,
    opset: int = 17,
    levels: Sequence[float] = tuple(np.linspace(-1, 1, 6)),
) -> Path:
    """A reader of lines of 16 rows: each 8 columns are a step, and the class is the nearest of the levels of grey, as a
    rule fifths."""
    net = Net()
    grey = net.add("ReduceMean", ["x"], "grey", axes=[1], keepdims=1)
    pooled = net.add("AveragePool", [grey], "pooled", kernel_shape=[16, 8], strides=[16, 8])
    row = net.add("Squeeze", [pooled, net.constant("row_axis", [1, 2], np.int64)], "row")
    steps = net.add("Unsqueeze", [row, net.constant("last", [2], np.int64)], "steps")
    each = net.constant("levels", np.array(levels)[None, None])
    near = net.add("Abs", [net.add("Sub", [steps, each], "from_level")], "distance")
    scores = net.add("Mul", [near, net.constant("minus", -30)], "scores" if steps_first else "out")
    if steps_first:
        net.add("Transpose", [scores], "out", perm=[1, 0, 2])
    net.batch = "N"
    graph_outputs = {"out": ["steps", 6]}
    made = net.save(path, graph_outputs, shape=["N", channels, 16, width], opset=opset)
    if steps_first:
        model = onnx.load(made)
        dims = model.graph.output[0].type.tensor_type.shape.dim
        dims[0].dim_param, dims[1].dim_param = "steps", "N"
        onnx.save(model, made)
    return made


def boxes_in_three(path: Path, *, sizes: bool = False) -> Path:
    """boxes [k, 4], labels [k] and scores [k] of one picture: of the cells of stride 8 with a bright colour. With `sizes`
    [n, 20, 4], [n, 20] and [n, 20] in the size of the input `orig_target_sizes`."""
    net = Net(batch="batch" if sizes else 1)
    found = net.probabilities(last=-1)
    centres = net.boxes()[:20]
    corners = np.concatenate([centres[:, :2] - centres[:, 2:] / 2, centres[:, :2] + centres[:, 2:] / 2], 1)
    ends = [net.constant(name, [value], np.int64) for name, value in (("zero", 0), ("twenty", 20), ("two", 2))]
    first = net.add("Slice", [found, *ends], "first")
    best = net.add("ReduceMax", [first], "best", axes=[1], keepdims=0)
    kind = net.add("ArgMax", [first], "kind", axis=1, keepdims=0)
    if sizes:
        moved = net.beside(first, corners.T / net.size, "corners")
        rows = net.add("Transpose", [moved], "rows", perm=[0, 2, 1])
        scale = net.add("Tile", ["orig_target_sizes", net.constant("twice", [1, 2], np.int64)], "scale")
        wide = net.add(
            "Cast", [net.add("Unsqueeze", [scale, net.constant("one", [1], np.int64)], "scales")], "wide", to=1
        )
        net.add("Mul", [rows, wide], "boxes")
        net.add("Identity", [kind], "labels")
        net.add("Identity", [best], "scores")
    else:
        bright = net.add("Greater", [best, net.constant("half", 0.5)], "bright")
        mask = net.add("Squeeze", [bright, net.constant("row_axis", [0], np.int64)], "mask")
        for name, values in (("labels", kind), ("scores", best)):
            flat = net.add("Squeeze", [values, "row_axis"], f"{name}_flat")
            net.add("Compress", [flat, mask], name, axis=0)
        net.add("Compress", [net.constant("corners", corners), mask], "boxes", axis=0)
    outputs = {"boxes": [20, 4], "labels": [20], "scores": [20]}
    made = net.save(path, outputs, types={"labels": TensorProto.INT64})
    model = onnx.load(made)
    if sizes:
        model.graph.input.append(helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, ["batch", 2]))
    else:
        del model.graph.output[:]
        for name, kind_of, dims in (("boxes", 1, ["k", 4]), ("labels", 7, ["k"]), ("scores", 1, ["k"])):
            model.graph.output.append(helper.make_tensor_value_info(name, kind_of, dims))
    onnx.save(model, made)
    return made


def ssd(path: Path) -> Path:
    """Corners within 0..1 [n, a, 4], and logits [n, a, 1 + 3] of which the first is the background."""
    net = Net()
    found = net.probabilities()
    boxes = net.boxes() / net.size
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    net.add("Transpose", [net.beside(found, corners.T, "corners")], "boxes", perm=[0, 2, 1])
    none = net.beside(found, np.full((1, net.anchors), 0.5, np.float32), "none")
    rows = net.add("Transpose", [net.add("Concat", [none, found], "all", axis=1)], "rows", perm=[0, 2, 1])
    net.add("Mul", [rows, net.constant("steep", 12)], "scores")
    return net.save(path, {"boxes": [net.anchors, 4], "scores": [net.anchors, 4]})


def segmenter(path: Path) -> Path:
    """[n, 3, 8, 8]: how much of each colour each part has."""
    net = Net()
    net.add("AveragePool", ["x"], "maps", kernel_shape=[8, 8], strides=[8, 8])
    return net.save(path, {"maps": [3, 8, 8]})


def _red(net: Net, stride: int, repeat: int, name: str) -> str:
    """Adds the mean of red over each cell, `repeat` times, [n, a, 1]."""
    kernel = {"kernel_shape": [stride] * 2, "strides": [stride] * 2}
    pooled = net.add("AveragePool", ["x"], f"{name}_pooled", ceil_mode=1, **kernel)
    red = net.add("Gather", [pooled, net.constant("first_channel", [0], np.int64)], f"{name}_red", axis=1)
    rows = net.add("Reshape", [red, net.constant("as_rows", [0, -1, 1], np.int64)], f"{name}_rows")
    wide = net.add("Tile", [rows, net.constant(f"repeat{repeat}", [1, 1, repeat], np.int64)], f"{name}_wide")
    return net.add("Reshape", [wide, "as_rows"], name)


def _columns(net: Net, rows: str, values: np.ndarray, name: str) -> str:
    """Adds constants [a, k] beside [n, a, 1], [n, a, k]."""
    zero = net.add("Mul", [rows, net.constant("nothing", 0)], f"{name}_zero")
    return net.add("Add", [zero, net.constant(f"{name}_values", values[None])], name)


def blazeface(path: Path) -> Path:
    """[n, 896, 16] and [n, 896, 1] for pictures of 128 x 128: boxes of 20 x 24 pixels, 2 to the right of the centre of each
    red cell, and points beside it."""
    net = Net(size=128)
    parts = [_red(net, 8, 2, "small"), _red(net, 16, 6, "large")]
    red = net.add("Concat", parts, "red", axis=1)
    logits = net.add(
        "Sub", [net.add("Mul", [red, net.constant("steep", 20)], "steeper"), net.constant("ten", 15)], "classificators"
    )
    values = np.tile(np.array([2, 0, 20, 24, *range(12)], np.float32), (896, 1))
    _columns(net, logits, values, "regressors")
    return net.save(path, {"regressors": [896, 16], "classificators": [896, 1]})


def scrfd(path: Path) -> Path:
    """Nine outputs: for each stride a probability, distances of the sides and of five points, two anchors a cell."""
    net, outputs = Net(), {}
    for stride in STRIDES:
        rows = 2 * (net.size // stride) ** 2
        score = _red(net, stride, 2, f"score_{stride}")
        sides = np.tile(np.array([0, 0, 1, 1], np.float32), (rows, 1))
        points = np.tile(np.arange(10, dtype=np.float32) / 10, (rows, 1))
        _columns(net, score, sides, f"bbox_{stride}")
        _columns(net, score, points, f"kps_{stride}")
        outputs |= {f"score_{stride}": [rows, 1], f"bbox_{stride}": [rows, 4], f"kps_{stride}": [rows, 10]}
    return net.save(path, outputs)


def _spread(rows: int, sides: Sequence[int]) -> np.ndarray:
    """Returns distributions [rows, 32] that are sure of four distances, in strides."""
    one = np.full((4, 8), -20, np.float32)
    one[np.arange(4), sides] = 20
    return np.tile(one.reshape(32), (rows, 1))


def picodet(path: Path) -> Path:
    """Two outputs for each of four strides: how red each cell is, and distances of 1, 0, 1, 2 strides. The size is no
    multiple of the greatest stride."""
    net, scores, sides = Net(size=96), dict[str, Sequence[int | str]](), dict[str, Sequence[int | str]]()
    for stride in (*STRIDES, 64):
        rows = (-(-net.size // stride)) ** 2
        _red(net, stride, 1, f"score{stride}")
        _columns(net, f"score{stride}", _spread(rows, (1, 0, 1, 2)), f"sides{stride}")
        scores[f"score{stride}"], sides[f"sides{stride}"] = [rows, 1], [rows, 32]
    return net.save(path, {**scores, **sides})


def nanodet(path: Path) -> Path:
    """[n, a, 2 + 32]: how red each cell of four strides is, twice, and distances of 1, 0, 1, 2 strides."""
    net = Net(size=128)
    strides = (*STRIDES, 64)
    red = net.add("Concat", [_red(net, stride, 1, f"red{stride}") for stride in strides], "red", axis=1)
    rows = sum((net.size // stride) ** 2 for stride in strides)
    _columns(net, red, _spread(rows, (1, 0, 1, 2)), "sides")
    net.add("Concat", [red, red, "sides"], "out", axis=2)
    return net.save(path, {"out": [rows, 34]})


def yolov8_pose(path: Path) -> Path:
    """[n, 4 + 1 + 3 x 2, a]: a class, and two points with a score each, at the corner and the centre of each cell."""
    net = Net()
    found = net.probabilities()
    ends = [net.constant(name, [value], np.int64) for name, value in (("zero", 0), ("one", 1))]
    red = net.add("Slice", [found, *ends, "one"], "red")
    boxes = net.boxes()
    ones = np.ones((net.anchors, 1), np.float32)
    corner = boxes[:, :2] - boxes[:, 2:] / 2
    points = np.concatenate([corner, 0.9 * ones, boxes[:, :2], 0.8 * ones], 1)
    parts = [net.beside(found, boxes.T, "boxes"), red, net.beside(found, points.T, "points")]
    net.add("Concat", parts, "output0", axis=1)
    metadata = {"names": "{0: 'person'}", "task": "pose", "kpt_shape": "[2, 3]", "imgsz": "[64, 64]"}
    return net.save(path, {"output0": [11, net.anchors]}, metadata=metadata)


def padded(
    path: Path, *, above: float = 0.9, batch: int | str = "batch", mixes: bool = False, channel: int | None = None
) -> Path:
    """[n, 20, 6] as end2end, with two boxes in pictures that are brighter than `above` in the mean, else zeros. `mixes` looks
    at the brightest picture of a batch, `channel` at one channel."""
    net = Net(batch=batch)
    x = "x"
    if channel is not None:
        x = net.add("Gather", ["x", net.constant("one_channel", [channel], np.int64)], "channel", axis=1)
    mean = net.add("ReduceMean", [x], "mean", axes=[1, 2, 3], keepdims=1)
    rows = net.add("Reshape", [mean, net.constant("three_axes", [-1, 1, 1], np.int64)], "rows")
    if mixes:
        brightest = net.add("ReduceMax", [rows], "brightest", axes=[0], keepdims=1)
        nothing = net.add("Mul", [rows, net.constant("nothing", 0)], "none")
        rows = net.add("Add", [nothing, brightest], "brightest_rows")
    found = net.add("Greater", [rows, net.constant("above", above)], "found")
    boxes = np.zeros((1, 20, 6), np.float32)
    boxes[0, :2] = [[10, 10, 40, 40, 0.9, 0], [20, 30, 60, 50, 0.8, 1]]
    net.add("Mul", [net.add("Cast", [found], "ones", to=TensorProto.FLOAT), net.constant("boxes", boxes)], "output0")
    return net.save(path, {"output0": [20, 6]}, metadata={"names": "{0: 'cat', 1: 'dog'}"})


def with_metadata(file: Path, **metadata: str) -> Path:
    """Puts texts into a file in place of those that it has."""
    model = onnx.load(file)
    helper.set_model_props(model, metadata)
    onnx.save(model, file)
    return file


def head_of_yolov8(path: Path, classes: int, *, maps: tuple[int, int] | None = None, **metadata: str) -> Path:
    """[n, 4 + classes, a] with one box of class 0, and beside it `maps`: channels, and the stride of their grid."""
    net = Net()
    found = net.probabilities()
    values = np.zeros((4 + classes, net.anchors), np.float32)
    values[:4] = np.array([[32], [32], [20], [20]])
    values[4, 5] = 0.9
    pooled = net.add("ReduceMean", [found], "level", axes=[1, 2], keepdims=1)
    zero = net.add("Mul", [pooled, net.constant("nothing", 0)], "level_zero")
    net.add("Add", [zero, net.constant("head", values[None])], "output0")
    outputs: dict[str, Sequence[int | str]] = {"output0": [4 + classes, net.anchors]}
    if maps:
        channels, stride = maps
        weights = net.constant("maps_weights", np.ones((channels, 3, stride, stride)) / stride**2)
        net.add("Conv", ["x", weights], "maps", kernel_shape=[stride] * 2, strides=[stride] * 2)
        outputs["maps"] = [channels, net.size // stride, net.size // stride]
    return net.save(path, outputs, metadata=metadata)


def scores(path: Path, weights: np.ndarray, *last: str, dtype: int = TensorProto.FLOAT) -> Path:
    """[n, c]: the means of the channels times weights [3, c], and the operators in `last` behind it."""
    net = Net(size=32)
    pooled = net.add("GlobalAveragePool", ["x"], "pooled")
    x = net.add("MatMul", [net.add("Flatten", [pooled], "flat"), net.constant("weights", weights)], "product")
    for number, op in enumerate(last):
        x = net.add(op, [x], f"last{number}")
    net.add("Cast", [x], "scores_out", to=dtype)
    return net.save(path, {"scores_out": [weights.shape[1]]}, types={"scores_out": dtype})


def maps(path: Path, *, channels: int, last: bool = False, logits: bool = False) -> Path:
    """[n, channels, 8, 8] or [n, 8, 8, channels]: the mean of the first channels in each cell, less 0.5 as a logit, or its
    sigmoid."""
    net = Net()
    pooled = net.add("AveragePool", ["x"], "pooled", kernel_shape=[8, 8], strides=[8, 8])
    places = net.constant("first_channels", list(range(channels)), np.int64)
    x = net.add("Gather", [pooled, places], "some", axis=1)
    moved = net.add("Sub", [x, net.constant("half", 0.5)], "moved")
    x = net.add("Mul", [moved, net.constant("steep", 9)], "steeper")
    x = x if logits else net.add("Sigmoid", [x], "probable")
    net.add("Transpose", [x], "maps", perm=[0, 2, 3, 1] if last else [0, 1, 2, 3])
    return net.save(path, {"maps": [8, 8, channels] if last else [channels, 8, 8]})


def yolov8_obb(path: Path, angle: float, *, fixed: bool = False, task: str = "obb") -> Path:
    """[n, 4 + 3 + 1, a]: yolov8 whose boxes are twice as wide as their cells, and turned by an angle."""
    net = Net(batch=1 if fixed else "batch")
    found = net.probabilities(last=1 if fixed else -1)
    boxes = net.boxes().T * np.array([[1], [1], [2], [1]])
    turned = net.beside(found, np.full((1, net.anchors), angle, np.float32), "angle")
    net.add("Concat", [net.beside(found, boxes.astype(np.float32), "boxes"), found, turned], "output0", axis=1)
    metadata = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "imgsz": "[64, 64]", "task": task}
    return net.save(path, {"output0": [8, net.anchors]}, metadata=metadata)


def _prototypes(net: Net, found: str, cell: int) -> str:
    """Adds prototypes of masks, [n, 4, size / cell, size / cell]: the three colours of each cell, and 1."""
    colours = net.add("AveragePool", ["x"], "colours_of_cells", kernel_shape=[cell] * 2, strides=[cell] * 2)
    one = net.add("Slice", [colours, *net._ends()], "one_colour")
    zero = net.add("Mul", [one, net.constant("nothing", 0)], "no_colour")
    ones = net.add("Add", [zero, net.constant("all", 1)], "ones")
    return net.add("Concat", [colours, ones], "prototypes", axis=1)


def yolov8_seg(path: Path, *, fixed: bool = False, size: int = 64, **options: object) -> Path:
    """yolov8 with masks: [n, 4 + 3 + 4, a] and prototypes [n, 4, size / 4, size / 4]. The numbers of a class for its masks
    give logits of 12 (colour - 1/2)."""
    net = Net(size=size, batch=1 if fixed else "batch")
    found = net.probabilities(last=1 if fixed else -1)
    kind = net.add("ArgMax", [found], "kind", axis=1, keepdims=1)
    which = net.add("Equal", [kind, net.constant("kinds", [[[0], [1], [2]]], np.int64)], "which")
    own = net.add("Mul", [net.add("Cast", [which], "one_hot", to=1), net.constant("steep", 12)], "own")
    parts = [net.beside(found, net.boxes().T, "boxes"), found, own]
    parts.append(net.beside(found, np.full((1, net.anchors), -6, np.float32), "offset"))
    net.add("Concat", parts, "output0", axis=1)
    _prototypes(net, found, 4)
    metadata = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "imgsz": f"[{size}, {size}]", "task": "segment"}
    outputs = {"output0": [11, net.anchors], "prototypes": [4, size // 4, size // 4]}
    return net.save(path, outputs, metadata=metadata, **options)  # type: ignore[arg-type]


def yolov5_seg(path: Path) -> Path:
    """yolov5 with masks: [n, 3 a, 5 + 3 + 4], with the numbers of a colour for the masks, and prototypes."""
    net = Net()
    found = net.probabilities()
    ones = np.ones((net.anchors, 1), np.float32)
    columns = [net.beside(found, np.concatenate([net.boxes(), ones], 1).T, "columns"), found]
    columns.append(net.beside(found, np.tile([[12], [0], [0], [-6]], (1, net.anchors)).astype(np.float32), "numbers"))
    joined = net.add("Concat", columns, "joined", axis=1)
    first = net.add("Transpose", [joined], "first", perm=[0, 2, 1])
    none = net.add("Mul", [first, net.constant("no_object", [[[1] * 4 + [0] + [1] * 7]])], "none")
    net.add("Concat", [first, none, none], "output0", axis=1)
    _prototypes(net, found, 4)
    return net.save(path, {"output0": [3 * net.anchors, 12], "prototypes": [4, 16, 16]})


def end2end_seg(path: Path) -> Path:
    """[n, 40, 6 + 4] as end2end, with the numbers of a colour for the masks, and prototypes."""
    model = onnx.load(end2end(path, count=64))
    net = Net()
    net.nodes, net.constants = list(model.graph.node), list(model.graph.initializer)
    net.nodes[-1].output[0] = "found"
    zero = net.add(
        "Mul",
        [
            net.add("Slice", ["found", *net._ends()[:2], net.constant("two", [2], np.int64)], "column"),
            net.constant("nothing", 0),
        ],
        "zeros",
    )
    numbers = net.add("Add", [zero, net.constant("numbers_values", [[[12, 0, 0, -6]]])], "numbers")
    net.add("Concat", ["found", numbers], "output0", axis=2)
    _prototypes(net, "probabilities", 4)
    return net.save(path, {"output0": [64, 10], "prototypes": [4, 16, 16]})


def listed(path: Path, *, keypoints: bool = False, masks: bool = False) -> Path:
    """boxes_in_three with keypoints [k, 2, 3] (two corners of each box) and their scores [k, 2], or with masks
    [k, 1, 64, 64], as torchvision exports them: where red is above one half."""
    model = onnx.load(boxes_in_three(path))
    net = Net(batch=1)
    net.nodes, net.constants = list(model.graph.node), list(model.graph.initializer)
    outputs: dict[str, Sequence[int | str]] = {}
    if keypoints:
        points = net.add("Reshape", ["boxes", net.constant("as_points", [-1, 2, 2], np.int64)], "corner_points")
        ones = net.add("Slice", [points, *(net.constant(f"end{i}", [i], np.int64) for i in (0, 1, 2))], "first_column")
        ones = net.add(
            "Add", [net.add("Mul", [ones, net.constant("nothing", 0)], "zeros"), net.constant("seen", 1)], "ones"
        )
        net.add("Concat", [points, ones], "keypoints", axis=2)
        net.add("Squeeze", [ones, net.constant("last_axis", [2], np.int64)], "keypoints_scores")
        outputs |= {"keypoints": ["k", 2, 3], "keypoints_scores": ["k", 2]}
    if masks:
        red = net.add("Gather", ["x", net.constant("first_channel", [0], np.int64)], "red", axis=1)
        shape = net.add("Shape", ["scores"], "how_many")
        ones = net.add("Concat", [shape, net.constant("one_each", [1, 1, 1], np.int64)], "masks_shape", axis=0)
        net.add("Expand", [red, ones], "masks")
        outputs["masks"] = ["k", 1, 64, 64]
    made = net.save(path, {})
    saved = onnx.load(made)
    saved.graph.output.extend(model.graph.output)
    saved.graph.output.extend(helper.make_tensor_value_info(name, 1, dims) for name, dims in outputs.items())
    onnx.save(saved, made)
    return made


def two_maps(path: Path, *, side: int = 8) -> Path:
    """Maps of three classes in two outputs, as a segmenter with an auxiliary head has them, the second of side x side."""
    net = Net()
    net.add("AveragePool", ["x"], "out", kernel_shape=[8, 8], strides=[8, 8])
    cell = net.size // side
    net.add("AveragePool", ["x"], "aux", kernel_shape=[cell] * 2, strides=[cell] * 2)
    return net.save(path, {"out": [3, 8, 8], "aux": [3, side, side]})


def direction(path: Path) -> Path:
    """[n, 2] for lines [n, 3, 16, 48]: whether the right half is brighter, and whether the left one is."""
    net = Net()
    halves = []
    for number, name in enumerate(("left", "right")):
        places = [
            net.constant(f"{name}{i}", [value], np.int64) for i, value in enumerate((24 * number, 24 * number + 24, 3))
        ]
        half = net.add("Slice", ["x", *places], f"{name}_half")
        halves.append(net.add("ReduceMean", [half], name, axes=[1, 2, 3], keepdims=0))
    brighter = net.add("Sub", halves[::-1], "brighter")
    both = net.add(
        "Mul",
        [
            net.add("Unsqueeze", [brighter, net.constant("one", [1], np.int64)], "column"),
            net.constant("signs", [[20, -20]]),
        ],
        "both",
    )
    net.add("Softmax", [both], "probabilities", axis=1)
    return net.save(path, {"probabilities": [2]}, shape=["batch", 3, 16, 48])


def text_map(path: Path, *, size: int | None = None, paddle: bool = True, logits: bool = False) -> Path:
    """[n, 1, h, w]: how dark each pixel is, as a probability or a logit. `paddle` names nodes as PaddleOCR's export does."""
    net = Net()
    weights = net.constant("darker", np.full((1, 3, 1, 1), -4.0))
    net.add("Conv", ["x", weights], "map" if logits else "level")
    if not logits:
        net.add("Sigmoid", ["level"], "map")
    if paddle:
        for number, node in enumerate(net.nodes):
            node.name = f"p2o.{node.op_type}.{number}"
    sides = [size or "height", size or "width"]
    return net.save(path, {"map": [1, *sides]}, shape=["batch", 3, *sides])
