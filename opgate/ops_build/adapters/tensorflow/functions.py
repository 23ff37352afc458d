"""Creates a documented Python function, and for some ops a Keras layer, for each op of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from opgate.ops_build.adapters.tensorflow.layers import is_layer, layer
from opgate.ops_build.adapters.tensorflow.library import OpLibrary
from opgate.ops_build.op_functions import documentation, functions_of, parameters_of, signature_of
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.stated_gradient import differentiable


def public_names(library: OpLibrary) -> dict[str, Any]:
    """Returns the functions and layers of a library by name.

    A function has the op's name in snake_case. One that returns only the required outputs ends with _required, and one
    that returns those on request too with _all. A layer has the op's name; only some ops have one. There are no layers
    if Keras computes with something else than TensorFlow."""
    names: dict[str, Any] = {}
    with_gradient = differentiable(library.ops)
    for op in library.ops:
        for name, returned in functions_of(op):
            names[name] = function(library, op, returned, name, differentiable=op.name in with_gradient)
        if is_layer(op):
            short = snake_case(op.name)
            required = f"{short}_required" if parameters_of(op) and f"{short}_required" in names else short
            names[op.name] = layer(op, names[required])
    return names


def function(library: OpLibrary, op: Op, returned: Op, name: str, *, differentiable: bool) -> Callable[..., Any]:
    """Returns the function `name` of an op, with a signature and a docstring. `returned` has the outputs that it
    returns."""
    inputs = [tensor.name for tensor in op.inputs]
    required = [tensor.name for tensor in op.inputs if not tensor.optional]
    attributes = frozenset(attribute.name for attribute in op.attributes)
    needed = [attribute.name for attribute in op.attributes if attribute.required]
    wanted = frozenset(output.name for output in returned.outputs)

    def call(*tensors: Any, **arguments: Any) -> Any:
        if len(tensors) > len(inputs):
            raise TypeError(f"{name}() takes at most {len(inputs)} tensors by position, got {len(tensors)}")
        given = dict(zip(inputs, tensors, strict=False))
        for key in arguments:
            if key in given or (key not in attributes and key not in inputs):
                raise TypeError(f"{name}() got {'two values for' if key in given else 'an unknown'} argument '{key}'")
        given.update((key, arguments.pop(key)) for key in inputs if key in arguments)
        for key in required:
            if given.get(key) is None:
                raise TypeError(f"{name}() misses its input '{key}'")
        for key in needed:
            if key not in arguments:
                raise TypeError(f"{name}() misses its attribute '{key}'")
        outputs = library.run(op, given, arguments, wanted)[: len(returned.outputs)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    # tf.function would look for the source of the function, to rewrite it.
    made: Any = tf.autograph.experimental.do_not_convert(call)
    made.__name__ = made.__qualname__ = name
    made.__module__ = "opgate.tensorflow"
    made.__doc__ = documentation(returned, _notes(differentiable))
    made.__signature__ = signature_of(returned, tf.Tensor)
    public: Callable[..., Any] = made
    return public


def _notes(differentiable: bool) -> list[str]:
    return [
        "Has a gradient." if differentiable else "Has no gradient: asking for one raises LookupError.",
        "Raises tf.errors.InvalidArgumentError where the inputs don't fit the signature, or ValueError while a "
        "tf.function is traced.",
    ]
