"""Makes each op of a library an operation of OpenVINO, and of the nodes in ONNX models that OpenVINO reads.

OpenVINO's extensions in C++ are bound to one of its releases. These are in Python, so any release takes them; a run of
an op takes the interpreter's lock until its kernel begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino.frontend.onnx import ConversionExtension

from opgate.ops_build.adapters.numpy.functions import function
from opgate.ops_build.adapters.numpy.library import OpLibrary
from opgate.ops_build.adapters.openvino.limits import why_left_out
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.nodes import attribute_of_node
from opgate.ops_build.onnx.schema import GraphSizes, infer_shapes
from opgate.ops_build.op_functions import check_arguments, plain
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.signature_walk import KnownInput, SignatureMismatch, Walk

#: OpenVINO's types by the names in signatures.
TYPES: Mapping[str, ov.Type] = {
    "f16": ov.Type.f16,
    "bf16": ov.Type.bf16,
    "f32": ov.Type.f32,
    "f64": ov.Type.f64,
    "i8": ov.Type.i8,
    "u8": ov.Type.u8,
    "i32": ov.Type.i32,
    "i64": ov.Type.i64,
    "bool": ov.Type.boolean,
}
_NAMES = {kind.get_type_name(): name for name, kind in TYPES.items()}


class OpenVinoOps:
    """The ops of a library in OpenVINO. `left_out` has the reasons of ops that OpenVINO can't have."""

    def __init__(self, library: OpLibrary) -> None:
        reasons = {op.name: why_left_out(op) for op in library.ops}
        self.left_out = dict(library.left_out) | {name: reason for name, reason in reasons.items() if reason}
        self.ops = {op.name: op for op in library.ops if not reasons[op.name]}
        self._operations = {name: _operation(library, op) for name, op in self.ops.items()}

    def extensions(self) -> list[Any]:
        """Returns what lets OpenVINO read ONNX nodes of the ops, for openvino.Core.add_extension."""
        return [ConversionExtension(op.name, op.domain, self._converter(op)) for op in self.ops.values()]

    def node(self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Returns a node of an op. An absent input is None. Raises KeyError, TypeError or ValueError."""
        if name not in self.ops:
            raise KeyError(f"OpenVINO has no op {name}: {self.left_out.get(name, 'the library has none')}")
        op = self.ops[name]
        check_arguments(op, attributes)
        values = {
            attribute.name: plain(attributes.get(attribute.name, attribute.default)) for attribute in op.attributes
        }
        present = tuple(value is not None for value in inputs)
        return self._operations[name]([value for value in inputs if value is not None], values, present)

    def _converter(self, op: Op) -> Callable[[Any], Any]:
        def convert(node: Any) -> Any:
            inputs = [_present(node.get_input(index)) for index in range(node.get_input_size())]
            given = {a.name: node.get_attribute(a.name) for a in op.attributes if node.has_attribute(a.name)}
            values = {a.name: attribute_of_node(a, given[a.name]) for a in op.attributes if a.name in given}
            return self.node(op.name, inputs, values).outputs()

        return convert


def _present(value: Any) -> Any:
    """Returns an input of a node, None if the node has "" there."""
    return None if value.get_node().get_type_name() == "NullNode" else value


def _operation(library: OpLibrary, op: Op) -> type:
    """Returns an op as a class of OpenVINO's nodes."""
    run = function(library, op, snake_case(op.name), op)
    label, last = f"{op.domain}::{op.name}", len(op.inputs) - 1

    class Operation(ov.Op):  # type: ignore[misc]  # OpenVINO states no types
        def __init__(self, inputs: Any = None, values: Any = None, present: Any = None) -> None:
            super().__init__(self)
            self._values: Mapping[str, Any] = values or {}
            self._present: Sequence[bool] = present or ()
            if inputs is not None:
                self.set_arguments(inputs)
                self.constructor_validate_and_infer_types()

        def validate_and_infer_types(self) -> None:
            walk = Walk(op, GraphSizes())
            inputs = iter(range(self.get_input_size()))
            known = [
                _known(self, next(inputs), op.inputs[min(place, last)].type) if there else None
                for place, there in enumerate(self._present)
            ]
            integers = {a.name: self._values[a.name] for a in op.attributes if a.kind == "int" and not a.list}
            try:
                walk.bind(known, integers)
                library.check_node(op, self._values, walk.known_sizes)
                shapes = infer_shapes(walk)
            except SignatureMismatch as error:
                raise ValueError(f"{label}: {error}") from None
            for index, (output, shape) in enumerate(zip(op.outputs, shapes, strict=True)):
                kind = TYPES.get(walk.type_of(output) or "", ov.Type.dynamic)
                self.set_output_type(index, kind, _partial_shape(shape))

        def clone_with_new_inputs(self, inputs: Any) -> Operation:
            return Operation(inputs, self._values, self._present)

        def visit_attributes(self, visitor: Any) -> bool:
            # OpenVINO takes nodes with the same inputs and attributes for one.
            visitor.on_attributes({"call": repr((sorted(self._values.items()), tuple(self._present)))})
            return True

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Any, inputs: Any) -> bool:
            given = iter(inputs)
            arrays: list[Any] = [_array(next(given)) if there else None for there in self._present]
            for place, array in enumerate(arrays):
                if array is not None and array.dtype == np.int32 and op.inputs[min(place, last)].type == "i64":
                    arrays[place] = array.astype(np.int64)
            if op.inputs[-1].variadic:
                arrays = [*arrays[: len(op.inputs) - 1], arrays[len(op.inputs) - 1 :]]
            try:
                found = run(*arrays, **self._values)
            except Exception:
                for output in outputs:  # with one thread OpenVINO tells nobody, and its memory may hold anything
                    if output.size:
                        _array(output)[...] = 0
                raise
            for output, array in zip(outputs, found if isinstance(found, tuple) else (found,), strict=True):
                output.shape = array.shape
                if array.size:
                    _array(output)[...] = array
            return True

    # OpenVINO knows its own operations by names without their case, and would take an op of such a name for its own.
    Operation.__name__ = Operation.__qualname__ = f"{op.domain}.{op.name}"
    return Operation


def _known(node: Any, index: int, declared: str) -> KnownInput:
    """Returns what is known of an input. The plugin for the CPU makes i32 of all i64 when it compiles a model."""
    shape, kind = node.get_input_partial_shape(index), node.get_input_element_type(index)
    dims = None if shape.rank.is_dynamic else [dim.get_length() if dim.is_static else None for dim in shape]
    dtype = None if kind.is_dynamic() else _NAMES.get(kind.get_type_name(), kind.get_type_name())
    source, value = node.input_value(index).get_node(), None
    if dims == [] and source.get_type_name() == "Constant" and kind.is_integral():
        value = int(source.get_data())
    return KnownInput("i64" if (dtype, declared) == ("i32", "i64") else dtype, dims, value)


def _partial_shape(shape: Sequence[Any] | None) -> Any:
    if shape is None:
        return ov.PartialShape.dynamic()
    return ov.PartialShape([size if isinstance(size, int) else -1 for size in shape])


def _array(tensor: Any) -> Array:
    """Returns the elements of a tensor where they lie."""
    array: Array = tensor.data
    dtype = DTYPES[_NAMES[tensor.element_type.get_type_name()]].numpy
    return array if array.dtype == dtype else np.asarray(array).view(dtype)
