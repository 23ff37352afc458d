"""Adds model-local functions to an ONNX model. They compute the ops where no op library is registered.

The folder of an op may have a file decomposition.py, which expresses the op in standard ONNX operators:

    decomposition(present: frozenset[str]) -> str

`present` has the names of the optional inputs that a node has. The result is a FunctionProto in ONNX's textual syntax.
The function has the inputs that are present, all attributes of the signature with the same defaults, and all outputs.

A function has a fixed list of inputs. The model therefore gets one function for each set of present inputs, and the
functions differ in `overload`. ONNX Runtime prefers a registered kernel to a function, whatever the overload is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, ModelProto, NodeProto, helper
from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data
from onnx.parser import ParseError, parse_function

from opgate.ops_build.onnx.nodes import node_attributes, nodes_of
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op

#: The first IR versions that have functions, and overloads of functions.
FUNCTION_IR_VERSION = 8
OVERLOAD_IR_VERSION = 10


class DecompositionError(ValueError):
    """A decomposition doesn't fit the signature of its op, or a node or model can't have one."""


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The result of `decompose`.

    `functions` maps (op, overload) to the number of nodes that call the function. `left` are the ops in the model that
    have no decomposition.
    """

    functions: dict[tuple[str, str], int]
    left: tuple[str, ...]


def decompose(model: ModelProto, ops: Iterable[Op], folders: Sequence[Path]) -> Decomposed:
    """Adds functions to `model`, in place: one for each op in `ops` that the model uses and each set of present inputs.

    `folders` hold the op folders. Functions of an earlier call are replaced. Nodes of the ops lose "" inputs at the
    end, and get an output "" for each output that they lack. Raises DecompositionError.
    """
    by_name = {(op.domain, op.name): op for op in ops}
    loaded: dict[tuple[str, str], Callable[[frozenset[str]], str] | None] = {}
    added: dict[tuple[str, str, str], FunctionProto] = {}
    call_counts: dict[tuple[str, str], int] = {}
    for node in nodes_of(model):
        op_key = (node.domain, node.op_type)
        op = by_name.get(op_key)
        if op is None:
            continue
        if op_key not in loaded:
            loaded[op_key] = folder_of(op, folders).decomposition
        text_of = loaded[op_key]
        if text_of is None:
            continue
        is_present = _inputs_present(op, node)
        node.overload = _overload(op, is_present)
        # ONNX Runtime needs a name for each output of a function; "" will do.
        node.output.extend([""] * (len(op.outputs) - len(node.output)))
        key = (op.domain, op.name, node.overload)
        if key not in added:
            added[key] = _function(op, text_of, is_present)
        call_counts[op.name, node.overload] = call_counts.get((op.name, node.overload), 0) + 1
    kept = [f for f in model.functions if (f.domain, f.name, f.overload) not in added]
    for function in kept:
        _refuse_overloads_in(function, added)
    del model.functions[:]
    model.functions.extend([*added.values(), *kept])  # a function must come before the functions that call it
    _complete(model, added.values())
    return Decomposed(call_counts, tuple(name for (_, name), text_of in loaded.items() if text_of is None))


def _refuse_overloads_in(function: FunctionProto, added: Collection[tuple[str, str, str]]) -> None:
    """Raises DecompositionError if `function` calls an overload: ONNX Runtime 1.31 doesn't find an overload from within
    another function."""
    for node in function.node:
        if node.overload and (node.domain, node.op_type, node.overload) in added:
            raise DecompositionError(
                f"function {function.name} calls {node.op_type} with optional inputs, which ONNX Runtime doesn't find "
                "from within a function: use onnx.inliner.inline_local_functions before the ops are put in"
            )


def _inputs_present(op: Op, node: NodeProto) -> list[bool]:
    """Returns for each input, up to the last present one, whether it is present. Cuts off "" inputs at the end of the
    node. Raises DecompositionError."""
    if any(tensor.variadic for tensor in op.inputs):
        raise DecompositionError(f"{op.name}: a decomposition can't have the variadic input '{op.inputs[-1].name}'")
    while node.input and not node.input[-1]:
        del node.input[-1]
    if len(node.input) > len(op.inputs):
        raise DecompositionError(
            f"node '{node.name}' of {op.name}: expected at most {len(op.inputs)} inputs, got {len(node.input)}"
        )
    is_present = [bool(name) for name in node.input]
    for index, tensor in enumerate(op.inputs):
        if not tensor.optional and not (index < len(is_present) and is_present[index]):
            raise DecompositionError(f"node '{node.name}' of {op.name}: input '{tensor.name}' is missing")
    return is_present


def _present_optional(op: Op, is_present: Sequence[bool]) -> list[str]:
    """Returns the names of the optional inputs that are present."""
    return [tensor.name for tensor, present in zip(op.inputs, is_present, strict=False) if tensor.optional and present]


def _overload(op: Op, is_present: Sequence[bool]) -> str:
    """Returns the name of the overload. It is "" if no optional input is present, so that an engine that doesn't know
    overloads can run such a model."""
    return "_and_".join(_present_optional(op, is_present))


