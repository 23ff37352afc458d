"""Converts the statistics of a model to Triton's protobuf message."""

from __future__ import annotations

from typing import Any, Protocol

from opgate.service.core.spec import ModelSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.triton_messages import service_pb2


class Counted(Protocol):
    """A model that has statistics."""

    spec: ModelSpec
    statistics: ModelStatistics


def _duration(count: int, ns: int) -> Any:
    return service_pb2.StatisticDuration(count=count, ns=ns)


def model_statistics(model: Counted) -> Any:
    """Returns the statistics of a model as Triton's ModelStatistics."""
    s = model.statistics
    ran = s.success_count - s.cache_hits
    return service_pb2.ModelStatistics(
        name=model.spec.name,
        version=model.spec.version,
        last_inference=s.last_ms,
        inference_count=s.inferences,
        execution_count=s.executions,
        inference_stats=service_pb2.InferStatistics(
            success=_duration(s.success_count, s.request_ns),
            fail=_duration(s.fail_count, s.fail_ns),
            queue=_duration(ran, s.queue_ns),
            compute_input=_duration(ran, s.input_ns),
            compute_infer=_duration(ran, s.infer_ns),
            compute_output=_duration(ran, s.output_ns),
            cache_hit=_duration(s.cache_hits, s.cache_hit_ns),
            cache_miss=_duration(s.cache_misses, s.cache_miss_ns),
        ),
        batch_stats=[
            service_pb2.InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.count, batch.input_ns),
                compute_infer=_duration(batch.count, batch.infer_ns),
                compute_output=_duration(batch.count, batch.output_ns),
            )
            for rows, batch in sorted(s.batches.items())
        ],
    )
