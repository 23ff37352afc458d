"""Proves that a network hears in its new graph what it hears alone."""

from __future__ import annotations

import io
import wave as wav_files
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model import graph
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report
from opgate.attach.sounds import windows
from opgate.attach.sounds.known_sound import Known
from opgate.attach.sounds.windows import Wave
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES


def wav_of(samples: Array, rate: int) -> bytes:
    """Returns a WAV of 16 bits with one channel of samples f64 [t] in [-1, 1)."""
    file = io.BytesIO()
    with wav_files.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((np.clip(samples, -1, 1 - 2**-15) * 32768).round().astype("<i2").tobytes())
    return file.getvalue()


def prove(joined: onnx.ModelProto, of: Known, heard: Sequence[Output], report: Report) -> None:
    """Compares what the network gives in the joined graph, for a file of noise, with what the file's network gives for
    the samples, window by window. Reports it. Raises AttachError."""
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
    ours = dict(zip(names, network.open(model).run(names, feed), strict=True))
    samples = ours[taking.source]
    original = replace(network, model=graph.prepared(network.original))
    if sound.window and isinstance(taking, Wave):
        constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in network.model.graph.initializer
            if tensor.name in {value.name for value in original.model.graph.input}
        }
        theirs = windows.run(original, taking, sound, of.states, samples[0], constants)
    else:
        opened = network.open(network.model)
        outputs = [output.name for output in opened.get_outputs()]
        given: dict[str, Array] = {taking.name: taking.shaped(samples)}
        if of.lengths:
            given[of.lengths] = np.array([samples.shape[-1]], DTYPES[network.inputs[of.lengths].dtype].numpy)
        theirs = dict(zip(outputs, opened.run(outputs, given), strict=True))
    largest, equal = 0.0, True
    for output in heard:
        one, other = ours[output.name], theirs[output.name]
        if sound.window and isinstance(taking, Wave) and taking.batch is None:
            other = other[None] if other.ndim < one.ndim else other
        if one.shape != other.shape:
            raise AttachError(
                f"the network gives {list(other.shape)} for a sound, and in the new graph {list(one.shape)}"
            )
        equal = equal and one.tobytes() == other.tobytes()
        scale = float(np.abs(other).max(initial=0)) or 1.0
        largest = max(largest, float(np.abs(one.astype(np.float64) - other).max(initial=0)) / scale)
    told = "bit for bit" if equal else f"apart from {largest:.1e} of the greatest magnitude"
    each = "for each window of a file of noise" if sound.window else "for a file of noise"
    report.proved(f"network: {each} it gives what {network.path.name} gives, {told}")
