"""Opens the batch of a network, and proves that its rows don't depend on each other."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from opgate.attach import opening
from opgate.attach.facts import Network
from opgate.attach.report import Report
from opgate.onnx_models.rows import ROWS, Rows, compared
from opgate.onnx_models.sessions import SessionError, one_line
from opgate.ops_build.case import Array

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
    rows = prove(model, network, size, bytes_)
    if not rows.independent:
        report.proved(f"batch: fixed at 1 picture: {rows.why}")
        return Opened(network.model, False, rows.why)
    state = f"opened ({', '.join(mended)})" if mended else "opened" if network.batch is not None else "open in the file"
    report.proved(f"batch: {state}; {rows.why}")
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


def prove(model: onnx.ModelProto, network: Network, size: tuple[int, int], bytes_: bool) -> Rows:
    """Runs random pictures together and alone."""
    pictures = network.pictures(ROWS, *size, bytes_=bytes_, seed=1)
    try:
        opened = network.open(model)
        names = [output.name for output in opened.get_outputs()]

        def run(first: int, last: int) -> dict[str, Array]:
            return dict(zip(names, opened.run(None, {network.input: pictures[first:last]}), strict=True))

        together, alone = run(0, ROWS), [run(i, i + 1) for i in range(ROWS)]
    except SessionError as error:
        return Rows(False, f"ONNX Runtime doesn't load it with an open batch: {str(error)[:200]}")
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return Rows(False, f"with {ROWS} pictures it fails: {one_line(error)[:200]}")
    return compared(together, alone, axes=2)
