"""Model-local functions that stand in for the ops where no op library is registered.

An op's folder may say in decomposition.py what the op is in standard operators:

    decomposition(present: frozenset[str]) -> str

`present` are the names of the optional inputs that a node has. The text is a FunctionProto in ONNX's textual syntax:
its inputs are those that are there, its attributes the signature's with the same defaults, its outputs all of them.

A function has a fixed list of inputs, so each pattern of present inputs has one of its own, told apart by `overload`.
ONNX Runtime prefers a registered kernel to a function, whatever the overload.
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
from onnx.external_data_helper import _get_all_tensors, uses_external_data
from onnx.parser import ParseError, parse_function

from ops_build.onnx.nodes import node_attributes, nodes_of
from ops_build.op_folder import folder_of
from ops_build.table import Op

#: The first IR versions that know functions, and overloads of them.
FUNCTION_IR_VERSION = 8
OVERLOAD_IR_VERSION = 10


class DecompositionError(ValueError):
    """A decomposition that doesn't fit the op's signature, or a node that has none."""


@dataclass(frozen=True, slots=True)
class Decomposed:
    """What `decompose` found: for each function its op, overload and how many nodes call it; the ops that have none."""

    functions: dict[tuple[str, str], int]
    left: tuple[str, ...]


def decompose(model: ModelProto, ops: Iterable[Op], folders: Sequence[Path]) -> Decomposed:
    """Adds to `model`, in place, a function for each op of `ops` that it uses and each pattern of present inputs.

    `folders` hold the op folders. Functions of an earlier call are replaced. Of nodes, trailing "" inputs are cut off
    and absent outputs named "". Raises DecompositionError.
    """
    by_name = {(op.domain, op.name): op for op in ops}
    loaded: dict[tuple[str, str], Callable[[frozenset[str]], str] | None] = {}
    made: dict[tuple[str, str, str], FunctionProto] = {}
    functions: dict[tuple[str, str], int] = {}
    for node in nodes_of(model):
        which = (node.domain, node.op_type)
        op = by_name.get(which)
        if op is None:
            continue
        if which not in loaded:
            loaded[which] = folder_of(op, folders).decomposition
        text_of = loaded[which]
        if text_of is None:
            continue
        given = _given_inputs(op, node)
        node.overload = _overload(op, given)
        # ONNX Runtime wants a name, if "", for each output of a function.
        node.output.extend([""] * (len(op.outputs) - len(node.output)))
        key = (op.domain, op.name, node.overload)
        if key not in made:
            made[key] = _function(op, text_of, given)
        functions[op.name, node.overload] = functions.get((op.name, node.overload), 0) + 1
    kept = [f for f in model.functions if (f.domain, f.name, f.overload) not in made]
    for function in kept:
        _refuse_overloads_in(function, made)
    del model.functions[:]
    model.functions.extend([*made.values(), *kept])  # a function stands before those that call it
    _complete(model, made.values())
    return Decomposed(functions, tuple(name for (_, name), text_of in loaded.items() if text_of is None))


def _refuse_overloads_in(function: FunctionProto, made: Collection[tuple[str, str, str]]) -> None:
    """ONNX Runtime 1.31 doesn't find an overload that is called from within another function."""
    for node in function.node:
        if node.overload and (node.domain, node.op_type, node.overload) in made:
            raise DecompositionError(
                f"function {function.name} calls {node.op_type} with optional inputs, which ONNX Runtime doesn't find "
                "from within a function: use onnx.inliner.inline_local_functions before the ops are put in"
            )


def _given_inputs(op: Op, node: NodeProto) -> list[bool]:
    """Whether each input is there, up to the last one that is."""
    if any(tensor.variadic for tensor in op.inputs):
        raise DecompositionError(f"{op.name}: a decomposition can't have the variadic input '{op.inputs[-1].name}'")
    while node.input and not node.input[-1]:
        del node.input[-1]
    if len(node.input) > len(op.inputs):
        raise DecompositionError(
            f"node '{node.name}' of {op.name}: expected at most {len(op.inputs)} inputs, got {len(node.input)}"
        )
    given = [bool(name) for name in node.input]
    for index, tensor in enumerate(op.inputs):
        if not tensor.optional and not (index < len(given) and given[index]):
            raise DecompositionError(f"node '{node.name}' of {op.name}: input '{tensor.name}' is missing")
    return given


def _present(op: Op, given: Sequence[bool]) -> list[str]:
    """The optional inputs that are there."""
    return [tensor.name for tensor, there in zip(op.inputs, given, strict=False) if tensor.optional and there]


