"""What the gateway gives its console, over HTTP, from real processes. tests/console has the page in a browser."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from opgate.service.core.request import Request
from opgate.service.telemetry import recent_requests
from opgate.service.telemetry.journal import Answer
from opgate.service.telemetry.recent_requests import MOST, RecentRequests
from tests.service.onnx_models import batching, double, write_config
from tests.system.conftest import PIPELINE
from tests.system.running import Server, running

X = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
BAD = {"inputs": [{"name": "z", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
SAME = {"Sec-Fetch-Site": "same-origin"}


def own_page(server, host="localhost"):
    """The headers of a page that this gateway has sent."""
    return {**SAME, "Origin": f"http://{host.lower()}:{server.http}"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name in ("double", "other"):
        double(folder, name, config=batching(max_batch_size=16))
    double(folder, "bare", config=None)
    write_config(folder, "pipeline", PIPELINE)
    examples = folder / "double" / "examples"
    (examples / "two").mkdir(parents=True)
    (examples / "four_numbers.json").write_text('{"x": [1, 2, 3, 4]}')
    (examples / "page.html").write_text("<script>alert(1)</script>")
    (examples / "two" / "x.bin").write_bytes(b"12")
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with running(repository, "--model-control-mode", "explicit", "--load-model", "*") as started:
        yield started


def ask(server, path, body=None, headers=(), host="localhost"):
    """Returns status, headers and body of an answer."""
    client = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
    try:
        data = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        named = {"Host": f"{host}:{server.http}", **kind, **dict(headers)}
        client.request("GET" if body is None else "POST", path, data, named)
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        client.close()


class Stream:
    """The stream of a gateway, read as it comes."""

    def __init__(self, server, headers=()):
        self.client = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
        self.client.request("GET", "/console/stream", headers={"Host": f"localhost:{server.http}", **dict(headers)})
        self.answer = self.client.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def event(self):
        """Returns name and content of the next event, None at the end."""
        name = ""
        while line := self.answer.readline():
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            if line.startswith(b"data: "):
                return name, json.loads(line[6:])
        return None

    def until(self, condition, seconds=10.0):
        """Returns the first tick for which the condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, content = self.event()
            if name == "tick" and condition(content):
                return content
        raise TimeoutError


@contextlib.contextmanager
def stream(server, headers=()):
    opened = Stream(server, headers)
    try:
        yield opened
    finally:
        opened.client.close()


def models_of(tick):
    return {model["name"]: model for model in tick["models"]}


def test_the_stream_begins_with_everything_and_goes_on_with_what_changes(server):
    assert ask(server, "/v2/models/other/infer", X)[0] == 200
    with stream(server) as events:
        name, hello = events.event()
        assert name == "hello" and hello["control_mode"] == "explicit" and hello["can_load"] is True
        name, first = events.event()
        assert name == "tick" and {"double", "other", "bare", "pipeline"} <= set(models_of(first))
        assert models_of(first)["other"]["requests"] >= 1
        assert [request["model"] for request in first["requests"]][-1] == "other"
        assert any(line["message"] == "listening" for line in first["log"])
        before = models_of(first)["double"]
        for _ in range(3):
            assert ask(server, "/v2/models/double/infer", X)[0] == 200
        assert ask(server, "/v2/models/double/infer", BAD)[0] == 400
        seen = []

        def told(tick):
            seen.extend(tick["requests"])
            return models_of(tick).get("double", {}).get("failures", 0) > before["failures"]

        after = models_of(events.until(told))
        assert after["double"]["requests"] == before["requests"] + 3
        assert sum(after["double"]["request_counts"]) == after["double"]["requests"]
        assert len(after["double"]["request_counts"]) == len(hello["bounds_s"]) + 1
        assert set(after) == {"double"}
        assert [request["code"] for request in seen[-4:]] == ["200", "200", "200", "400"]
        assert "'z'" in seen[-1]["error"] and seen[-2]["phases"][0]["name"] == "read"


