"""Tries a model out before it serves: its warm-up requests, and its golden inputs with the outputs that they must have.

The golden tensors lie in `golden.npz` in the folder of the version, else in the folder of the model. It has an array
for each input and for each output that is compared, by their names.
"""

from __future__ import annotations

import math
import threading
import zipfile
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from opgate.service.core.checks import Limits, TensorInfo, check_inputs
from opgate.service.core.datatypes import BY_CONFIG, DataType
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import element, from_raw
from opgate.service.core.triton_messages import ModelConfig, ModelWarmup, model_config_pb2
from opgate.service.repository.config import ConfigError, parameter
from opgate.service.repository.paths import confined, file_name
from opgate.service.repository.sequence_config import tensor_names

GOLDEN = "golden.npz"
TOLERANCE = "golden_tolerance"  # the parameter of the config
_WARM_UP_FOLDER = "warmup"
_MOST_WARM_UPS = 10_000  # other models can't be loaded meanwhile
# Floats differ between machines and numbers of threads in their last digits. Half precision has three digits.
_RELATIVE, _RELATIVE_HALF = 1e-3, 1e-2

Run = Callable[[Request], None]


class WarmUp(NamedTuple):
    """A warm-up request that ran, and how long."""

    request: Request
    wall_ns: int


def prove(
    config: ModelConfig,
    spec: ModelSpec,
    folder: Path,
    version: int,
    runs: Sequence[Run],
    limits: Limits,
    seconds: float,
) -> list[WarmUp]:
    """Runs the warm-up requests of a model and its golden inputs, on each of its sessions. Returns the former.

    `runs` are functions that run a request on the calling thread. Raises ConfigError if a request fails or takes longer
    than `seconds`, or if an output isn't what it must be.
    """
    measured: list[WarmUp] = []
    timed = [partial(_in_time, run, seconds) for run in runs]
    for warm_up in config.model_warmup:
        where = f"model_warmup '{warm_up.name}'"
        if warm_up.count > _MOST_WARM_UPS:
            raise ConfigError(f"{where}: count {warm_up.count}: expected at most {_MOST_WARM_UPS}")
        inputs = _warm_up_inputs(spec, warm_up, tensor_names(config), folder, limits, where)
        for run in timed:
            for _ in range(warm_up.count or 1):
                began = perf_counter_ns()
                request = _run(spec, inputs, run, limits, where)
                measured.append(WarmUp(request, perf_counter_ns() - began))
                request.result = None  # all runs share the inputs
    path = next((p for p in (folder / str(version) / GOLDEN, folder / GOLDEN) if p.is_file()), None)
    if path is None:
        if parameter(config, TOLERANCE):
            raise ConfigError(f"parameter '{TOLERANCE}': there is no {GOLDEN}")
        return measured
    inputs, expected = _golden(confined(folder.parent, path), spec)
    tolerance = _tolerance(config)
    for run in timed:
        result = _run(spec, inputs, run, limits, GOLDEN).result or {}
        for name, want in expected.items():
            bits = spec.outputs[name].datatype.name == "BF16"
            _compare(
                name,
                _numbers(result[name], bits),
                _numbers(want, bits),
                tolerance if not bits else tolerance or _RELATIVE_HALF,
            )
    return measured


def _in_time(run: Run, seconds: float, request: Request) -> None:
    """Runs a request. Raises ServingError (DEADLINE) after so many seconds: other models wait to be loaded.

    The run is told to end. Until it does, its thread stays.
    """
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run(request)
        except BaseException as error:
            errors.append(error)
        ended.set()

    threading.Thread(target=work, name="opgate-prove", daemon=True).start()
    if not ended.wait(seconds):
        request.cancel()
        raise ServingError(Kind.DEADLINE, f"the run took longer than {seconds:g} s (OPGATE_RUN_TIMEOUT)")
    if errors:
        raise errors[0]


def _run(spec: ModelSpec, inputs: dict[str, Array], run: Run, limits: Limits, where: str) -> Request:
    try:
        infos = [TensorInfo(name, spec.inputs[name].datatype.name, array.shape) for name, array in inputs.items()]
        fit = check_inputs(spec, infos, limits)
        request = Request(dict(inputs), fit.rows, fit.key, tuple(spec.outputs), weight=fit.weight)
        run(request)
    except ServingError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    return request


def _warm_up_inputs(
    spec: ModelSpec, warm_up: ModelWarmup, hidden: Collection[str], folder: Path, limits: Limits, where: str
) -> dict[str, Array]:
    """Returns the inputs of a warm-up request. `hidden` are those that clients don't give: controls and states."""
    rows = warm_up.batch_size or 1
    if not spec.batched and rows > 1:
        raise ConfigError(f"{where}: batch_size {rows}: expected 1, the model doesn't batch")
    if spec.batched and rows > spec.max_batch_size:
        raise ConfigError(f"{where}: batch_size {rows}: expected a batch size of 1 to {spec.max_batch_size}")
    arrays: dict[str, Array] = {}
    for name, given in warm_up.inputs.items():
        tensor = spec.inputs.get(name)
        if tensor is None and name in hidden:
            continue
        if tensor is None:
            raise ConfigError(f"{where}: the model has no input '{name}', its inputs are {', '.join(spec.inputs)}")
        declared = BY_CONFIG.get(model_config_pb2.DataType.Name(given.data_type))
        if declared is not tensor.datatype:
            raise ConfigError(f"{where}: input '{name}': expected data_type {tensor.datatype.config_name}")
        dims = tuple(given.dims)
        if any(size < 0 for size in dims) or math.prod(dims) > limits.max_elements:
            raise ConfigError(f"{where}: input '{name}': dims {list(dims)}: expected sizes of one request")
        one = _warm_up_array(given, tensor.datatype, dims, folder, limits, f"{where}: input '{name}'")
        if not dims and all(size == 1 for size in tensor.dims):
            one = one.reshape(tensor.dims)  # a scalar
        arrays[name] = np.repeat(one[None], rows, axis=0) if spec.batched else one
    return arrays


