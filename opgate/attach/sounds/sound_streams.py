"""The model beside one that hears a file: it gets the samples of a sound as they come, and keeps what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model import settings
from opgate.attach.model.folder import LIBRARY, MADE, STREAM
from opgate.attach.model.graph import PRE, WINDOW, opset_of
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.nodes import OPS, Nodes, Setting
from opgate.attach.model.outputs import Output, type_of
from opgate.attach.model.report import Report
from opgate.attach.model.takes import BATCH
from opgate.attach.sounds import windows
from opgate.attach.sounds.known_sound import Known
from opgate.attach.sounds.sound_heads import Speech, segment_times
from opgate.attach.sounds.windows import State
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

_SAMPLES, _WINDOWS = "samples", "windows"
_KEPT, _REQUESTS = f"{PRE}kept", f"{PRE}requests"
#: The state of SpeechSegments and its size, whether the sound ends, and since when somebody speaks.
_SPEECH, _NUMBERS, _LAST, _SINCE = f"{PRE}speech", 10, f"{PRE}ends", "since"
#: The status of a request, and what stands for a threshold that it doesn't say.
_STATUS, _UNSAID = "status", -1.0
#: How many segments become final with a window at most.
_MOST_SEGMENTS = 2
_DATATYPES = {"f32": "TYPE_FP32", "f16": "TYPE_FP16", "f64": "TYPE_FP64", "i64": "TYPE_INT64", "i32": "TYPE_INT32"}
#: A sequence that gets no samples for so long has ended, in microseconds.
_IDLE = 60_000_000
_MOST_SEQUENCES = 1024
_FLAG = "int32_false_true: [ 0, 1 ]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the stream: its name, its type, and the shape of a row."""

    name: str
    dtype: str
    shape: Sequence[int]

    @property
    def value(self) -> onnx.ValueInfoProto:
        """How a graph states it."""
        return helper.make_tensor_value_info(self.name, type_of(self.dtype), [BATCH, *self.shape])