def _function(op: Op, text_of: Callable[[frozenset[str]], str], is_present: Sequence[bool]) -> FunctionProto:
    present = _present_optional(op, is_present)
    where = f"decomposition.py of {op.name}" + (f" with {', '.join(present)}" if present else "")
    try:
        function = parse_function(text_of(frozenset(present)))
    except ParseError as error:
        text = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise DecompositionError(f"{where}: {text}") from error
    except ValueError as error:
        raise DecompositionError(f"{where}: {error}") from error
    inputs = [tensor.name for tensor in op.inputs[: len(is_present)]]
    attributes = sorted([*function.attribute, *(attribute.name for attribute in function.attribute_proto)])
    for checked, expected, got in [
        ("domain and name", [op.domain, op.name], [function.domain, function.name]),
        ("inputs", [name for name, there in zip(inputs, is_present, strict=True) if there], list(function.input)),
        ("attributes", sorted(attribute.name for attribute in op.attributes), attributes),
    ]:
        if got != expected:
            raise DecompositionError(f"{where}: expected the {checked} {expected}, got {got}")
    defaults = {a.name: helper.get_attribute_value(a) for a in function.attribute_proto}
    op_defaults = {a.name: a.default for a in op.attributes if not a.required and a.default != []}
    expected_defaults = _single_precision(node_attributes(op, op_defaults))
    for name, value in defaults.items():
        default = value.decode() if isinstance(value, bytes) else value
        if name in expected_defaults and _single_precision({name: default})[name] != expected_defaults[name]:
            raise DecompositionError(
                f"{where}: expected the default {expected_defaults[name]} of '{name}', got {default}"
            )
    if len(function.output) != len(op.outputs):
        raise DecompositionError(f"{where}: expected {len(op.outputs)} outputs, got {len(function.output)}")
    # A call passes inputs by position, so the function also has an input for an absent one in the middle. No node of
    # the function reads it.
    function.ClearField("input")
    function.input.extend(inputs)
    function.overload = _overload(op, is_present)
    function.doc_string = op.doc
    return function


def _single_precision(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rounds floats to single precision, as an ONNX attribute stores them."""

    def narrow(value: Any) -> Any:
        return float(np.float32(value)) if isinstance(value, float) else value

    return {n: [narrow(v) for v in value] if isinstance(value, list) else narrow(value) for n, value in values.items()}


def _complete(model: ModelProto, added: Iterable[FunctionProto]) -> None:
    """Raises the model's IR version and adds the operator sets that the functions need.

    An engine replaces a call by the nodes of the function and reads them by the model's operator sets, whatever the
    function says. If an operator set of the model is older than the function's, this raises DecompositionError.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for function in added:
        needed = OVERLOAD_IR_VERSION if function.overload else FUNCTION_IR_VERSION
        model.ir_version = max(model.ir_version, needed)
        for opset in function.opset_import:
            version = versions.setdefault(opset.domain, opset.version)
            if version < opset.version:
                raise DecompositionError(
                    f"the model has opset {version} of {opset.domain or 'ONNX'}, the function of {function.name} needs "
                    f"{opset.version}: export it with that, or use onnx.version_converter before the ops are put in"
                )
    missing = versions.keys() - {opset.domain for opset in model.opset_import}
    model.opset_import.extend(helper.make_opsetid(domain, versions[domain]) for domain in sorted(missing))


def load_to_rewrite(source: Path, target: Path) -> ModelProto:
    """Loads a model that will be changed and written to `target`.

    Weights in separate files stay in those files. `target` must then be in the same folder as `source`. Raises
    DecompositionError and OSError.
    """
    try:
        model = onnx.load(source, format="protobuf", load_external_data=False)
    except DecodeError:
        raise DecompositionError(f"{source} is no ONNX model") from None
    if not model.HasField("graph"):  # an empty file
        raise DecompositionError(f"{source} is no ONNX model")
    weights = [ExternalDataInfo(tensor) for tensor in _get_all_tensors(model) if uses_external_data(tensor)]
    for place in dict.fromkeys(info.location for info in weights):
        if not source.resolve().with_name(place).is_file():
            raise DecompositionError(f"{source} has weights in the file {place} beside it, which is not there")
    if weights and source.resolve().parent != target.resolve().parent:
        raise DecompositionError(
            f"{source} has weights in files beside it: expected an output in the same folder, got {target}"
        )
    return model


def decompose_file(source: Path, target: Path, ops: Iterable[Op], folders: Sequence[Path]) -> Decomposed:
    """Runs `decompose` on the file `source` and writes `target`. Weights in separate files stay in those files. Raises
    DecompositionError and OSError."""
    model = load_to_rewrite(source, target)
    ops = list(ops)
    decomposed = decompose(model, ops, folders)
    if not decomposed.functions and not decomposed.left:
        domains = ", ".join(sorted({op.domain for op in ops}))
        raise DecompositionError(f"{source} has no node of the ops of {domains}: there is nothing to decompose")
    onnx.save(model, target)
    return decomposed