def _warm_up_array(
    given: Any, datatype: DataType, dims: tuple[int, ...], folder: Path, limits: Limits, where: str
) -> Array:
    choice = given.WhichOneof("input_data_type")
    if choice == "input_data_file":
        path = folder / _WARM_UP_FOLDER / file_name(given.input_data_file, f"{where}: input_data_file")
        try:
            data = confined(folder.parent, path).read_bytes()
            return from_raw(data, 0, len(data), datatype, dims, path.name, limits)
        except OSError as error:
            raise ConfigError(f"{where}: input_data_file '{path.name}' can't be read: {error.strerror}") from None
        except ServingError as error:
            raise ConfigError(f"{where}: {error.message}") from error
    if choice is None:
        raise ConfigError(f"{where}: expected one of zero_data, random_data, input_data_file")
    if choice == "zero_data" or datatype.name == "BYTES":
        return np.full(dims, "", np.object_) if datatype.name == "BYTES" else np.zeros(dims, datatype.dtype)
    bits = np.random.default_rng(0).random(dims)
    if datatype.dtype.kind in "iu" and datatype.name != "BF16":
        bits = bits * 100  # a small number is a valid index and size more often than any number of the type
    return (bits > 0.5) if datatype.name == "BOOL" else bits.astype(datatype.dtype)


def _golden(path: Path, spec: ModelSpec) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns the inputs and the expected outputs. Raises ConfigError."""
    inputs: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                if name in spec.inputs:
                    inputs[name] = _as_tensor(file[name], spec.inputs[name].datatype, name)
                elif name in spec.outputs:
                    outputs[name] = _as_tensor(file[name], spec.outputs[name].datatype, name)
                else:
                    known = ", ".join((*spec.inputs, *spec.outputs))
                    raise ConfigError(f"{GOLDEN}: '{name}' is no tensor of the model, which has {known}")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{GOLDEN} can't be read: {error}") from error
    if not outputs:
        raise ConfigError(f"{GOLDEN} has no output: expected one of {', '.join(spec.outputs)}")
    return inputs, outputs


def _as_tensor(array: Array, datatype: DataType, name: str) -> Array:
    # NumPy takes zeros at the end of an element of type S for padding, and keeps those of type V.
    if datatype.name == "BYTES" and array.dtype.kind in "USV" and not array.dtype.names:
        strings = [text if isinstance(text, str) else element(bytes(text)) for text in array.reshape(-1).tolist()]
        found: Array = np.empty(len(strings), np.object_)
        found[:] = strings
        return found.reshape(array.shape)
    if array.dtype != datatype.dtype:
        expected = "strings" if datatype.name == "BYTES" else f"{datatype.dtype} ({datatype.name})"
        raise ConfigError(f"{GOLDEN}: '{name}': expected {expected}, got {array.dtype}")
    return array


def _tolerance(config: ModelConfig) -> float | None:
    text = parameter(config, TOLERANCE)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ConfigError(f"parameter '{TOLERANCE}': expected a relative error from 0 to 1, got '{text}'")
    return value


def _numbers(array: Array, bfloat16: bool) -> Array:
    """Returns the values of an array, which has the upper halves of float32 if it is bfloat16."""
    return (array.astype(np.uint32) << 16).view(np.float32) if bfloat16 else array


def _compare(name: str, got: Array, want: Array, tolerance: float | None) -> None:
    """Raises ConfigError if an output is not what it must be.

    A float may be off by the tolerance times the largest finite magnitude of the expected tensor. Other values must be
    equal.
    """
    if got.shape != want.shape:
        raise ConfigError(f"{GOLDEN}: output '{name}': expected shape {list(want.shape)}, got {list(got.shape)}")
    if want.dtype.kind == "f":
        finite = np.abs(want[np.isfinite(want)]).astype(np.float64)
        relative = tolerance if tolerance is not None else _RELATIVE if want.dtype.itemsize > 2 else _RELATIVE_HALF
        allowed = relative * (float(finite.max()) if finite.size else 0.0)
        # What is infinite or no number must be so in both.
        close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=allowed, equal_nan=True)
    else:
        close = np.asarray(got == want)
    if close.all():
        return
    index = tuple(int(i) for i in np.argwhere(~close)[0])
    wrong = int((~close).sum())
    raise ConfigError(
        f"{GOLDEN}: output '{name}' differs in {wrong} of {want.size} elements, first at {list(index)}: "
        f"expected {str(want[index])[:80]}, got {str(got[index])[:80]}"
    )
