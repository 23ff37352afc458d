"""Loading and unloading models while the gateway serves, with the unmodified tritonclient over both protocols."""

from __future__ import annotations

import base64
import gzip
import json
import os
import resource
import shutil
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.conftest import ALL
from tests.service.onnx_models import batching, double, endless, save, value, write_config
from tests.system.conftest import PIPELINE, over, wait_until
from tests.system.running import Server, running
from tests.system.shared_files import shared_file
from tests.system.test_http import Connection
from tests.system.test_python_models import write

EXPLICIT = ("--model-control-mode", "explicit")


def times(repository, name, factor, version=1, config=None, shape=("batch", 4)):
    """Saves a model that multiplies by a number."""
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [float(factor)])
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    x, y = value("x", "FP32", shape), value("y", "FP32", shape)
    return save(repository, name, [node], [x], [y], initializers=[constant], config=config, version=version)


class Client:
    """One of tritonclient's clients. Both have the same methods, but HTTP's returns dicts."""

    def __init__(self, protocol, server):
        self.module = http if protocol == "http" else grpc
        port = server.http if protocol == "http" else server.grpc
        self.client = self.module.InferenceServerClient(f"127.0.0.1:{port}")
        self.protocol = protocol

    def index(self):
        rows = self.client.get_model_repository_index()
        if self.protocol == "grpc":
            rows = [{"name": r.name, "version": r.version, "state": r.state, "reason": r.reason} for r in rows.models]
        return {row["name"]: (row.get("version", ""), row.get("state", ""), row.get("reason", "")) for row in rows}

    def run(self, model, version=""):
        """Returns the first element and the version that computed it."""
        given = self.module.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        result = self.client.infer(model, [given], model_version=version)
        response = result.get_response()
        number = response["model_version"] if self.protocol == "http" else response.model_version
        return float(result.as_numpy("y")[0, 0]), number


@pytest.fixture
def repository(tmp_path):
    return models(tmp_path / "models")


def models(folder):
    double(folder, "double", config=batching(max_batch_size=16))
    times(folder, "triple", 3)
    write_config(folder, "pipeline", PIPELINE)
    return folder


def test_clients_load_and_unload(repository, protocol):
    with running(repository, *EXPLICIT) as server:
        client = Client(protocol, server)
        assert client.index() == dict.fromkeys(("double", "pipeline", "triple"), ("", "", ""))
        assert client.client.is_server_ready()
        assert not client.client.is_model_ready("double")
        with pytest.raises(InferenceServerException, match="'double' is not found"):
            client.run("double")
        client.client.load_model("double")
        assert client.client.is_model_ready("double")
        assert client.run("double") == (2.0, "1")
        assert client.index()["double"] == ("1", "READY", "")
        client.client.unload_model("double")
        assert client.index()["double"] == ("1", "UNAVAILABLE", "unloaded")
        assert not client.client.is_model_ready("double")
        with pytest.raises(InferenceServerException, match="has no available versions"):
            client.run("double")
        assert client.client.is_server_ready()  # it is what the operator wanted
        client.client.load_model("double")
        assert client.run("double") == (2.0, "1")
        with pytest.raises(InferenceServerException, match="failed to load 'none'"):
            client.client.load_model("none")
        client.client.unload_model("none")


