"""Proves that a network hears in its new graph what it hears alone."""

from __future__ import annotations

import io
import wave as wav_files
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model import graph
from opgate.attach.model.nodes import OPS, Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report
from opgate.attach.sounds import features, sound_streams, windows
from opgate.attach.sounds.known_sound import Known
from opgate.attach.sounds.sound_streams import Stream
from opgate.attach.sounds.windows import Wave
from opgate.onnx_tools.sessions import one_line
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: How far the pieces of a sound may be from its file, as a part of the greatest magnitude.
_TOLERANCE = 1e-4


def wav_of(samples: Array, rate: int) -> bytes:
    """Returns a WAV of 16 bits with one channel of samples f64 [t] in [-1, 1)."""
    file = io.BytesIO()
    with wav_files.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((np.clip(samples, -1, 1 - 2**-15) * 32768).round().astype("<i2").tobytes())
    return file.getvalue()


def prove(joined: onnx.ModelProto, of: Known, heard: Sequence[Output], stream: Stream | None, report: Report) -> None:
    """Compares what the network gives in the joined graph, for a file of noise, with what the file's network gives for
    the samples, window by window, and with what the model for a stream gives for its pieces. Reports it. Raises
    AttachError."""
    network, sound, taking = of.network, of.sound, of.taking
    count = sound.fixed or 2 * sound.rate + 77
    file = wav_of(np.random.default_rng(5).uniform(-0.5, 0.5, count), sound.rate)
    model = onnx.ModelProto()
    model.CopyFrom(joined)
    del model.graph.output[:]
    dtypes = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "f64": TensorProto.DOUBLE}
    names = [output.name for output in heard] + [taking.source]
    for output in heard:
        number = dtypes.get(output.dtype, helper.np_dtype_to_tensor_dtype(output.value.dtype))
        model.graph.output.append(helper.make_tensor_value_info(output.name, number, None))
    model.graph.output.append(helper.make_tensor_value_info(taking.source, TensorProto.FLOAT, None))
    feed = {"data": np.frombuffer(file, np.uint8), "ends": np.array([len(file)], np.int32)}
    try:
        ours = dict(zip(names, network.open(model).run(names, feed), strict=True))
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        hint = "" if sound.window or sound.fixed else ". If it takes one length alone, say it: seconds:2, for example"
        raise AttachError(
            f"{network.path.name} fails on a sound of {count} samples: {one_line(error)[:300]}{hint}"
        ) from None
    samples = ours[taking.source]
    original = replace(network, model=graph.prepared(network.original))
    if sound.window:
        constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in network.model.graph.initializer
            if tensor.name in {value.name for value in original.model.graph.input}
        }
        if of.lengths:
            constants[of.lengths] = np.array([of.size], DTYPES[network.inputs[of.lengths].dtype].numpy)
        theirs = windows.run(original, of, taking.name, _inputs(of, samples), constants)
    else:
        opened = network.open(network.model)
        outputs = [output.name for output in opened.get_outputs()]
        given: dict[str, Array] = {taking.name: taking.shaped(samples)}
        if of.lengths:
            given[of.lengths] = np.array([samples.shape[-1]], DTYPES[network.inputs[of.lengths].dtype].numpy)
        theirs = dict(zip(outputs, opened.run(outputs, given), strict=True))
    told = _compared(heard, ours, theirs)[0]
    each = "for each window of a file of noise" if sound.window else "for a file of noise"
    report.proved(f"network: {each} it gives what {network.path.name} gives, {told}")
    if stream:
        pieces = sound_streams.in_pieces(stream, samples[0] / sound.gain, ours[heard[0].name].shape[1])
        told, apart = _compared(heard, pieces, sound_streams.windows_of_file(stream, ours))
        if apart > _TOLERANCE:
            raise AttachError(f"the pieces of a sound would give something else than its file, {told}")
        report.proved(f"stream: for the pieces of a file of noise it gives what the file gives, {told}")


def _compared(heard: Sequence[Output], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[str, float]:
    """Returns how far two answers are from each other: as text, and as a part of the greatest magnitude."""
    largest, equal = 0.0, True
    for output in heard:
        one, other = ours[output.name], theirs[output.name]
        if one.shape != other.shape:
            raise AttachError(
                f"the network gives {list(other.shape)} for a sound, and in the new graph {list(one.shape)}"
            )
        equal = equal and one.tobytes() == other.tobytes()
        scale = float(np.abs(other).max(initial=0)) or 1.0
        largest = max(largest, float(np.abs(one.astype(np.float64) - other).max(initial=0)) / scale)
    return ("bit for bit" if equal else f"apart from {largest:.1e} of the greatest magnitude"), largest


def _inputs(of: Known, samples: Array) -> Iterator[Array]:
    """Yields what the network gets of each window of samples f32 [1, t]: of features, those of the sound as a whole."""
    sound, taking = of.sound, of.taking
    count = max(1, (samples.shape[1] + sound.beyond) // sound.hop)
    size = sound.context + (count - 1) * sound.hop + sound.window
    if isinstance(taking, Wave):
        padded = np.pad(samples, ((0, 0), (sound.context + sound.lead, size)))
        for begin in range(0, count * sound.hop, sound.hop):
            yield taking.shaped(padded[:, begin : begin + sound.context + sound.window])
        return
    assert of.features
    all_of_them = _features(of, np.pad(samples, ((0, 0), (0, size))))
    hop = sound.hop // of.features.step
    for begin in range(0, count * hop, hop):
        yield taking.shaped(all_of_them[:, :, begin : begin + (taking.frames or 0)])


def _features(of: Known, samples: Array) -> Array:
    """Returns the features [1, bands, frames] of samples f32 [1, t]."""
    assert of.features
    nodes = Nodes(graph.opset_of(of.network.model), graph.PRE)
    features.add(nodes, of.features, windows.PCM, "", None)
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (windows.PCM, features.FEATURES)
    )
    alone = helper.make_graph(nodes.nodes, "features", [given], [made], list(nodes.constants.values()))
    imports = [helper.make_opsetid("", nodes.opset), helper.make_opsetid(OPS, 1)]
    opened = of.network.open(helper.make_model(alone, opset_imports=imports, ir_version=of.network.model.ir_version))
    return np.asarray(opened.run(None, {windows.PCM: samples})[0])
