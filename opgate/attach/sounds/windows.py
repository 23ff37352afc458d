"""Runs a network over the windows of a sound, one after the other, and hands its state on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model.graph import PRE, WINDOW, opset_of, rename
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output, type_of
from opgate.attach.sounds.sound_words import Sound
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: The samples of all rows, f32 [n, t], and how many each has, i32 [n].
PCM, LENGTH = f"{PRE}pcm", f"{PRE}length"
#: The samples of all rows with zeros around them, and how many windows each row has, i32 [n].
_PADDED, COUNTS = f"{PRE}padded", f"{PRE}windows"
_STARTS = f"{PRE}starts"


@dataclass(frozen=True, slots=True)
class State:
    """A state of a network: the input that takes it, the output that gives it, its type, its shape, and the axis of
    the batch in it, None without one."""

    input: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None

    @property
    def type(self) -> int:
        """Its type, of onnx.TensorProto."""
        return type_of(self.dtype)

    def zeros(self, rows: int) -> np.ndarray:
        """Returns the state before the first window."""
        sizes = [rows if axis == self.axis else size for axis, size in enumerate(self.shape)]
        return np.zeros(sizes, DTYPES[self.dtype].numpy)


@dataclass(frozen=True, slots=True)
class Wave:
    """The input of a network for samples: its name, its type, and its shape, in which `axis` is that of the samples.
    A `batch` of None says that it has no axis of rows. `samples` are those that it is tried with, and `source` is the
    tensor that becomes the input."""

    name: str
    dtype: str
    rank: int
    axis: int
    batch: int | None = 0
    samples: int = 0
    source: str = PCM

    def longer(self) -> Wave:
        """Returns the same, tried with more samples."""
        return replace(self, samples=self.samples * 3 // 2)

    def noise(self, rows: int, kind: int) -> np.ndarray:
        """Returns samples of some rows and kind, [n, t]: noise, louder, silence, a tone."""
        noise = np.random.default_rng(kind).standard_normal((rows, self.samples))
        tone = np.sin(np.arange(self.samples) * 0.05)[None] * np.linspace(0.1, 1, rows)[:, None]
        return (noise * 0.1, noise * 3, noise * 0, tone)[kind]

    def shaped(self, samples: np.ndarray) -> np.ndarray:
        """Returns samples [n, t] in the form and the type of the input."""
        typed = samples.astype(DTYPES[self.dtype].numpy)
        return typed.reshape(self._shape(*samples.shape))

    def _shape(self, rows: int, samples: int) -> list[int]:
        sizes = [1] * self.rank
        sizes[self.axis] = samples
        if self.batch is not None:
            sizes[self.batch] = rows
        return sizes

    def add(self, nodes: Nodes, samples: str = "") -> None:
        """Adds the input of the network from f32 [n, t], `source` if it isn't said."""
        steps = [samples or self.source]
        if self.batch is None:
            steps.append(nodes.reshape(steps[-1], [-1], "flat"))
        for axis in range(self.rank):
            if axis not in (self.axis, self.batch):
                steps.append(_unsqueezed(nodes, steps[-1], axis))
        if self.dtype == "f32":
            nodes.add("Identity", [steps[-1]], "wave", to=self.name)
        else:
            nodes.cast(steps[-1], type_of(self.dtype), "typed", to=self.name)


def _unsqueezed(nodes: Nodes, x: str, axis: int, to: str = "") -> str:
    if nodes.opset < 13:
        return nodes.add("Unsqueeze", [x], "wide", to=to, axes=[axis])
    return nodes.add("Unsqueeze", [x, nodes.ints("axis", [axis])], "wide", to=to)


class Windowed(Protocol):
    """A network that takes windows of samples: how they follow each other, its states, and the axis of the rows in its
    input, None without one."""

    @property
    def sound(self) -> Sound: ...

    @property
    def states(self) -> Sequence[State]: ...

    @property
    def batch(self) -> int | None: ...

    def add(self, nodes: Nodes, samples: str) -> None:
        """Adds the inputs of the network, but for its states, from the samples f32 [n, t] of a window."""


