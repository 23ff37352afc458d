"""A thin layer over `onnx.helper` that adds nodes in order and gives every tensor a readable name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

DOMAIN = "opgate"
IR_VERSION = 10
OPSET = 20

TensorSpec = tuple[str, int, Sequence[int | str]]
"""A graph input or output: its name, its `onnx.TensorProto` type, its dims (a str is a symbolic size)."""


@dataclass(slots=True)
class GraphBuilder:
    """Collects the nodes and constants of a graph. `model` makes an ONNX model of them."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def add(
        self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], *, domain: str = "", **attributes: Any
    ) -> str:
        """Adds a node, which gets the name of its first output. Returns that name."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(op, inputs, names, name=names[0], domain=domain, **attributes))
        return names[0]

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        """Adds a constant unless the graph has one of that name. Returns the name."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def model(self, name: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> onnx.ModelProto:
        """Returns the graph as a model that imports the standard operators and those of opgate."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(*spec) for spec in inputs],
            [helper.make_tensor_value_info(*spec) for spec in outputs],
            initializer=list(self.constants.values()),
        )
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="opgate")