@over("grpc")
def test_the_models_that_start(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model", "double", "--load-model", "missing") as server:
        client = Client(protocol, server)
        assert client.index()["double"] == ("1", "READY", "")
        assert client.index()["triple"] == ("", "", "")
        assert client.index()["missing"][1:] == ("UNAVAILABLE", "no repository has a folder of that name")
        assert not client.client.is_server_ready()
        client.client.unload_model("missing")
        assert client.client.is_server_ready()
    with running(repository, *EXPLICIT, "--load-model", "*") as server:
        assert Client(protocol, server).index()["triple"] == ("1", "READY", "")


def test_an_ensemble_brings_its_steps_and_goes_with_them(repository, protocol):
    with running(repository, *EXPLICIT) as server:
        client = Client(protocol, server)
        client.client.load_model("pipeline")
        assert client.run("pipeline") == (4.0, "1")
        assert client.index()["double"] == ("1", "READY", "")
        client.client.unload_model("double")
        assert client.index()["pipeline"][1] == "UNAVAILABLE"
        assert "'double'" in client.index()["pipeline"][2]
        client.client.load_model("double")  # the ensemble comes back with it
        assert client.run("pipeline") == (4.0, "1")
        client.client.unload_model("pipeline", unload_dependents=True)
        assert client.index()["double"][1:] == ("UNAVAILABLE", "unloaded")
        client.client.load_model("double")
        assert client.index()["pipeline"][1:] == ("UNAVAILABLE", "unloaded")  # a client wanted it so


@over("http")
def test_an_ensemble_uses_the_new_version_of_its_step(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model=*") as server:
        client = Client(protocol, server)
        times(repository, "double", 10, version=2)
        client.client.load_model("double")
        assert client.run("double") == (10.0, "2")
        assert client.run("pipeline") == (100.0, "1")


@over("grpc")
def test_a_failed_reload_keeps_what_serves(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model=double") as server:
        client = Client(protocol, server)
        (repository / "double" / "2").mkdir()
        (repository / "double" / "2" / "model.onnx").write_bytes(b"no model")
        with pytest.raises(InferenceServerException, match="failed to load 'double': version 2: "):
            client.client.load_model("double")
        assert client.run("double") == (2.0, "1")
        assert client.client.is_server_ready()
        wait_until(lambda: "what served before still does" in "".join(server.log))
        with pytest.raises(InferenceServerException, match="not available"):
            client.run("double", "2")
        (repository / "double" / "config.pbtxt").write_text("what: 1")
        with pytest.raises(InferenceServerException, match="what"):
            client.client.load_model("double")
        assert client.run("double") == (2.0, "1")
        # The same version with a broken file: the one in memory stays, and the index says why.
        (repository / "double" / "config.pbtxt").write_text(batching())
        shutil.rmtree(repository / "double" / "2")
        (repository / "double" / "1" / "model.onnx").write_bytes(b"broken")
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.client.load_model("double")
        assert client.run("double") == (2.0, "1")
        version, state, reason = client.index()["double"]
        assert (version, state) == ("1", "READY") and reason


@over("http")
def test_what_did_not_change_is_not_loaded_again(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model=double") as server:
        client = Client(protocol, server)
        client.run("double")
        client.client.load_model("double")
        assert server.metric("nv_inference_request_success", "double") == 1  # a new one would count from zero
        times(repository, "double", 5, config=batching())
        client.client.load_model("double")
        assert client.run("double") == (5.0, "1")


class TestOverrides:
    """One server for all: each test leaves it as it was."""

    @pytest.fixture(scope="class", params=["http", "grpc"])
    @classmethod
    def client(cls, request, tmp_path_factory):
        folder = tmp_path_factory.mktemp("overrides") / "models"
        with running(models(folder), *EXPLICIT, "--load-model=double") as server:
            client = Client(request.param, server)
            client.folder = folder
            yield client

    def max_batch_size(self, client):
        config = client.client.get_model_config("double")
        return config["max_batch_size"] if client.protocol == "http" else config.config.max_batch_size

    def test_a_config(self, client):
        client.client.load_model("double", config=json.dumps({"max_batch_size": 3, "backend": "onnxruntime"}))
        assert self.max_batch_size(client) == 3
        assert client.run("double") == (2.0, "1")
        client.client.load_model("double")  # the folder's own config again
        assert self.max_batch_size(client) == 16

    def test_a_config_that_says_whether_it_batches(self, client):
        """A config without tensors is completed, and gets batches only if it doesn't say what max_batch_size is."""
        for config, batch in (
            ('{"max_batch_size": 0}', 0),
            ('{"max_batch_size": null}', 4),
            ('{"maxBatchSize": 0}', 0),
            ("{}", 4),
        ):
            client.client.load_model("double", config=config)
            assert self.max_batch_size(client) == batch
        client.client.load_model("double")
        assert self.max_batch_size(client) == 16

    def test_files_replace_the_folder(self, client, tmp_path):
        content = (times(tmp_path, "other", 7) / "1" / "model.onnx").read_bytes()
        client.client.load_model("double", config='{"max_batch_size": 2}', files={"file:5/model.onnx": content})
        assert client.run("double") == (7.0, "5")
        client.client.load_model("new", config="{}", files={"file:1/model.onnx": content})
        assert client.run("new") == (7.0, "1")
        client.client.load_model("double")
        assert client.run("double") == (2.0, "1")
        client.client.unload_model("new")
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.client.load_model("new")

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ("{bad", "expected a model configuration in JSON"),
            ("[1]", "expected a model configuration in JSON"),
            ('{"no_such_field": 1}', "no_such_field"),
            ('{"max_batch_size": -1}', "max_batch_size"),
            ('{"backend": "python"}', "backend: a load request can't set it"),
            ('{"platform": "tensorrt_plan"}', "tensorrt_plan"),
            ('{"name": "other"}', "other"),
            ('{"model_operations": {"op_library_filename": ["libevil.so"]}}', "can't set it"),
            ('{"model_operations": {"op_library_filename": ["libopgate_onnxruntime.so"]}}', "can't set it"),
            (
                '{"parameters": {"session.model_external_initializers_file_folder_path": {"string_value": "/etc"}}}',
                "set it",
            ),
            ('{"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp/x"}}}', "EXECUTION_ENV_PATH"),
            ('{"default_model_filename": "../../etc/passwd"}', "default_model_filename"),
        ],
    )
    def test_a_config_that_is_refused(self, client, config, expected):
        with pytest.raises(InferenceServerException, match=expected):
            client.client.load_model("double", config=config)
        assert client.run("double") == (2.0, "1")

    @pytest.mark.parametrize(
        "name",
        [
            "file:1/model.py",
            "file:1/libx.so",
            "file:1/libx.so.1",
            "file:1/../model.onnx",
            "file:../model.onnx",
            "file:config.pbtxt",
            "file:1/config.pbtxt",
            "file:0/model.onnx",
            "file:1/",
            "file:1/.hidden",
            "file:1/a/b",
            "what",
        ],
    )
    def test_a_file_that_is_refused(self, client, name):
        with pytest.raises(InferenceServerException, match=r"file|config"):
            client.client.load_model("double", config="{}", files={name: b"x"})
        assert client.run("double") == (2.0, "1")

    def test_files_without_a_config(self, client):
        with pytest.raises(InferenceServerException, match="config"):
            client.client.load_model("double", files={"file:1/model.onnx": b"x"})

    @pytest.mark.parametrize("name", ["..", ".", "../evil", "a/b", ".hidden", "/etc", ""])
    def test_a_name_that_is_no_folder(self, client, name):
        before = sorted(path.name for path in client.folder.parent.iterdir())
        with pytest.raises(InferenceServerException):
            client.client.load_model(name, config="{}", files={"file:1/model.onnx": b"x"})
        assert sorted(path.name for path in client.folder.parent.iterdir()) == before
        assert client.run("double") == (2.0, "1")

    def test_a_model_reads_no_file_outside_its_own(self, client, tmp_path):
        """The weights of a model may lie in a file beside it. A client can't name another one."""
        (tmp_path / "secret").write_bytes(np.full(4, 9, np.float32).tobytes())
        for location in (str(tmp_path / "secret"), "../../secret", "/etc/passwd"):
            weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
            weights.external_data.add(key="location", value=location)
            node = helper.make_node("Add", ["x", "w"], ["y"])
            x, y = value("x", "FP32", ["batch", 4]), value("y", "FP32", ["batch", 4])
            graph = helper.make_graph([node], "g", [x], [y], [weights])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
            with pytest.raises(InferenceServerException, match="failed to load 'thief'"):
                files = {"file:1/model.onnx": model.SerializeToString()}
                client.client.load_model("thief", config="{}", files=files)


def post(url, body, headers=()):
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_bad_requests(repository):
    with running(repository, *EXPLICIT) as server:
        load = f"{server.url}/v2/repository/models/double/load"
        for body, expected in (
            (b"{bad", "not valid JSON"),
            (b"[]", "expected a JSON object"),
            (b'{"parameters": []}', "expected an object"),
            (b'{"parameters": {"config": 5}}', "expected a string"),
            (b'{"parameters": {"what": 5}}', "expected config or file"),
            (b'{"parameters": {"config": "{}", "file:1/model.onnx": "%%%"}}', "base64"),
            (b'{"parameters": {"config": "{}", "file:1/model.onnx": 7}}', "base64"),
        ):
            status, text = post(load, body)
            assert (status, expected in text) == (400, True), text
        unload = f"{server.url}/v2/repository/models/double/unload"
        status, text = post(unload, b'{"parameters": {"unload_dependents": "yes"}}')
        assert status == 400 and "boolean" in text
        body = json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(b"x").decode()}})
        assert post(load, body.encode())[0] == 400
        assert post(load, b"")[0] == 200


