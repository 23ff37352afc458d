"""Opens the batch of a network, and proves that its rows don't depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from opgate.attach.facts import Network
from opgate.attach.report import Report
from opgate.onnx_models.sessions import SessionError, one_line, session
from opgate.onnx_models.values import Values
from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import graphs_of

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
    folder = network.path.resolve().parent
    mended = _mended(model, network) if network.batch is not None else ()
    _without_shapes(model, network.input)
    difference, reason = prove(model, network, size, bytes_, folder)
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


def _mended(model: onnx.ModelProto, network: Network) -> tuple[str, ...]:
    """Mends constants in which a 1 stands for the batch: shapes of Reshape, states of LSTM, GRU and RNN.

    Returns what it did.
    """
    values = Values(network.model, network.path.resolve().parent)
    mended: dict[str, int] = {}
    for graph in graphs_of(model):
        for node in graph.node:
            if node.op_type == "Reshape" and _mend_reshape(node, graph, values):
                mended["Reshape"] = mended.get("Reshape", 0) + 1
            if node.op_type in ("LSTM", "GRU", "RNN") and _mend_states(node, values):
                mended[node.op_type] = mended.get(node.op_type, 0) + 1
    return tuple(f"{count} {op}" for op, count in mended.items())


def _mend_reshape(node: onnx.NodeProto, graph: onnx.GraphProto, values: Values) -> bool:
    """Makes the first size of a constant shape follow the batch. Returns whether the node was changed."""
    shape = values.constant(node.input[1]) if len(node.input) > 1 else None
    source = values.shape(node.input[0])
    if shape is None or shape.size < 2 or int(shape[0]) != 1 or not source or source[0] not in (1, None):
        return False
    changed = shape.astype(np.int64).copy()
    changed[0] = 0 if -1 in changed[1:] else -1
    name = f"{node.output[0]}.batched"
    graph.initializer.append(numpy_helper.from_array(changed, name))
    node.input[1] = name
    return True


def _mend_states(node: onnx.NodeProto, values: Values) -> bool:
    """Takes away first states of zeros with a batch of 1: without them the operator begins with zeros, too."""
    changed = False
    for place in (5, 6):
        if len(node.input) > place and node.input[place]:
            state = values.constant(node.input[place])
            if state is not None and not state.any():
                node.input[place] = ""
                changed = True
    return changed


def prove(
    model: onnx.ModelProto, network: Network, size: tuple[int, int], bytes_: bool, folder: Path
) -> tuple[float, str]:
    """Runs random rows together and alone. Returns the largest difference as a part of the greatest magnitude, and why
    the batch can't be open, or ""."""
    rows = network.pictures(_ROWS, *size, bytes_=bytes_, seed=1)
    try:
        opened = session(model, folder=folder)
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
