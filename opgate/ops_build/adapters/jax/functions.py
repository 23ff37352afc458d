"""Creates a documented function of JAX arrays for each op of a library.

XLA calls the kernel through its foreign function interface; handler.cpp is the other half. The signature tells the
shapes, so a function works in jax.jit, under jax.vmap, in shard_map and, where the table has a gradient, in jax.grad.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from opgate.ops_build.adapters.jax.limits import why_left_out
from opgate.ops_build.adapters.numpy.library import THREADS, LoadError, OpLibrary
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.schema import GraphSizes
from opgate.ops_build.op_functions import check_arguments, documentation, functions_of, plain, signature_of
from opgate.ops_build.op_gradients import check_convention, inputs_of
from opgate.ops_build.op_table import Expr, Input, Op
from opgate.ops_build.packed_attributes import attribute_bytes, text_bytes
from opgate.ops_build.signature_walk import KnownInput, SignatureMismatch, Size, Walk, text_of
from opgate.ops_build.stated_gradient import differentiable, stated_gradient

_NAMES = {dtype.numpy: dtype.name for dtype in DTYPES.values()}
#: What jax has only with this setting.
_WIDE = frozenset({"f64", "i64"})
_SETTING = 'expected jax.config.update("jax_enable_x64", True)'
#: Whether this is JAX 0.10 or later, which has a type for the axes along which an array differs in shard_map.
_NAMES_AXIS_TYPES = hasattr(jax.sharding, "ManualAxisType")
#: How many sets of attributes and of inputs the functions of an op are kept for.
_KEPT = 256


class JaxOps:
    """The ops of a library in JAX. `functions` has their functions by name, `left_out` the reasons of ops that JAX
    can't have."""

    def __init__(self, library: OpLibrary) -> None:
        """Registers the library with JAX. Raises LoadError."""
        reasons = {op.name: why_left_out(op) for op in library.ops}
        self.library = library
        self.left_out = dict(library.left_out) | {name: reason for name, reason in reasons.items() if reason}
        self.ops = {op.name: op for op in library.ops if not reasons[op.name]}
        self.target = f"opgate_{library.ops[0].domain if library.ops else ''}_{library.path}"
        try:
            handler = ctypes.CDLL(str(library.path)).opgate_xla
        except AttributeError:
            raise LoadError(f"{library.path} was built by an older opgate: run opgate build") from None
        jax.ffi.register_ffi_target(self.target, jax.ffi.pycapsule(handler), platform="cpu")
        with_gradient = differentiable(self.ops.values())
        self.functions: dict[str, Callable[..., Any]] = {}
        for op in self.ops.values():
            for name, returned in functions_of(op):
                self.functions[name] = self._function(op, name, returned, op.name in with_gradient)
        self.names = SimpleNamespace(**self.functions)  # for gradients in Python

    def _function(self, op: Op, name: str, returned: Op, has_gradient: bool) -> Callable[..., Any]:
        run = _Function(self, op, returned)

        def call(*tensors: Any, **arguments: Any) -> Any:
            return run(tensors, arguments)

        call.__name__ = call.__qualname__ = name
        call.__module__ = "opgate.jax"
        gradient = "Has a gradient." if has_gradient else "Has no gradient."
        call.__doc__ = documentation(returned, (gradient, "Raises TypeError or ValueError for what doesn't fit."))
        call.__signature__ = signature_of(returned, jax.Array)  # type: ignore[attr-defined]
        return call


class _Key(NamedTuple):
    """All of a call but its tensors. Tensors of a variadic input stand at the end."""

    attributes: tuple[tuple[str, Any], ...]
    packed: bytes  # the attributes: 0.0 equals -0.0
    present: tuple[bool, ...]
    values: tuple[int | None, ...]  # of integers that sizes may need, None for an unknown one


