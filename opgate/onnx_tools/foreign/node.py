"""What a rewrite of a foreign node reads: the node's inputs, attributes, constants and known shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: Attributes that say nothing about the result: TensorRT's plugins and mmcv's kernels have them.
IGNORED = ("plugin_version", "plugin_namespace", "name", "im2col_step")

_KINDS: Mapping[int, str] = {
    AttributeProto.INT: "an integer",
    AttributeProto.INTS: "a list of integers",
    AttributeProto.FLOAT: "a float",
    AttributeProto.FLOATS: "a list of floats",
    AttributeProto.STRING: "a string",
    AttributeProto.STRINGS: "a list of strings",
    AttributeProto.TENSOR: "a tensor",
    AttributeProto.GRAPH: "a graph",
}


class Refused(Exception):
    """A foreign node can't be rewritten. The message says why."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """How a foreign op is rewritten.

    `names` are the names of the op, domain::type; the domain * stands for every domain, because TensorRT's parser
    ignores it. `inputs` and `outputs` are the names that the body uses, optional ones with ?. `attributes` are the
    names of all attributes that the op may have. `body` returns the nodes that replace the node, see `bodies`; it
    raises Refused. `op` is the op of opgate that the body uses, or domain::type of another. `note` says how the results
    may differ.
    """

    names: tuple[str, ...]
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: Callable[[ForeignNode], str]
    attributes: tuple[str, ...] = ()
    note: str = ""

    @property
    def becomes(self) -> str:
        """What a report calls the op."""
        return self.op if "::" in self.op else f"opgate::{self.op}"


@dataclass(frozen=True)
class ForeignNode:
    """A node that is to be rewritten, and what is known of the model around it."""

    node: NodeProto
    rewrite: Foreign
    values: Values
    opset: int
    _attributes: Mapping[str, AttributeProto] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_attributes", {attribute.name: attribute for attribute in self.node.attribute})

    def check(self) -> None:
        """Raises Refused if the node has inputs, outputs or attributes that the op doesn't have."""
        least = sum(not name.endswith("?") for name in self.rewrite.inputs)
        most, got = len(self.rewrite.inputs), len(self.node.input)
        if not least <= got <= most:
            expected = str(most) if least == most else f"{least} to {most}"
            raise Refused(f"expected {expected} inputs, got {got}")
        for index, name in enumerate(self.rewrite.inputs[:got]):
            if not name.endswith("?") and not self.node.input[index]:
                raise Refused(f"input {index} ({name}) is absent")
        if len(self.node.output) > len(self.rewrite.outputs):
            raise Refused(f"expected {len(self.rewrite.outputs)} outputs, got {len(self.node.output)}")
        known = (*self.rewrite.attributes, *IGNORED)
        for name in self._attributes:
            if name not in known:
                expected = ", ".join(self.rewrite.attributes) or "none"
                raise Refused(f"attribute '{name}' is unknown: expected {expected}")

    def has(self, index: int) -> bool:
        """Returns whether the node has the input `index`."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an attribute. Raises Refused if it is of another type, or absent without a default."""
        value: int = self._attribute(name, AttributeProto.INT, default)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns an attribute that is a float, see `integer`."""
        value: float = self._attribute(name, AttributeProto.FLOAT, default)
        return value

    def integers(self, name: str, length: int, default: list[int] | None = None) -> list[int]:
        """Returns an attribute that is a list of `length` integers, see `integer`."""
        value = list(self._attribute(name, AttributeProto.INTS, default))
        if len(value) != length:
            raise Refused(f"attribute '{name}': expected {length} integers, got {len(value)}")
        return value

    def _attribute(self, name: str, kind: int, default: Any) -> Any:
        attribute = self._attributes.get(name)
        if attribute is None:
            if default is None:
                raise Refused(f"attribute '{name}' is missing")
            return default
        if attribute.type != kind:
            got = _KINDS.get(attribute.type, "something else")
            raise Refused(f"attribute '{name}': expected {_KINDS[kind]}, got {got}")
        return onnx.helper.get_attribute_value(attribute)

    def constant(self, index: int) -> Array | None:
        """Returns the value of an input if it is a constant of the model, else None."""
        return self.values.constant(self.node.input[index])

    def scalar(self, index: int) -> int:
        """Returns the value of an input that is a constant integer with one element. Raises Refused."""
        label = f"input {index} ({self.rewrite.inputs[index]})"
        value = self.constant(index)
        if value is None:
            raise Refused(f"{label} is not a constant of the model, and {self.rewrite.becomes} has it as an attribute")
        if value.size != 1 or value.dtype.kind not in "iu":
            raise Refused(f"{label}: expected one integer, got {value.dtype} of shape {list(value.shape)}")
        return int(value.reshape(()))

    def rank(self, index: int) -> int | None:
        """Returns the rank of an input, or None if it is not known."""
        shape = self.values.shape(self.node.input[index])
        return None if shape is None else len(shape)

    def size(self, index: int, axis: int) -> int | None:
        """Returns a size of an input, or None if it is not known."""
        shape = self.values.shape(self.node.input[index])
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        return size if isinstance(size, int) else None

    def dtype(self, index: int) -> str | None:
        """Returns the dtype of an input, such as "f32", or None if it is not known."""
        return self.values.dtype(self.node.input[index])

    def output_rank(self, index: int) -> int | None:
        """Returns the rank that the model states for an output, or None."""
        shape = self.values.shape(self.node.output[index])
        return None if shape is None else len(shape)


def cast(output: str, tensor: str, dtype: str) -> str:
    """Returns the node of a body that converts a tensor."""
    return f"{output} = Cast <to = {TensorProto.DataType.Value(DTYPES[dtype].onnx)}> ({tensor})"


def one(values: Array) -> float | None:
    """Returns the value of a tensor with one element, or None."""
    return float(np.asarray(values).reshape(())) if np.size(values) == 1 else None
