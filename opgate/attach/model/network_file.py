"""A network that takes no pictures: its inputs, its outputs, and what lies beside its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from opgate.attach.model import graph
from opgate.attach.model.outputs import Output, name_of
from opgate.attach.model.post import Answers
from opgate.attach.model.report import AttachError, Report, shape_text
from opgate.attach.model.takes import BATCH
from opgate.attach.model.wish import Wish
from opgate.onnx_tools.row_dependence import ROWS, compared
from opgate.onnx_tools.run_model import load_model
from opgate.onnx_tools.sessions import SessionError, one_line, session
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array

#: What a network gets: arrays by the names of its inputs.
Feed = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a network. A size that the file leaves open is None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{shape_text(self.shape)}"


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A network and its file. `model` is ready to be joined with other nodes, `original` as it is in the file."""

    path: Path
    model: onnx.ModelProto
    original: onnx.ModelProto
    inputs: Mapping[str, Input]
    metadata: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Path, ...] = ()

    @property
    def described(self) -> str:
        """The inputs as text."""
        return ", ".join(map(str, self.inputs.values()))

    def open(self, model: onnx.ModelProto) -> ort.InferenceSession:
        """Returns a session of a model with the weights and ops of the network. Raises SessionError."""
        return session(model, self.libraries, self.path.resolve().parent)

    def beside(self, *names: str) -> tuple[str, dict[str, Any]]:
        """Returns the name and the content of the first of some files beside the network that has an object of JSON,
        "" and nothing without one."""
        for name in names:
            try:
                value = json.loads((self.path.parent / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                return name, value
        return "", {}


def load(wish: Wish) -> NetworkFile:
    """Returns the network in the file of a wish. Raises AttachError and RunError."""
    return read(wish.file, load_model(wish.file), wish.libraries)


def read(path: Path, original: onnx.ModelProto, libraries: tuple[Path, ...] = ()) -> NetworkFile:
    """Returns a network and its inputs. `libraries` have ops that it may use. Raises AttachError."""
    model = graph.prepared(original)
    return with_model(NetworkFile(path, model, original, {}, _metadata(model), libraries), model)


def with_model(network: NetworkFile, model: onnx.ModelProto) -> NetworkFile:
    """Returns the network with another model, whose inputs are read."""
    values = Values(model, network.path.resolve().parent)
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    inputs = {name: Input(name, values.dtype(name) or "", _sizes(values.shape(name) or ())) for name in names}
    return NetworkFile(network.path, model, network.original, inputs, network.metadata, network.libraries)


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def _sizes(shape: Sequence[object]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) and size > 0 else None for size in shape)


def fixed(network: NetworkFile, values: Mapping[str, Array], report: Report, why: str) -> NetworkFile:
    """Returns the network with constants in place of some inputs, and reports them."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    for value in [value for value in model.graph.input if value.name in values]:
        model.graph.initializer.append(onnx.numpy_helper.from_array(values[value.name], value.name))
        model.graph.input.remove(value)
        report.default(value.name, values[value.name].reshape(-1)[0], why)
    return with_model(network, model)


def outputs(network: NetworkFile, feed: Feed, what: str) -> tuple[Output, ...]:
    """Runs the network once on what stands for `what`. Raises AttachError and SessionError."""
    opened = network.open(network.model)
    names = [output.name for output in opened.get_outputs()]
    try:
        values = opened.run(names, dict(feed))
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        shown = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in feed.items())
        raise AttachError(f"{network.path.name} fails on {what}, {shown}: {one_line(error)}") from None
    return tuple(
        Output(name, name_of(value), value)
        for name, value in zip(names, values, strict=True)
        if isinstance(value, np.ndarray)
    )


def open_batch(
    network: NetworkFile, feed: Feed, report: Report, axes: int = 1, along: Mapping[str, int] = {}
) -> tuple[NetworkFile, bool, str]:
    """Returns the network with an open batch, and true, if the ROWS rows of `feed` alone give what they give together.
    Otherwise returns it as it is, false and why. Rows lie along the first axis of each input, or along that in `along`
    by its name, and along one of the first `axes` of each output."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name in feed:
            dims = value.type.tensor_type.shape.dim
            if dims:
                dims[along.get(value.name, 0)].dim_param = BATCH
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    opened = with_model(network, model)
    try:
        running = network.open(model)
        names = [output.name for output in running.get_outputs()]

        def run(rows: Feed) -> dict[str, Array]:
            return dict(zip(names, running.run(names, dict(rows)), strict=True))

        alone = [run({name: array.take([i], along.get(name, 0)) for name, array in feed.items()}) for i in range(ROWS)]
        rows = compared(run(feed), alone, axes)
    except SessionError as error:
        return _closed(network, f"ONNX Runtime doesn't load it with an open batch: {str(error)[:200]}", report)
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return _closed(network, f"with {ROWS} rows it fails: {one_line(error)[:200]}", report)
    if not rows.independent:
        return _closed(network, rows.why, report)
    report.proved(f"batch: open; {rows.why}")
    return opened, True, ""


def _closed(network: NetworkFile, why: str, report: Report) -> tuple[NetworkFile, bool, str]:
    report.proved(f"batch: one request at a time: {why}")
    return network, False, why


def compare(
    network: NetworkFile,
    joined: onnx.ModelProto,
    feeds: Sequence[Feed],
    what: str,
    report: Report,
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Compares the network in a joined graph with that of the file on `feeds`, and reports it. `read` makes the outputs
    of the first out of those of the second. Raises SessionError."""
    alone = network.open(graph.network_in(joined, network.model))
    equal, largest = _difference(network.open(graph.prepared(network.original)), alone, feeds, read)
    told = "bit for bit" if equal else f"apart from {largest:.1e} of the greatest magnitude"
    report.proved(f"network: on {len(feeds)} random {what} it gives what {network.path.name} gives, {told}")


def _difference(
    first: ort.InferenceSession,
    second: ort.InferenceSession,
    feeds: Sequence[Feed],
    read: Callable[[dict[str, Any]], dict[str, Any]],
) -> tuple[bool, float]:
    equal, largest = True, 0.0
    for feed in feeds:
        one, other = read(_run(first, feed)), _run(second, feed)
        for name, value in other.items():
            expected = one[name]
            if value.shape == expected.shape and value.tolist() == expected.tolist():
                continue
            if value.shape != expected.shape or value.dtype.kind not in "fiub":
                return False, float("inf")
            equal = equal and value.tobytes() == expected.tobytes()
            scale = float(np.abs(expected).max(initial=0)) or 1.0
            largest = max(largest, float(np.abs(expected.astype(np.float64) - value).max(initial=0)) / scale)
    return equal, largest


def _run(opened: ort.InferenceSession, feed: Feed) -> dict[str, Any]:
    names = [output.name for output in opened.get_outputs()]
    taken = {each.name for each in opened.get_inputs()}
    values = opened.run(names, {name: array for name, array in feed.items() if name in taken})
    return dict(zip(names, values, strict=True))


def tried(network: NetworkFile, feeds: Callable[[], Iterator[Feed]]) -> Callable[[str], Iterator[Array]]:
    """Returns what yields an output of the network, by its name, for each of some feeds of one row."""

    def values(name: str) -> Iterator[Array]:
        opened = network.open(network.model)
        for feed in feeds():
            yield opened.run([name], dict(feed))[0]

    return values


def batch_size(
    wished: int | None, most: int, batched: bool, why: str, report: Report, answers: Answers | None = None
) -> int:
    """Returns the largest batch: `wished`, else `most`, or 1 if the network takes one row at a time, or if outputs of
    the `answers`, which are as they are, would be as long as those of the longest row. Raises AttachError."""
    if not batched:
        if wished and wished > 1:
            raise AttachError(f"--max-batch-size: the network takes one request at a time: {why}")
        report.ran("max_batch_size", 1, "the network takes one request at a time")
        return 1
    if wished is not None:
        report.said("max_batch_size", wished)
        return wished
    if answers and not answers.fields and any(-1 in answer.dims for answer in answers.outputs):
        report.default("max_batch_size", 1, "because its outputs would be as long as those of a longer row beside it")
        return 1
    report.default("max_batch_size", most)
    return most
