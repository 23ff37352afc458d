"""What the file of a network tells: its picture input, its outputs, its metadata."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from opgate.attach.model.outputs import Output, name_of
from opgate.attach.model.report import AttachError, Report, shape_text
from opgate.onnx_tools.sessions import session
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: Operators that scale a picture in front of the network: then the network takes bytes.
_SCALING = {"Div", "Sub", "Mul", "Add"}
_PASSING = {"Cast", "Transpose", "Identity"}


@dataclass(frozen=True, slots=True)
class Network:
    """A network that takes pictures.

    `input` is the input for pictures, with `channels` in the place of `layout` (NCHW or NHWC). A size that the file
    leaves open is None, and so is an open batch. `metadata` are the texts in the file. `scales` says that the network
    divides bytes itself. `sizes` is an input for the width and height of each picture, or "".
    `libraries` have ops that the network uses.
    """

    path: Path
    model: onnx.ModelProto
    input: str
    dtype: str
    layout: str
    channels: int
    height: int | None
    width: int | None
    batch: int | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    scales: bool = False
    sizes: str = ""
    libraries: tuple[Path, ...] = ()

    def open(self, model: onnx.ModelProto) -> ort.InferenceSession:
        """Returns a session of a model with the weights and ops of the network. Raises SessionError."""
        return session(model, self.libraries, self.path.resolve().parent)

    def shape(self, rows: int, height: int, width: int) -> tuple[int, ...]:
        """Returns the shape of a batch of pictures."""
        if self.layout == "NCHW":
            return rows, self.channels, height, width
        return rows, height, width, self.channels

    def pictures(self, rows: int, height: int, width: int, *, bytes_: bool, seed: int = 0) -> Array:
        """Returns random pictures in the range 0..1, or 0..255 if `bytes_`, in the type of the input."""
        values = np.random.default_rng(seed).random(self.shape(rows, height, width), np.float32)
        scaled = values * 255 if bytes_ or self.dtype == "u8" else values
        return scaled.astype(DTYPES[self.dtype].numpy)

    def outputs(self, model: onnx.ModelProto, height: int, width: int, *, bytes_: bool = False) -> tuple[Output, ...]:
        """Runs a model with the network's input on one random picture. Raises SessionError and AttachError."""
        opened = self.open(model)
        feed = {self.input: self.pictures(1, height, width, bytes_=bytes_)}
        names = [output.name for output in opened.get_outputs()]
        try:
            values = opened.run(names, feed)
        except Exception as error:  # the classes of onnxruntime's exceptions share no other base
            raise AttachError(
                f"{self.path.name} fails on a picture of {shape_text(feed[self.input].shape)}: {error}"
            ) from None
        return tuple(
            Output(name, name_of(value), value)
            for name, value in zip(names, values, strict=True)
            if isinstance(value, np.ndarray)
        )


def read_network(
    path: Path, model: onnx.ModelProto, name: str, report: Report, libraries: tuple[Path, ...] = ()
) -> Network:
    """Returns what a file tells of its network. `name` is the input that the user named, or "". `libraries` have ops
    that it may use. Raises AttachError."""
    values = Values(model, path.resolve().parent)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in initializers]
    chosen = _picture_input(path, values, inputs, name)
    shape = list(values.shape(chosen) or ())
    sizes = [size if isinstance(size, int) and size > 0 else None for size in shape]
    layout, channels = _layout(path, model, chosen, sizes, values)
    height, width = (sizes[2], sizes[3]) if layout == "NCHW" else (sizes[1], sizes[2])
    dtype = values.dtype(chosen) or ""
    if dtype not in ("f32", "f16", "u8"):
        raise AttachError(f"{path.name}: its input '{chosen}' has the type {dtype}: expected f32, f16 or u8")
    others = [name for name in inputs if name != chosen]
    asking = [name for name in others if _takes_sizes(name, values)]
    if len(asking) == 1 == len(others):
        report.found("sizes", asking[0], "gets the width and height of the input, so that boxes are in its pixels")
    elif others:
        raise AttachError(
            f"{path.name}: it needs {', '.join(others)} beside the picture '{chosen}': give the file a default for it "
            "(an initializer of that name), or export it without"
        )
    network = Network(
        path,
        model,
        chosen,
        dtype,
        layout,
        channels,
        height,
        width,
        sizes[0],
        {entry.key: entry.value for entry in model.metadata_props},
        _scales(chosen, values),
        "".join(others),
        libraries,
    )
    report.found("input", f"{chosen} {dtype}{shape_text(shape)}", f"{layout}, {channels} channels")
    if network.scales:
        report.found("range", "bytes", "the network itself scales them")
    return network


