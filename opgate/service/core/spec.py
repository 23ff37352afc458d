"""The facts about a model that execution needs. They come from its config, as values that are quick to read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opgate.service.core.datatypes import DataType


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

    @property
    def is_file(self) -> bool:
        """Whether a row of it can be the bytes of a file: UINT8, one dim variable and the others 1."""
        return self.datatype.name == "UINT8" and sorted(self.dims) == [-1] + [1] * (len(self.dims) - 1)


@dataclass(frozen=True, slots=True)
class BatchInputSpec:
    """An input of the model that the batcher computes from the sizes of the input `source`."""

    kind: str
    name: str
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """An input whose variable dims are padded with `value` to the longest of the batch.

    `variable` are the indices of these dims, which don't count the batch dim. A batch that would have more than
    `max_elements` elements of it is not made.
    """

    value: int | float | str
    variable: tuple[int, ...]
    max_elements: int


@dataclass(frozen=True, slots=True)
class Mask:
    """An input of the model that the batcher computes: 1 where the padded input `source` has data, 0 in its padding.

    Its shape is the batch dim and the variable dims of `source`.
    """

    name: str
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A dim of an output that is as long as a padded dim of an input. Each request gets the size that its input has."""

    dim: int
    source: str
    source_dim: int


@dataclass(frozen=True, slots=True)
class Padding:
    """How requests with different shapes share a batch. Indices of dims don't count the batch dim.

    With `buckets`, in ascending order, a padded dim is rounded up to one of these sizes, and requests share a batch
    only if all their sizes are the same then. The dims of an entry of `ties` must have one size in each request.
    """

    inputs: Mapping[str, PaddedInput]
    masks: tuple[Mask, ...] = ()
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)
    buckets: tuple[int, ...] = ()
    ties: tuple[tuple[tuple[str, int], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How many requests may wait, and for how long. A number is 0 where nothing is limited.

    If `delay` is True, a request whose timeout is over waits behind the others instead of failing.
    """

    max_queue_size: int = 0
    default_timeout_us: int = 0
    timeout_override: bool = False
    delay: bool = False

    def timeout_us(self, asked: int) -> int:
        """Returns the timeout of a request that asks for `asked` microseconds. 0 stands for none in both.

        A request may shorten the default, but not lengthen it.
        """
        default = self.default_timeout_us
        if not default or (asked and self.timeout_override and asked < default):
            return asked
        return default


@dataclass(frozen=True, slots=True)
class Batching:
    """A `dynamic_batching` block. `adaptive` is True if it sets no preferred size and no delay: then the measured costs
    decide on batches.

    With `priority_levels`, level 1 is the highest, and `policies` has the queue policies of the levels that don't have
    `policy`. With `max_latency_ns` no request is accepted that can't be answered in that time.
    """

    adaptive: bool = True
    preferred: tuple[int, ...] = ()
    max_delay_ns: int = 0
    policy: QueuePolicy = QueuePolicy()
    priority_levels: int = 0
    default_level: int = 0
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    preserve_ordering: bool = False
    max_latency_ns: int = 0
    #: Whether requests that may share a batch always run in the order in which they came.
    in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        policies = (self.policy, *self.policies.values())
        in_order = not self.priority_levels and not any(policy.delay for policy in policies)
        object.__setattr__(self, "in_order", in_order)

    def level(self, priority: int) -> int:
        """Returns the level of a request that asks for `priority`, 0 if there are no levels.

        As in Triton, a priority that is no level means the default.
        """
        return priority if 0 < priority <= self.priority_levels else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """Returns the queue policy of a level."""
        return self.policies.get(level, self.policy)


@dataclass(frozen=True, slots=True)
class RowStatus:
    """The output with a status for each row: a nonzero one is an error of the row, whose text is in `messages`."""

    output: str
    messages: Mapping[int, str] = field(default_factory=dict)


#: The platforms of models in Python, and of ensembles.
PYTHON, ENSEMBLE = "python", "ensemble"


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
    scattered: Mapping[str, str] = field(default_factory=dict)  # flat outputs by name, with the input that shapes them
    padding: Padding | None = None
    batch_by: tuple[str, ...] = ()  # inputs whose values the requests of a batch have in common
    length_buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)  # sizes that part batches, by input
    pad_batch: tuple[int, ...] = ()  # the sizes that a run may have, ascending; others get further rows
    row_status: RowStatus | None = None
    decoupled: bool = False  # whether each entry of the outputs is a response of its own, see service.wire.responses
    platform: str = "onnxruntime_onnx"
    #: Whether a request gets its responses while it runs, see `Request.responses`.
    streams: bool = field(init=False)
    #: Whether the shapes that clients send and get start with a batch dimension.
    batched: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", self.decoupled and self.platform in (PYTHON, ENSEMBLE))
        object.__setattr__(self, "batched", self.max_batch_size > 0)

    def wire_shape(self, tensor: TensorSpec) -> list[int]:
        """Returns the shape of a tensor in metadata: `dims`, after a -1 if the model batches."""
        return [-1, *tensor.dims] if self.batched else list(tensor.dims)


def rounded(padding: Padding, name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes of a padded input with the variable ones rounded up to their buckets.

    A size above the last bucket stays as it is.
    """
    if not padding.buckets:
        return tuple(sizes)
    new = list(sizes)
    for dim in padding.inputs[name].variable:
        at = bisect_left(padding.buckets, sizes[dim])
        if at < len(padding.buckets):
            new[dim] = padding.buckets[at]
    return tuple(new)