@dataclass(slots=True)
class Stream:
    """The model for a stream. Request k has `hop` samples, and completes window k - `delay`. The first `heard`
    outputs are those of the network, of which `frames` lose those that `trim` leaves out. `states` are pairs of what
    a request gets and what it leaves to the next one; before the first one they are zeros. `last` is an input i32
    [n, 1] that is 1 in the last request of a sequence, "" without it. `settings` are inputs that a request may leave
    out. A request that says one says it for those behind it, too."""

    of: Known
    outputs: list[Tensor]
    heard: int
    frames: Sequence[str] = ()
    batched: bool = True
    states: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    last: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)

    @property
    def delay(self) -> int:
        """How many requests the answers come behind those whose samples begin their windows."""
        sound = self.of.sound
        return max(0, -(-(sound.window - sound.lead) // sound.hop) - 1)

    @property
    def kept(self) -> int:
        """How many samples before those of a request are kept."""
        sound = self.of.sound
        return sound.context + self.delay * sound.hop + sound.lead

    def keep(self, name: str, dtype: str, shape: Sequence[int]) -> tuple[str, str]:
        """Adds a state. Returns the names of its input and of its output."""
        pair = Tensor(name, dtype, shape), Tensor(f"{name}_next", dtype, shape)
        self.states.append(pair)
        return pair[0].name, pair[1].name


def stream_of(
    network: NetworkFile, of: Known, outputs: Sequence[Output], speech: Speech | None, batched: bool, report: Report
) -> Stream | None:
    """Returns the model for a stream, which also finds `speech`, or None: then the report says why there is none.

    `batched` says whether the network takes several rows at once.
    """
    if why := _without(of):
        report.default("stream", "none", why)
        return None
    shapes = {each.name: list(each.shape[0 if of.batch is None else 1 :]) for each in outputs}
    trim = of.sound.trim
    frames = [name for name, shape in shapes.items() if trim and len(shape) == 2 and shape[0] > 2 * trim]
    for name in frames:
        shapes[name][0] -= 2 * trim
    given = [Tensor(each.name, each.dtype, shapes[each.name]) for each in outputs]
    stream = Stream(of, given, len(given), frames, batched)
    _build(stream, network, speech)
    return stream


def windows_of_file(stream: Stream, heard: Mapping[str, Array]) -> Mapping[str, Array]:
    """Returns what a stream gives of what a file gives for all windows, [1, w, ...]: frames are trimmed."""
    trim = stream.of.sound.trim
    return {
        name: value[:, :, trim : value.shape[2] - trim] if name in stream.frames else value
        for name, value in heard.items()
    }


def beside(
    name: str, stream: Stream | None, report: Report
) -> tuple[Mapping[str, tuple[onnx.ModelProto | None, str]], Sequence[str]]:
    """Returns the model for a stream by its name, and what a README says of it; nothing without one."""
    if not stream:
        return {}, ()
    hop, delay, called = stream.of.sound.hop, stream.delay, f"{name}{STREAM}"
    late = f", answered {delay} requests late" if delay else ""
    report.default("stream", called, f"a sequence of requests with {hop} samples{late}; the gateway keeps the state")
    given = ", ".join(f"`{each.name}`" for each in stream.outputs[: stream.heard])
    note = (
        f"The model `{called}` gets a sound in pieces: each request of a sequence has {hop} samples, the FP32 input "
        f"`{_SAMPLES}`, and gets what the network gives for a window, {given}. It is that of the file as a whole, "
        "window by window. "
    )
    if delay:
        note += (
            f"A window ends {delay} requests behind the one that its begin is in: the first {delay} of a sequence "
            f"have `{_WINDOWS}` 0 and no answer. "
        )
    if trim := stream.of.sound.trim:
        note += f"Frames are those of the file: {trim} at both ends of a window are left out. "
    if (behind := delay + bool(stream.of.sound.lead)) and not stream.of.sound.full:
        note += f"Up to {behind} requests of zeros behind the sound get its last windows. "
    if stream.last:
        note += (
            f"`{_SINCE}` is when the speech that goes on began, in seconds, -1 while nobody speaks. The first `count` "
            "of `start`, `end` and `scores` are the segments of speech that are final with the window: those of the "
            "file, if it has as many samples. The last one comes with `sequence_end`. "
            f"A request may say `{settings.SCORE}`, from which speech begins: it holds until another one does. "
        )
    note += (
        "The state is kept by the gateway, from the request with `sequence_start` to that with `sequence_end`, or "
        "until none comes for a minute."
    )
    return {called: (stream.model, _config(called, stream))}, (note,)


def in_pieces(stream: Stream, samples: Array, count: int) -> Mapping[str, Array]:
    """Runs the model for a stream on the pieces of samples f32 [t], as the gateway does. Returns what it gives for
    the first `count` windows, each output [1, w, ...]."""
    hop = stream.of.sound.hop
    opened = stream.of.network.open(stream.model)
    names = [output.name for output in opened.get_outputs()]
    states = {each.name: np.zeros([1, *each.shape], DTYPES[each.dtype].numpy) for each, _ in stream.states}
    padded = np.pad(samples, (0, max(0, (count + stream.delay) * hop - len(samples))))
    seen: dict[str, list[Array]] = {name: [] for name in names}
    for request in range(count + stream.delay):
        if stream.last:
            states[stream.last] = np.array([[request + 1 == count + stream.delay]], np.int32)
        piece = padded[None, request * hop : (request + 1) * hop].astype(np.float32)
        given = dict(zip(names, opened.run(names, {_SAMPLES: piece, **states}), strict=True))
        states = {before.name: given[after.name] for before, after in stream.states}
        if request >= stream.delay:
            for name, value in given.items():
                seen[name].append(value)
    return {name: np.stack(values, 1) for name, values in seen.items()}


def _without(of: Known) -> str:
    """Returns why there is no model for a stream, "" if there is one."""
    sound = of.sound
    if of.of_the_whole:
        return f"{' and '.join(of.of_the_whole)}: computed of all of a sound, which no piece of it knows"
    if not sound.window:
        return "the network takes all of a sound at once"
    if sound.edge and sound.hop <= sound.lead:
        return f"{sound.lead} samples are turned around before a sound, and a hop has {sound.hop}"
    if not (of.states or sound.context or sound.lead or sound.hop < sound.window):
        return "no window needs what was before it: each may come as a file"
    return ""


def _build(stream: Stream, network: NetworkFile, speech: Speech | None) -> None:
    """Makes the graph: the samples f32 [n, hop] and the states to the outputs and the next states."""
    of, sound = stream.of, stream.of.sound
    nodes = Nodes(opset_of(network.model), PRE, _SAMPLES)
    last = Nodes(nodes.opset, f"{PRE}last/", _SAMPLES)
    begun = _begun(stream, nodes)
    given = _SAMPLES
    if sound.gain != 1:
        given = nodes.add("Mul", [given, nodes.constant("gain", sound.gain)], "louder")
    of.add(nodes, _window(stream, nodes, given, begun))
    names = {output.name for output in stream.outputs}
    inner = windows.inner_network(network, names)
    for output in stream.outputs:
        x, trim = windows.with_rows(last, f"{WINDOW}{output.name}", of), of.sound.trim
        if output.name in stream.frames:
            x = last.slice(x, 1, trim, trim + output.shape[0], "trimmed")
        last.add("Identity", [_of_rows(stream, last, x, 1 + len(output.shape))], "output", to=output.name)
    for state in of.states:
        _hand_on(stream, nodes, last, state, begun)
    if speech:
        _find(stream, last, speech, begun)
    if stream.delay:
        there = last.cast(begun, TensorProto.INT32, _WINDOWS, to=_WINDOWS)
        stream.outputs.append(Tensor(there, "i32", [1]))
    model = stream.model
    model.CopyFrom(inner)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend([*nodes.nodes, *inner.graph.node, *last.nodes])
    model.graph.initializer.extend([*nodes.constants.values(), *last.constants.values()])
    model.graph.input.extend([Tensor(_SAMPLES, "f32", [sound.hop]).value, *(each.value for each, _ in stream.states)])
    if stream.last:
        model.graph.input.append(Tensor(stream.last, "i32", [1]).value)
    for name, setting in stream.settings.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}s", 1]))
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [1, 1], [setting.default]))
    model.graph.output.extend([each.value for each in (*stream.outputs, *(after for _, after in stream.states))])
    if all(opset.domain != OPS for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(OPS, 1))
    model.producer_name = "opgate attach"


