"""Reads the `sequence_batching` block of a config."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import BY_CONFIG, DATATYPES, DataType
from opgate.service.core.request import Array
from opgate.service.core.spec import Batching
from opgate.service.core.tensors import from_raw
from opgate.service.core.triton_messages import ModelConfig, ModelSequenceBatching, model_config_pb2
from opgate.service.execution.sequences import CORRELATION_ID, Control, SequenceBatching, State
from opgate.service.repository.config import BATCH_PARAMETERS, DEFAULT_IDLE_US, ConfigError, in_python, parameter
from opgate.service.repository.paths import confined, file_name
from opgate.service.repository.spec_from_config import stated_datatype

_BLOCK = "sequence_batching"
# As in Triton.
_STATE_FOLDER = "initial_state"
_IDS = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")


def tensor_names(config: ModelConfig) -> set[str]:
    """Returns the tensors of the model file that clients don't see: controls and states."""
    block = config.sequence_batching
    states = {name for state in block.state for name in (state.input_name, state.output_name)}
    return {control.name for control in block.control_input} | states


def read_sequences(config: ModelConfig, folder: Path, limits: Limits) -> SequenceBatching | None:
    """Returns the SequenceBatching that a config describes, None if it has none. Raises ConfigError."""
    if not config.HasField(_BLOCK):
        return None
    block = config.sequence_batching
    if any(tensor.allow_ragged_batch for tensor in config.input):
        raise ConfigError(f"{_BLOCK}: an input has allow_ragged_batch")
    if config.batch_output:
        raise ConfigError(f"{_BLOCK} with batch_output")
    for key in sorted(BATCH_PARAMETERS):
        if key in config.parameters:
            raise ConfigError(f"{_BLOCK} with parameter '{key}'")
    if block.iterative_sequence and not in_python(config):
        raise ConfigError(
            f"{_BLOCK}.iterative_sequence: only a model in Python can ask for a request once more: remove it"
        )
    if not block.HasField("oldest") and parameter(config, "row_status_output"):
        raise ConfigError(f"{_BLOCK}.direct has rows without a request, whose status row_status_output would take")
    rows = max(1, config.max_batch_size)
    oldest = block.oldest if block.HasField("oldest") else None
    for size in oldest.preferred_batch_size if oldest is not None else ():
        if not 1 <= size <= rows:
            raise ConfigError(f"{_BLOCK}.oldest.preferred_batch_size {size}: expected 1 to max_batch_size {rows}")
    if not 0 <= block.direct.minimum_slot_utilization <= 1:
        raise ConfigError(f"{_BLOCK}.direct.minimum_slot_utilization: expected 0 to 1")
    return SequenceBatching(
        idle_ns=(block.max_sequence_idle_microseconds or DEFAULT_IDLE_US) * 1000,
        controls=tuple(_controls(block)),
        states=tuple(_state(state, config, folder, limits) for state in block.state),
        oldest=_batching(oldest) if oldest is not None else None,
        candidates=max(1, oldest.max_candidate_sequences) if oldest is not None else 0,
        max_delay_ns=block.direct.max_queue_delay_microseconds * 1000,
        least_used=block.direct.minimum_slot_utilization,
        iterative=block.iterative_sequence,
    )


def _batching(oldest: Any) -> Batching:
    return Batching(
        adaptive=not oldest.preferred_batch_size and not oldest.max_queue_delay_microseconds,
        preferred=tuple(sorted(oldest.preferred_batch_size)),
        max_delay_ns=oldest.max_queue_delay_microseconds * 1000,
        preserve_ordering=oldest.preserve_ordering,
    )


def _controls(block: Any) -> Iterator[Control]:
    seen: set[str] = set()
    for item in block.control_input:
        for control in item.control:
            name = ModelSequenceBatching.Control.Kind.Name(control.kind)
            kind = name.removeprefix("CONTROL_SEQUENCE_")
            where = f"{_BLOCK}.control_input '{item.name}' {name}"
            if kind in seen:
                raise ConfigError(f"{where}: the kind is given twice")
            seen.add(kind)
            yield _control(control, kind, item.name, where)


def _control(control: Any, kind: str, name: str, where: str) -> Control:
    given = [
        (values, datatype)
        for values, datatype in (
            (control.int32_false_true, "INT32"),
            (control.fp32_false_true, "FP32"),
            (control.bool_false_true, "BOOL"),
        )
        if values
    ]
    if kind == CORRELATION_ID:
        datatype = BY_CONFIG.get(model_config_pb2.DataType.Name(control.data_type))
        if given or datatype is None or datatype.name not in _IDS:
            raise ConfigError(f"{where}: expected data_type TYPE_UINT64, _INT64, _UINT32, _INT32 or _STRING")
        return Control(kind, name, datatype)
    if len(given) != 1 or len(given[0][0]) != 2:
        raise ConfigError(f"{where}: expected two values in int32_false_true, fp32_false_true or bool_false_true")
    (false, true), datatype_name = given[0]
    return Control(kind, name, DATATYPES[datatype_name], false, true)


def _state(state: Any, config: ModelConfig, folder: Path, limits: Limits) -> State:
    where = f"{_BLOCK}.state '{state.input_name}'"
    if not state.input_name or not state.output_name:
        raise ConfigError(f"{where}: expected an input_name and an output_name")
    if any(tensor.name == state.input_name for tensor in config.input):
        raise ConfigError(f"{where}: it is an input of clients as well")
    datatype = stated_datatype(state.data_type, where)
    dims = tuple(state.dims)
    if any(size < -1 or size == 0 for size in dims):
        raise ConfigError(f"{where}: dims {list(dims)}: expected -1 or positive sizes")
    if len(state.initial_state) > 1:
        raise ConfigError(f"{where}: expected one initial_state, got {len(state.initial_state)}")
    # As in Triton, a variable size is 1 at first if nothing else is said.
    first = tuple(1 if size == -1 else size for size in dims)
    initial = _initial(state.initial_state[0], datatype, dims, folder, limits, where) if state.initial_state else None
    return State(
        state.input_name, state.output_name, datatype, dims, _zeros(first, datatype) if initial is None else initial
    )


def _initial(given: Any, datatype: DataType, dims: tuple[int, ...], folder: Path, limits: Limits, where: str) -> Array:
    where = f"{where}: initial_state '{given.name}'"
    if not given.name or given.WhichOneof("state_data") is None:
        raise ConfigError(f"{where}: expected a name, and zero_data or data_file")
    if stated_datatype(given.data_type, where) is not datatype:
        raise ConfigError(f"{where}: expected data_type {datatype.config_name}")
    shape = tuple(given.dims)
    fits = len(shape) == len(dims) and all(
        size >= 0 and want in (-1, size) for want, size in zip(dims, shape, strict=True)
    )
    if not fits or math.prod(shape) > limits.max_elements:
        raise ConfigError(f"{where}: dims {list(shape)} don't fit those of the state, {list(dims)}")
    if given.WhichOneof("state_data") != "data_file":
        return _zeros(shape, datatype)
    path = folder / _STATE_FOLDER / file_name(given.data_file, f"{where}: data_file")
    try:
        data = confined(folder.parent, path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: data_file '{path.name}' can't be read: {error.strerror}") from None
    return from_raw(data, 0, len(data), datatype, shape, path.name, limits)


def _zeros(shape: tuple[int, ...], datatype: DataType) -> Array:
    return np.full(shape, "", np.object_) if datatype.name == "BYTES" else np.zeros(shape, datatype.dtype)