def test_the_phases_of_a_request_follow_each_other(server):
    assert ask(server, "/v2/models/pipeline/infer", X)[0] == 200
    found = json.loads(ask(server, "/console/requests")[2])
    newest = found["requests"][0]
    assert newest["model"] == "pipeline" and [step["model"] for step in newest["steps"]] == ["double", "double"]
    for phases in (newest["phases"], *(step["phases"] for step in newest["steps"])):
        for one, other in itertools.pairwise(phases):
            assert other["begin_us"] >= one["begin_us"] + one["us"] - 0.01
    total = sum(phase["us"] for phase in newest["phases"])
    assert total <= newest["ms"] * 1000 + 50
    assert {each["model"] for each in found["slowest"]} >= {"pipeline"}


def test_bodies_are_seen_only_if_the_operator_lets_them(server, repository):
    assert ask(server, "/v2/models/double/infer", X)[0] == 200
    assert "inputs" not in json.loads(ask(server, "/console/requests")[2])["requests"][0]
    with running(repository, "--console-bodies") as other:
        assert ask(other, "/v2/models/double/infer", X)[0] == 200
        seen = json.loads(ask(other, "/console/requests")[2])["requests"][0]
        assert (seen["inputs"], seen["outputs"]) == ({"x": "float32[1, 4] 1 2 3 4"}, {"y": "float32[1, 4] 2 4 6 8"})


def test_a_model_that_goes_and_comes(server):
    with stream(server) as events:
        assert [events.event()[0] for _ in range(2)] == ["hello", "tick"]
        assert ask(server, "/v2/repository/models/other/unload", {}, own_page(server))[0] == 200
        tick = events.until(lambda tick: "other" in models_of(tick))
        assert models_of(tick)["other"]["state"] == "UNAVAILABLE"
        assert ask(server, "/v2/repository/models/other/load", {}, own_page(server))[0] == 200
        events.until(lambda tick: models_of(tick).get("other", {}).get("state") == "READY")


def test_models_that_nobody_has_loaded(repository, tmp_path):
    copied = tmp_path / "repository"
    shutil.copytree(repository, copied)
    options = ("--model-control-mode", "explicit", "--load-model", "double")
    with running(copied, *options) as server, stream(server) as events:
        events.event()
        first = models_of(events.event()[1])
        assert {name: row["state"] for name, row in first.items()} == {
            "double": "READY",
            "other": "NOT LOADED",
            "bare": "NOT LOADED",
            "pipeline": "NOT LOADED",
        }
        assert ask(server, "/v2/repository/models/other/load", {})[0] == 200
        tick = events.until(lambda tick: models_of(tick).get("other", {}).get("state") == "READY")
        assert ["other", ""] in tick["gone"] or all(name != "other" for name, _ in tick["gone"])
        with stream(server) as later:
            later.event()
            rows = [row for row in later.event()[1]["models"] if row["name"] == "other"]
            assert [(row["version"], row["state"]) for row in rows] == [("1", "READY")]
        shutil.rmtree(copied / "bare")
        events.until(lambda tick: ["bare", ""] in tick["gone"])


@pytest.mark.parametrize(
    "headers, host",
    [
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://evil"}, "localhost"),
        ({"Origin": "http://localhost"}, "localhost"),
        ({"Sec-Fetch-Site": "same-site"}, "127.0.0.1"),
        ({**SAME, "Origin": "http://evil.example"}, "evil.example"),
        ({**SAME, "Origin": "http://localhost.evil.example"}, "localhost.evil.example"),
        ({**SAME, "Origin": "http://localhost"}, "localhost"),  # another port
        ({**SAME, "Origin": "https://models.example.org"}, "127.0.0.1"),  # through a proxy that keeps no Host
        ({**SAME, "Origin": "null"}, "localhost"),
        (SAME, ""),
    ],
)
def test_other_pages_change_nothing(server, headers, host):
    status, _, body = ask(server, "/v2/repository/models/other/unload", {}, headers, host)
    assert status == 403 and b"pages in a browser" in body
    assert ask(server, "/v2/models/other/ready")[0] == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LocalHost"])
def test_the_own_page_may_load_on_this_machine(server, host):
    assert ask(server, "/v2/repository/models/other/load", {}, own_page(server, host), host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "evil.example:80"])