def _overload(op: Op, given: Sequence[bool]) -> str:
    """Nothing where no optional input is there, so that engines that know no overloads may still run such a model."""
    return "_and_".join(_present(op, given))


def _function(op: Op, text_of: Callable[[frozenset[str]], str], given: Sequence[bool]) -> FunctionProto:
    present = _present(op, given)
    where = f"decomposition.py of {op.name}" + (f" with {', '.join(present)}" if present else "")
    try:
        function = parse_function(text_of(frozenset(present)))
    except ParseError as error:
        text = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise DecompositionError(f"{where}: {text}") from error
    except ValueError as error:
        raise DecompositionError(f"{where}: {error}") from error
    inputs = [tensor.name for tensor in op.inputs[: len(given)]]
    attributes = sorted([*function.attribute, *(attribute.name for attribute in function.attribute_proto)])
    for what, expected, got in [
        ("domain and name", [op.domain, op.name], [function.domain, function.name]),
        ("inputs", [name for name, there in zip(inputs, given, strict=True) if there], list(function.input)),
        ("attributes", sorted(attribute.name for attribute in op.attributes), attributes),
    ]:
        if got != expected:
            raise DecompositionError(f"{where}: expected the {what} {expected}, got {got}")
    defaults = {a.name: helper.get_attribute_value(a) for a in function.attribute_proto}
    wanted = {a.name: a.default for a in op.attributes if not a.required and a.default != []}
    stated = _single_precision(node_attributes(op, wanted))
    for name, value in defaults.items():
        default = value.decode() if isinstance(value, bytes) else value
        if name in stated and _single_precision({name: default})[name] != stated[name]:
            raise DecompositionError(f"{where}: expected the default {stated[name]} of '{name}', got {default}")
    if len(function.output) != len(op.outputs):
        raise DecompositionError(f"{where}: expected {len(op.outputs)} outputs, got {len(function.output)}")
    # An input that is left out in the middle has a place, which no node of the function reads.
    function.ClearField("input")
    function.input.extend(inputs)
    function.overload = _overload(op, given)
    function.doc_string = op.doc
    return function


def _single_precision(values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats as an ONNX attribute holds them."""

    def narrow(value: Any) -> Any:
        return float(np.float32(value)) if isinstance(value, float) else value

    return {n: [narrow(v) for v in value] if isinstance(value, list) else narrow(value) for n, value in values.items()}


def _complete(model: ModelProto, made: Iterable[FunctionProto]) -> None:
    """The IR version and the operator sets that the functions need. An engine puts a function's nodes in place of the
    call and reads them by the model's operator sets, whatever the function says: these must not be older."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for function in made:
        needed = OVERLOAD_IR_VERSION if function.overload else FUNCTION_IR_VERSION
        model.ir_version = max(model.ir_version, needed)
        for opset in function.opset_import:
            has = versions.setdefault(opset.domain, opset.version)
            if has < opset.version:
                raise DecompositionError(
                    f"the model has opset {has} of {opset.domain or 'ONNX'}, the function of {function.name} needs "
                    f"{opset.version}: export it with that, or use onnx.version_converter before the ops are put in"
                )
    missing = versions.keys() - {opset.domain for opset in model.opset_import}
    model.opset_import.extend(helper.make_opsetid(domain, versions[domain]) for domain in sorted(missing))


def load_to_rewrite(source: Path, target: Path) -> ModelProto:
    """A model that will be written to `target`; weights in files of their own stay there, so `target` must lie beside
    such a `source`. Raises DecompositionError and OSError."""
    try:
        model = onnx.load(source, load_external_data=False)
    except DecodeError:
        raise DecompositionError(f"{source} is no ONNX model") from None
    beside = any(uses_external_data(tensor) for tensor in _get_all_tensors(model))
    if beside and source.resolve().parent != target.resolve().parent:
        raise DecompositionError(
            f"{source} has weights in files beside it: expected an output in the same folder, got {target}"
        )
    return model


def decompose_file(source: Path, target: Path, ops: Iterable[Op], folders: Sequence[Path]) -> Decomposed:
    """`decompose` for a file. Weights in files of their own stay there. Raises DecompositionError and OSError."""
    model = load_to_rewrite(source, target)
    ops = list(ops)
    decomposed = decompose(model, ops, folders)
    if not decomposed.functions and not decomposed.left:
        domains = ", ".join(sorted({op.domain for op in ops}))
        raise DecompositionError(f"{source} has no node of the ops of {domains}: there is nothing to decompose")
    onnx.save(model, target)
    return decomposed