def _begun(stream: Stream, nodes: Nodes) -> str:
    """Adds whether a request completes a window of the sound, bool [n, 1]. Returns "" if each does."""
    if not (stream.delay or stream.of.sound.edge):
        return ""
    before, after = stream.keep(_REQUESTS, "f32", [1])
    more = nodes.add("Add", [before, nodes.constant("one", 1.0)], "requests.more")
    most = nodes.constant("requests.most", stream.delay + 1.0)
    nodes.add("Min", [more, most], "requests.held", to=after)
    if not stream.delay:
        return ""
    return nodes.add("Less", [nodes.constant("requests.late", stream.delay - 0.5), before], "begun")


def _window(stream: Stream, nodes: Nodes, samples: str, begun: str) -> str:
    """Adds the samples of the window that a request completes, f32 [n, context + window]."""
    sound, kept = stream.of.sound, stream.kept
    if not kept:
        return samples
    before, after = stream.keep(_KEPT, "f32", [kept])
    if sound.edge:
        first = nodes.add("Less", [_REQUESTS, nodes.constant("half", 0.5)], "first")
        led = nodes.slice(before, 1, kept - sound.lead, kept, "led")
        led = nodes.add("Where", [first, windows.turned(nodes, sound, samples), led], "edge")
        parts = [nodes.slice(before, 1, 0, kept - sound.lead, "others")] if kept > sound.lead else []
        before = nodes.add("Concat", [*parts, led], "with_edge", axis=1)
    known = nodes.add("Concat", [before, samples], "known", axis=1)
    nodes.add("Identity", [nodes.slice(known, 1, sound.hop, sound.hop + kept, "last")], "next", to=after)
    return nodes.slice(known, 1, 0, sound.context + sound.window, "window")


