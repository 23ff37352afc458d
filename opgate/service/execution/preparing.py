"""`python -m opgate.service.execution.preparing` prepares a model file, see `prepared.py`.

It opens the file once as a session does, and lets ONNX Runtime write what it has made of it. Then it opens what was
written, and compares: both must have the same inputs and outputs, and give the same bits.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opgate.service.core.datatypes import BY_ONNX
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Array
from opgate.service.execution.prepared import MODEL, WEIGHTS
from opgate.service.execution.session import EngineTensor, Session, SessionOptions

# Weights of fewer bytes stay in the file of the graph. ONNX Runtime aligns larger ones to pages.
_LARGE = 1 << 20
# What an unknown size is, in the order in which it is tried.
_SIZES = (1, 2, 8, 32, 64, 128, 224, 256)
_ELEMENTS = 1 << 26


def prepare(path: Path, options: SessionOptions, folder: Path) -> str:
    """Prepares a model file in a folder. Returns why that can't be done, "" if it was."""
    entries = {
        **options.entries,
        "session.optimized_model_external_initializers_file_name": WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_LARGE),
        "session.save_external_prepacked_constant_initializers": "1",
    }
    try:
        first = Session(path, replace(options, entries=entries, writes=folder / MODEL))
        (folder / WEIGHTS).touch()
        second = Session(folder / MODEL, replace(options, graph_level="disabled"))
    except ServingError as error:
        return error.message
    for kind in ("inputs", "outputs", "defaulted"):
        if _signature(getattr(first, kind)) != _signature(getattr(second, kind)):
            return f"its {kind} are others then"
    return _compare(first, second)


def _signature(tensors: Sequence[EngineTensor]) -> list[EngineTensor]:
    return sorted(tensors, key=lambda tensor: tensor.name)


def _compare(first: Session, second: Session) -> str:
    """Returns how two sessions differ on made-up inputs, "" if they don't."""
    names = [tensor.name for tensor in first.outputs]
    failed = "no made-up inputs fit it"
    compared = False
    for size in _SIZES:
        feeds = _inputs(first.inputs, size)
        if feeds is None:
            break
        try:
            expected = first.run(names, dict(feeds))
        except ServingError as error:
            failed = f"made-up inputs don't fit it: {error.message}"
            continue
        got = second.run(names, dict(feeds))
        if not all(map(_same, expected, got)):
            return "its outputs are others then"
        if compared:  # two sizes are enough
            return ""
        compared = True
    return "" if compared else failed


def _same(one: Array, other: Array) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


def _inputs(tensors: Sequence[EngineTensor], size: int) -> dict[str, Array] | None:
    """Returns made-up inputs, None if there are no such ones."""
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for tensor in tensors:
        datatype = BY_ONNX.get(tensor.type)
        shape = tuple(dim if isinstance(dim, int) else size for dim in tensor.shape)
        if datatype is None or np.prod(shape, dtype=np.float64) > _ELEMENTS:
            return None
        if not datatype.itemsize:
            feeds[tensor.name] = np.full(shape, "a", np.object_)
        elif datatype.dtype.kind == "f":
            feeds[tensor.name] = generator.standard_normal(shape).astype(datatype.dtype)
        elif datatype.name == "BF16":
            feeds[tensor.name] = (generator.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(
                np.uint16
            )
        else:
            feeds[tensor.name] = np.ones(shape, datatype.dtype)
    return feeds


def main(arguments: Sequence[str]) -> int:
    """Prepares the file that the arguments describe, and writes what came of it."""
    os.nice(19)
    path, options = pickle.loads(base64.b64decode(arguments[0]))  # from the process that started this one
    print(json.dumps({"reason": prepare(path, options, Path(arguments[1]))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
