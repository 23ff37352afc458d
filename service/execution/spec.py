"""The facts about a model that execution needs. They come from its config, as values that are quick to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opgate.service.execution.datatypes import DataType


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output as a client sees it. `dims` lacks the batch dimension; -1 stands for any size."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None  # the dims in the model file, if they differ from `dims`
    optional: bool = False
    ragged: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchInputSpec:
    """An input of the model that the batcher computes from the sizes of the ragged input `source`."""

    kind: str
    name: str
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class Batching:
    """A `dynamic_batching` block. `adaptive` is True if it sets no preferred size and no delay: then the measured costs
    decide on batches."""

    adaptive: bool = True
    preferred: tuple[int, ...] = ()
    max_delay_ns: int = 0
    max_queue_size: int = 0  # 0: only the limit of the gateway applies
    default_timeout_us: int = 0
    timeout_override: bool = True


@dataclass(frozen=True, slots=True)
class RowStatus:
    """The output with a status for each row: a nonzero one is an error of the row, whose text is in `messages`."""

    output: str
    messages: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One version of a model."""

    name: str
    version: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    max_batch_size: int = 0
    batching: Batching | None = None
    batch_inputs: tuple[BatchInputSpec, ...] = ()
    row_status: RowStatus | None = None
    decoupled: bool = False  # whether each entry of the outputs is a response of its own, see service.wire.responses
    platform: str = "onnxruntime_onnx"

    @property
    def batched(self) -> bool:
        """Whether the shapes that clients send and get start with a batch dimension."""
        return self.max_batch_size > 0

    def wire_shape(self, tensor: TensorSpec) -> list[int]:
        """Returns the shape of a tensor in metadata: `dims`, after a -1 if the model batches."""
        return [-1, *tensor.dims] if self.batched else list(tensor.dims)