def _of_rows(stream: Stream, nodes: Nodes, x: str, rank: int) -> str:
    """Returns x with an open axis of rows: a network for one row has a 1 there, from which the gateway would conclude
    that the model has no batch."""
    if stream.batched:
        return x
    rows = nodes.slice(nodes.add("Shape", [_SAMPLES], "rows"), 0, 0, 1, "rows")
    shape = nodes.add("Concat", [rows, nodes.ints("rows.others", [1] * (rank - 1))], "rows.shape", axis=0)
    return nodes.add("Expand", [x, shape], "by_rows")


def _hand_on(stream: Stream, nodes: Nodes, last: Nodes, state: State, begun: str) -> None:
    """Adds a state of the network, whose first axis becomes that of the rows, also of one that has none. It stays zeros
    until there is a window."""
    if state.axis is None:
        before, after = stream.keep(f"{state.input}_rows", state.dtype, state.shape or (1,))
        nodes.reshape(before, state.shape, "state", to=state.input)
        shape = [1, *(state.shape or (1,))]
        moved = _of_rows(stream, last, last.reshape(state.output, shape, "next_state"), len(shape))
        _held(stream, last, moved, after, begun, before)
        return
    others = [axis for axis in range(len(state.shape)) if axis != state.axis]
    there = [others.index(axis) + 1 if axis != state.axis else 0 for axis in range(len(state.shape))]
    before, after = stream.keep(f"{state.input}_rows", state.dtype, [state.shape[axis] for axis in others])
    nodes.add("Transpose", [before], "state", to=state.input, perm=there)
    moved = last.add("Transpose", [state.output], "next_state", perm=[state.axis, *others])
    moved = _of_rows(stream, last, moved, 1 + len(others))
    _held(stream, last, moved, after, begun, before)


def _find(stream: Stream, nodes: Nodes, speech: Speech, begun: str) -> None:
    """Adds the segments of speech that are final with a window, and since when somebody speaks."""
    x = nodes.reshape(speech.probabilities(nodes, f"{WINDOW}{speech.output.name}"), [-1, 1], "each_window")
    if begun:
        x = nodes.add("Where", [begun, x, nodes.constant("silence", 0.0)], "heard")
    rows = nodes.slice(nodes.add("Shape", [x], "shape"), 0, 0, 1, "rows")
    level = nodes.reshape(_threshold(stream, nodes, speech.score, rows), [-1], "level.each")
    length = nodes.add("Expand", [nodes.constant("hop", [stream.of.sound.hop], np.int32), rows], "length")
    before, after = stream.keep(_SPEECH, "f64", [_NUMBERS])
    stream.last = _LAST
    inputs = [x, length, level, before, nodes.reshape(_LAST, [-1], "last")]
    made = [f"{nodes.prefix}segments", "scores", "count", f"{nodes.prefix}next_speech", _SINCE]
    attributes = {**speech.attributes, "max_segments": _MOST_SEGMENTS}
    nodes.add_op("SpeechSegments", inputs, made, "found", **attributes)
    _held(stream, nodes, made[3], after, begun, before)
    stream.outputs += [
        *(Tensor(each.name, "f32", each.dims) for each in segment_times(nodes, _MOST_SEGMENTS) if not each.scalar),
        Tensor("count", "i32", []),
        Tensor(_SINCE, "f32", []),
        Tensor(_STATUS, "i32", []),
    ]