@pytest.mark.parametrize("path", ["stream", "requests", "ops", "models/double", "examples/double/page.html"])
def test_pages_under_other_names_see_nothing(server, path, host):
    """Anybody may give a name to this address after the browser has loaded a page from there."""
    status, _, body = ask(server, f"/console/{path}", host=host)
    assert status == 403 and b"--console-hosts" in body


def test_names_of_the_operator_and_tokens(repository):
    with running(repository, "--console-hosts", "models.example.org", "--console-hosts", "other.example") as named:
        for host, status in (
            ("models.example.org", 200),
            ("Other.Example", 200),
            ("evil.example", 403),
            ("gpu-box", 200),
        ):
            assert ask(named, "/console/requests", host=host)[0] == status
    with running(repository, "--http-restricted-api", "statistics:see=one") as restricted:
        assert ask(restricted, "/console/requests", headers={"see": "one"}, host="models.example.org")[0] == 200


def test_the_page_and_its_files(server):
    status, headers, page = ask(server, "/", headers={"Accept-Encoding": "gzip"})
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    if headers.get("Content-Encoding") == "gzip":
        page = gzip.decompress(page)
    assert b"<!doctype html>" in page.lower()
    assert ask(server, "/", headers={"If-None-Match": headers["ETag"]})[::2] == (304, b"")
    for name in ("none.js", "..%2f__init__.py", "%2e%2e/routes.py"):
        assert ask(server, f"/console/files/{name}")[0] == 404


def test_a_model_as_the_console_shows_it(server):
    view = json.loads(ask(server, "/console/models/bare")[2])
    assert view["config_text"] == "" and {"max_batch_size"} <= {each["field"] for each in view["completed"]}
    assert [(node["op"], node["custom"]) for node in view["graph"]["nodes"]] == [("Add", False)]
    assert view["form"]["kind"] == "tensors" and view["inputs"][0]["name"] == "x"
    pipeline = json.loads(ask(server, "/console/models/pipeline/versions/1")[2])
    assert [step["model"] for step in pipeline["steps"]] == ["double", "double"] and pipeline["graph"] is None
    status, _, body = ask(server, "/console/models/dobule")
    assert status == 404 and b"did you mean 'double'" in body


def test_examples(server):
    view = json.loads(ask(server, "/console/models/double")[2])
    by_title = {example["title"]: example for example in view["examples"]}
    assert by_title["four numbers"]["json"] == {"x": [1, 2, 3, 4]}
    assert ask(server, "/" + by_title["two"]["files"]["x"])[2] == b"12"
    status, headers, body = ask(server, "/" + by_title["page"]["file"])
    assert status == 200 and b"alert" in body
    assert headers["Content-Security-Policy"] == "sandbox" and headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["..%2fconfig.pbtxt", "../config.pbtxt", "two/../../config.pbtxt", "..%2f..%2fsecret.txt", "", "two", "%00"]
)
def test_nothing_but_examples_is_read(server, path):
    assert ask(server, f"/console/examples/double/{path}")[0] in (400, 404)


def test_a_link_out_of_the_repository_is_no_example(repository, tmp_path):
    copied = tmp_path / "repository"
    shutil.copytree(repository, copied)
    (tmp_path / "secret.bin").write_text("secret")
    (copied / "double" / "examples" / "link.bin").symlink_to(tmp_path / "secret.bin")
    with running(copied) as started:
        view = json.loads(ask(started, "/console/models/double")[2])
        assert all(example["title"] != "link" for example in view["examples"])
        assert ask(started, "/console/examples/double/link.bin")[0] == 404


def test_ops(server, library):
    found = {op["name"]: op for op in json.loads(ask(server, "/console/ops")[2])["ops"]}
    assert all(op["signature"] and op["trusted_by"].endswith("manifest.json") for op in found.values())


def test_tokens(repository):
    options = ("--http-restricted-api", "statistics:see=one", "--http-restricted-api", "logging:log=two")
    with running(repository, *options, "--http-restricted-api", "metadata,model-config:meta=three") as server:
        assert ask(server, "/")[0] == 200
        for path, key in (("/console/stream", "see"), ("/console/requests", "see"), ("/console/ops", "meta")):
            status, _, body = ask(server, path)
            assert status == 403 and f"expecting header '{key}'".encode() in body
        assert ask(server, "/console/models/double")[0] == 403
        assert ask(server, "/console/models/double", headers={"meta": "three"})[0] == 200
        with stream(server, {"see": "one"}) as events:
            events.event()
            assert "log" not in events.event()[1]
        with stream(server, {"see": "one", "log": "two"}) as events:
            events.event()
            assert events.event()[1]["log"]


