"""What several gateway processes merge and remember, without processes."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.core.errors import Kind, ServingError
from opgate.service.processes.messages import Outcome, values_of
from opgate.service.processes.state import State
from opgate.service.processes.supervisor import share_of
from opgate.service.repository.overrides import Override
from opgate.service.telemetry.merging import add_past, merge_metrics, merge_statistics
from opgate.service.telemetry.metrics import Metrics
from tests.service.onnx_models import batching, double

OTHER = Override(ModelConfig(max_batch_size=3))
TEXT = """# HELP c_total a counter
# TYPE c_total counter
c_total{model="a b"} 3.0
# HELP g a gauge
# TYPE g gauge
g 2.0
# HELP opgate_model_ready one
# TYPE opgate_model_ready gauge
opgate_model_ready{model="m"} 1.0
# HELP nv_model_load_duration_secs one
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{model="m"} 1.5
"""


def test_metrics_of_one_process_stay_as_they_are(repository, load):
    double(repository, "double", config=batching())
    text = Metrics(load().catalog.models).text()
    assert merge_metrics([text]) == text
    assert merge_metrics([text, b""]) == text


def test_the_rules_of_metrics():
    other = (
        TEXT.replace("3.0", "4.0").replace("g 2.0", "g 5.0").replace('ready{model="m"} 1', 'ready{model="m"} 0')
    ).replace("} 1.5", "} 0.5")
    merged = merge_metrics([TEXT.encode(), other.encode()]).decode()
    assert merged == TEXT.replace("3.0", "7.0").replace("g 2.0", "g 7.0").replace(
        'ready{model="m"} 1.0', 'ready{model="m"} 0.0'
    )


def test_a_sample_that_one_process_has_is_added():
    other = TEXT.replace('"a b"', '"c"')
    merged = merge_metrics([TEXT.encode(), other.encode()]).decode()
    assert 'c_total{model="a b"} 3.0\nc_total{model="c"} 3.0\n# HELP g a gauge' in merged


def test_counters_of_processes_that_died_stay():
    past = add_past(add_past(b"", TEXT.encode()), TEXT.encode())
    assert b"g 2.0" not in past
    merged = merge_metrics([TEXT.encode()], past).decode()
    assert merged == TEXT.replace("3.0", "9.0")
    without = TEXT.replace('c_total{model="a b"} 3.0\n', "")  # the model has been unloaded
    assert merge_metrics([without.encode()], past).decode() == without


def test_statistics():
    def message(count, batch):
        made = service_pb2.ModelStatistics(name="m", version="1", last_inference=count, inference_count=count)
        made.inference_stats.success.count, made.inference_stats.success.ns = count, 10 * count
        made.batch_stats.add(batch_size=batch).compute_infer.count = count
        return made.SerializeToString()

    merged = merge_statistics([[message(2, 4)], [message(3, 4)], [message(5, 1)], []]).model_stats
    assert len(merged) == 1
    only = merged[0]
    assert (only.last_inference, only.inference_count) == (5, 10)
    assert (only.inference_stats.success.count, only.inference_stats.success.ns) == (10, 100)
    assert [(batch.batch_size, batch.compute_infer.count) for batch in only.batch_stats] == [(1, 5), (4, 5)]


def test_the_state_has_what_is_needed_and_no_more():
    state = State()
    for _ in range(100):
        state.note("load", ("pipeline", Override()), ["pipeline", "step"])
        state.note("load", ("step", OTHER), ["step", "pipeline"])
        state.note("unload", ("pipeline", True), ["pipeline", "step"])
        state.note("load", ("step", OTHER), ["step"])
        state.note("register", ("a", "/a", 0, 8), None)
        state.note("register", ("b", "/b", 0, 8), None)
        state.note("unregister", ("a",), None)
        state.note("trace", ("", {"trace_rate": "1"}), None)
        state.note("trace", ("", {"trace_count": "2"}), None)
        state.note("log", ({"log_info": False},), None)
        state.note("metrics", (), b"")
    assert state.operations() == [
        ("unload", ("pipeline", False)),
        ("load", ("step", OTHER)),
        ("register", ("b", "/b", 0, 8)),
        ("trace", ("", {"trace_rate": "1", "trace_count": "2"})),
        ("log", ({"log_info": False},)),
    ]
    state.note("unregister", ("",), None)
    assert all(operation != "register" for operation, _ in state.operations())


def test_what_failed_in_some_processes():
    assert values_of([Outcome(1), Outcome(2)]) == [1, 2]
    failed = Outcome(error=(Kind.INVALID.value, "no"))
    for outcomes, text in ([failed, failed], "no"), ([Outcome(1), failed], "in 1 of 2 processes: no"):
        with pytest.raises(ServingError) as caught:
            values_of(outcomes)
        assert (caught.value.kind, caught.value.message) == (Kind.INVALID, text)


def test_the_share_of_a_process(settings):
    shared = share_of(settings.model_copy(update={"workers": 4, "max_held_bytes": 1 << 34}))
    assert shared.max_held_bytes == 1 << 32
    small = share_of(settings.model_copy(update={"workers": 4, "max_held_bytes": 1 << 30}))
    assert small.max_held_bytes == 3 * settings.max_body_bytes  # two bodies must have room in each
    assert shared.max_body_bytes == settings.max_body_bytes