class _Function:
    """One function of an op."""

    def __init__(self, ops: JaxOps, op: Op, returned: Op) -> None:
        self._ops, self.op = ops, op
        self._label = f"{op.domain}::{op.name}"
        self._attributes = {attribute.name: attribute for attribute in op.attributes}
        self._variadic = bool(op.inputs) and op.inputs[-1].variadic
        names = [output.name for output in op.outputs]
        self._returned = tuple(names.index(output.name) for output in returned.outputs)
        self._all = tuple(range(len(names)))
        self._of = lru_cache(_KEPT)(self._made)
        self._gradient = _gradient_of(ops, op)

    def __call__(self, tensors: Sequence[Any], arguments: dict[str, Any]) -> Any:
        given = self._given(tensors, arguments)
        arrays = _of_same_axes([None if value is None else self._array(declared, value) for declared, value in given])
        values = tuple(_known_value(declared, value) for declared, value in given)
        attributes = self._attribute_values(arguments)
        packed = attribute_bytes(self._attributes, attributes)
        frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attributes.items())
        key = _Key(frozen, packed, tuple(array is not None for array in arrays), values)
        found = self._of(key)(*(array for array in arrays if array is not None))
        return found[0] if len(found) == 1 else tuple(found)

    def _given(self, tensors: Sequence[Any], arguments: dict[str, Any]) -> list[tuple[Input, Any]]:
        inputs = self.op.inputs
        if len(tensors) > len(inputs):
            text = f"expected at most {len(inputs)} inputs, got {len(tensors)}; attributes go by name"
            raise TypeError(f"{self._label}: {text}")
        given = list(zip(inputs, tensors, strict=False))
        given += [(declared, arguments.pop(declared.name, None)) for declared in inputs[len(tensors) :]]
        if self._variadic:
            last = given.pop()[1]
            if not isinstance(last, (list, tuple)) or any(value is None for value in last):
                text = f"input '{inputs[-1].name}': expected a list of arrays, got {type(last).__name__}"
                raise TypeError(f"{self._label}: {text}")
            given += [(inputs[-1], value) for value in last]
        return given

    def _array(self, declared: Input, value: Any) -> Any:
        array, dtype = jnp.asarray(value), getattr(value, "dtype", None)
        if declared.type in _WIDE and dtype == DTYPES[declared.type].numpy and array.dtype != dtype:
            text = f"input '{declared.name}' is {declared.type}: {_SETTING}"
            raise ValueError(f"{self._label}: {text}")
        return array

    def _attribute_values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check_arguments(self.op, arguments)
        values = {name: plain(arguments.get(name, declared.default)) for name, declared in self._attributes.items()}
        try:
            for name, declared in self._attributes.items():
                declared.check(values[name])
        except ValueError as error:
            raise ValueError(f"{self._label}: {error}") from None
        return values

    def _made(self, key: _Key) -> Callable[..., Sequence[Any]]:
        """Returns the function of the tensors that are present, which JAX traces."""
        if self._gradient is None:
            return lambda *arrays: self._call(key, arrays, self._returned)
        gradient = self._gradient

        def forward(*arrays: Any) -> tuple[Sequence[Any], Any]:
            values = [array.value for array in arrays]
            outputs = self._call(key, values, self._all)
            needed = tuple(array.perturbed for array in arrays)
            return [outputs[index] for index in self._returned], _Saved((values, outputs), needed)

        def backward(saved: _Saved, gradients: Sequence[Any]) -> tuple[Any, ...]:
            values, outputs = saved.arrays
            by_output = dict(zip(self._returned, gradients, strict=True))
            attributes = {name: list(value) if isinstance(value, tuple) else value for name, value in key.attributes}
            given = [tensor.name for tensor, there in zip(self.op.inputs, key.present, strict=True) if there]
            names = [tensor.name for tensor in self.op.outputs]
            arrays = dict(zip(names, outputs, strict=True)) | dict(zip(given, values, strict=True))
            for index, (name, output) in enumerate(zip(names, outputs, strict=True)):
                arrays[f"grad_{name}"] = _dense(by_output.get(index), output)
            found = gradient(arrays, attributes)
            return tuple(self._part(found, name, needed) for name, needed in zip(given, saved.needed, strict=True))

        function: Callable[..., Sequence[Any]] = jax.custom_vjp(lambda *arrays: self._call(key, arrays, self._returned))
        function.defvjp(forward, backward, symbolic_zeros=True)  # type: ignore[attr-defined]
        return function

    def _part(self, found: Mapping[str, Any], name: str, needed: bool) -> Any:
        if name in found:
            return found[name]
        if needed:  # JAX would read None as a gradient of zero
            raise NotImplementedError(f"{self._label} can't be differentiated by its input '{name}'")
        return None

    def _call(self, key: _Key, arrays: Sequence[Any], wanted: Sequence[int]) -> Sequence[Any]:
        """Calls the kernel. Returns the outputs with the numbers `wanted`."""
        results = [self._results(key, arrays)[index] for index in wanted]
        packed = [
            text_bytes(self.op.name),
            struct.pack("<QII", sum(1 << index for index in wanted), THREADS.count, len(key.present)),
            bytes(key.present),
            key.packed,
        ]
        call = jax.ffi.ffi_call(
            self._ops.target,
            results,
            vmap_method="broadcast_all" if self.op.elementwise else "sequential",
            # XLA runs no call for results without an element, and the kernel would not refuse bad inputs then.
            has_side_effect=not any(math.prod(result.shape) for result in results),
        )
        found: Sequence[Any] = call(*arrays, call=np.frombuffer(b"".join(packed), np.uint8))
        return found

    def _results(self, key: _Key, arrays: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of all outputs. Raises ValueError."""
        walk, rest, attributes = Walk(self.op, GraphSizes()), iter(arrays), dict(key.attributes)
        differs = next((array for array in arrays if _axes_of(array)), None)  # as all do then
        known = []
        for there, value in zip(key.present, key.values, strict=True):
            array = next(rest) if there else None
            known.append(
                None if array is None else KnownInput(_NAMES.get(array.dtype, str(array.dtype)), array.shape, value)
            )
        integers = {a.name: attributes[a.name] for a in self.op.attributes if a.kind == "int" and not a.list}
        results = []
        try:
            walk.bind(known, integers)
            self._ops.library.check_node(self.op, attributes, walk.known_sizes)
            for output in self.op.outputs:
                dtype, dims = walk.type_of(output) or "", walk.output_dims(output, _unknown)
                assert dims is not None  # every rank is known
                if dtype in _WIDE and not jax.config.jax_enable_x64:
                    raise SignatureMismatch(f"output '{output.name}' is {dtype}: {_SETTING}")
                result = jax.ShapeDtypeStruct(dims, DTYPES[dtype].numpy)
                results.append(result if differs is None else _differing_as(result, differs))
        except SignatureMismatch as error:
            raise ValueError(f"{self._label}: {error}") from None
        return results


def _axes_of(array: Any) -> frozenset[Any]:
    """Returns the axes of a mesh along which an array differs, inside of jax.shard_map."""
    known = jax.typeof(array)
    return frozenset(known.manual_axis_type.varying if _NAMES_AXIS_TYPES else known.vma)


def _differing_as(result: jax.ShapeDtypeStruct, array: Any) -> jax.ShapeDtypeStruct:
    """Returns an output that differs along the axes along which an array does."""
    known = jax.typeof(array)
    sharding = jax.NamedSharding(known.sharding.mesh, jax.sharding.PartitionSpec(*[None] * len(result.shape)))
    differs = {"manual_axis_type": known.manual_axis_type} if _NAMES_AXIS_TYPES else {"vma": known.vma}
    return jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=sharding, **differs)


def _of_same_axes(arrays: Sequence[Any]) -> list[Any]:
    """Lets arrays differ along all axes along which one of them does: then the outputs of an op do, and the gradient of
    an array that is the same on all devices is the sum over these."""
    axes = frozenset().union(*(_axes_of(array) for array in arrays if array is not None))

    def varying(array: Any) -> Any:
        more = axes - _axes_of(array)
        if not more:
            return array
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(array, tuple(more), to="varying")
        return jax.lax.pvary(array, tuple(more))  # before JAX 0.8

    return [None if array is None else varying(array) for array in arrays]


@jax.tree_util.register_pytree_node_class
class _Saved:
    """What the gradient of a call needs: inputs and outputs, and which inputs it is asked for."""

    def __init__(self, arrays: Any, needed: tuple[bool, ...]) -> None:
        self.arrays, self.needed = arrays, needed

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.arrays,), self.needed

    @classmethod
    def tree_unflatten(cls, needed: Any, children: Any) -> _Saved:
        return cls(children[0], needed)


def _unknown(expr: Expr) -> Size:
    raise SignatureMismatch(
        f"the size {text_of(expr)} must be known when JAX traces: pass a number, not a traced array"
    )


def _known_value(declared: Input, value: Any) -> int | None:
    """Returns the value of an integer that sizes may need, None if JAX traces it."""
    if not declared.const or declared.dims or value is None or isinstance(value, jax.core.Tracer):
        return None
    array = np.asarray(value)
    return int(array) if array.shape == () and array.dtype.kind in "iu" else None


def _dense(gradient: Any, output: Any) -> Any:
    """Returns the gradient of an output, zeros if nothing depends on it."""
    if gradient is None or isinstance(gradient, SymbolicZero) or gradient.dtype == jax.dtypes.float0:
        return jnp.zeros(output.shape, output.dtype)
    return gradient


_Gradient = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


def _gradient_of(ops: JaxOps, op: Op) -> _Gradient | None:
    """Returns what computes the gradients of inputs, by their names, from attributes and arrays: the inputs and the
    outputs by name, and the gradients of the outputs as grad_<output>. None if the table has none."""
    backward = ops.ops.get(f"{op.name}Backward")
    stated = stated_gradient(op, backward)
    names = [tensor.name for tensor in op.inputs]
    if op.inputs and op.inputs[-1].variadic:
        return None
    if stated is not None:
        return lambda arrays, attributes: stated(ops.names, {**dict.fromkeys(names), **arrays}, attributes)
    if backward is None:
        return None
    check_convention(op, backward)
    function, returned = next(iter(functions_of(backward)))

    def tabled(arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        named = {a.name: attributes[a.name] for a in backward.attributes if a.name in attributes}
        found = ops.functions[function](*(arrays.get(tensor.name) for tensor in backward.inputs), **named)
        listed = found if isinstance(found, tuple) else (found,)
        parts = zip(returned.outputs, listed, strict=True)
        return {name: part for output, part in parts for name in inputs_of(output.name, names)}

    return tabled