def test_loading_with_a_token(repository):
    options = ("--model-control-mode", "explicit", "--load-model", "*")
    with running(repository, *options, "--http-restricted-api", "model-repository:admin=one") as server:
        for headers, may in (({}, False), ({"admin": "two"}, False), ({"admin": "one"}, True)):
            with stream(server, headers) as events:
                hello = events.event()[1]
            assert hello["can_load"] is may and (may or "expecting header 'admin'" in hello["why_not"])
        evil = {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil"}
        assert ask(server, "/v2/repository/models/other/unload", {}, evil)[0] == 403
        assert (
            ask(
                server,
                "/v2/repository/models/other/load",
                {},
                {"admin": "one", **own_page(server, "gateway")},
                "gateway",
            )[0]
            == 200
        )


def test_without_a_console(repository):
    with running(repository, "--no-console") as server:
        status, headers, _ = ask(server, "/")
        assert status == 307 and headers["Location"] == "/docs"
        assert ask(server, "/console/stream")[0] == 404 and ask(server, "/console/requests")[0] == 404


def test_several_processes_are_one(repository):
    with running(repository, "--workers", "2") as server:
        for _ in range(20):
            assert ask(server, "/v2/models/double/infer", X)[0] == 200
        with stream(server) as events:
            assert events.event()[1]["workers"] == 2
            tick = events.event()[1]
            assert models_of(tick)["double"]["requests"] == 20
            assert len({process["pid"] for process in tick["server"]["processes"]}) == 2
            assert len(tick["requests"]) == 20
        kept = json.loads(ask(server, "/console/requests")[2])["requests"]
        assert len({(each["pid"], each["id"]) for each in kept}) == 20


def test_consoles_that_open_together_are_told_everything_once(repository):
    with running(repository, "--workers", "2") as server, contextlib.ExitStack() as opened:
        with ThreadPoolExecutor(8) as pool:
            streams = [opened.enter_context(each) for each in pool.map(lambda _: stream(server), range(8))]
        for each in streams:
            assert [each.event()[0] for _ in range(2)] == ["hello", "tick"]
        for _ in range(5):
            assert ask(server, "/v2/models/double/infer", X)[0] == 200
        for each in streams:
            told = []

            def seen(tick, told=told):
                told += [(request["pid"], request["id"]) for request in tick["requests"]]
                return len(told) >= 5

            each.until(seen)
            assert len(told) == len(set(told)) == 5


def test_a_file_with_strange_names_and_a_large_one(repository, tmp_path):
    """Reading a large file holds up nobody, and what is no text or newer than the package is shown all the same."""
    copied = tmp_path / "repository"
    shutil.copytree(repository, copied)
    path = copied / "bare" / "1" / "model.onnx"
    model = onnx.load(path)
    model.graph.node[0].name = "XXXX"
    path.write_bytes(model.SerializeToString().replace(b"XXXX", b"\xff\xfe\xfd\xfc"))
    weights = onnx.helper.make_tensor("unused", onnx.TensorProto.UINT8, [200 << 20], bytes(200 << 20), raw=True)
    large = onnx.load(copied / "other" / "1" / "model.onnx")
    large.graph.initializer.append(weights)
    (copied / "other" / "1" / "model.onnx").write_bytes(large.SerializeToString())
    (copied / "double" / "examples" / "big.json").write_text('{"x": [99999999999999999999999]}')
    (copied / "double" / "examples" / "deep.json").write_text("[" * 30_000)
    with running(copied) as server:
        assert ask(server, "/v2/models/bare/infer", {"inputs": X["inputs"]})[0] == 200
        view = json.loads(ask(server, "/console/models/bare")[2])
        assert view["graph"]["nodes"][0]["name"] == "\ufffd" * 4
        names = {example["title"] for example in json.loads(ask(server, "/console/models/double")[2])["examples"]}
        assert "four numbers" in names and not names & {"big", "deep"}
        assert ask(server, "/console/ops")[0] == 200
        before = server.megabytes("VmHWM")
        assert len(json.loads(ask(server, "/console/models/other")[2])["graph"]["nodes"]) == 1
        assert server.megabytes("VmHWM") < before + 100


def test_an_open_console_does_not_hold_up_the_stop(repository):
    server = Server(repository)
    with stream(server) as events:
        events.event()
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        while events.event() is not None:
            pass
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 15


def test_those_who_read_nothing_are_left_behind(repository):
    with running(repository) as server:
        lazy = []
        for _ in range(20):
            connected = socket.create_connection(("127.0.0.1", server.http))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connected.sendall(b"GET /console/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            lazy.append(connected)
        with stream(server) as events:
            for _ in range(2):
                events.event()
            assert ask(server, "/v2/models/double/infer", X)[0] == 200
            events.until(lambda tick: "double" in models_of(tick))
        for connected in lazy:
            connected.close()


def test_too_many_consoles_are_refused(repository):
    with running(repository) as server, contextlib.ExitStack() as opened:
        for _ in range(256):
            opened.enter_context(stream(server))
        status, headers, body = ask(server, "/console/stream")
        assert status == 503 and b"256 consoles are open" in body and headers["Retry-After"]


class TestRecentRequests:
    @staticmethod
    def add(recent, number, ns=1000, model="m", error=""):
        request = Request({"x": np.zeros(1, np.float32)}, 1, None, ("y",), id=str(number))
        recent.add(Answer("http", "/infer", "400" if error else "200", ns, model), request, error)

    def test_the_last_hundred_are_kept(self, monkeypatch):
        monkeypatch.setattr(recent_requests, "_A_SECOND", 1000)
        recent = RecentRequests(bodies=False)
        for number in range(250):
            self.add(recent, number)
        assert [each.id for each in recent.since(0)] == [str(number) for number in range(250 - MOST, 250)]
        assert [each.id for each in recent.since(248)] == ["248", "249"]

    def test_a_flood_of_errors_is_not_kept_whole(self):
        recent = RecentRequests(bodies=False)
        for number in range(5000):
            self.add(recent, number, error="no model")
        assert len(recent.since(0)) == MOST and int(recent.since(0)[-1].id) < 1000

    def test_the_slowest_of_each_model_stays(self):
        recent = RecentRequests(bodies=False)
        self.add(recent, 0, 9000, "a")
        self.add(recent, 1, 8000, "b")
        self.add(recent, 2, 90_000, "a", error="failed")
        for number in range(300):
            self.add(recent, 10 + number, 1000, "a")
        assert {each.answer.model: each.id for each in recent.slowest()} == {"a": "0", "b": "1"}

    def test_names_of_many_models_don_t_grow(self):
        recent = RecentRequests(bodies=False)
        for number in range(3000):
            self.add(recent, number, model=f"m{number}")
        assert len(recent.slowest()) == 1000
        assert len(recent.since(0)) == MOST

    def test_at_a_high_rate_some_are_kept_and_slow_ones_always(self):
        recent = RecentRequests(bodies=False)
        now = time.perf_counter_ns
        self.add(recent, 0, 5_000_000, "a")
        kept = 0
        for number in range(10_000):
            if recent.wants("a", now()):
                kept += 1
                self.add(recent, number, 1000, "a")
        assert 50 <= kept < 5000
        assert recent.wants("a", now() - 6_000_000)

    def test_previews_are_short(self):
        recent = RecentRequests(bodies=True)
        big = np.zeros((1000, 1000), np.float32)
        texts = np.array([b"x" * 100_000_000, "\xff" * 10_000_000], object)
        request = Request({"x": big, "t": texts}, 1, None, ("y",))
        request.result = {"y": big}
        recent.add(Answer("http", "/infer", "200", 1, "m"), request, "")
        (kept,) = recent.since(0)
        assert kept.inputs["x"].startswith("float32[1000, 1000]") and all(len(t) <= 600 for t in kept.inputs.values())
