"""A library of ops that TensorFlow has loaded: its functions by the names of the signatures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate.ops_build.op_table import Op


@dataclass(frozen=True, slots=True)
class Registered:
    """An op as TensorFlow knows it.

    `type` is the op's name in TensorFlow. `function` is the function that TensorFlow has made for it. It takes all
    arguments by name. `inputs`, `outputs` and `attributes` are its names for those of the signature, in their order; an
    optional output stands with the name of the length of its list.
    """

    type: str
    function: Any
    inputs: tuple[str, ...]
    input_lengths: tuple[str, ...]
    output_lengths: tuple[str, ...]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OpLibrary:
    """A library that TensorFlow has loaded."""

    path: Path
    ops: tuple[Op, ...]
    registered: Mapping[str, Registered]

    def run(
        self, op: Op, inputs: Mapping[str, Any], attributes: Mapping[str, Any], wanted: Collection[str]
    ) -> list[Any]:
        """Runs an op and returns its outputs in the order of the signature: a tensor, or None for an optional output
        that is not in `wanted`. An optional input may be absent or None."""
        known = self.registered[op.name]
        arguments: dict[str, Any] = {known.attributes[name]: value for name, value in attributes.items()}
        for tensor, name in zip(op.inputs, known.inputs, strict=True):
            value = inputs.get(tensor.name)
            arguments[name] = ([] if value is None else [value]) if tensor.optional else value
        for output, length in zip(op.outputs, known.output_lengths, strict=True):
            if length:
                arguments[length] = int(output.name in wanted)
        found = known.function(**arguments)
        outputs = found if len(op.outputs) > 1 else (found,)
        return [
            (value[0] if value else None) if output.optional else value
            for output, value in zip(op.outputs, outputs, strict=True)
        ]


#: The loaded libraries by path. TensorFlow keeps an op until the process ends.