def test_other_modes_refuse(repository, protocol):
    with running(repository) as server:
        client = Client(protocol, server)
        for call in (client.client.load_model, client.client.unload_model):
            with pytest.raises(InferenceServerException, match=r"not allowed.*expected explicit"):
                call("double")
        assert client.run("double") == (2.0, "1")


@over("http")
def test_polling_notices_changes(repository, protocol):
    with running(repository, "--model-control-mode", "poll", "--repository-poll-secs", "0.2") as server:
        client = Client(protocol, server)
        assert client.run("triple") == (3.0, "1")
        times(repository, "triple", 30, version=2)
        wait_until(lambda: client.run("triple") == (30.0, "2"))
        with pytest.raises(InferenceServerException, match="version 1 is not found"):
            client.run("triple", "1")
        times(repository, "new", 4)
        wait_until(lambda: "new" in client.index())
        assert client.run("new") == (4.0, "1")
        (repository / "new" / "config.pbtxt").write_text("max_batch_size: 8 version_policy { all { } }")
        wait_until(lambda: json.loads(server.get("/v2/models/new/config"))["max_batch_size"] == 8)
        shutil.rmtree(repository / "new")
        wait_until(lambda: "new" not in client.index())
        shutil.rmtree(repository / "double")
        wait_until(lambda: client.index()["pipeline"][1] == "UNAVAILABLE")
        double(repository, "double", config=batching())
        wait_until(lambda: client.index()["pipeline"][1] == "READY")
        assert client.run("pipeline") == (4.0, "1")


