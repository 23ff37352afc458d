"""Opens the batch of a network, and proves that its rows don't depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from opgate.attach.model.report import Report
from opgate.attach.model.takes import BATCH
from opgate.attach.pictures import batch_opening, trials
from opgate.attach.pictures.facts import Network
from opgate.onnx_tools.repository import means_batch
from opgate.onnx_tools.row_dependence import ROWS, Rows, compared, unvaried
from opgate.onnx_tools.sessions import SessionError, one_line
from opgate.ops_build.case import Array

#: Why a batch stays closed though rows together give what each gives alone.
UNPROVED = "no random picture found anything, so nothing proves that pictures don't mix"


@dataclass(frozen=True, slots=True)
class Opened:
    """A network whose batch is open, or why it couldn't be opened."""

    model: onnx.ModelProto
    batched: bool
    reason: str = ""


def open_batch(
    network: Network, size: tuple[int, int], bytes_: bool, report: Report, examples: Sequence[Path] = ()
) -> Opened:
    """Returns the network with an open batch if its rows alone give what they give together, else as it is.

    `size` are the height and width of the pictures that are tried, `bytes_` says that they have 0..255. `examples` are
    pictures of the user that may be tried, too.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    changed = batch_opening.mended(model, network, size) if network.batch is not None else {}
    mended = ", ".join(f"{count} {op}" for op, count in changed.items())
    _without_shapes(model, network.input)
    rows, name = prove(model, network, size, bytes_, examples), _batch_name(network)
    if rows.why == UNPROVED and name:
        report.proved(f"batch: open in the file as '{name}', and kept so; {UNPROVED}")
        return Opened(model, True)
    if not rows.independent:
        report.proved(f"batch: fixed at 1 picture: {rows.why}")
        return Opened(network.model, False, rows.why)
    state = f"opened ({mended})" if mended else "opened" if network.batch is not None else "open in the file"
    report.proved(f"batch: {state}; {rows.why}")
    return Opened(model, True)


def _batch_name(network: Network) -> str:
    """Returns the name of the input's first dim if it means a batch, else ""."""
    (value,) = (value for value in network.model.graph.input if value.name == network.input)
    name = str(value.type.tensor_type.shape.dim[0].dim_param)
    return name if means_batch(name) else ""


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


def prove(
    model: onnx.ModelProto, network: Network, size: tuple[int, int], bytes_: bool, examples: Sequence[Path] = ()
) -> Rows:
    """Runs random pictures together and alone: noise, and others as long as an output tells nothing."""
    seen: list[dict[str, Array]] = []
    try:
        opened = network.open(model)
        names = [output.name for output in opened.get_outputs()]

        def run(pictures: Array) -> dict[str, Array]:
            return dict(zip(names, opened.run(None, {network.input: pictures}), strict=True))

        for pictures in trials.batches(network, size, bytes_, examples):
            alone = [run(pictures[row : row + 1]) for row in range(ROWS)]
            rows = compared(run(pictures), alone, axes=2)
            seen += alone
            if not rows.independent or not unvaried(seen):
                return rows
    except SessionError as error:
        return Rows(False, f"ONNX Runtime doesn't load it with an open batch: {str(error)[:200]}")
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return Rows(False, f"with {ROWS} pictures it fails: {one_line(error)[:200]}")
    return replace(rows, independent=False, why=UNPROVED)
