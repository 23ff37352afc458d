"""ONNX models of one op, and the op's NumPy reference as an operator of `onnx.reference`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference.op_run import OpRun

from ops_build.case import Array, Case
from ops_build.table import DTYPES, Op

OPSET = 18
IR_VERSION = 10

ELEMENT_TYPES = {
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "str": TensorProto.STRING,
}


@dataclass(frozen=True, slots=True)
class OneNodeModel:
    """`feeds` are the model's inputs by name."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


def node_attributes(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a node carries them: a list of strings is one string, an element a line; a bool is 0 or 1."""
    declared = {attribute.name: attribute for attribute in op.attributes}
    return {name: _to_node(declared[name].kind, declared[name].list, value) for name, value in attributes.items()}


def _to_node(kind: str, is_list: bool, value: Any) -> Any:
    if kind == "str" and is_list:
        return "\n".join(value)
    convert = {"bool": int, "float": float}.get(kind)
    if convert is None:
        return value
    return [convert(v) for v in value] if is_list else convert(value)


class _Graph:
    """A graph under construction. bf16 tensors enter and leave as f32 through Cast nodes: runtimes' Python interfaces
    can't carry them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}

    def add_input(self, name: str, array: Array, dtype: str, static: bool) -> str:
        """Declares and feeds an input; returns the name that the node reads."""
        shape = list(array.shape) if static else [f"{name}_{axis}" for axis in range(array.ndim)]
        outside = "f32" if dtype == "bf16" else dtype
        self.feeds[name] = array.astype(np.float32) if dtype == "bf16" else array
        self.inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[outside], shape))
        if dtype != "bf16":
            return name
        self.nodes.append(helper.make_node("Cast", [name], [f"{name}_bf16"], to=TensorProto.BFLOAT16))
        return f"{name}_bf16"

    def add_output(self, name: str, written: str, dtype: str) -> None:
        """Declares output `name`, which the node writes as `written`."""
        if dtype == "bf16":
            self.nodes.append(helper.make_node("Cast", [written], [name], to=TensorProto.FLOAT))
        outside = "f32" if dtype == "bf16" else dtype
        self.outputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[outside], None))


def one_node_model(op: Op, case: Case, types: Mapping[str, str], *, static: bool = True) -> OneNodeModel:
    """A model of one node of `op` for the case's inputs; absent optional inputs in the middle are "".

    With `static` the inputs' shapes are stated, otherwise only their ranks.
    """
    _check_names(op, case)
    graph = _Graph()
    node_inputs: list[str] = []
    for tensor in op.inputs:
        given = case.inputs.get(tensor.name)
        if given is None:
            node_inputs.append("")
            continue
        dtype = types.get(tensor.type, tensor.type)
        for index, value in enumerate(given if tensor.variadic else [given]):
            name = f"{tensor.name}_{index}" if tensor.variadic else tensor.name
            node_inputs.append(graph.add_input(name, np.asarray(value), dtype, static))
    while node_inputs and not node_inputs[-1]:
        node_inputs.pop()
    dtypes = [types.get(output.type, output.type) for output in op.outputs]
    names = [_output_name(op, output.name) for output in op.outputs]
    written = [f"{name}_bf16" if dtype == "bf16" else name for name, dtype in zip(names, dtypes, strict=True)]
    attributes = node_attributes(op, case.attributes)
    graph.nodes.append(helper.make_node(op.name, node_inputs, written, domain=op.domain, **attributes))
    for name, inside, dtype in zip(names, written, dtypes, strict=True):
        graph.add_output(name, inside, dtype)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(op.domain, op.since_version)]
    body = helper.make_graph(graph.nodes, op.name, graph.inputs, graph.outputs)
    model = helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION)
    return OneNodeModel(model, graph.feeds)


def _check_names(op: Op, case: Case) -> None:
    declared: dict[str, tuple[Mapping[str, Any], set[str]]] = {
        "input": (case.inputs, {tensor.name for tensor in op.inputs}),
        "attribute": (case.attributes, {attribute.name for attribute in op.attributes}),
    }
    for what, (given, known) in declared.items():
        for name in given:
            if name not in known:
                raise ValueError(f"the case gives {what} '{name}', {op.name} has: {', '.join(sorted(known)) or 'none'}")


def _output_name(op: Op, name: str) -> str:
    """An output may be called as an input is; in a graph the two need names of their own."""
    return f"{name}_out" if any(tensor.name == name for tensor in op.inputs) else name


def bodies_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """All that holds nodes: the graph, the functions, and the graphs within nodes."""
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        for node in body.node:
            for attribute in node.attribute:
                bodies.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
        yield body


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of all bodies."""
    for body in bodies_of(model):
        yield from body.node


@dataclass(frozen=True, slots=True)
class OpModules:
    """What an op's folder says in Python."""

    reference: Callable[..., Any]
    cases: Callable[[Mapping[str, np.dtype[Any]]], Any]
    large: Callable[[Mapping[str, np.dtype[Any]]], Case] | None  # one case of a size that time is taken at


def load_op_modules(folder: Path) -> OpModules:
    """`reference` and `cases` of an op's folder. Raises FileNotFoundError where one is missing."""
    cases = _load(folder / "cases.py")
    return OpModules(_load(folder / "reference.py").reference, cases.cases, getattr(cases, "large", None))


def load_decomposition(folder: Path) -> Callable[[frozenset[str]], str] | None:
    """`decomposition` of an op's folder; None where standard operators don't express the op."""
    file = folder / "decomposition.py"
    return _load(file).decomposition if file.is_file() else None


def _load(file: Path) -> ModuleType:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: an op's folder has its kernel, reference.py and cases.py")
    name = f"opgate_op_{abs(hash(str(file.resolve())))}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_reference(op: Op, reference: Callable[..., Any], case: Case) -> dict[str, Array]:
    """The reference's outputs by name: absent inputs are None, attributes have their defaults."""
    inputs = {tensor.name: case.inputs.get(tensor.name) for tensor in op.inputs}
    attributes = {attribute.name: attribute.default for attribute in op.attributes} | dict(case.attributes)
    outputs = reference(**inputs, **attributes)
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(arrays) != len(op.outputs):
        raise ValueError(f"expected a tuple of {len(op.outputs)} arrays, one for each output, got {len(arrays)}")
    return {tensor.name: np.asarray(array) for tensor, array in zip(op.outputs, arrays, strict=True)}


def reference_operator(op: Op, reference: Callable[..., Any]) -> type[OpRun]:
    """The reference as an operator for `onnx.reference.ReferenceEvaluator(model, new_ops=[...])`."""

    def run(self: OpRun, *inputs: Array | None, **attributes: Any) -> Sequence[Array]:
        by_name: dict[str, Any] = {}
        for index, tensor in enumerate(op.inputs):
            by_name[tensor.name] = inputs[index:] if tensor.variadic else inputs[index] if index < len(inputs) else None
        values = {a.name: _from_node(a.kind, a.list, attributes.get(a.name), a.default) for a in op.attributes}
        outputs = reference(**by_name, **values)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return type(op.name, (OpRun,), {"op_domain": op.domain, "_run": run})


def _from_node(kind: str, is_list: bool, value: Any, default: Any) -> Any:
    if value is None:
        return default
    if kind == "str" and is_list:
        return value.split("\n") if value else []
    if kind == "bool":
        return [bool(v) for v in value] if is_list else bool(value)
    return value


def numpy_types(types: Mapping[str, str]) -> dict[str, np.dtype[Any]]:
    return {variable: DTYPES[dtype] for variable, dtype in types.items()}