@over("grpc")
def test_several_repositories(repository, tmp_path, protocol):
    other = tmp_path / "other"
    times(other, "five", 5)
    double(other, "double")
    with running(repository, "--model-repository", str(other)) as server:
        client = Client(protocol, server)
        assert client.run("five") == (5.0, "1")
        assert client.run("triple") == (3.0, "1")
        assert "several repositories have a model 'double'" in client.index()["double"][2]


@over("http")
def test_the_golden_outputs_decide(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model=triple") as server:
        client = Client(protocol, server)
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        np.savez(repository / "triple" / "golden.npz", x=x, y=3 * x)
        times(repository, "triple", 4, version=2)
        with pytest.raises(
            InferenceServerException, match=r"golden.npz: output 'y' differs in 7 of 8 elements.*\[0, 1\]"
        ):
            client.client.load_model("triple")
        assert client.run("triple") == (3.0, "1")
        times(repository, "triple", 3.0001, version=3)
        client.client.load_model("triple")
        value, version = client.run("triple")
        assert version == "3" and value == pytest.approx(3.0001)
        # A file of the version comes before that of the model.
        times(repository, "triple", 6, version=4)
        np.savez(repository / "triple" / "4" / "golden.npz", x=x, y=6 * x)
        client.client.load_model("triple")
        assert client.run("triple") == (6.0, "4")


@over("grpc")
def test_reload_under_load(repository, protocol):
    """New versions come while requests come: none fails, none gets an answer of a version that it didn't ask for."""
    times(
        repository,
        "busy",
        1,
        config="max_batch_size: 64 dynamic_batching { } version_policy { latest { num_versions: 2 } }",
    )
    failures, wrong, done = [], [], threading.Event()
    counts = [0, 0]
    with running(repository, *EXPLICIT, "--load-model=busy") as server:

        def ask(number):
            client = Client(protocol, server)
            while not done.is_set():
                try:
                    got, version = client.run("busy")
                except InferenceServerException as error:
                    failures.append(str(error))
                    return
                counts[number] += 1
                if got != float(version):
                    wrong.append((got, version))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        control = Client(protocol, server)
        for version in range(2, 22):
            times(repository, "busy", version, version=version, config=None)
            control.client.load_model("busy")
            before = sum(counts)
            wait_until(lambda before=before: sum(counts) > before or failures)
            assert control.run("busy") == (float(version), str(version))
            assert control.run("busy", str(version - 1)) == (float(version - 1), str(version - 1))
        done.set()
        for thread in threads:
            thread.join()
    assert not failures and not wrong
    assert sum(counts) >= 40


def memory(server):
    """Returns the resident bytes of the process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines)
    return next(int(field[1]) * 1024 for field in fields if field[0] == "VmRSS:")


def test_memory_comes_back(repository):
    size = 32 << 20
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, [size // 4], np.ones(size // 4, np.float32).tobytes(), raw=True
    )
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    x, y = value("x", "FP32", [size // 4]), value("y", "FP32", [size // 4])
    save(repository, "large", [node], [x], [y], initializers=[weights])
    with running(repository, *EXPLICIT) as server:
        client = Client("http", server)

        def cycle():
            client.client.load_model("large")
            client.client.unload_model("large")

        for _ in range(3):
            cycle()
        wait_until(lambda: sum('"model closed"' in line for line in server.log) == 3)
        before = memory(server)
        for _ in range(5):
            cycle()
        wait_until(lambda: sum('"model closed"' in line for line in server.log) == 8)
        assert memory(server) - before < size


def test_a_request_that_is_read_outlives_its_model(repository):
    """A model is unloaded while the body of a request for it is on its way: the request is still answered."""
    double(repository, "wide", shape=("n",))
    with running(repository, *EXPLICIT, "--load-model=wide") as server:
        client = Client("http", server)
        body = json.dumps({"inputs": [{"name": "x", "shape": [1000000], "datatype": "FP32", "data": [1.0] * 1000000}]})
        answers = []

        def ask():
            answers.append(post(f"{server.url}/v2/models/wide/infer", body.encode()))

        for _ in range(5):
            client.client.load_model("wide")
            thread = threading.Thread(target=ask)
            thread.start()
            time.sleep(0.05)
            client.client.unload_model("wide")
            thread.join()
        # A request that came before the unload was answered; one that came after it got 404. None got 503 or 500.
        assert {status for status, _ in answers} <= {200, 404}


def test_a_model_to_load_that_is_not_there_is_said(repository):
    """Whatever else is to be loaded."""
    options = ("--load-model=*", "--load-model=nosuch")
    with running(repository, *EXPLICIT, *options) as server:
        wait_until(lambda: any('"nosuch"' in line and "no repository has a folder" in line for line in server.log))
        index = Client("http", server).index()
        assert index["nosuch"] == ("", "UNAVAILABLE", "no repository has a folder of that name")
        assert index["double"][1] == "READY"


def test_models_to_load_need_the_mode_explicit(repository):
    with pytest.raises(RuntimeError, match="needs --model-control-mode explicit"):
        Server(repository, "--load-model=double")


@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream", "predict"])
def test_a_slow_body_does_not_keep_an_old_model(repository, route):
    """The request is answered by the model that serves when its body is there."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
    body = gzip.compress(json.dumps({"inputs": [tensor]}).encode()) if route == "infer" else b'{"x": [1, 1, 1, 1]}'
    path = "/predict/triple" if route == "predict" else f"/v2/models/triple/{route}"
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += "Connection: close\r\n" + ("Content-Encoding: gzip\r\n" if route == "infer" else "")
    with running(repository, *EXPLICIT, "--load-model=triple") as server, Connection(server) as connection:
        connection.send(f"{head}\r\n".encode() + body[:5])
        time.sleep(0.3)  # nothing shows that the head has been read
        times(repository, "triple", 5)
        Client("http", server).client.load_model("triple")
        wait_until(lambda: any('"model closed"' in line for line in server.log), 5)
        connection.send(body[5:])
        assert connection.closed() and b" 200 " in connection.held and b"[5.0,5.0,5.0,5.0]" in connection.held, (
            connection.held
        )


def test_only_clients_of_this_machine(repository):
    """A header can't make another client one, and a page in a browser is anybody's."""
    with running(repository, *EXPLICIT, env={"FORWARDED_ALLOW_IPS": "*"}) as server:
        load = f"{server.url}/v2/repository/models/double/load"
        assert post(load, b"", {"X-Forwarded-For": "192.0.2.1"})[0] == 200  # the header says nothing
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert post(load, b"", headers)[0] == 403


def test_a_page_may_not_register_shared_memory(repository):
    with running(repository) as server, shared_file(bytes(64)) as file:
        register = f"{server.url}/v2/systemsharedmemory/region/page/register"
        body = json.dumps({"key": file.key, "byte_size": 64}).encode()
        pages = ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-origin"})
        for headers in pages:
            assert post(register, body, headers)[0] == 403
        assert server.get("/v2/systemsharedmemory/status") == "[]"
        assert post(register, body)[0] == 200
        for headers in pages:
            assert post(f"{server.url}/v2/systemsharedmemory/unregister", b"", headers)[0] == 403
        assert '"page"' in server.get("/v2/systemsharedmemory/status")


@pytest.mark.parametrize("files", [False, True])
def test_a_load_never_lessens_isolation(repository, files):
    """A model that its own config puts into a process of its own stays there, whatever a client's config says."""
    isolated = 'parameters { key: "isolation" value { string_value: "process" } }'
    times(repository, "apart", 2, config=f'backend: "onnxruntime" max_batch_size: 8 {isolated}')
    content = (repository / "apart" / "1" / "model.onnx").read_bytes()
    more = {"file:1/model.onnx": base64.b64encode(content).decode()} if files else {}
    with running(repository, *EXPLICIT, "--load-model=apart") as server:
        load = f"{server.url}/v2/repository/models/apart/load"

        def loaded(config):
            return post(load, json.dumps({"parameters": {"config": json.dumps(config), **more}}).encode())

        config = {"backend": "onnxruntime", "max_batch_size": 4}
        assert loaded(config)[0] == 200
        assert json.loads(server.get("/v2/models/apart/config"))["max_batch_size"] == 4
        assert server.metric("opgate_model_processes", "apart") == 1
        for value in ("none", ""):
            status, text = loaded({**config, "parameters": {"isolation": {"string_value": value}}})
            assert status == 400 and "isolation" in text and "expected process" in text
        assert loaded({**config, "parameters": {"isolation": {"string_value": "process"}}})[0] == 200
        assert server.metric("opgate_model_processes", "apart") == 1


def special(folder, file):
    """Makes a pipe where a file should be, which whoever opens it waits for."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def test_a_pipe_is_no_file_of_a_model(repository, protocol):
    """It is refused, whenever it comes, and the other models load."""
    files = ("config.pbtxt", "labels.txt", "1/model.onnx", "1/model.onnx.data", "warmup/first")
    names = [f"odd{i}" for i in range(len(files))]
    label = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]'
    for name, file in zip(names, files, strict=True):
        special(repository / name, file)
        if file != "config.pbtxt":
            config = batching() + (label if file == "labels.txt" else "")
            (repository / name / "config.pbtxt").write_text(config)
        if file != "1/model.onnx":
            double(repository, name)
    loaded = [f"--load-model={name}" for name in (*names, "double")]
    with running(repository, *EXPLICIT, *loaded) as server:
        client = Client(protocol, server)
        assert client.run("double") == (2.0, "1")
        for name in names:
            with pytest.raises(InferenceServerException, match=r"no regular file|no model file"):
                client.client.load_model(name)
        client.client.load_model("double")
        special(repository / "triple", "config.pbtxt")  # of a model that isn't to be loaded
        client.client.load_model("double")


@pytest.mark.parametrize(
    ("protocol", "golden"),
    [(p, g) for p in ("http", "grpc") for g in (False, True)] if ALL else [("http", False), ("grpc", True)],
)
def test_a_run_at_load_that_never_ends(repository, golden, protocol):
    """It has the time of every run. Then its model doesn't load, and others do."""
    tensor = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1, 1 ] zero_data: true } }'
    config = 'backend: "onnxruntime"' if golden else f'model_warmup [ {{ name: "w" {tensor} }} ]'
    endless(repository, "long", config=config)
    if golden:
        np.savez(repository / "long" / "golden.npz", x=np.zeros((1, 1), np.float32), y=np.ones((1, 1), np.float32))
    with running(repository, *EXPLICIT, "--load-model=long", env={"OPGATE_RUN_TIMEOUT": "1"}) as server:
        client = Client(protocol, server)
        assert "longer than 1 s" in client.index()["long"][2]
        with pytest.raises(InferenceServerException, match="longer than 1 s"):
            client.client.load_model("long")
        client.client.load_model("double")
        assert client.run("double") == (2.0, "1")


