"""A model that was converted to ONNX, and its comparison with the engine that ran it before."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import onnx

from opgate.onnx_tools.agreement import OTHER_SIZES, Pair, compared
from opgate.onnx_tools.import_model import Setting
from opgate.onnx_tools.model_inputs import feeds
from opgate.onnx_tools.sessions import one_line
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array


class ConversionError(RuntimeError):
    """A model can't be converted. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A model in ONNX. `engine` ran it before: `run` computes the outputs there, in the order of the model. `by` says
    who converted it."""

    model: onnx.ModelProto
    engine: str
    by: str
    run: Callable[[Mapping[str, Array]], list[Array]]


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps TensorFlow, LiteRT and tf2onnx from writing to stderr. What matters of it is in their exceptions."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            logger.setLevel(level)


def checked(converted: Converted, setting: Setting, tolerance: float | None) -> list[str]:
    """Compares a converted model with the engine that ran it before, on the inputs of a setting. If it gives none, open
    dims are also larger. Returns the lines of a report. Raises ConversionError, Disagreement and InputError."""
    model, engine = converted.model, converted.engine
    pair = Pair("the ONNX model", engine, tolerance)
    inputs = feeds(model, setting.inputs, setting.sizes, setting.seed)
    try:
        with quiet():
            expected = converted.run(inputs)
    except Exception as error:  # each engine has its own
        raise ConversionError(
            f"{engine} doesn't run the model on these inputs: {one_line(error)}. State others with --input"
        ) from None
    lines = [f"compared with {engine}: {compared(pair, model, setting.libraries, inputs, expected)}"]
    if setting.inputs:
        return lines
    values = Values(model)
    larger = dict(setting.sizes)
    for name, array in inputs.items():
        for stated, size in zip(values.shape(name) or (), array.shape, strict=True):
            if isinstance(stated, str):
                larger[stated] = size * OTHER_SIZES
    inputs = feeds(model, (), larger, setting.seed + 1)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
    try:
        with quiet():
            expected = converted.run(inputs)
    except Exception as error:  # each engine has its own
        return [*lines, f"not compared at {shapes}: {one_line(error)}"]
    return [*lines, f"compared at {shapes}: {compared(pair, model, setting.libraries, inputs, expected)}"]
