"""Traces arrive at a collector: a span of the request, and in it those of reading, queue, run, steps and writing."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.service.onnx_models import batching, double, fragile, write_config
from tests.system.conftest import PIPELINE
from tests.system.running import Server, running
from tests.system.test_http import Connection, infer_request
from tests.system.test_observability import failing
from tests.system.test_op_times import smooth

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01\r\n"


@pytest.fixture
def spans():
    """A collector of traces: the list of spans that it got, and its URL."""
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            for resource in collector.ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    got.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield got, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def tree(spans, root):
    return {span.name: tree(spans, span) for span in spans if span.parent_span_id == root.span_id}


def test_a_request_is_followed_from_the_socket_through_queue_steps_and_engine(tmp_path, spans):
    got, url = spans
    double(tmp_path, "double", config=batching(max_batch_size=16))
    fragile(tmp_path, "fragile", batching(""))
    write_config(tmp_path, "pipeline", PIPELINE)
    body = json.dumps({"x": [1, 2, 3, 4]})
    predict = f"POST /predict/double HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n{SAMPLED}"
    environment = {"OPGATE_TRACING": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
    with running(tmp_path, env=environment) as server:
        with Connection(server) as connection:
            for request in (
                infer_request(1.0, extra=SAMPLED),
                infer_request(1.0, path="/v2/models/pipeline/infer", extra=SAMPLED),
                f"{predict}Content-Length: {len(body)}\r\n\r\n{body}".encode(),
            ):
                assert connection.send(request).read()[0] == 200
            assert connection.send(failing()).read()[0] == 500
            # The client says that this one is not to be traced.
            assert connection.send(infer_request(1.0, extra=SAMPLED.replace("-01\r", "-00\r"))).read()[0] == 200
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            x = triton_grpc.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.infer("double", [x], request_id="nine", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    roots = [span for span in got if span.kind == 2]
    assert len(roots) == 5
    phases = {"read": {}, "queue": {}, "run": {}, "write": {}}
    for root in roots:
        assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == PARENT
        inside = tree(got, root)
        if root.name == "infer pipeline":
            assert inside == {"read": {}, "step double": {"queue": {}, "run": {}}, "write": {}}
            assert sum(span.name == "step double" and span.parent_span_id == root.span_id for span in got) == 2
        else:
            assert inside == phases, root.name
        children = [span for span in got if span.parent_span_id == root.span_id]
        assert all(root.start_time_unix_nano <= c.start_time_unix_nano <= c.end_time_unix_nano for c in children)
        assert all(c.end_time_unix_nano <= root.end_time_unix_nano for c in children)
    (failed,) = [root for root in roots if root.name == "infer fragile"]
    assert failed.status.code == 2 and "model 'fragile'" in failed.status.message
    attributes = {a.key: a.value.string_value or a.value.int_value for a in failed.attributes}
    assert attributes["opgate.id"] == "seven" and attributes["opgate.code"] == "500"


def test_tracing_without_its_packages_is_refused(tmp_path, monkeypatch):
    import sys

    from opgate.service.telemetry.otel_spans import Tracer

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(RuntimeError, match=r"pip install 'opgate\[otel\]'"):
        Tracer()


def test_a_collector_that_does_not_answer_does_not_spoil_the_stop(tmp_path):
    double(tmp_path, "double", config=batching(max_batch_size=16))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {"OPGATE_TRACING": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OPGATE_SHUTDOWN_TIMEOUT": "10"}
        environment["OTEL_BSP_SCHEDULE_DELAY"] = "60000"  # nothing is sent before the stop
        server = Server(tmp_path, env=environment)
        with Connection(server) as connection:
            assert connection.send(infer_request(1.0, extra=SAMPLED)).read()[0] == 200
        assert server.stop() == 0
        assert any("the last traces are lost" in line for line in server.log)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_the_calls_of_ops_are_in_the_spans_of_runs(tmp_path, spans, library, isolation):
    got, url = spans
    for name, block in (
        ("double", "dynamic_batching { }"),
        ("together", "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 5000000 }"),
    ):
        smooth(tmp_path, name, batching(block, max_batch_size=2))
    write_config(tmp_path, "pipeline", PIPELINE.replace("max_batch_size: 8", "max_batch_size: 2"))
    environment = {"OPGATE_TRACING": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OPGATE_OPS_PATH": str(library.parent)}
    with running(tmp_path, f"--isolation={isolation}", env=environment) as server, Connection(server) as connection:
        assert connection.send(infer_request(1.0, extra=SAMPLED)).read()[0] == 200
        assert connection.send(infer_request(1.0, path="/v2/models/pipeline/infer", extra=SAMPLED)).read()[0] == 200
        with Connection(server) as other:
            for each in (connection, other):
                each.send(infer_request(1.0, path="/v2/models/together/infer", extra=SAMPLED))
            assert connection.read()[0] == other.read()[0] == 200
    roots = {span.name: [root for root in got if root.name == span.name] for span in got if span.kind == 2}
    assert {name: len(spans) for name, spans in roots.items()} == {
        "infer double": 1,
        "infer pipeline": 1,
        "infer together": 2,
    }

    def inside(span):
        found = [one for one in got if one.parent_span_id == span.span_id]
        return sorted(found, key=lambda one: one.start_time_unix_nano)

    def run_of(span):
        (run,) = [one for one in inside(span) if one.name == "run"]
        return run

    steps = [span for span in inside(roots["infer pipeline"][0]) if span.name == "step double"]
    assert len(steps) == 2 and not [span for span in inside(roots["infer pipeline"][0]) if span.name == "run"]
    parts = [
        *((span, 1) for span in (*roots["infer double"], *steps)),
        *((span, 2) for span in roots["infer together"]),
    ]
    assert len(parts) == 5
    for span, rows in parts:
        run = run_of(span)
        calls = inside(run)
        assert [call.name for call in calls] == ["op Mish", "op Mish"]
        for call, node in zip(calls, ("m0", "m1"), strict=True):
            attributes = {a.key: a.value for a in call.attributes}
            assert attributes["opgate.node"].string_value == node
            for key in ("opgate.inputs", "opgate.outputs"):
                assert [v.string_value for v in attributes[key].array_value.values] == [f"f32[{rows},4]"]
            assert run.start_time_unix_nano <= call.start_time_unix_nano
            assert call.start_time_unix_nano <= call.end_time_unix_nano <= run.end_time_unix_nano
    # Both requests of the batch have the same calls.
    one, other = ([c.start_time_unix_nano for c in inside(run_of(root))] for root in roots["infer together"])
    assert one == other