@over("http")
def test_a_model_in_python_that_never_initializes(repository, protocol):
    """It has OPGATE_START_TIMEOUT. A load of another model that waits behind it comes then."""
    source = "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(1000)\n"
    source += "    def execute(self, requests):\n        return []\n"
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 1 ] }'
    write(repository, "sleepy", f"input {tensor % 'X'} output {tensor % 'Y'}", source)
    with running(repository, *EXPLICIT, "--allow-python-models", env={"OPGATE_START_TIMEOUT": "3"}) as server:
        client = Client(protocol, server)
        with ThreadPoolExecutor(1) as pool:
            sleepy = pool.submit(Client(protocol, server).client.load_model, "sleepy")
            client.client.load_model("double")
            assert client.run("double") == (2.0, "1")
            with pytest.raises(InferenceServerException, match="start of the worker process took longer than 3 s"):
                sleepy.result(30)
        assert "longer than 3 s" in client.index()["sleepy"][2]


def test_a_load_while_there_are_no_descriptors(repository, protocol):
    """The client may try again, and hears no path of the server."""
    with running(repository, *EXPLICIT) as server:
        client = Client(protocol, server).client
        client.load_model("double")
        pid = server.process.pid
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        try:
            with pytest.raises(InferenceServerException) as caught:
                client.load_model("double")
            assert str(repository) not in str(caught.value) and "Too many open files" in str(caught.value)
            assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        client.load_model("double")


