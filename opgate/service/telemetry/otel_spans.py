"""Traces for OpenTelemetry: a span for each inference request, and in it spans for reading, queue, run, steps and
calls of custom ops.

The spans are made when the request has been answered, from the times that it carries anyway. So tracing costs nothing
before that, and a request that isn't sampled costs little. The variables OTEL_* of OpenTelemetry's SDK set the
exporter, the sampler and the name of the service.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from opgate.service.core.request import OpCall, Request, Times
from opgate.service.telemetry.journal import Answer


class Tracer:
    """Makes and exports the spans of one gateway."""

    def __init__(self) -> None:
        """Raises RuntimeError if OpenTelemetry's packages are not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise RuntimeError(f"OPGATE_TRACING needs OpenTelemetry: pip install 'opgate[otel]' ({error})") from None
        self._trace = trace
        self._provider = TracerProvider(resource=Resource.create({"service.name": "opgate"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("opgate")
        self._propagator = TraceContextTextMapPropagator()
        # Spans have the time of day, requests that of perf_counter.
        self._offset_ns = time.time_ns() - time.perf_counter_ns()

    def record(self, answer: Answer, request: Request) -> None:
        """Makes the spans of an answered request."""
        trace = self._trace
        parent = self._propagator.extract({"traceparent": answer.ids.traceparent}) if answer.ids.traceparent else None
        attributes: dict[str, Any] = {
            "opgate.model": answer.model,
            "opgate.version": answer.version,
            "opgate.rows": request.rows,
            "opgate.id": request.id,
            "http.route" if answer.protocol == "http" else "rpc.method": answer.route,
            "opgate.code": answer.code,
        }
        ended = time.perf_counter_ns()
        times = request.times()
        began = min(ended - answer.ns, times.received_ns)
        span = self._tracer.start_span(
            f"infer {answer.model}", parent, trace.SpanKind.SERVER, attributes, start_time=began + self._offset_ns
        )
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            self._span("read", inside, began, times.received_ns)
            # The calls of a pipeline's steps have their place in the spans of the steps.
            self._phases(inside, times, () if request.steps else request.op_calls or ())
            for name, of_step, failed, calls in request.steps:
                start = of_step.received_ns + self._offset_ns
                step = self._tracer.start_span(f"step {name}", inside, start_time=start)
                if failed:
                    step.set_status(trace.StatusCode.ERROR)
                self._phases(trace.set_span_in_context(step), of_step, calls)
                step.end(of_step.ended_ns + self._offset_ns)
            self._span("write", inside, times.ended_ns, ended)
            if request.error is not None:
                span.set_status(trace.StatusCode.ERROR, request.error.message)
        span.end(ended + self._offset_ns)

    def _phases(self, context: Any, times: Times, calls: Sequence[OpCall]) -> None:
        """Makes the spans of a queue and a run, and in that of the run those of the calls of ops."""
        if times.run_begin_ns:
            self._span("queue", context, times.received_ns, times.started_ns)
        run = self._span("run", context, times.run_begin_ns, times.run_end_ns)
        if run is None or not calls:
            return
        inside = self._trace.set_span_in_context(run)
        for call in calls:
            attributes = {"opgate.node": call.node, "opgate.inputs": call.inputs, "opgate.outputs": call.outputs}
            self._span(f"op {call.op}", inside, call.begin_ns, call.end_ns, attributes)

    def _span(
        self, name: str, context: Any, begin_ns: int, end_ns: int, attributes: dict[str, Any] | None = None
    ) -> Any:
        """Makes a span and returns it, None if there was no such phase."""
        if not 0 < begin_ns <= end_ns:
            return None
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=begin_ns + self._offset_ns)
        span.end(end_ns + self._offset_ns)
        return span

    def close(self) -> None:
        """Exports what is left."""
        self._provider.shutdown()