def pad(nodes: Nodes, sound: Sound, samples: str, length: str) -> None:
    """Adds how many windows each row has, COUNTS, and the samples f32 [n, t] with zeros around them, as many as the
    windows need. `length` i32 [n] has the samples of each row."""
    whole = nodes.cast(length, TensorProto.INT64, "length")
    rounded = nodes.add("Add", [whole, nodes.constant("lead", sound.beyond, np.int64)], "rounded")
    hop = nodes.constant("hop", sound.hop, np.int64)
    one = nodes.constant("one", 1, np.int64)
    counts = nodes.add("Max", [nodes.add("Div", [rounded, hop], "by_hop"), one], "counts")
    nodes.cast(counts, TensorProto.INT32, "windows", to=COUNTS)
    most = nodes.reduce("ReduceMax", counts, 0, "most", keepdims=True)
    zero = nodes.constant("zero", 0, np.int64)
    end = nodes.add("Mul", [nodes.reshape(most, [], "most.scalar"), hop], "end")
    nodes.add("Range", [zero, end, hop], "starts", to=_STARTS)
    last = nodes.add(
        "Add", [nodes.add("Mul", [most, hop], "ends"), nodes.ints("rest", [sound.window - sound.hop])], "last"
    )
    there = nodes.slice(nodes.add("Shape", [samples], "shape"), 0, 1, 2, "there")
    behind = nodes.add(
        "Sub", [last, nodes.add("Add", [there, nodes.ints("lead", [sound.lead])], "there.led")], "missing"
    )
    behind = nodes.add("Max", [behind, nodes.ints("none", [0])], "behind")
    led = 0 if sound.edge else sound.lead
    if sound.edge:
        samples = nodes.add("Concat", [turned(nodes, sound, samples), samples], "samples.led", axis=1)
    before = nodes.ints("before", [0, sound.context + led, 0])
    pads = nodes.add("Concat", [before, behind], "pads", axis=0)
    nodes.add("Pad", [samples, pads], "padded", to=_PADDED)


def turned(nodes: Nodes, sound: Sound, samples: str) -> str:
    """Adds what stands before samples f32 [n, t] whose edge is turned around: the first of them backwards, `lead`."""
    first = sound.lead - (sound.edge == "symmetric")  # reflect leaves the outermost sample out
    end = first - sound.lead if first == sound.lead else -(1 << 31)
    parts = [nodes.ints(name, [value]) for name, value in (("first", first), ("end", end), ("axis", 1), ("back", -1))]
    return nodes.add("Slice", [samples, *parts], "turned")


def scanned(network: NetworkFile, of: Windowed, outputs: Sequence[Output]) -> tuple[onnx.ModelProto, list[Output]]:
    """Returns a model that runs the network over the windows of _PADDED, from the nodes of `pad`, one after the other,
    and its outputs. Each has an axis for the windows behind that of the rows, and the name of that of the network."""
    sound, states = of.sound, of.states
    inner = inner_network(network, {output.name for output in outputs})
    opset = opset_of(network.model)
    first, last = Nodes(opset, f"{WINDOW}first/"), Nodes(opset, f"{WINDOW}last/")
    start = f"{WINDOW}start"
    begin = first.reshape(start, [1], "begin")
    end = first.add("Add", [begin, first.ints("size", [sound.context + sound.window])], "end")
    of.add(first, first.add("Slice", [_PADDED, begin, end, first.ints("axis", [1])], "samples"))
    given = [_value(state.input, state.dtype, state.shape, state.axis) for state in states]
    given.append(helper.make_tensor_value_info(start, TensorProto.INT64, []))
    handed = [last.add("Identity", [state.output], "state") for state in states]
    kept = [with_rows(last, f"{WINDOW}{output.name}", of) for output in outputs]
    dtypes = {value.name: value.type.tensor_type.elem_type for value in network.model.graph.output}
    results = [_value(name, state.dtype, state.shape, state.axis) for name, state in zip(handed, states, strict=True)]
    for name, output in zip(kept, outputs, strict=True):
        shape = output.shape if of.batch is not None else (1, *output.shape)
        sizes: list[int | str] = [f"{name}_rows", *shape[1:]]
        results.append(helper.make_tensor_value_info(name, dtypes[output.name], sizes))
    body = helper.make_graph(
        [*first.nodes, *inner.graph.node, *last.nodes],
        "window",
        given,
        results,
        [*first.constants.values(), *last.constants.values()],
    )
    around = Nodes(opset, f"{WINDOW}around/")
    before = [_zeros(around, state) for state in states]
    ends = [f"{WINDOW}around/ended.{number}" for number in range(len(states))]
    made = [f"{WINDOW}around/each.{number}" for number in range(len(outputs))]
    scan = helper.make_node(
        "Scan", [*before, _STARTS], [*ends, *made], name=f"{WINDOW}scan", body=body, num_scan_inputs=1
    )
    around.nodes.append(scan)
    found = []
    for output, name in zip(outputs, made, strict=True):
        value = with_axes(of, output.value)
        around.add("Transpose", [name], "rows", to=output.name, perm=[1, 0, *range(2, value.ndim)])
        found.append(replace(output, value=value))
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend(around.nodes)
    model.graph.initializer.extend(around.constants.values())
    return model, found


