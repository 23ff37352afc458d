"""Trace and log settings with tritonclient over both protocols."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from opgate.service.telemetry.triton_traces import TraceSettings, read_trace_config
from tests.service.onnx_models import batching, double
from tests.system.conftest import wait_until
from tests.system.running import Server, running


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name in ("one", "two"):
        double(folder, name, config=batching())
    return folder


@pytest.fixture
def file(tmp_path):
    return tmp_path / "traces.json"


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    with running(
        repository, "--trace-config", f"triton,file={tmp_path_factory.mktemp('traces') / 'traces.json'}"
    ) as started:
        yield started


@pytest.fixture
def tracing(repository, file):
    """A server that writes its traces to `file`."""
    started = Server(repository, "--trace-config", f"triton,file={file}", "--trace-config", "rate=1")
    yield started
    assert started.process.poll() is not None or started.stop() == 0


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return http if request.param == "http" else grpc


def connect(module, server):
    made = module.InferenceServerClient(f"127.0.0.1:{server.http if module is http else server.grpc}")
    made.module = module
    return made


@pytest.fixture
def client(protocol, server):
    return connect(protocol, server)


def infer(client, model, id=""):
    given = client.module.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    client.infer(model, [given], request_id=id)


def settings(client, model=None):
    found = client.get_trace_settings(model_name=model)
    return plain(client, found)


def plain(client, found):
    if client.module is http:
        return found
    values = {name: list(setting.value) for name, setting in found.settings.items()}
    return {name: value if name == "trace_level" else value[0] for name, value in values.items()}


def test_traces(protocol, tracing, file):
    client = connect(protocol, tracing)
    assert settings(client) == {
        "trace_level": ["OFF"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0", "trace_file": str(file),
        "trace_mode": "triton",
    }  # fmt: skip
    infer(client, "one", "before")
    client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
    client.update_trace_settings(model_name="two", settings={"trace_level": ["OFF"]})
    assert settings(client, "one")["trace_level"] == ["TIMESTAMPS"]
    assert settings(client, "two")["trace_level"] == ["OFF"] and settings(client, "two")["trace_rate"] == "2"
    for i in range(6):
        infer(client, "one", f"one-{i}")
        infer(client, "two", f"two-{i}")
    client.update_trace_settings(
        model_name="two", settings={"trace_level": None, "trace_rate": "1", "trace_count": "2"}
    )
    for i in range(4):
        infer(client, "two", f"last-{i}")
    assert tracing.stop() == 0
    traces = json.loads(file.read_text())
    heads = [trace for trace in traces if "model_name" in trace]
    assert [head["request_id"] for head in heads] == ["one-0", "one-2", "one-4", "last-0", "last-1"]
    stamps = [trace["timestamps"] for trace in traces if "timestamps" in trace]
    assert len(stamps) == len(heads)
    for of_request in stamps:
        assert [stamp["name"] for stamp in of_request] == [
            "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
            "REQUEST_END",
        ]  # fmt: skip
        assert [stamp["ns"] for stamp in of_request] == sorted(stamp["ns"] for stamp in of_request)


def test_a_file_for_every_so_many(protocol, tracing, file):
    client = connect(protocol, tracing)
    client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "log_frequency": "3"})
    for i in range(7):
        infer(client, "one", str(i))
    assert tracing.stop() == 0
    parts = [json.loads(file.with_name(f"{file.name}.{i}").read_text()) for i in range(3)]
    assert [len(part) for part in parts] == [6, 6, 2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trace_level": ["TENSORS"]}, "expected OFF or TIMESTAMPS"),
        ({"trace_rate": "0"}, "expected a number from 1 on"),
        ({"trace_rate": "often"}, "expected a number from 1 on"),
        ({"trace_count": "-2"}, "expected a number from -1 on"),
        ({"trace_file": "/etc/passwd"}, "can not be updated"),
        ({"trace_mode": "opentelemetry"}, "can not be updated"),
        ({"trace_color": "red"}, "is no trace setting"),
    ],
)
def test_trace_settings_that_are_refused(client, changes, expected):
    with pytest.raises(InferenceServerException, match=expected):
        client.update_trace_settings(settings=changes)
    assert settings(client)["trace_level"] == ["OFF"]


def test_traces_need_a_place(repository):
    with running(repository) as server:
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        with pytest.raises(InferenceServerException, match="no trace file is given"):
            client.update_trace_settings(settings={"trace_level": "TIMESTAMPS"})
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.get_trace_settings("none")


def logs(client):
    found = client.get_log_settings()
    if client.module is http:
        return found
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.settings.items()}


def test_logs(client, server):
    assert logs(client) == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    }  # fmt: skip
    client.update_log_settings({"log_info": False, "log_format": "ISO8601", "log_verbose_level": 1})
    assert logs(client)["log_info"] is False and logs(client)["log_format"] == "ISO8601"
    before = len(server.log)

    def unknown():
        with pytest.raises(InferenceServerException, match="unknown model"):
            infer(client, "none")

    unknown()  # a mistake of a client is logged as info
    client.update_log_settings({"log_info": None, "log_verbose_level": 0})
    unknown()
    wait_until(lambda: any("unknown model" in line for line in server.log[before:]))
    lines = [line for line in server.log[before:] if "unknown model" in line]
    assert len(lines) == 1 and not lines[0].startswith("{")
    client.update_log_settings({"log_format": None})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"log_file": "/tmp/x"}, "can not be updated"),
        ({"log_format": "xml"}, "expected default or ISO8601"),
        ({"log_color": True}, "is no log setting"),
    ],
)
def test_log_settings_that_are_refused(client, changes, expected):
    with pytest.raises(InferenceServerException, match=expected):
        client.update_log_settings(changes)


def test_a_log_setting_of_another_type(server):
    with pytest.raises(InferenceServerException, match="log_info: expected a boolean, got 'yes'"):
        connect(http, server).update_log_settings({"log_info": "yes"})


def test_a_slash_at_the_end_is_another_path(server):
    request = urllib.request.Request(server.url + "/v2/", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 404


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", TraceSettings()),
        ("rate=5;count=7;log-frequency=2", TraceSettings(rate=5, count=7, frequency=2)),
        ("triton,file=/tmp/t;level=TIMESTAMPS", TraceSettings("TIMESTAMPS", file="/tmp/t")),
        ("mode=opentelemetry;level=TIMESTAMPS", TraceSettings("TIMESTAMPS", mode="opentelemetry")),
    ],
)
def test_the_option(text, expected):
    assert read_trace_config(text) == expected


@pytest.mark.parametrize(
    "text", ["rate", "rate=0", "what=1", "level=ALL", "level=TIMESTAMPS", "other,file=x", "mode=x"]
)
def test_options_that_are_refused(text):
    with pytest.raises(ValueError, match=r"expected|missing"):
        read_trace_config(text)