def test_a_config_has_its_size(repository, protocol):
    """A large one is not parsed, and the text of an error doesn't have all of a long value."""
    double(repository, "large", config="#" * (1 << 20) + batching())
    double(repository, "long", config=f'platform: "{"p" * 500_000}"')
    double(repository, "broken", config=batching() + "max_batch_size" * 50_000)
    with running(repository, *EXPLICIT) as server:
        client = Client(protocol, server).client
        for name, text in ("large", "expected at most 1048576 bytes"), ("long", "pppp"), ("broken", "parsed"):
            with pytest.raises(InferenceServerException, match=text) as caught:
                client.load_model(name)
            assert len(caught.value.message()) < 5000
        with pytest.raises(InferenceServerException, match="at most 1048576 characters"):
            client.load_model("double", config=json.dumps({"max_batch_size": 4}) + " " * (1 << 20))


@over("http")
def test_a_refused_load_leaves_no_files(repository, tmp_path, protocol):
    folder = tmp_path / "temporary"
    folder.mkdir()
    for options, expected in (((), "not allowed"), (EXPLICIT, "failed to load")):
        with running(repository, *options, env={"TMPDIR": str(folder)}) as server:
            client = Client(protocol, server).client
            with pytest.raises(InferenceServerException, match=expected):
                client.load_model("double", config="{}", files={"file:1/model.onnx": b"x"})
            assert list(folder.rglob("opgate-model-*")) == []


