"""The model beside one that hears a file: it gets the windows of a sound as they come, and keeps the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from opgate.attach.model.folder import LIBRARY, MADE
from opgate.attach.model.graph import PRE, opset_of
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import Report
from opgate.attach.model.takes import BATCH
from opgate.attach.sounds.known_sound import Known
from opgate.attach.sounds.sound_words import Sound
from opgate.attach.sounds.windows import State, Wave

#: What is added to the name of a model for that of the model that gets windows.
STREAM = "_stream"
_CONTEXT = "context"
_NUMBERS = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "f64": TensorProto.DOUBLE}
_DATATYPES = {"f32": "TYPE_FP32", "f16": "TYPE_FP16", "f64": "TYPE_FP64", "i64": "TYPE_INT64", "i32": "TYPE_INT32"}
#: A sequence that gets no window for so long has ended, in microseconds.
_IDLE = 60_000_000
_MOST_SEQUENCES = 1024


def models(
    name: str, network: NetworkFile, of: Known, outputs: Sequence[Output], batched: bool, report: Report
) -> tuple[Mapping[str, tuple[onnx.ModelProto | None, str]], Sequence[str]]:
    """Returns the model for a stream by its name, and what a README says of it; nothing if no state is kept between
    windows, or if windows overlap."""
    wave, sound, states = of.wave, of.sound, of.states
    if not (states or sound.context):
        return {}, ()
    if sound.hop != sound.window or sound.lead or wave.batch is None:
        report.default("stream", "none", "windows that overlap, or that begin before the sound, come as a file alone")
        return {}, ()
    stream = f"{name}{STREAM}"
    report.default("stream", stream, f"a sequence of windows of {sound.window} samples; the gateway keeps the state")
    given = ", ".join(f"`{each.name}`" for each in outputs)
    note = (
        f"The model `{stream}` gets a sound in pieces: each request of a sequence has {sound.window} samples, the FP32 "
        f"input `samples`, and gets the outputs of the network for them, {given}. "
        "They are those of the file as a whole, window by window. Its state is kept by the gateway, from the request "
        "with `sequence_start` to that with `sequence_end`, or until none comes for a minute."
    )
    return {
        stream: (_graph(network, wave, sound, states, outputs), _config(stream, sound, states, outputs, batched))
    }, (note,)


def _graph(
    network: NetworkFile, wave: Wave, sound: Sound, states: Sequence[State], outputs: Sequence[Output]
) -> onnx.ModelProto:
    """samples f32 [n, window], context f32 [n, context] and the states, whose first axis is that of the rows, to the
    outputs, the next context and the next states."""
    nodes, last = (
        Nodes(opset_of(network.model), PRE, "samples"),
        Nodes(opset_of(network.model), f"{PRE}last/", "samples"),
    )
    inputs = [helper.make_tensor_value_info("samples", TensorProto.FLOAT, [BATCH, sound.window])]
    given = "samples"
    results = [
        helper.make_tensor_value_info(
            each.name, helper.np_dtype_to_tensor_dtype(each.value.dtype), [BATCH, *each.shape[1:]]
        )
        for each in outputs
    ]
    if sound.context:
        inputs.append(helper.make_tensor_value_info(_CONTEXT, TensorProto.FLOAT, [BATCH, sound.context]))
        given = nodes.add("Concat", [_CONTEXT, "samples"], "with_context", axis=1)
        size = sound.context + sound.window
        last.add("Identity", [last.slice(given, 1, size - sound.context, size, "last")], "next", to=f"{_CONTEXT}_next")
        results.append(helper.make_tensor_value_info(f"{_CONTEXT}_next", TensorProto.FLOAT, [BATCH, sound.context]))
    wave.add(nodes, given)
    for state in states:
        others = [axis for axis in range(len(state.shape)) if axis != state.axis]
        there = [others.index(axis) + 1 if axis != state.axis else 0 for axis in range(len(state.shape))]
        nodes.add("Transpose", [f"{state.input}_rows"], "state", to=state.input, perm=there)
        last.add("Transpose", [state.output], "next_state", to=f"{state.input}_next", perm=[state.axis, *others])
        for name, values in ((f"{state.input}_rows", inputs), (f"{state.input}_next", results)):
            values.append(helper.make_tensor_value_info(name, _NUMBERS[state.dtype], [BATCH, *_row(state)]))
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend([*nodes.nodes, *network.model.graph.node, *last.nodes])
    model.graph.initializer.extend([*nodes.constants.values(), *last.constants.values()])
    model.graph.input.extend(inputs)
    model.graph.output.extend(results)
    model.producer_name = "opgate attach"
    return model


def _row(state: State) -> list[int]:
    return [size for axis, size in enumerate(state.shape) if axis != state.axis]


def _config(name: str, sound: Sound, states: Sequence[State], outputs: Sequence[Output], batched: bool) -> str:
    kept = [(_CONTEXT, f"{_CONTEXT}_next", "f32", [sound.context])] if sound.context else []
    kept += [(f"{state.input}_rows", f"{state.input}_next", state.dtype, _row(state)) for state in states]
    lines = [
        f"{MADE}: the windows of a sound in, the outputs of the network out.",
        f'name: "{name}"',
        'backend: "onnxruntime"',
        f"max_batch_size: {32 if batched else 1}",
        f'input {{ name: "samples" data_type: TYPE_FP32 dims: [ {sound.window} ] }}',
        *(
            f'output {{ name: "{each.name}" data_type: {_DATATYPES[each.dtype]} dims: [ '
            f"{', '.join(map(str, each.shape[1:] or (1,)))} ]{'' if each.shape[1:] else ' reshape { shape: [ ] }'} }}"
            for each in outputs
        ),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {_IDLE}",
        f"  oldest {{ max_candidate_sequences: {_MOST_SEQUENCES} }}",
        *(
            f'  state {{ input_name: "{before}" output_name: "{after}" data_type: {_DATATYPES[dtype]} '
            f"dims: [ {', '.join(map(str, dims))} ] }}"
            for before, after, dtype, dims in kept
        ),
        "}",
        f'model_operations {{ op_library_filename: "{LIBRARY}" }}',
    ]
    return "\n".join(lines) + "\n"