def _takes_sizes(name: str, values: Values) -> bool:
    """Returns whether an input takes the width and height of each picture, as that of RT-DETR and D-FINE does."""
    shape = values.shape(name) or ()
    return len(shape) == 2 and shape[1] == 2 and "size" in name and values.dtype(name) in ("i64", "i32", "f32")


def with_sizes(model: onnx.ModelProto, name: str, height: int, width: int) -> onnx.ModelProto:
    """Returns a copy in which the input `name` is a constant: width and height of one picture."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (value,) = (value for value in copy.graph.input if value.name == name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.array([[width, height]], dtype), name))
    copy.graph.input.remove(value)
    copy.ir_version = max(copy.ir_version, 4)
    return copy


def _picture_input(path: Path, values: Values, inputs: Sequence[str], name: str) -> str:
    described = ", ".join(f"{other} {values.dtype(other)}{shape_text(values.shape(other) or ())}" for other in inputs)
    if name and name not in inputs:
        raise AttachError(f"--input: {path.name} has no input '{name}': expected one of {described or 'none'}")
    pictures = [other for other in inputs if len(values.shape(other) or ()) == 4]
    if name:
        pictures = [name] if name in pictures else []
    if not pictures:
        for shape in (values.shape(other) or () for other in inputs):
            if len(shape) == 3 and shape[0] in (1, 3):
                raise AttachError(
                    f"{path.name} takes a picture without an axis for the batch: its inputs are {described}. Export it "
                    f"with a picture of the shape {shape_text([1, *shape])}"
                )
        raise AttachError(
            f"{path.name} takes no picture: its inputs are {described or 'none'}. The input for one has rank 4, with 1 "
            "or 3 channels. --pre says what else a request has: a tokenizer.json for texts, pcm:16000 or "
            "log-mel:whisper for sounds, head:1024 for files, columns for rows of a table"
        )
    if len(pictures) > 1:
        raise AttachError(f"--input: which input takes the picture? {path.name} has {described}")
    return pictures[0]


def _layout(
    path: Path, model: onnx.ModelProto, name: str, sizes: Sequence[int | None], values: Values
) -> tuple[str, int]:
    """Returns the layout of the picture and the number of its channels. Raises AttachError."""
    first, last = sizes[1], sizes[3]
    fits = [
        (layout, size) for layout, size in (("NCHW", first), ("NHWC", last)) if size is not None and size in (1, 3, 4)
    ]
    if not fits:
        for node in values.consumers.get(name, []):
            weights = values.constant(node.input[1]) if node.op_type == "Conv" else None
            if weights is not None:
                groups = next((a.i for a in node.attribute if a.name == "group"), 1)
                fits = [("NCHW", int(weights.shape[1]) * groups)]
    if len(fits) == 2 and sizes[2] == sizes[3]:
        fits = fits[:1]  # [n, 3, 4, 4] is a picture of 4 x 4, not one of 3 x 4 with 4 channels
    if len(fits) != 1 or fits[0][1] not in (1, 3):
        raise AttachError(
            f"{path.name}: expected 1 or 3 channels in the second or the last dim of '{name}', got {shape_text(sizes)}"
        )
    return fits[0]


def _scales(name: str, values: Values) -> bool:
    """Returns whether the first nodes scale the picture by constants."""
    if values.dtype(name) == "u8":
        return True
    while True:
        nodes = values.consumers.get(name, [])
        if len(nodes) != 1:
            return False
        node = nodes[0]
        if node.op_type in _SCALING and not node.domain:
            others = [values.constant(other) for other in node.input if other != name]
            return any(_of_bytes(node.op_type, value) for value in others if value is not None and value.size)
        if node.op_type not in _PASSING:
            return False
        name = node.output[0]


def _of_bytes(op: str, value: Array) -> bool:
    """Returns whether a constant belongs to bytes: a mean beyond 1, a divisor such as 58 or 255, or a factor of about
    1/255. A factor of 2 or a divisor of 0.5 belongs to pictures of 0..1."""
    greatest = float(np.abs(value).max())
    if op == "Mul":
        return greatest < 0.02
    return greatest >= 16 if op == "Div" else greatest > 1.5


def sizes_in(text: str) -> tuple[int, int] | None:
    """Reads a size of a picture: [640, 640], 640 or (320, 416), height first. None if it is none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    if isinstance(value, int):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) >= 2 and all(isinstance(size, int) for size in value):
        return int(value[-2]), int(value[-1])
    return None
