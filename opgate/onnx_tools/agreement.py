"""Compares an ONNX model with the model that it was made from, on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from opgate.onnx_tools.replacement_trials import TOLERANCES, difference
from opgate.onnx_tools.sessions import SessionError, one_line, session
from opgate.ops_build.case import Array

#: Results may be this many times further apart than those of a single op.
SLACK = 50
#: A model is compared with open dims of some sizes, and of these times the sizes.
OTHER_SIZES = 2


class Disagreement(RuntimeError):
    """A model doesn't load, doesn't run, or computes something else than its original. The message says which."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What messages call a model and its original, such as "the export" and "the module". `tolerance` is how far
    results may be apart, as a part of the greatest magnitude, None for what fits their dtype."""

    made: str
    original: str
    tolerance: float | None = None


def compared(
    pair: Pair,
    model: onnx.ModelProto,
    libraries: Sequence[Path],
    feeds: Mapping[str, Array],
    expected: Sequence[Array],
) -> str:
    """Runs a model in ONNX Runtime and returns how far its results are from `expected`, those of its original. Raises
    Disagreement if that is far."""
    used = {value.name for value in model.graph.input}
    try:
        results = session(model, libraries).run(None, {name: value for name, value in feeds.items() if name in used})
    except SessionError as error:
        raise Disagreement(f"ONNX Runtime doesn't load {pair.made}: {error}") from None
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        raise Disagreement(f"ONNX Runtime doesn't run {pair.made}: {one_line(error)}") from None
    if len(results) != len(expected):
        raise Disagreement(f"{pair.made} has {len(results)} outputs, {pair.original} {len(expected)}")
    greatest = 0.0
    for value, result, array in zip(model.graph.output, results, expected, strict=True):
        if result.shape != array.shape or result.dtype != array.dtype:
            raise Disagreement(
                f"output '{value.name}': {pair.original} gives {array.dtype} {list(array.shape)}, "
                f"{pair.made} {result.dtype} {list(result.shape)}"
            )
        apart = difference(array, result) if array.dtype != object else float(not np.array_equal(array, result))
        allowed = _allowed(array.dtype, pair.tolerance)
        if not apart <= allowed:
            raise Disagreement(
                f"output '{value.name}' of {pair.made} differs from {pair.original}'s by {apart:.1e} of its "
                f"magnitude: expected at most {allowed:.1e}"
            )
        greatest = max(greatest, apart)
    return f"the greatest difference is {greatest:.1e}"


def _allowed(dtype: np.dtype[np.generic], tolerance: float | None) -> float:
    """Returns how far the elements of an output may be apart, if nobody states it: floats a little, others not."""
    name = {"float16": "f16", "float32": "f32", "float64": "f64"}.get(dtype.name, "")
    return SLACK * TOLERANCES.get(name, 0.0) if tolerance is None else tolerance


def complete_outputs(model: onnx.ModelProto) -> None:
    """States the types and shapes of outputs that an exporter left open, as shape inference finds them."""
    stated = onnx.ModelProto()
    stated.CopyFrom(model)
    del stated.graph.value_info[:]  # exporters give the dims of results that they can't infer names of their own
    for value in stated.graph.output:
        value.ClearField("type")
    inferred = {value.name: value for value in onnx.shape_inference.infer_shapes(stated).graph.output}
    for value in model.graph.output:
        found = inferred[value.name].type.tensor_type
        if found.elem_type and (found.HasField("shape") or not value.type.tensor_type.HasField("shape")):
            value.type.CopyFrom(inferred[value.name].type)
