"""Opens the batch of a network, and proves that its rows don't depend on each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from opgate.attach import opening
from opgate.attach.facts import Network
from opgate.attach.report import Report
from opgate.onnx_models.sessions import SessionError, one_line
from opgate.ops_build.case import Array

#: How far the results of rows alone and together may differ, as a part of the greatest magnitude.
_TOLERANCE = 1e-4
_ROWS = 3
#: The name of the batch in a served model's graph.
BATCH = "n"


@dataclass(frozen=True, slots=True)
class Opened:
    """A network whose batch is open, or why it couldn't be opened. `mended` says what was changed in it."""

    model: onnx.ModelProto
    batched: bool
    reason: str = ""
    mended: tuple[str, ...] = ()


def open_batch(network: Network, size: tuple[int, int], bytes_: bool, report: Report) -> Opened:
    """Returns the network with an open batch if its rows alone give what they give together, else as it is.

    `size` are the height and width of the pictures that are tried, `bytes_` says that they have 0..255.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    changed = opening.mended(model, network, size) if network.batch is not None else {}
    mended = tuple(f"{count} {op}" for op, count in changed.items())
    _without_shapes(model, network.input)
    difference, reason = prove(model, network, size, bytes_)
    if reason:
        report.proved(f"batch: fixed at 1 picture: {reason}")
        return Opened(network.model, False, reason)
    state = f"opened ({', '.join(mended)})" if mended else "opened" if network.batch is not None else "open in the file"
    report.proved(
        f"batch: {state}; {_ROWS} random rows together give what each gives alone, largest difference {difference:.1e} "
        "of the greatest magnitude"
    )
    return Opened(model, True, "", mended)


def _without_shapes(model: onnx.ModelProto, name: str) -> None:
    """Opens the first dim of the input and forgets the shapes of all that follows: they may be stale."""
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name == name:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
            for place, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.HasField("dim_value") and dim.dim_value < 1:
                    dim.dim_param = f"{BATCH}_{place}"
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def prove(model: onnx.ModelProto, network: Network, size: tuple[int, int], bytes_: bool) -> tuple[float, str]:
    """Runs random rows together and alone. Returns the largest difference as a part of the greatest magnitude, and why
    the batch can't be open, or ""."""
    rows = network.pictures(_ROWS, *size, bytes_=bytes_, seed=1)
    try:
        opened = network.open(model)
        together = opened.run(None, {network.input: rows})
        alone = [opened.run(None, {network.input: rows[i : i + 1]}) for i in range(_ROWS)]
    except SessionError as error:
        return 0.0, f"ONNX Runtime doesn't load it with an open batch: {str(error)[:200]}"
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return 0.0, f"with {_ROWS} pictures it fails: {one_line(error)[:200]}"
    largest = 0.0
    for place, joined in enumerate(together):
        name = opened.get_outputs()[place].name
        parts: list[Array] = [each[place] for each in alone]
        axis = batch_axis(joined, parts)
        if axis is None:
            return 0.0, f"the output '{name}' of {_ROWS} pictures has the shape {list(joined.shape)}"
        expected = np.concatenate(parts, axis)
        if joined.dtype.kind != "f":
            if not np.array_equal(joined, expected):
                return 0.0, f"the output '{name}' of pictures together is not that of each alone"
            continue
        scale = float(np.abs(expected).max(initial=0)) or 1.0
        largest = max(largest, float(np.abs(joined.astype(np.float64) - expected).max(initial=0)) / scale)
    if not largest <= _TOLERANCE:
        return largest, f"pictures together give other results than each alone, by {largest:.1e}"
    return largest, ""


def batch_axis(together: Array, alone: list[Array]) -> int | None:
    """Returns the axis along which the outputs of rows are joined, None if there is none."""
    for axis in range(min(2, together.ndim)):
        shape = list(together.shape)
        shape[axis] = 1
        if together.shape[axis] == len(alone) and all(list(each.shape) == shape for each in alone):
            return axis
    return None
