"""Creates Keras layers of ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from opgate.ops_build.op_functions import is_module, keyword_of, parameters_of, sizes_of
from opgate.ops_build.op_table import Op, snake_case

#: The optional inputs that are weights of a layer, and the initializers of their values.
_WEIGHTS: Mapping[str, str] = {"weight": "ones", "bias": "zeros"}
#: What the constructor of every Keras layer takes.
_RESERVED = ("activity_regularizer", "autocast", "dtype", "name", "trainable")


def is_layer(op: Op) -> bool:
    """Returns whether the op can be a Keras layer: it can be a module, and the sizes of its weights are dims of its
    first input."""
    if keras.backend.backend() != "tensorflow" or not is_module(op, _RESERVED):
        return False
    if any(attribute.name in _RESERVED for attribute in op.attributes):
        return False
    return set(_axes(op)).issuperset(sizes_of(op))


def _axes(op: Op) -> dict[str, int]:
    """Returns the axes of the first input's named dims. An axis after `...` counts from the back."""
    dims, axes, behind = op.inputs[0].dims, {}, False
    for index, dim in enumerate(dims):
        behind = behind or dim["kind"] in ("ellipsis", "any")
        if dim["kind"] == "name":
            axes[dim["name"]] = index - len(dims) if behind else index
    return axes


def layer(op: Op, function: Callable[..., Any]) -> type:
    """Returns the op as a subclass of keras.layers.Layer, which calls `function`. It takes the first input. The
    optional inputs `weight` and `bias` are weights, which begin with 1 and 0; the other optional inputs stay absent.
    The constructor takes the op's attributes by name, and what every Keras layer takes.

    An object has the values of the attributes as `attributes`.
    """
    settings = inspect.Signature([keyword_of(attribute) for attribute in op.attributes])
    known = [attribute.name for attribute in op.attributes]
    weights, axes = parameters_of(op), _axes(op)

    def __init__(self: Any, **arguments: Any) -> None:
        bound = settings.bind(**{name: arguments.pop(name) for name in known if name in arguments})
        bound.apply_defaults()
        keras.layers.Layer.__init__(self, **arguments)
        self.attributes = dict(bound.arguments)

    def build(self: Any, shape: Sequence[int | None]) -> None:
        for tensor in weights:
            sizes = [shape[axes[dim["name"]]] for dim in tensor.dims]
            if None in sizes:
                raise ValueError(f"{op.name}: its weights need the sizes of axes {sorted(axes.values())}, got {shape}")
            made = self.add_weight(name=tensor.name, shape=sizes, initializer=_WEIGHTS[tensor.name])
            setattr(self, tensor.name, made)

    def call(self: Any, tensor: Any) -> Any:
        given = {weight.name: keras.ops.convert_to_tensor(getattr(self, weight.name)) for weight in weights}
        return function(tensor, **given, **self.attributes)

    def get_config(self: Any) -> dict[str, Any]:
        return {**keras.layers.Layer.get_config(self), **self.attributes}

    members = {
        "__init__": __init__,
        "__module__": "opgate.tensorflow",
        "__doc__": f"{op.doc}\n\nopgate.tensorflow.{snake_case(op.name)} as a Keras layer.",
        "__signature__": settings,
        "build": build,
        "call": call,
        "get_config": get_config,
    }
    made = type(op.name, (keras.layers.Layer,), members)
    registered: type = keras.saving.register_keras_serializable(package=op.domain)(made)
    return registered
