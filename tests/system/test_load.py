"""`opgate load`: real servers under a closed and an open loop, and its arithmetic without time."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
import typer
import uvloop
from typer.testing import CliRunner

from opgate.load.command import load as opgate_load
from opgate.load.grpc import GrpcClient
from opgate.load.http import HttpClient
from opgate.load.latencies import Latencies, Slo, duration, read_slo
from opgate.load.run import Measured, Plan, Run, arrivals
from opgate.load.search import WITHIN, Search, generator_fault, is_lost, step_seconds, why_missed
from opgate.load.target_model import LoadError, make_inputs, read_shape
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.spec import ModelSpec, TensorSpec
from tests.service.onnx_models import batching, endless, fragile, identity
from tests.system.conftest import TYPES
from tests.system.running import ROOT, free_port, running
from tests.system.test_python_models import write

PICTURE = ROOT / "docs/examples/digits.jpg"
SLOW = ["slow", "--shape", "x=1,1", "--input", "times=[1000]"]  # some milliseconds
#: However busy the machine is, this model answers at most 50 requests in a second.
SLEEPING = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02 * len(requests))
        values = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", value)]) for value in values]
"""
#: Fails for a request that isn't the next one of its sequence, which has four. Answers with how many have not ended.
ORDERED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        start = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        end = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        key = request.correlation_id()
        before = self.seen.pop(key, 0)
        if start != (before == 0) or (end != (before == 3) and not start):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"start {start}, end {end} after {before}"))
        if not end:
            self.seen[key] = before + 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full(1, len(self.seen), np.float32))])
