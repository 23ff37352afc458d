"""Runs ops in TensorFlow, for verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from opgate.ops_build.adapters.tensorflow.registration import load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_table import Op


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields TensorFlow with the library of a build, or Absent with the reason."""
    yield TensorflowEngine(options.library("tensorflow"))


class TensorflowEngine:
    """Runs the ops of a library in TensorFlow in this process, in eager mode."""

    name = "tensorflow"
    device = "cpu"

    def __init__(self, library: Path) -> None:
        self._library = load(library)

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        return None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name, as NumPy arrays; bf16 comes as f32.

        Raises AssertionError if an output doesn't have the shape that TensorFlow inferred for a graph, with the sizes
        of the inputs or without. If the op refuses the case, it raises an exception of TensorFlow.
        """
        wanted = {output.name for output in op.outputs}
        with tf.device("CPU"):
            outputs = self._library.run(op, case_inputs(op, case, types), case.attributes, wanted)
        for static in (True, False):
            for tensor, output, shape in zip(op.outputs, outputs, self._shapes(op, case, types, static), strict=True):
                known = f"with{'' if static else 'out'} static sizes"
                assert shape.is_compatible_with(output.shape), (
                    f"output '{tensor.name}': inferred shape {shape} {known}, the run gave {output.shape}"
                )
        return {tensor.name: to_numpy(output) for tensor, output in zip(op.outputs, outputs, strict=True)}

    def _shapes(self, op: Op, case: Case, types: Mapping[str, str], static: bool) -> list[Any]:
        """Returns the shapes of the outputs that TensorFlow infers. With `static` it knows the sizes of the inputs and
        the values of those in host memory."""
        with tf.Graph().as_default():
            inputs: dict[str, Any] = {}
            for tensor in op.inputs:
                value = case.inputs.get(tensor.name)
                if value is None:
                    continue
                dtype = tensorflow_type(types.get(tensor.type, tensor.type))
                if tensor.variadic:
                    inputs[tensor.name] = [_placeholder(one, dtype, static) for one in value]
                elif tensor.const and static:
                    inputs[tensor.name] = tf.constant(value, dtype)
                else:
                    inputs[tensor.name] = _placeholder(value, dtype, static)
            wanted = {output.name for output in op.outputs}
            return [output.shape for output in self._library.run(op, inputs, case.attributes, wanted)]


def _placeholder(value: Any, dtype: Any, static: bool) -> Any:
    return tf.compat.v1.placeholder(dtype, np.shape(value) if static else None)


def case_inputs(op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Any]:
    """Returns the inputs of a case as tensors, by name."""
    inputs: dict[str, Any] = {}
    for tensor in op.inputs:
        value = case.inputs.get(tensor.name)
        if value is None:
            continue
        dtype = tensorflow_type(types.get(tensor.type, tensor.type))
        inputs[tensor.name] = (
            [tf.constant(one, dtype) for one in value] if tensor.variadic else tf.constant(value, dtype)
        )
    return inputs


def tensorflow_type(name: str) -> Any:
    """Returns the dtype of TensorFlow by its name in signatures."""
    return getattr(tf, DTYPES[name].tensorflow)


def to_numpy(tensor: Any) -> Array:
    """Returns the values of a tensor as an array; bf16 becomes f32, and strings become Python's."""
    array: Array = np.asarray(tensor.numpy())
    if tensor.dtype == tf.bfloat16:
        return array.astype(np.float32)
    if tensor.dtype == tf.string:
        return np.array([text.decode() for text in array.ravel()], object).reshape(array.shape)
    return array
