"""What a load test must reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The result of a run over all requests. Times are milliseconds and include those of failed requests."""

    requests: int
    failures: int
    p50_ms: float
    p99_ms: float
    rps: float


@dataclass(frozen=True)
class Thresholds:
    """The limits of a run. None is no limit. The error rate is failed requests over all requests."""

    max_p50_ms: float | None
    max_p99_ms: float | None
    max_error_rate: float
    min_rps: float | None

    def violations(self, measured: Measured) -> Iterator[str]:
        """Yields a line for each threshold that the run didn't keep. A run without a request keeps none."""
        if not measured.requests:
            yield "expected at least one request, measured none"
            return
        if self.max_p50_ms is not None and measured.p50_ms > self.max_p50_ms:
            yield f"--max-p50-ms: expected at most {self.max_p50_ms:g} ms, measured {measured.p50_ms:g} ms"
        if self.max_p99_ms is not None and measured.p99_ms > self.max_p99_ms:
            yield f"--max-p99-ms: expected at most {self.max_p99_ms:g} ms, measured {measured.p99_ms:g} ms"
        rate = measured.failures / measured.requests
        if rate > self.max_error_rate:
            failed = f"{measured.failures} of {measured.requests} requests failed"
            yield f"--max-error-rate: expected at most {self.max_error_rate:g}, measured {rate:.3g}: {failed}"
        if self.min_rps is not None and measured.rps < self.min_rps:
            yield f"--min-rps: expected at least {self.min_rps:.10g} requests a second, measured {measured.rps:.1f}"
