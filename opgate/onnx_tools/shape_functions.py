"""Shape functions of somebody's ops, which a Python file has, and shape inference through a whole graph with them.

A file has one of these forms:

shape_functions = {"ai.graphcore::LeakyRelu": function}

where `function(node, inputs)` gets the NodeProto, and for each input (element type, shape), or None if that is not
known. It returns (element type, shape) for each output, or None if it can't tell them. Element types are numbers of
TensorProto.

@register_shape_func(["LeakyRelu"]) class LeakyRelu(ShapeFunc): ...

is the form of Graphcore's PopRT. Such a file imports names of poprt. While the file runs, they are those of this
module: register_shape_func (or register), ShapeFunc (or ShapeInference), get_shape and get_dtype, from poprt.passes,
poprt.passes.onnx_helper or poprt.passes.shape_inference. Nothing else of poprt is there.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

#: What a shape function is, in PopRT's form: it returns the model and whether it knew the shapes.
ShapeFunction = Callable[[ModelProto, NodeProto], tuple[ModelProto, bool]]


class ShapeFunctionError(ValueError):
    """A file of shape functions can't be used, a function in it fails, or shapes contradict each other."""


def get_shape(graph: GraphProto, name: str) -> list[int | str] | None:
    """Returns the shape of a tensor, or None if it is not known. An open dim is its name, or -1."""
    for tensor in graph.initializer:
        if tensor.name == name:
            return list(tensor.dims)
    value = _value(graph, name)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or -1 for dim in dims]


def get_dtype(graph: GraphProto, name: str) -> int | None:
    """Returns the element type of a tensor as a number of TensorProto, or None if it is not known."""
    for tensor in graph.initializer:
        if tensor.name == name:
            return int(tensor.data_type)
    value = _value(graph, name)
    return None if value is None else value.type.tensor_type.elem_type or None


def _value(graph: GraphProto, name: str) -> ValueInfoProto | None:
    named = (value for values in (graph.value_info, graph.input, graph.output) for value in values)
    return next((value for value in named if value.name == name), None)


class ShapeFunc:
    """The base of PopRT's classes of shape functions."""

    def update_value_info(self, model: ModelProto, value: ValueInfoProto) -> ModelProto:
        """Puts the type and shape of a tensor into a model, and returns it."""
        known = _value(model.graph, value.name)
        if known is None:
            model.graph.value_info.append(value)
        else:
            known.CopyFrom(value)
        return model


def load(path: Path) -> dict[str, ShapeFunction]:
    """Runs a file and returns its shape functions by the name of the op, with the domain or without. Raises
    ShapeFunctionError."""
    functions: dict[str, ShapeFunction] = {}
    try:
        with _poprt(functions):
            names = runpy.run_path(str(path))
    except Exception as error:
        raise ShapeFunctionError(f"{path}: {type(error).__name__}: {error}") from error
    stated = names.get("shape_functions", {})
    if not isinstance(stated, dict):
        raise ShapeFunctionError(f"{path}: expected shape_functions = {{...}}, got {type(stated).__name__}")
    functions.update({name: _in_poprts_form(function) for name, function in stated.items()})
    if not functions:
        raise ShapeFunctionError(
            f"{path} has no shape function: expected shape_functions = {{...}} or register_shape_func"
        )
    return functions


@contextmanager
def _poprt(functions: dict[str, ShapeFunction]) -> Iterator[None]:
    """Lets `import poprt` find the names of this module. What it found before is there again afterwards."""

    def register_shape_func(op_types: Sequence[str]) -> Callable[[type], type]:
        def register(shape_class: type) -> type:
            functions.update(dict.fromkeys([op_types] if isinstance(op_types, str) else op_types, shape_class()))
            return shape_class

        return register

    members = {
        "ShapeFunc": ShapeFunc,
        "ShapeInference": ShapeFunc,
        "get_dtype": get_dtype,
        "get_shape": get_shape,
        "register": register_shape_func,
        "register_shape_func": register_shape_func,
    }
    made = {"poprt": ModuleType("poprt")}
    for name in ("poprt.passes", "poprt.passes.onnx_helper", "poprt.passes.shape_inference"):
        made[name] = ModuleType(name)
        vars(made[name]).update(members)
        parent, _, last = name.rpartition(".")
        setattr(made[parent], last, made[name])
    before = {name: module for name, module in sys.modules.items() if name == "poprt" or name.startswith("poprt.")}
    for name in before:
        del sys.modules[name]
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _in_poprts_form(function: Callable[[NodeProto, list[Any]], Sequence[Any] | None]) -> ShapeFunction:
    def infer(model: ModelProto, node: NodeProto) -> tuple[ModelProto, bool]:
        graph = model.graph
        inputs = []
        for name in node.input:
            dtype, shape = get_dtype(graph, name), get_shape(graph, name)
            inputs.append(None if dtype is None or shape is None else (dtype, shape))
        outputs = function(node, inputs)
        if outputs is None:
            return model, False
        for name, (dtype, shape) in zip(node.output, outputs, strict=True):
            sizes = [None if size == -1 else size for size in shape]
            ShapeFunc().update_value_info(model, helper.make_tensor_value_info(name, dtype, sizes))
        return model, True

    return infer


def infer_shapes(model: ModelProto, functions: dict[str, ShapeFunction]) -> ModelProto:
    """Infers the shapes of a whole graph: by onnx's own inference and by the functions for the ops that it doesn't
    know. Raises ShapeFunctionError."""
    model = _inferred(model)
    done: set[tuple[str, ...]] = set()
    while True:
        before = len(done)
        for node in list(model.graph.node):
            function = functions.get(f"{node.domain}::{node.op_type}")
            if function is None and node.domain not in ("", "ai.onnx"):
                function = functions.get(node.op_type)
            if function is None or tuple(node.output) in done:
                continue
            model, known = _called(function, model, node)
            if known:
                done.add(tuple(node.output))
                model = _inferred(model)
        if len(done) == before:
            return model


def _inferred(model: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise ShapeFunctionError(f"the shapes of the model contradict each other: {error}") from None


def _called(function: ShapeFunction, model: ModelProto, node: NodeProto) -> tuple[ModelProto, bool]:
    name = f"{node.domain}::{node.op_type}"
    try:
        result: Any = function(model, node)
    except Exception as error:
        raise ShapeFunctionError(f"the shape function of {name} fails: {type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], ModelProto)):
        raise ShapeFunctionError(
            f"the shape function of {name}: expected a model and a bool, got {type(result).__name__}"
        )
    return result[0], bool(result[1])


def unknown_shapes(model: ModelProto) -> list[str]:
    """Returns the tensors of the graph whose type or rank is not known."""
    tensors = [output for node in model.graph.node for output in node.output if output]
    graph = model.graph
    return [name for name in tensors if get_shape(graph, name) is None or get_dtype(graph, name) is None]
