"""What the metrics of a model's own refuse. None of it may take the page of all metrics away."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from opgate.service.core.own_metrics import COUNTER, GAUGE, HISTOGRAM, OwnMetrics


def page(metrics: OwnMetrics) -> str:
    return "".join(metrics.lines())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "nv_own"}, "no name that begins with"),
        ({"kind": "other"}, "expected a kind"),
        ({"kind": GAUGE}, "another one is a counter"),
        ({"labels": {"which": "\ud800"}}, "characters of Unicode"),
        ({"labels": {"which": "x" * 1001}}, "characters of Unicode"),
        ({"labels": {"not-one": "x"}}, "labels, whose names"),
        ({"labels": {f"l{i}": "x" for i in range(33)}}, "at most 32 labels"),
        ({"name": "other", "text": "\udfff"}, "characters of Unicode"),
        ({"name": "other", "kind": HISTOGRAM, "buckets": list(range(101))}, "at most 100 buckets"),
        ({"name": "other", "kind": HISTOGRAM, "buckets": [2, 1]}, "buckets that rise"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    metrics = OwnMetrics()
    asked: dict[str, Any] = {
        "model": "m", "name": "own", "kind": COUNTER, "text": "t", "labels": {}, "buckets": [], "how": "increment",
        "value": 1,
    }  # fmt: skip
    metrics.change(**asked)
    before = page(metrics)
    with caplog.at_level(logging.WARNING):
        metrics.change(**{**asked, **changed})
        metrics.change(**{**asked, **changed})
    assert said in caplog.text and len(caplog.records) == 1
    assert page(metrics) == before
    page(metrics).encode()


def test_numbers_and_buckets_have_one_bound() -> None:
    metrics = OwnMetrics()
    for i in range(200):
        metrics.change("m", f"own_{i}", HISTOGRAM, "t", {}, [float(end) for end in range(99)], "observe", 1)
    assert page(metrics).count("_count 1.0\n") == 100
