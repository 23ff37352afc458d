"""Metrics with Triton's names, statistics in the form of Triton's protocol, and logs as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from opgate.service.core.errors import Kind, ServingError
from opgate.service.telemetry.logs import JsonFormatter
from opgate.service.telemetry.metrics import Metrics
from opgate.service.telemetry.statistics_message import model_statistics
from opgate.service.wire.proto_json import to_plain
from tests.service.onnx_models import batching, double
from tests.service.test_execution import infer


def test_metrics_count_what_happened(repository, load):
    double(repository, "m", config=batching())
    gateway = load()

    async def main():
        await asyncio.gather(*(infer(gateway, "m", x=np.ones((2, 4), np.float32)) for _ in range(4)))

    asyncio.run(main())
    gateway.find("m").model.statistics.failed("INVALID", 5)
    text = Metrics(gateway.catalog.models).text().decode()
    samples = {}
    for name, labels, number in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        special = re.search(r'(?:reason|le)="([^"]*)"', labels)
        samples[name, special and special[1]] = float(number)
    assert len(list(text_string_to_metric_families(text))) == text.count("# TYPE")
    assert samples["nv_inference_request_success", None] == 4
    assert samples["nv_inference_count", None] == 8
    assert samples["nv_inference_exec_count", None] == 1
    assert samples["nv_inference_request_failure", "INVALID"] == 1
    assert samples["nv_inference_request_failure", "BACKEND"] == 0  # an alert needs to see where it begins
    assert samples["nv_inference_pending_request_count", None] == 0
    assert samples["nv_inference_compute_infer_duration_us", None] > 0
    assert samples["opgate_batch_size_bucket", "8.0"] == 1
    assert samples["opgate_batch_size_bucket", "4.0"] == 0
    assert samples["opgate_request_duration_seconds_bucket", "+Inf"] == 4
    assert "# TYPE nv_inference_count counter" in text


def test_statistics_as_triton_says_them(repository, load):
    double(repository, "m", config=batching())
    gateway = load()
    asyncio.run(infer(gateway, "m", x=np.ones((2, 4), np.float32)))
    message = to_plain(model_statistics(gateway.find("m").model), with_defaults=True)
    assert (message["name"], message["inference_count"], message["execution_count"]) == ("m", 2, 1)
    assert message["inference_stats"]["success"]["count"] == 1
    assert message["batch_stats"][0]["batch_size"] == 2
    assert message["inference_stats"]["compute_infer"]["ns"] > 0


def test_a_log_line_is_json_with_its_extras():
    record = logging.LogRecord("opgate", logging.INFO, "f", 1, "loaded %s", ("m",), None)
    record.model = "m"
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["message"], line["model"]) == ("info", "loaded m", "m")
    try:
        raise ServingError(Kind.INTERNAL, "broken")
    except ServingError:
        import sys

        record.exc_info = sys.exc_info()
    assert "broken" in json.loads(JsonFormatter().format(record))["exception"]
