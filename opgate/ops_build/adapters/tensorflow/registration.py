"""Loads op libraries into TensorFlow.

TensorFlow registers the ops and their kernels when it loads a library. This module registers the gradients, and calls
the ops by the names of the signature.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from opgate.ops_build.adapters.tensorflow.gradients import register_gradient
from opgate.ops_build.adapters.tensorflow.library import OpLibrary, Registered
from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.op_table import Op, loaded_table

#: What a TensorFlow raises that can't load a library.
_LOAD_ERRORS = (tf.errors.OpError, ImportError, RuntimeError, OSError)


class LoadError(ImportError):
    """TensorFlow can't load a library. The message says why, and what to do."""


_LOADED: dict[Path, OpLibrary] = {}


def load(path: Path | str) -> OpLibrary:
    """Registers the ops of a library that was built for TensorFlow. Raises LoadError.

    A second call with the same library registers nothing and returns the result of the first call.
    """
    path = Path(path).resolve()
    if known := _LOADED.get(path):
        return known
    if not path.is_file():
        raise LoadError(f"{path} is not there: run opgate build")
    built = re.search(rb"fits TensorFlow ([\d.]+)", path.read_bytes())
    fits = built[1].decode() if built else ""
    refused = f"{path} fits TensorFlow {fits or '?'}, and this is {tf.__version__}: opgate build builds it again"
    if fits and not tf.__version__.startswith(f"{fits}."):
        raise LoadError(refused)
    try:
        functions = tf.load_op_library(str(path))
        ops = tuple(loaded_table(path))
    except (*_LOAD_ERRORS, ValueError) as error:
        raise LoadError(
            f"TensorFlow {tf.__version__} can't load {path}: {error}. A library works only with the TensorFlow that it "
            "was built with: opgate build builds it again"
        ) from error
    if ops and op_def_registry.get(type_of(ops[0])) is None:
        raise LoadError(refused)
    library = OpLibrary(path, ops, {op.name: _registered(op, functions) for op in ops})
    for op in ops:
        register_gradient(library, op)
    _LOADED[path] = library
    return library


def _registered(op: Op, functions: Any) -> Registered:
    name = type_of(op)
    definition = op_def_registry.get(name)
    attributes = [attribute.name for attribute in definition.attr[: len(op.attributes)]]
    return Registered(
        type=name,
        function=getattr(functions, name.replace(">", "_")),
        inputs=tuple(_argument(tensor.name) for tensor in definition.input_arg),
        input_lengths=tuple(tensor.number_attr for tensor in definition.input_arg),
        output_lengths=tuple(_argument(tensor.number_attr) for tensor in definition.output_arg),
        attributes={a.name: _argument(n) for a, n in zip(op.attributes, attributes, strict=True)},
    )


def _argument(name: str) -> str:
    """Returns the name of an argument in the function that TensorFlow makes."""
    return f"{name}_" if keyword.iskeyword(name) else name