"""


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory):
    """A gateway whose models take their time or fail, and whose queues are short."""
    folder = tmp_path_factory.mktemp("slow")
    endless(folder, "slow", times=None)
    fragile(folder, "fragile", batching())
    identity(folder, "picture", "UINT8", shape=("size",))
    tensors = " ".join(
        f'{way} {{ name: "{name}" data_type: TYPE_FP32 dims: 1 }}' for way, name in (("input", "x"), ("output", "y"))
    )
    write(folder, "sleeping", tensors, SLEEPING)
    write(folder, "ordered", tensors + " sequence_batching { direct {} }", ORDERED)
    with running(folder, "--allow-python-models") as server:
        yield server


def command(*options):
    return [sys.executable, "-m", "opgate", "load", *map(str, options)]


def load(*options, status=0):
    """Runs the command. Returns what it printed on stdout and stderr."""
    finished = subprocess.run(command(*options), capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout, finished.stderr


def mistake(*options):
    """Runs the command in this process. Returns its status and what it printed on stderr."""
    app = typer.Typer()
    app.command()(opgate_load)
    finished = CliRunner().invoke(app, list(map(str, options)))
    assert not finished.stdout
    return finished.exit_code, finished.stderr


def measure(*options, seconds=1.0, status=0):
    """Runs the command for some seconds. Returns its JSON."""
    out, _ = load(*options, "--json", "--duration", seconds, "--warm-up", 0.2, status=status)
    return json.loads(out)


def where(server, wire):
    return ["--url", server.url] if wire == "HTTP" else ["--grpc", f"127.0.0.1:{server.grpc}"]


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_a_closed_loop(server, wire):
    before = server.metric("nv_inference_count", "double")
    found = measure("double", *where(server, wire), "--concurrency", 4, "--batch", 3)
    assert (found["model"], found["version"], found["wire"], found["rows"]) == ("double", "1", wire, 3)
    assert (found["loop"], found["concurrency"], found["failed"], found["errors"]) == ("closed", 4, 0, {})
    assert found["answers"] > 20
    assert found["requests_per_second"] == pytest.approx(found["answers"] / found["seconds"])
    assert found["seconds"] == pytest.approx(1, abs=0.1)
    assert sum(count for _, count in found["histogram"]) == found["answers"]
    latency = found["latency_ms"]
    assert latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    assert server.metric("nv_inference_count", "double") - before >= 3 * found["answers"]


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_an_open_loop_follows_its_rate(server, wire):
    found = measure("double", *where(server, wire), "--rate", 100, seconds=2)
    assert (found["loop"], found["rate"], found["failed"]) == ("open", 100, 0)
    assert 130 < found["answers"] < 270  # 200 and five deviations
    assert found["lateness_ms"]["p50"] < found["latency_ms"]["p50"]


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_sequences(slow_server, wire):
    """Each request is the next one of its sequence, and the first and the last say that they are. None stays open."""
    one = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    request = {"parameters": one, "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}]}

    def unfinished():
        answer = httpx.post(f"{slow_server.url}/v2/models/ordered/infer", json=request, timeout=60)
        return answer.json()["outputs"][0]["data"]

    for loop in (("--concurrency", 5), ("--rate", 50)):
        before = unfinished()
        found = measure("ordered", *where(slow_server, wire), *loop, "--sequence-length", 4, "--wait", 40)
        assert (found["failed"], found["errors"], found["sequence_length"]) == (0, {}, 4)
        assert found["answers"] > 20
        assert unfinished() == before
    out, _ = load("ordered", *where(slow_server, wire), "--duration", 0.2, "--warm-up", 0, status=0)
    assert "sequences of 10 requests" in out and "after 3" in out  # the model wants four
    out, _ = load("ordered", *where(slow_server, wire), "--duration", 0.2, "--sequence-length", 0, status=1)


@pytest.fixture(scope="module")
def closed(slow_server):
    """What a closed loop of one request measures of the sleeping model."""
    return measure("sleeping", *where(slow_server, "HTTP"), "--concurrency", 1)["latency_ms"]


def test_an_open_loop_shows_waiting_and_a_closed_one_does_not(slow_server, closed):
    waiting = measure("sleeping", *where(slow_server, "HTTP"), "--rate", 150, "--wait", 30)
    assert waiting["latency_ms"]["p50"] > 5 * closed["p50"]
    assert waiting["latency_ms"]["max"] > 1000
    assert waiting["requests_per_second"] < 75


def test_requests_without_an_answer_at_the_end_have_failed(slow_server):
    slower = [*SLOW[:-1], "times=[10000]"]
    found = measure(*slower, *where(slow_server, "HTTP"), "--rate", 300, "--wait", 0)
    assert found["unanswered"] > 0
    assert found["failed"] == found["unanswered"]
    assert found["errors"] == {"no answer within 0 s after the end": found["unanswered"]}


def test_errors_are_counted_with_their_text(tmp_path):
    endless(tmp_path, "slow", times=None)
    with running(tmp_path, "--max-queue-size", "1") as server:
        found = measure(*SLOW, *where(server, "HTTP"), "--concurrency", 8, seconds=0.5)
        out, err = load(*SLOW, *where(server, "gRPC"), "--concurrency", 8, "--duration", 0.5, "--warm-up", 0.2)
    assert found["answers"] > 0
    assert found["failed"] > 0
    ((text, count),) = found["errors"].items()
    assert text.startswith("HTTP 503: the queue of model 'slow' is full")
    assert count == found["failed"]
    assert "  UNAVAILABLE: the queue of model 'slow' is full" in out
    assert "latency from   answers\n" in out
    assert not err


@pytest.mark.parametrize(("wire", "code"), [("HTTP", "HTTP 500"), ("gRPC", "INTERNAL")])
def test_a_model_that_always_fails(slow_server, wire, code):
    options = [*where(slow_server, wire), "--input", "n=[1]", "--concurrency", 1, "--duration", 0.3, "--warm-up", 0]
    out, err = load("fragile", *options, status=1)
    assert f"the first answer is an error, the load begins anyway: {code}" in err
    assert "answers     0 in 0.3 s, " in out
    assert f"  {code}: " in out


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_mistakes_are_one_clear_line(server, wire):
    there = where(server, wire)
    for options, words in (
        (["unknown", *there], "has no model 'unknown' to load"),
        (["double", *there, "--version", "7"], "'double'"),
        (["double", *there, "--batch", "17"], "the server refuses the request"),
        (["plain", *there], "input 'x' has the variable shape [-1, -1]: give --shape x=8,8"),
        (["plain", *there, "--batch", "2", "--shape", "x=1,1"], "--batch 2: model 'plain' has no batch dim"),
        (["double", *there, "--input", "z=1"], "--input: model 'double' has no input 'z', its inputs are 'x'"),
        (["double", *there, "--input", "x=@none.json"], "none.json: there is no such file"),
        (["double", *there, "--image", PICTURE], "--file: model 'double' takes no file"),
    ):
        status, err = mistake(*options)
        assert status == 1
        assert err.startswith("opgate: ")
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--url", "--grpc"])
def test_a_server_that_is_not_there(option):
    address = f"127.0.0.1:{free_port()}"
    status, err = mistake("double", option, f"http://{address}" if option == "--url" else address)
    assert status == 1
    assert err.startswith(f"opgate: no answer from {'http://' * (option == '--url')}{address} (")
    assert err.endswith("Connection refused): is a server running there?\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", 1, "--concurrency", 1], "--concurrency is for a closed loop"),
        (["--find-rate"], "--find-rate and --slo go together"),
        (["--find-rate", "--slo", "20ms"], "--slo: expected a percentile and a time"),
        (["--url", "http://x", "--grpc", "x:1"], "give either --url or --grpc"),
        (["--shape", "x"], "--shape: expected name=SIZE"),
    ],
)
def test_options_that_do_not_go_together(options, words):
    status, err = mistake("double", *options)
    assert status == 2
    assert words in " ".join(err.replace("│", "").split())


def first_answers(target, wire, models, rows=2):
    """Returns for each model what its first answer has: an error and the names of its outputs."""

    async def ask():
        found = {}
        for name in models:
            client = HttpClient(target.url) if wire == "HTTP" else GrpcClient(f"127.0.0.1:{target.grpc}")
            spec = await client.model(name, "")
            client.prepare(make_inputs(spec, rows, {}, {name: (5,) for name in spec.inputs if name == "data"}))
            found[name] = await client.first()
            await client.close()
        return found

    return uvloop.run(ask())


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_inputs_are_made_for_every_datatype(server, wire):
    models = [*(f"identity_{name}" for name in TYPES), "large", "pick", "pipeline"]
    found = first_answers(server, wire, models)
    assert found == dict.fromkeys(models, ("", {"y"}))
    assert first_answers(server, wire, ["ragged"]) == {"ragged": ("", {"sum", "status"})}


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_a_picture(slow_server, wire):
    found = measure("picture", *where(slow_server, wire), "--image", PICTURE, seconds=0.5)
    assert found["answers"] > 0
    assert found["failed"] == 0


def test_a_search_finds_what_the_model_can_do(slow_server, closed):
    alone = closed["p50"]
    aim = ["--find-rate", "--slo", f"p95={20 * alone:.3f}ms", "--rate", f"{500 / alone:.1f}"]
    found = measure("sleeping", *where(slow_server, "HTTP"), *aim, seconds=0.5)
    assert 50 / alone < found["rate"] < 100
    assert found["lowest_missed"] <= found["rate"] * (1 + WITHIN)
    assert found["rate"] in {step["rate"] for step in found["steps"] if not step["miss"]}
    assert [step for step in found["steps"] if step["failed"]] == []


def test_a_search_says_if_even_the_lowest_rate_misses(slow_server):
    aim = ["--find-rate", "--slo", "p99=1us", "--duration", 1, "--rate", 5, "--warm-up", 0]
    out, _ = load(*SLOW, *where(slow_server, "HTTP"), *aim, status=1)
    assert out.count("missed") == 2
    assert "Even the lowest rate, 10.0 requests/s, misses p99 under 1.00 us: p99 was " in out


def test_an_interrupt_prints_what_was_measured(server):
    process = subprocess.Popen(
        command("double", "--url", server.url, "--duration", 60, "--warm-up", 0), stdout=subprocess.PIPE, text=True
    )
    try:
        begun = [process.stdout.readline() for _ in range(2)]
        assert "closed loop, 16 requests under way, 60 s after 0 s of warm-up" in begun[1]
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "answers     " in out
    assert "p99.9" in out


def test_a_table_in_a_terminal(server):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("double", "--url", server.url, "--duration", 1.2, "--warm-up", 0.2), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        assert process.wait(20) == 0
    assert b"in flight" in shown
    assert b"answers  " in shown


ANSWER = json.dumps({"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}]})
METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
}


class StandIn(asyncio.Protocol):
    """A server of KServe v2 without configs. `form` says how it ends its answers."""

    def __init__(self, form, connections):
        self.form = form
        self.connections = connections

    def connection_made(self, transport):
        self.transport = transport
        self.requests = 0
        self.connections.append(self)
        if self.form == "full" and len(self.connections) > 2:  # the metadata and the config were asked for
            transport.abort()

    def data_received(self, data):
        self.requests += 1
        status, body = 200, ANSWER
        if data.startswith(b"GET"):
            status, body = (404, "{}") if b"/config " in data else (200, json.dumps(METADATA))
        elif self.form == "rude":
            self.transport.abort()
            return
        head = f"HTTP/1.1 {status} X\r\n"
        if self.form == "chunked":
            text = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        else:
            last = "Connection: close\r\n" if self.form == "close" else ""
            text = f"{head}{last}Content-Length: {len(body)}\r\n\r\n{body}"
        self.transport.write(text.encode())
        if self.form == "close":
            self.transport.close()


def run_with(form, plan):
    """Runs a plan against a stand-in. Returns what was measured and the connections that sent load."""

    async def run():
        connections = []
        port = free_port()
        listener = await asyncio.get_running_loop().create_server(lambda: StandIn(form, connections), "127.0.0.1", port)
        client = HttpClient(f"http://localhost:{port}/")
        spec = await client.model("m", "")
        client.prepare(make_inputs(spec, 1, {}, {}))
        if form not in ("rude", "full"):
            assert await client.first() == ("", {"y"})
        before = len(connections)
        measured = await Run(client, plan).run()
        await client.close()
        listener.close()
        return measured, connections[before:]

    return uvloop.run(run())


@pytest.mark.parametrize("form", ["plain", "chunked"])
def test_connections_are_kept(form):
    measured, connections = run_with(form, Plan(0.3, 0, concurrency=4))
    assert measured.failed == 0
    assert measured.latencies.count > 20
    assert len(connections) == 4
    assert sum(connection.requests for connection in connections) >= measured.latencies.count


def test_a_server_may_close_connections():
    measured, connections = run_with("close", Plan(0.3, 0, concurrency=4))
    assert measured.failed == 0
    assert len(connections) >= measured.latencies.count > 4


@pytest.mark.parametrize("form", ["rude", "full"])
def test_a_connection_that_ends_is_an_error(form):
    measured, _ = run_with(form, Plan(0.3, 0, rate=100))
    assert measured.latencies.count == measured.unanswered == 0
    assert measured.failed > 5
    reasons = ("Connection reset by peer", "the server closed the connection", "Broken pipe")
    assert set(measured.errors) <= {f"no {what}: {reason}" for what in ("answer", "connection") for reason in reasons}


def test_percentiles_are_those_of_all_samples():
    samples = np.random.default_rng(1).lognormal(-6, 1.5, 100_000)
    latencies = Latencies()
    for part in np.split(samples, 100):
        latencies.add(part.tolist())
    assert latencies.count == 100_000
    assert latencies.mean == pytest.approx(samples.mean())
    assert (latencies.least, latencies.most) == (samples.min(), samples.max())
    for percent in (0.1, 1, 50, 90, 99, 99.9, 99.99):
        exact = np.percentile(samples, percent, method="inverted_cdf")
        assert latencies.percentile(percent) == pytest.approx(exact, rel=0.006)
    assert latencies.percentile(100) == samples.max()
    assert latencies.over(0.01) == pytest.approx((samples > 0.01).sum(), rel=0.02)
    bars = latencies.bars()
    assert len(bars) <= 16
    assert sum(count for _, count in bars) == 100_000
    widths = [after / before for (before, _), (after, _) in itertools.pairwise(bars)]
    assert max(widths) == pytest.approx(min(widths))


def test_percentiles_of_few_and_of_extreme_samples():
    latencies = Latencies()
    assert math.isnan(latencies.percentile(50))
    assert math.isnan(latencies.mean)
    assert latencies.bars() == []
    latencies.add([])
    latencies.add([2.0])
    assert [latencies.percentile(percent) for percent in (1, 50, 100)] == [2.0] * 3
    latencies.add([0.0, 1e6])
    assert [latencies.percentile(percent) for percent in (1, 100)] == pytest.approx([1e-6, 1e6], rel=0.01)
    thousand = Latencies()
    thousand.add([0.001] * 999 + [1.0])
    assert thousand.percentile(99.9) == pytest.approx(0.001, rel=0.01)
    assert thousand.percentile(99.91) == 1.0


def test_texts_of_durations():
    texts = [duration(seconds) for seconds in (math.nan, 0, 4.5e-6, 0.0009996, 0.0123, 0.5, 1.5, 12.3, 123)]
    assert texts == ["-", "0.00 us", "4.50 us", "1.00 ms", "12.3 ms", "500 ms", "1.50 s", "12.3 s", "123 s"]


def test_reading_an_slo_and_a_shape():
    assert read_slo("p99=20ms") == Slo(99, 0.02)
    assert read_slo("p99.9 = 1.5 s") == Slo(99.9, 1.5)
    assert read_slo("p50=300us").seconds == pytest.approx(0.0003)
    for text in ("", "p99", "99=20ms", "p99=20", "p0=1s", "p100=1s", "p99=0ms", "p99=-1ms", "p99=20 min"):
        with pytest.raises(ValueError, match="such as p99=20ms"):
            read_slo(text)
    assert read_shape("x=3,224,224") == ("x", (3, 224, 224))
    for text in ("", "x", "x=", "=3", "x=3,", "x=-1", "x=a"):
        with pytest.raises(ValueError, match="such as x=3,224,224"):
            read_shape(text)


def search(capacity, first, lowest=1.0):
    """Searches with a server that keeps the aim below a rate. Returns the search and the rates that it tried."""
    tried = []
    found = Search(first, lowest)
    while found.rate is not None:
        tried.append(found.rate)
        found.tried(found.rate < capacity)
    return found, tried


@pytest.mark.parametrize("capacity", [1.5, 30, 99.9, 100, 101, 1000, 12345])
@pytest.mark.parametrize("first", [1, 100, 5000])
def test_the_search_brackets_the_capacity(capacity, first):
    found, tried = search(capacity, first)
    assert found.good < capacity <= found.bad
    assert found.bad <= found.good * (1 + WITHIN)
    assert len(tried) < 2 * abs(math.log2(capacity / first)) + 16


def test_the_search_says_if_even_the_lowest_rate_misses():
    found, tried = search(0.5, 8)
    assert found.good is None
    assert tried == [8, 8, 4, 4, 2, 2, 1, 1]
    assert search(0.5, 0.1)[1] == [1, 1]


def test_the_search_does_not_believe_one_miss():
    found = Search(10, 1)
    found.tried(False)
    assert found.rate == 10
    found.tried(True)
    assert found.rate == 20
    found.tried(False)
    found.tried(False)
    assert (found.good, found.bad) == (10, 20)
    assert found.rate == pytest.approx(math.sqrt(200))


def measured_of(latencies, lateness=(), failed=0, busy=0.5, plan=None):
    measured = Measured(plan or Plan(1, rate=100), failed=failed, busy=busy)
    measured.latencies.add(list(latencies))
    measured.lateness.add(list(lateness))
    return measured


def test_the_decisions_of_the_search():
    slo = Slo(99, 0.02)
    assert [step_seconds(3, rate, slo) for rate in (1000, 20, 1)] == [3, 5, 12]
    assert [step_seconds(3, 1000, Slo(99, seconds)) for seconds in (0.3, 2)] == [6, 12]
    assert why_missed(measured_of([0.01] * 99 + [0.5]), slo) == ""
    assert why_missed(measured_of([0.01] * 9 + [0.5]), slo) == "p99 was 500 ms"
    assert why_missed(measured_of([0.01], failed=3), slo) == "3 of its requests failed"
    assert why_missed(measured_of([]), slo) == "there was no answer"
    plan = Plan(10, rate=100)
    assert not is_lost(measured_of([0.01] * 500 + [0.5] * 20, plan=plan), slo)
    assert is_lost(measured_of([0.5] * 21, plan=plan), slo)
    assert is_lost(measured_of([0.01], failed=1, plan=plan), slo)


def test_the_fault_of_the_load_generator():
    assert generator_fault(measured_of([0.02] * 100, [0.001] * 100)) == ""
    assert generator_fault(measured_of([0.02] * 100)) == ""
    assert "sent late" in generator_fault(measured_of([0.02] * 100, [0.001] * 90 + [0.015] * 10))
    assert "whole core" in generator_fault(measured_of([0.02] * 100, busy=0.95))


def test_arrivals_are_random_and_have_their_rate():
    times = arrivals(1000, 5.0, np.random.default_rng(0))
    gaps = np.diff([5.0, *(next(times) for _ in range(20_000))])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(0.001, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def spec(*inputs, rows=8):
    return ModelSpec("m", "1", {tensor.name: tensor for tensor in inputs}, {}, rows)


def tensor(name, datatype, *dims, optional=False):
    return TensorSpec(name, DATATYPES[datatype], dims, optional=optional)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_made_up_inputs_fit_the_model(datatype):
    (made,) = make_inputs(spec(tensor("x", datatype, -1, 3)), 2, {}, {"x": (4, 3)})
    assert made.array.shape == (2, 4, 3)
    if itemsize := DATATYPES[datatype].itemsize:
        assert len(made.content) == 24 * itemsize
    if datatype in ("FP16", "FP32", "FP64"):
        assert ((made.array >= 0) & (made.array <= 1)).all()
        assert made.array.std() > 0
    if datatype.startswith("INT") or datatype == "BOOL":
        assert set(made.array.ravel().tolist()) == {0, 1}
    (again,) = make_inputs(spec(tensor("x", datatype, -1, 3)), 2, {}, {"x": (4, 3)})
    assert made.content == again.content


def test_given_inputs_and_optional_ones():
    model = spec(tensor("x", "FP32", 2), tensor("y", "INT64", 1), tensor("z", "FP32", -1, optional=True))
    inputs = {each.name: each.array.tolist() for each in make_inputs(model, 2, {"x": "[1, 2]"}, {})}
    assert inputs.keys() == {"x", "y"}
    assert inputs["x"] == [[1, 2], [1, 2]]
    with_optional = make_inputs(model, 1, {"x": "[1, 2]"}, {"z": (3,)})
    assert {each.name: each.array.shape for each in with_optional}["z"] == (1, 3)
    with pytest.raises(LoadError, match=r"--input: input 'x': expected FP32 of shape \[2\], got shape \[3\]"):
        make_inputs(model, 1, {"x": "[1, 2, 3]"}, {})
    with pytest.raises(LoadError, match="--shape: input 'x' has the shape of its value in --input"):
        make_inputs(model, 1, {"x": "[1, 2]"}, {"x": (2,)})


def test_a_picture_is_the_input():
    (picture,) = make_inputs(spec(tensor("data", "UINT8", -1)), 2, PICTURE.read_bytes(), {})
    assert picture.content == 2 * PICTURE.read_bytes()
    assert picture.array.shape == (2, PICTURE.stat().st_size)
    with pytest.raises(LoadError, match="give a file with --file FILE, --shape data=8, or a value with --input"):
        make_inputs(spec(tensor("data", "UINT8", -1)), 1, {}, {})
