"""Merges what several gateway processes say of themselves: metrics as text, and the statistics of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client.utils import floatToGoString

from opgate.service.core.triton_messages import service_pb2

# Gauges of which not the sum is meant: those of all processes together, of the machine, or of each model.
_LEAST = frozenset(("opgate_model_ready", "opgate_triton_up", "process_start_time_seconds"))
_MOST = frozenset(
    ("nv_model_load_duration_secs", "nv_cpu_utilization", "opgate_memory_limit_bytes", "opgate_build_info",
     "opgate_intra_op_threads", "python_info")
)  # fmt: skip
_OF_GPUS = ("nv_gpu_", "nv_energy_")
_SUMMED = ("counter", "histogram")
# A process counts those before it in this one.
_WITH_PAST = "opgate_gateway_process_deaths_total"


class _Family:
    """The lines of one metric: its HELP and TYPE, and the values of its samples by what stands before them."""

    def __init__(self, comments: list[str], name: str, kind: str) -> None:
        self.comments = comments
        self.name = name
        self.kind = kind
        self.samples: dict[str, float] = {}


def _read(text: bytes) -> dict[str, _Family]:
    """Reads metrics as `Metrics.text` writes them: two lines of comments before the samples of each."""
    families: dict[str, _Family] = {}
    help_line = ""
    family: _Family | None = None
    for line in text.decode().split("\n"):
        if line.startswith("# HELP "):
            help_line = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families[name] = _Family([help_line, line], name, kind)
        elif line and family is not None:
            sample, _, value = line.rpartition(" ")
            family.samples[sample] = float(value)
    return families


def _write(families: Iterable[_Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines += family.comments
        # The package has no types.
        write: Callable[[float], str] = floatToGoString
        lines += [f"{sample} {write(value)}" for sample, value in family.samples.items()]
    return "".join(f"{line}\n" for line in lines).encode()


def _rule(family: _Family) -> Callable[[float, float], float]:
    if family.kind in _SUMMED:
        return lambda one, other: one + other
    if family.name in _LEAST:
        return min
    if family.name in _MOST or family.name.startswith(_OF_GPUS):
        return max
    return lambda one, other: one + other


def merge_metrics(texts: Sequence[bytes], past: bytes = b"") -> bytes:
    """Returns the metrics of all processes in the form of those of one.

    Counters, histograms and most gauges are added up. `past` has the counters of processes that have died: they count
    for models that are still there.
    """
    merged: dict[str, _Family] = {}
    for text in texts:
        for name, family in _read(text).items():
            known = merged.setdefault(name, family)
            if known is family:
                continue
            rule = _rule(family)
            for sample, value in family.samples.items():
                known.samples[sample] = rule(known.samples[sample], value) if sample in known.samples else value
    for name, family in _read(past).items():
        current = merged[name].samples if name in merged else {}
        for sample, value in family.samples.items():
            if sample in current:
                current[sample] += value
    return _write(merged.values())


def add_past(past: bytes, died: bytes) -> bytes:
    """Returns the counters and histograms of processes that have died, with those of one more."""
    counted = [family for family in _read(died).values() if family.kind in _SUMMED and family.name != _WITH_PAST]
    return merge_metrics([past, _write(counted)])


def merge_statistics(processes: Sequence[Sequence[bytes]]) -> Any:
    """Returns Triton's ModelStatisticsResponse from the ModelStatistics of each process."""
    merged: dict[tuple[str, str], Any] = {}
    for messages in processes:
        for data in messages:
            message = service_pb2.ModelStatistics.FromString(data)
            known = merged.setdefault((message.name, message.version), message)
            if known is not message:
                _add(known, message)
    return service_pb2.ModelStatisticsResponse(model_stats=merged.values())


def _add(known: Any, other: Any) -> None:
    known.last_inference = max(known.last_inference, other.last_inference)
    known.inference_count += other.inference_count
    known.execution_count += other.execution_count
    _add_durations(known.inference_stats, other.inference_stats)
    own = {batch.batch_size: batch for batch in known.batch_stats}
    for batch in other.batch_stats:
        if batch.batch_size in own:
            _add_durations(own[batch.batch_size], batch)
        else:
            known.batch_stats.add().CopyFrom(batch)
    known.batch_stats.sort(key=lambda batch: batch.batch_size)


def _add_durations(known: Any, other: Any) -> None:
    """Adds up the fields of a message that are counts with nanoseconds."""
    for field, duration in other.ListFields():
        if field.message_type is service_pb2.StatisticDuration.DESCRIPTOR:
            mine = getattr(known, field.name)
            mine.count += duration.count
            mine.ns += duration.ns
