"""What execution knows about a model: its config, distilled into values that the request path can read quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.execution.datatypes import DataType


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output as a client sees it: `dims` without the batch dimension, -1 where any size fits."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None  # the dims that the model itself has, where they differ
    optional: bool = False
    ragged: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchInputSpec:
    """An input that the batcher makes from the sizes of a ragged one."""

    kind: str
    name: str
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class Batching:
    """A `dynamic_batching` block. `adaptive` is the block left empty: batch where measurement says that it pays."""

    adaptive: bool = True
    preferred: tuple[int, ...] = ()
    max_delay_ns: int = 0
    max_queue_size: int = 0  # 0: the gateway's own limit
    default_timeout_us: int = 0
    timeout_override: bool = True


@dataclass(frozen=True, slots=True)
class RowStatus:
    """The output whose nonzero rows are errors of those rows, and the text for each code."""

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
    instances: int = 1
    platform: str = "onnxruntime_onnx"

    @property
    def batched(self) -> bool:
        """Whether shapes on the wire start with a batch dimension."""
        return self.max_batch_size > 0

    def wire_shape(self, tensor: TensorSpec) -> list[int]:
        """The shape in metadata: -1 first where the model batches."""
        return [-1, *tensor.dims] if self.batched else list(tensor.dims)