def _threshold(stream: Stream, nodes: Nodes, usual: float, rows: str) -> str:
    """Adds the threshold f32 [n, 1] of each request: what it says, else what one before it said, else `usual`. Adds the
    status of the requests, too."""
    given = settings.add(nodes, settings.SCORE, Setting(_UNSAID))
    stream.settings = nodes.settings
    zero, one = nodes.constant("zero", 0.0), nodes.constant("one", 1.0)
    held = nodes.add("Max", [nodes.add("Min", [given, one], "given.most"), zero], "given.held")
    unsaid = nodes.add("Equal", [given, nodes.constant("unsaid", _UNSAID)], "given.unsaid")
    good = nodes.add("Or", [nodes.add("Equal", [given, held], "given.within"), unsaid], "given.good")
    codes = [nodes.constant(f"status.{code}", code, np.int32) for code in (0, nodes.settings[given].code)]
    status = nodes.reshape(nodes.add("Where", [good, *codes], "status"), [-1], "status.flat")
    nodes.add("Expand", [status, rows], "status.each", to=_STATUS)
    before, after = stream.keep(f"{PRE}threshold", "f32", [2])  # the last one, and whether there is one
    level = nodes.add("Where", [unsaid, nodes.slice(before, 1, 0, 1, "said"), given], "level")
    there = nodes.add("Where", [unsaid, nodes.slice(before, 1, 1, 2, "is_said"), one], "is_there")
    nodes.add("Concat", [level, there], "next_level", to=after, axis=1)
    none = nodes.add("Less", [there, nodes.constant("half", 0.5)], "none")
    return nodes.add("Where", [none, nodes.constant("usual", usual), level], "level.used")


def _held(stream: Stream, nodes: Nodes, x: str, to: str, begun: str, zeros: str) -> None:
    """Adds a next state: x, or what it was, `zeros`, while no request has completed a window."""
    if not stream.delay:
        nodes.add("Identity", [x], "next", to=to)
        return
    rank = 1 + len(next(each for each, after in stream.states if after.name == to).shape)
    nodes.add("Where", [nodes.reshape(begun, [-1, *[1] * (rank - 1)], "begun"), x, zeros], "held", to=to)


def _config(name: str, stream: Stream) -> str:
    lines = [
        f"{MADE}: the samples of a sound in, the outputs of the network out.",
        f'name: "{name}"',
        'backend: "onnxruntime"',
        f"max_batch_size: {32 if stream.batched else 1}",
        f'input {{ name: "{_SAMPLES}" data_type: TYPE_FP32 dims: [ {stream.of.sound.hop} ] }}',
        *(
            f'input {{ name: "{each}" data_type: {setting.datatype} dims: [ 1 ] optional: true }}'
            for each, setting in stream.settings.items()
        ),
        *(
            f'output {{ name: "{each.name}" data_type: {_DATATYPES[each.dtype]} dims: [ '
            f"{', '.join(map(str, each.shape or (1,)))} ]{'' if each.shape else ' reshape { shape: [ ] }'} }}"
            for each in stream.outputs
        ),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {_IDLE}",
        *(
            [f'  control_input {{ name: "{stream.last}" control {{ kind: CONTROL_SEQUENCE_END {_FLAG} }} }}']
            if stream.last
            else []
        ),
        f"  oldest {{ max_candidate_sequences: {_MOST_SEQUENCES} }}",
        *(
            f'  state {{ input_name: "{before.name}" output_name: "{after.name}" data_type: '
            f"{_DATATYPES[before.dtype]} dims: [ {', '.join(map(str, before.shape))} ] }}"
            for before, after in stream.states
        ),
        "}",
        f'model_operations {{ op_library_filename: "{LIBRARY}" }}',
    ]
    if stream.settings:
        statuses = {"row_status_output": _STATUS, "row_status_messages": settings.messages(stream.settings).lstrip(";")}
        lines += [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in statuses.items()]
    return "\n".join(lines) + "\n"
