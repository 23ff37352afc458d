"""Adds nodes to a graph in the form that its version of the standard operators wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

#: The domain of opgate's ops.
OPS = "opgate"
#: The versions of the standard operators that the nodes here are written for.
OLDEST_OPSET = 11


@dataclass(frozen=True, slots=True)
class Setting:
    """An input that a request may leave out: a number for each picture, from `least` to `most`, `whole` or any.

    `code` is the status of a row whose number is beyond its bounds.
    """

    default: float
    least: float = 0
    most: float = 1
    whole: bool = False
    code: int = 0

    @property
    def datatype(self) -> str:
        """The type in a config."""
        return "TYPE_INT32" if self.whole else "TYPE_FP32"


@dataclass(slots=True)
class Nodes:
    """Nodes and constants that are added to a network. All names of tensors begin with `prefix`, but for those that a
    caller chooses. `opset` is the version of the standard operators. `settings` are inputs that a request may leave
    out, `rows` is a tensor of one axis, that of the rows, and `shapes` says what an engine can't conclude: an op of its
    own has outputs of any shape for it, and it leaves nodes that compute shapes in the graph."""

    opset: int
    prefix: str
    rows: str = "ends"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    shapes: list[onnx.ValueInfoProto] = field(default_factory=list)

    def add(
        self, op: str, inputs: Sequence[str], name: str, *, domain: str = "", to: str = "", **attributes: Any
    ) -> str:
        """Adds a node with one output, called `to` or else <prefix><name>. Returns the output's name."""
        free = self._free(name)
        self.nodes.append(helper.make_node(op, inputs, [to or free], name=free, domain=domain, **attributes))
        return to or free

    def add_op(self, op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attributes: Any) -> None:
        """Adds a node of an op of opgate. Its outputs have exactly these names."""
        self.nodes.append(helper.make_node(op, inputs, outputs, name=self._free(name), domain=OPS, **attributes))

    def _free(self, name: str) -> str:
        taken = {name for node in self.nodes for name in (node.name, *node.output)} | self.constants.keys()
        output, number = f"{self.prefix}{name}", 1
        while output in taken:
            number += 1
            output = f"{self.prefix}{name}.{number}"
        return output

    def constant(self, name: str, value: npt.ArrayLike, dtype: Any = np.float32) -> str:
        """Adds a constant. Returns its name."""
        output = self._free(name)
        self.constants[output] = numpy_helper.from_array(np.ascontiguousarray(np.asarray(value, dtype)), output)
        return output

    def ints(self, name: str, values: Sequence[int]) -> str:
        """Adds a constant of int64."""
        return self.constant(name, list(values), np.int64)

    def cast(self, x: str, dtype: int, name: str = "cast", *, to: str = "") -> str:
        """Adds a Cast to a type of onnx.TensorProto."""
        free = self._free(name)
        self.nodes.append(helper.make_node("Cast", [x], [to or free], name=free, to=dtype))
        return to or free

    def slice(self, x: str, axis: int, start: int, end: int, name: str) -> str:
        """Adds the part start..end of an axis."""
        ends = self.ints(f"{name}.end", [end])
        return self.add("Slice", [x, self.ints(f"{name}.start", [start]), ends, self.ints("axis", [axis])], name)

    def reshape(self, x: str, shape: Sequence[int], name: str, *, to: str = "") -> str:
        """Adds a Reshape: 0 keeps a size, -1 takes the rest."""
        return self.add("Reshape", [x, self.ints(f"{name}.shape", shape)], name, to=to)

    def fitted(self, x: str, rank: int, axis: int, size: int, pad: str, name: str, *, to: str = "") -> str:
        """Adds x, which has so many axes, cut or padded behind its end to a size along one of them. `pad` is the
        constant that stands there."""
        shape = self.add("Shape", [x], f"{name}.shape")
        there = self.slice(shape, 0, axis, axis + 1, f"{name}.there")
        missing = self.add("Sub", [self.ints(f"{name}.size", [size]), there], f"{name}.missing")
        behind = [self.add("Max", [missing, self.ints(f"{name}.none", [0])], f"{name}.behind")]
        if after := rank - axis - 1:
            behind.append(self.ints(f"{name}.after", [0] * after))
        pads = self.add("Concat", [self.ints(f"{name}.before", [0] * (rank + axis)), *behind], f"{name}.pads", axis=0)
        longer = self.add("Pad", [x, pads, pad], f"{name}.longer")
        ends = self.ints(f"{name}.end", [size])
        return self.add(
            "Slice", [longer, self.ints(f"{name}.start", [0]), ends, self.ints("axis", [axis])], name, to=to
        )

    def mask(self, x: str, axis: int, count: str) -> str:
        """Adds f32 [n, k]: 1 for the first `count` i32 [n] of the k entries of each row along an axis of x, else 0."""
        size = self.reshape(
            self.slice(self.add("Shape", [x], "mask.shape"), 0, axis, axis + 1, "mask.size"), [], "mask.k"
        )
        zero, one = self.constant("zero", 0, np.int64), self.constant("one", 1, np.int64)
        places = self.add("Range", [zero, size, one], "mask.places")
        ends = self.reshape(self.cast(count, TensorProto.INT64, "mask.count"), [-1, 1], "mask.ends")
        return self.cast(self.add("Less", [places, ends], "mask.there"), TensorProto.FLOAT, "mask")

    def reduce(self, op: str, x: str, axis: int, name: str, *, keepdims: bool = True, to: str = "") -> str:
        """Adds ReduceMax, ReduceSum, ... over one axis."""
        since = 13 if op == "ReduceSum" else 18
        if self.opset < since:
            return self.add(op, [x], name, to=to, axes=[axis], keepdims=int(keepdims))
        return self.add(op, [x, self.ints("axis", [axis])], name, to=to, keepdims=int(keepdims))

    def softmax(self, x: str, rank: int, name: str, *, to: str = "") -> str:
        """Adds a softmax over the last axis. Before opset 13 the last axis alone is meant by its number, too."""
        return self.add("Softmax", [x], name, to=to, axis=rank - 1)

    def float(self, x: str, dtype: str, name: str) -> str:
        """Returns a tensor in f32: itself, or behind a Cast."""
        return x if dtype == "f32" else self.cast(x, TensorProto.FLOAT, name)