def test_the_next_gateway_removes_what_a_killed_one_has_left(repository, tmp_path):
    """It leaves the files of one that runs, and a stop leaves nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    content = (repository / "double" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})

    def left():
        return len(list(folder.rglob("model.onnx")))

    killed = Server(repository, *EXPLICIT, env={"TMPDIR": str(folder)})
    with running(repository, *EXPLICIT, env={"TMPDIR": str(folder)}) as server:
        for each in (killed, server):
            Client("http", each).client.load_model("sent", config=config, files={"file:1/model.onnx": content})
        killed.process.kill()
        killed.process.wait()
        killed.stop()
        assert left() == 2
        with running(repository, *EXPLICIT, env={"TMPDIR": str(folder)}):
            assert left() == 1
        assert Client("http", server).run("sent") == (2.0, "1")
    assert list(folder.glob("opgate-*")) == []


def test_a_failed_override_of_an_ensemble_changes_nothing(repository, protocol):
    with running(repository, *EXPLICIT, "--load-model=*") as server:
        client = Client(protocol, server)
        config = client.client.get_model_config("pipeline")
        if protocol == "grpc":
            from google.protobuf.json_format import MessageToDict

            config = MessageToDict(config.config, preserving_proto_field_name=True)
        config["ensemble_scheduling"]["step"][0]["model_name"] = "nope"
        with pytest.raises(InferenceServerException, match="nope"):
            client.client.load_model("pipeline", config=json.dumps(config))
        assert client.run("pipeline") == (4.0, "1")
        times(repository, "double", 3, version=2)
        client.client.load_model("double")
        assert client.run("pipeline") == (9.0, "1")


@over("grpc")
def test_loading_one_of_two_steps_leaves_the_server_ready(repository, protocol):
    write_config(repository, "mixed", PIPELINE.replace('model_name: "double"', 'model_name: "triple"', 1))
    with running(repository, *EXPLICIT, "--load-model=*") as server:
        client = Client(protocol, server)
        for name in ("double", "triple"):
            client.client.unload_model(name)
        assert client.client.is_server_ready()
        client.client.load_model("triple")
        assert client.client.is_server_ready()
        assert client.index()["mixed"][1] == "UNAVAILABLE"
        client.client.load_model("double")
        assert client.index()["mixed"][1] == "READY"


@over("http")
def test_an_ensemble_under_way_keeps_its_steps(repository, protocol):
    """Its second step is unloaded while the first one runs."""
    tensors = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }, { name: "times" data_type: TYPE_INT64 dims: [ 1 ] } ]'
    endless(
        repository,
        "slow",
        config=f'{tensors} output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ]',
        times=None,
    )
    double(repository, "last", shape=("m", "n"))
    steps = (
        '{ model_name: "slow" model_version: -1 input_map { key: "x" value: "x" } input_map { key: "times" value: "times" } '
        'output_map { key: "y" value: "mid" } }, '
        '{ model_name: "last" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } }'
    )
    output = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]'
    write_config(
        repository, "both", f'platform: "ensemble" {tensors} {output} ensemble_scheduling {{ step [ {steps} ] }}'
    )
    with running(repository, *EXPLICIT, "--load-model=both") as server:
        client = Client(protocol, server)
        x = client.module.InferInput("x", [1, 1], "FP32")
        x.set_data_from_numpy(np.zeros((1, 1), np.float32))
        turns = client.module.InferInput("times", [1], "INT64")
        turns.set_data_from_numpy(np.array([300_000]))
        got = []

        def ask():
            own = Client(protocol, server)
            got.append(float(own.client.infer("both", [x, turns]).as_numpy("y")[0, 0]))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: "opgate_running_requests 1" in server.get("/metrics") or got)
        client.client.unload_model("last")
        thread.join()
        assert got == [600_000.0]
        wait_until(lambda: sum('"model closed"' in line for line in server.log) == 2)


def test_a_stop_does_not_wait_for_a_load(repository):
    """Nothing can stop the thread that loads. The status is 0, because no request is lost."""
    started = Server(repository, "--model-control-mode=poll", "--repository-poll-secs=0.1", "--exit-timeout-secs=5")
    tensor = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1, 1 ] zero_data: true } }'
    endless(repository, "long", config=f'model_warmup [ {{ name: "w" {tensor} }} ]')
    time.sleep(1)  # a warm-up that never ends is under way
    assert started.stop() == 0


def test_models_are_loaded_side_by_side(tmp_path):
    """Each waits in its load for the other one."""
    folder, met = tmp_path / "repository", tmp_path / "met"
    met.mkdir()
    for name, other in (("one", "two"), ("two", "one")):
        (folder / name / "1").mkdir(parents=True)
        tensor = '[ { name: "%s" data_type: TYPE_FP32 dims: [ 1 ] } ]'
        config = f'backend: "python" input {tensor % "x"} output {tensor % "y"}'
        (folder / name / "config.pbtxt").write_text(config)
        (folder / name / "1" / "model.py").write_text(
            "import pathlib, time\n"
            "class TritonPythonModel:\n"
            "    def initialize(self, args):\n"
            f"        met = pathlib.Path({str(met)!r})\n"
            f"        (met / {name!r}).touch()\n"
            f"        while not (met / {other!r}).exists():\n"
            "            time.sleep(0.01)\n"
            "    def execute(self, requests):\n"
            "        return [None for _ in requests]\n"
        )
    with running(folder, "--allow-python-models", "--model-load-thread-count", "2") as server:
        index = json.loads(post(f"{server.url}/v2/repository/index", b"")[1])
        assert [row["state"] for row in index] == ["READY", "READY"], index