def with_axes(of: Windowed, value: Array) -> Array:
    """Returns what the network gives for one window with axes for the rows and the windows, [1, 1, ...]."""
    value = value if value.ndim else value.reshape(1)
    return (value[None] if of.batch is None else value)[:, None]


def at_once(network: NetworkFile, of: Windowed, outputs: Sequence[Output]) -> tuple[onnx.ModelProto, list[Output]]:
    """Returns a model that runs the network once over all windows of _PADDED, and its outputs, as `scanned` does."""
    sound = of.sound
    inner = inner_network(network, {output.name for output in outputs})
    opset = opset_of(network.model)
    first, last = Nodes(opset, f"{WINDOW}first/"), Nodes(opset, f"{WINDOW}last/")
    starts = _unsqueezed(first, _STARTS, 1)
    inside = first.ints("inside", list(range(sound.context + sound.window)))
    places = first.add("Add", [starts, inside], "places")
    each = first.add("Gather", [_PADDED, places], "each", axis=1)
    of.add(first, first.reshape(each, [-1, sound.context + sound.window], "rows"))
    counts = last.slice(last.add("Shape", [each], "shape"), 0, 0, 2, "counts")
    found = []
    for output in outputs:
        parts = [counts, last.ints("sizes", list(output.shape[1:]))]
        shape = last.add("Concat", parts, "sizes", axis=0)
        last.add("Reshape", [f"{WINDOW}{output.name}", shape], "rows", to=output.name)
        found.append(replace(output, value=output.value[:, None]))
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend([*first.nodes, *inner.graph.node, *last.nodes])
    model.graph.initializer.extend([*first.constants.values(), *last.constants.values()])
    return model, found


def inner_network(network: NetworkFile, names: Collection[str]) -> onnx.ModelProto:
    """Returns the network whose outputs of some names leave these to those for all windows: theirs begin with
    WINDOW."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    rename(model, lambda name: f"{WINDOW}{name}" if name in names else name)
    return model


def with_rows(nodes: Nodes, x: str, of: Windowed, *, to: str = "") -> str:
    """Adds an output with an axis of rows, if the network has none."""
    return nodes.add("Identity", [x], "kept", to=to) if of.batch is not None else _unsqueezed(nodes, x, 0, to)


def _zeros(nodes: Nodes, state: State) -> str:
    """Adds a state of zeros for each row of the batch."""
    zero = helper.make_tensor("zero", state.type, [1], [0])
    if state.axis is None:
        return nodes.add("ConstantOfShape", [nodes.ints("size", state.shape)], "zeros", value=zero)
    rows = nodes.slice(nodes.add("Shape", [_PADDED], "shape"), 0, 0, 1, "rows")
    parts = [nodes.ints("size", [size]) if axis != state.axis else rows for axis, size in enumerate(state.shape)]
    shape = nodes.add("Concat", parts, "shape", axis=0)
    return nodes.add("ConstantOfShape", [shape], "zeros", value=zero)


def _value(name: str, dtype: str, shape: Sequence[int], axis: int | None) -> onnx.ValueInfoProto:
    sizes: list[int | str] = [f"{name}_rows" if place == axis else size for place, size in enumerate(shape)]
    return helper.make_tensor_value_info(name, type_of(dtype), sizes)


def run(
    network: NetworkFile,
    of: Windowed,
    input_name: str,
    inputs: Iterator[Array],
    constants: Mapping[str, np.ndarray],
) -> Mapping[str, np.ndarray]:
    """Runs the network over its `inputs` for the windows of a sound in Python, with `constants` for its other inputs.
    Returns each output for all windows, [1, w, ...]."""
    states = of.states
    opened = network.open(network.model)
    names = [output.name for output in opened.get_outputs()]
    held = {state.input: state.zeros(1) for state in states}
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for each in inputs:
        given = dict(zip(names, opened.run(names, {input_name: each, **held, **constants}), strict=True))
        held = {state.input: given[state.output] for state in states}
        for name, value in given.items():
            seen[name].append(value)
    return {
        name: np.concatenate([with_axes(of, value) for value in values], 1)
        for name, values in seen.items()
        if values[0].ndim or of.batch is None
    }
