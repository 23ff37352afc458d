"""Models that are loaded when somebody asks for them, and leave memory for others."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import shutil
import signal
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
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException

from opgate.service.settings import Settings
from tests.service.onnx_models import batching, double, save, value, write_config
from tests.service.stateful_models import accumulator
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import PIPELINE, wait_until
from tests.system.running import Server, running
from tests.system.test_model_control import Client, times
from tests.system.test_python_models import write

SIZE = 1024  # rows and columns of a weight: 4 MiB
WEIGHT = SIZE * SIZE * 4
ON_DEMAND = 'parameters { key: "residency" value { string_value: "on_demand" } }'
KSERVE = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,1,1,1]}]}'
READY = 'opgate_model_ready{{model="{}",version="1"}}'
ALWAYS = 'parameters { key: "residency" value { string_value: "always" } }'


def large(repository, name, weights, seed=0):
    """Saves a model with so many weights of 4 MiB. Returns what it makes of ones."""
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal((SIZE, SIZE), dtype=np.float32) / 32 for _ in range(weights)]
    names = ["x", *(f"t{i}" for i in range(1, weights)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(weights)]
    initializers = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]
    shape = ("N", SIZE)
    save(repository, name, nodes, [value("x", "FP32", shape)], [value("y", "FP32", shape)], initializers=initializers)
    out = np.ones((1, SIZE), np.float32)
    for array in arrays:
        out = out @ array
    return out


def ask(server, model, x, version="", **options):
    """Returns an answer over HTTP."""
    with http.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=60) as client:
        given = http.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return client.infer(model, [given], model_version=version, **options).as_numpy("y")


def metrics(server):
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def resident(server):
    """Returns the models that are loaded on demand and are in memory now."""
    found = metrics(server)
    return {key.split('"')[1] for key, here in found.items() if key.startswith("opgate_model_resident{") and here}


def said(server, text):
    return [line for line in server.log if text in line]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Models that are loaded on demand, without a budget."""
    folder = tmp_path_factory.mktemp("small")
    for name in ("http", "grpc", "predict", "generate", "meta", "config", "stats", "stream", "late"):
        double(folder, name, batching() + ON_DEMAND, shape=("batch", 4))
    double(folder, "double", batching() + ON_DEMAND, shape=("batch", 4))
    write_config(folder, "pipeline", PIPELINE)
    (folder / "pipeline" / "config.pbtxt").write_text(PIPELINE + ON_DEMAND)
    times(folder, "versions", 2, 1, "version_policy { all {} } " + ON_DEMAND)
    times(folder, "versions", 3, 2)
    (folder / "broken" / "1").mkdir(parents=True)
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    (folder / "broken" / "config.pbtxt").write_text(ON_DEMAND)
    (folder / "misspelt" / "1").mkdir(parents=True)
    (folder / "misspelt" / "config.pbtxt").write_text(
        'parameters { key: "residency" value { string_value: "sometimes" } }'
    )
    double(folder, "there", batching() + ALWAYS)
    return folder


@pytest.fixture(scope="module")
def server(small):
    with running(small, "--no-strict-readiness") as started:
        yield started


ONES = np.ones((1, 4), np.float32)


class TestFirstRequest:
    @pytest.mark.parametrize("protocol", ["http", "grpc"])
    def test_loads_the_model(self, server, protocol):
        assert protocol not in resident(server)
        assert Client(protocol, server).run(protocol)[0] == 2
        assert protocol in resident(server)

    def test_of_other_routes(self, server):
        body = json.dumps({"x": [1, 1, 1, 1]}).encode()
        for name, route in (("predict", "/predict/predict"), ("generate", "/v2/models/generate/generate")):
            assert name not in resident(server)
            asked = urllib.request.Request(f"{server.url}{route}", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked) as answer:
                found = json.load(answer)
                assert found.get("outputs", found)["y"] == [2, 2, 2, 2]
            assert name in resident(server)

    def test_of_a_stream(self, server):
        got = []
        ended = threading.Event()
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            client.start_stream(lambda result, error: (got.append((result, error)), ended.set()))
            given = grpc.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(ONES)
            client.async_stream_infer("stream", [given])
            assert ended.wait(30)
            client.stop_stream()
        assert got[0][1] is None and (got[0][0].as_numpy("y") == 2).all()

    def test_of_many_clients_shares_one_load(self, tmp_path):
        double(tmp_path, "m", batching() + ON_DEMAND)
        with running(tmp_path) as server, ThreadPoolExecutor(32) as pool:
            assert all((y == 2).all() for y in pool.map(lambda _: ask(server, "m", ONES), range(64)))
            assert metrics(server)['opgate_model_loads_total{model="m",version="1"}'] == 1

    def test_of_an_ensemble_loads_its_steps(self, server):
        assert not {"pipeline", "double"} & resident(server)
        assert (ask(server, "pipeline", ONES) == 4).all()
        assert {"pipeline", "double"} <= resident(server)

    def test_of_a_version_loads_only_that(self, server):
        assert (ask(server, "versions", ONES, "1") == 2).all()
        found = metrics(server)
        assert found['opgate_model_resident{model="versions",version="1"}'] == 1
        assert found['opgate_model_resident{model="versions",version="2"}'] == 0
        assert (ask(server, "versions", ONES) == 3).all()

    def test_that_asks_what_the_model_is(self, server):
        with urllib.request.urlopen(f"{server.url}/v2/models/meta") as answer:
            assert json.load(answer)["inputs"][0]["name"] == "x"
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            assert client.get_model_config("config").config.name == "config"

    def test_statistics_load_nothing(self, server):
        with urllib.request.urlopen(f"{server.url}/v2/models/stats/stats") as answer:
            assert json.load(answer)["model_stats"] == []
        assert "stats" not in resident(server)


class TestWhatIsSaid:
    def test_a_model_that_is_not_in_memory_is_ready(self, server):
        with http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            assert client.is_model_ready("late")
            row = next(row for row in client.get_model_repository_index() if row["name"] == "late")
        assert row["state"] == "READY" and "not in memory" in row["reason"]
        assert "late" not in resident(server)
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            assert client.is_model_ready("late")
        assert metrics(server)['opgate_model_ready{model="late",version="1"}'] == 1

    def test_a_model_that_is_always_there_is_no_such_model(self, server):
        assert 'opgate_model_resident{model="there",version="1"}' not in metrics(server)

    def test_a_broken_model_says_why_and_is_tried_again(self, server, small):
        with pytest.raises(InferenceServerException, match="no ONNX model"):
            ask(server, "broken", ONES)
        with http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            assert not client.is_model_ready("broken")
            row = next(row for row in client.get_model_repository_index() if row["name"] == "broken")
            assert row["state"] == "UNAVAILABLE" and "no ONNX model" in row["reason"]
            time.sleep(1.2)  # it may be tried again, and is no better for that
            row = next(row for row in client.get_model_repository_index() if row["name"] == "broken")
            assert row["state"] == "UNAVAILABLE" and metrics(server)[READY.format("broken")] == 0
            double(small, "broken", ON_DEMAND)
            wait_until(lambda: client.is_model_ready("broken"))
        assert (ask(server, "broken", ONES) == 2).all()

    def test_an_unknown_residency_is_refused(self, server):
        with pytest.raises(
            InferenceServerException, match="'residency': expected always or on_demand, got 'sometimes'"
        ):
            ask(server, "misspelt", ONES)

    def test_a_model_that_fails_keeps_no_server_from_being_ready(self, tmp_path):
        (tmp_path / "m" / "1").mkdir(parents=True)
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"no model")
        (tmp_path / "m" / "config.pbtxt").write_text(ON_DEMAND)
        with running(tmp_path) as server:
            with pytest.raises(InferenceServerException):
                ask(server, "m", ONES)
            with http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
                assert client.is_server_ready()


class TestTimeouts:
    @pytest.fixture
    def slow(self, tmp_path):
        write(tmp_path, "sleeps", ON_DEMAND, SLEEPS)
        with running(tmp_path, "--allow-python-models") as server:
            yield server

    @pytest.mark.parametrize(
        ("protocol", "packed"),
        [("http", {}), ("http", {"request_compression_algorithm": "gzip"}), ("grpc", {})],
        ids=["http", "packed-http", "grpc"],
    )
    def test_a_request_waits_no_longer_than_it_wants(self, slow, protocol, packed):
        with connect(slow, protocol) as client:
            module = CLIENTS[protocol]
            given = module.InferInput("x", [4], "FP32")
            given.set_data_from_numpy(np.ones(4, np.float32))
            began = time.monotonic()
            with pytest.raises(InferenceServerException, match="timeout of 300000 us ran out"):
                client.infer("sleeps", [given], timeout=300_000, **packed)
            assert 0.25 < time.monotonic() - began < 3
            assert (client.infer("sleeps", [given], timeout=60_000_000, **packed).as_numpy("y") == 2).all()


def test_each_row_of_a_request_counts_for_its_client_also_if_its_model_is_loaded_for_it(tmp_path):
    double(tmp_path, "a", "max_batch_size: 0 " + ON_DEMAND)
    body = json.dumps([{"x": [1, 1, 1, 1]}] * 5).encode()
    with running(tmp_path, "--client-limit", "*:0.05") as server:
        request = urllib.request.Request(f"{server.url}/predict/a", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            results = json.load(answer)["results"]
    assert sum("error" not in result for result in results) == 1
    assert sum("may send 0.05 requests" in result.get("error", "") for result in results) == 4


def status_of(request):
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("path", ["/predict/{}", "/v2/models/{}/generate", "/v2/models/{}/infer"])
def test_a_client_that_sends_more_than_it_may_loads_nothing(tmp_path, path):
    for name in ("a", "b"):
        double(tmp_path, name, "max_batch_size: 0 " + ON_DEMAND)
    body = KSERVE if path.endswith("infer") else b'{"x": [1, 1, 1, 1]}'
    headers = {"Content-Type": "application/json"}
    if path.endswith("infer"):
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    with running(tmp_path, "--client-limit", "*:0.05") as server:

        def status(name):
            return status_of(urllib.request.Request(server.url + path.format(name), body, headers))

        assert status("a") == 200
        assert status("b") == 429 and status("a") == 429
        assert resident(server) == {"a"}
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            assert b'opgate_limited_requests_total{client="*"} 2.0' in answer.read()


def test_a_client_that_sends_more_than_it_may_loads_no_model_for_its_picture(tmp_path):
    picture = 'parameters { key: "predict_picture_model" value { string_value: "draws" } } max_batch_size: 0 '
    double(tmp_path, "a", picture + ALWAYS)
    double(tmp_path, "draws", "max_batch_size: 0 " + ON_DEMAND)
    with running(tmp_path, "--client-limit", "*:0.05") as server:

        def status(accept):
            headers = {"Content-Type": "application/json", "Accept": accept}
            return status_of(urllib.request.Request(f"{server.url}/predict/a", b'{"x": [1, 1, 1, 1]}', headers))

        assert status("application/json") == 200
        assert status("image/png") == 429
        assert resident(server) == set()


SLEEPS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        time.sleep(5)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""

CALLS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1, 4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1, 4]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        answers = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="called", requested_output_names=["y"],
                inputs=[pb_utils.Tensor("x", request.inputs()[0].as_numpy())])
            answer = call.exec()
            if answer.has_error():
                answers.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                found = pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", found)]))
        return answers
"""


def test_a_call_of_a_model_in_python_loads_the_model(tmp_path):
    write(tmp_path, "calls", ON_DEMAND, CALLS)
    double(tmp_path, "called", batching() + ON_DEMAND)
    with running(tmp_path, "--allow-python-models") as server:
        assert (ask(server, "calls", ONES) == 2).all()
        assert resident(server) == {"calls", "called"}


def test_models_in_python_wait_for_others_without_a_core(tmp_path):
    """As many calls as there are cores would wait for each other otherwise."""
    for i in range(4):
        write(tmp_path, f"calls{i}", "", CALLS)
    double(tmp_path, "called", batching())
    with (
        running(tmp_path, "--allow-python-models", "--rate-limit", "fair") as server,
        ThreadPoolExecutor(16) as pool,
    ):
        began = time.monotonic()
        for y in pool.map(lambda i: ask(server, f"calls{i % 4}", ONES), range(200)):
            assert (y == 2).all()
        assert time.monotonic() - began < 30


class TestBudget:
    """Eight models of 16 MiB where three have room."""

    MODELS = 8

    @pytest.fixture(scope="class")
    @classmethod
    def many(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("many")
        expected = {f"m{i}": large(folder, f"m{i}", 4, i) for i in range(cls.MODELS)}
        with running(folder, "--model-memory", "100MiB", "--model-cache-byte-size", "0") as server:
            yield server, expected

    def test_models_make_room_for_each_other_and_answer_as_before(self, many):
        server, expected = many
        x = np.ones((1, SIZE), np.float32)
        first = {name: ask(server, name, x) for name in expected}
        for name, y in first.items():
            np.testing.assert_allclose(y, expected[name], rtol=2e-3, atol=1e-3)
        assert len(resident(server)) < self.MODELS
        for name in reversed(expected):
            assert (ask(server, name, x) == first[name]).all()
        found = metrics(server)
        assert sum(found[f'opgate_model_evictions_total{{model="{name}",version="1"}}'] for name in expected) > 0
        assert found["opgate_model_memory_budget_bytes"] == 100 << 20

    def test_those_that_were_idle_longest_leave(self, many):
        server, _ = many
        x = np.ones((1, SIZE), np.float32)
        for name in ("m0", "m1", "m0", "m2", "m0", "m3", "m0", "m4", "m0", "m5", "m0"):
            ask(server, name, x)
            time.sleep(0.3)
        assert "m0" in resident(server) and "m1" not in resident(server)

    def test_counts_go_on_when_a_model_comes_back(self, many):
        server, _ = many
        x = np.ones((1, SIZE), np.float32)
        key = 'nv_inference_request_success{model="m7",version="1"}'
        ask(server, "m7", x)
        before = metrics(server)[key]
        for name in ("m1", "m2", "m3", "m4", "m5", "m6"):
            ask(server, name, x)
        assert "m7" not in resident(server)
        assert metrics(server)[key] == before
        ask(server, "m7", x)
        assert metrics(server)[key] == before + 1

    def test_traffic_to_all_at_once_loses_nothing(self, many):
        server, expected = many
        generator = np.random.default_rng(1)
        names = [f"m{i}" for i in generator.integers(0, self.MODELS, 120)]
        x = np.ones((1, SIZE), np.float32)
        with ThreadPoolExecutor(6) as pool:
            for name, y in zip(names, pool.map(lambda name: ask(server, name, x), names), strict=True):
                np.testing.assert_allclose(y, expected[name], rtol=2e-3, atol=1e-3)
        assert said(server, "models leave memory and come back within a minute")
        assert metrics(server)["opgate_model_returns_total"] > 0

    def test_a_model_that_is_larger_than_the_budget_says_so(self, tmp_path):
        large(tmp_path, "m", 12)
        double(tmp_path, "small", batching())
        with running(tmp_path, "--model-memory", "40MiB", "--model-cache-byte-size", "0") as server:
            with pytest.raises(InferenceServerException, match=r"takes .* MiB, --model-memory"):
                ask(server, "m", np.ones((1, SIZE), np.float32))
            assert (ask(server, "small", ONES) == 2).all()

    def test_a_model_with_a_sequence_under_way_stays(self, tmp_path):
        accumulator(tmp_path, "counts", idle_us=60_000_000)
        for i in range(6):
            large(tmp_path, f"m{i}", 8, i)
        options = ("--model-memory", "150MiB", "--model-cache-byte-size", "0")
        with running(tmp_path, *options) as server, connect(server, "http") as client:

            def step(**options):
                given = http.InferInput("x", [1, 1], "FP32")
                given.set_data_from_numpy(np.ones((1, 1), np.float32))
                return client.infer("counts", [given], sequence_id=7, **options).as_numpy("sum").item()

            assert step(sequence_start=True) == 1
            for i in range(6):
                ask(server, f"m{i}", np.ones((1, SIZE), np.float32))
            assert "counts" in resident(server)
            assert step() == 2
            assert step(sequence_end=True) == 3


def chain(repository, name, steps, more=""):
    """Saves an ensemble that runs models of `large` one after the other."""
    names = ["x", *(f"t{i}" for i in range(1, len(steps))), "y"]
    parts = [
        f'{{ model_name: "{step}" model_version: -1 input_map {{ key: "x" value: "{names[i]}" }} '
        f'output_map {{ key: "y" value: "{names[i + 1]}" }} }}'
        for i, step in enumerate(steps)
    ]
    tensor = f"data_type: TYPE_FP32 dims: [ -1, {SIZE} ]"
    text = f'platform: "ensemble" input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }} '
    write_config(repository, name, text + f"ensemble_scheduling {{ step [ {', '.join(parts)} ] }} {more}")


class TestEnsembles:
    """Models that are loaded together have room together or not at all."""

    ROW = np.ones((1, SIZE), np.float32)

    def test_that_wait_for_room_do_not_wait_for_each_other(self, tmp_path):
        """Each would keep the steps that it has, and wait for the room of the others."""
        for i in range(4):
            steps = [f"e{i}s{j}" for j in range(3)]
            for j, step in enumerate(steps):
                large(tmp_path, step, 4, seed=10 * i + j)
            chain(tmp_path, f"e{i}", steps)
        options = ("--model-memory", "170MiB", "--model-cache-byte-size", "0")
        with running(tmp_path, *options) as server, ThreadPoolExecutor(4) as pool:
            first = {i: ask(server, f"e{i}", self.ROW) for i in range(4)}
            began = time.monotonic()
            answers = list(pool.map(lambda k: (k % 4, ask(server, f"e{k % 4}", self.ROW)), range(24)))
            assert time.monotonic() - began < 45  # a load waits a minute for room that never comes
            for i, y in answers:
                np.testing.assert_array_equal(y, first[i])

    def test_that_take_more_than_the_budget_say_so_and_their_steps_serve(self, tmp_path):
        steps = [f"s{j}" for j in range(6)]
        for step in steps:
            large(tmp_path, step, 4)
        chain(tmp_path, "e", steps)
        with running(tmp_path, "--model-memory", "70MiB", "--model-cache-byte-size", "0") as server:
            assert ask(server, "s1", self.ROW).shape == self.ROW.shape
            with pytest.raises(InferenceServerException, match=r"s0, s2, .* take together more than .* MiB, --model-"):
                ask(server, "e", self.ROW)
            assert metrics(server)["opgate_model_memory_used_bytes"] < 70 << 20
            assert ask(server, "s5", self.ROW).shape == self.ROW.shape

    def test_that_turn_out_to_take_more_than_the_budget_leave(self, tmp_path):
        """Their files are small: constants that a node makes of a shape."""
        for name in ("a", "b", "c"):
            inflated(tmp_path, name, 8)
        chain(tmp_path, "e", ["a", "b", "c"])
        with running(tmp_path, "--model-memory", "80MiB", "--model-cache-byte-size", "0") as server:
            with pytest.raises(InferenceServerException, match=r"a, b, c, e take together .* MiB, --model-memory"):
                ask(server, "e", self.ROW)
            assert resident(server) == set()
            assert ask(server, "a", self.ROW).shape == self.ROW.shape


def inflated(repository, name, weights):
    """Saves a model whose file is small and whose session has so many weights of 4 MiB."""
    names = ["x", *(f"t{i}" for i in range(1, weights)), "y"]
    shape = numpy_helper.from_array(np.array([SIZE, SIZE]), "shape")
    nodes = []
    for i in range(weights):
        value_of = numpy_helper.from_array(np.array([1 + i], np.float32))
        nodes.append(helper.make_node("ConstantOfShape", ["shape"], [f"w{i}"], value=value_of))
        nodes.append(helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]))
    size = ("N", SIZE)
    save(repository, name, nodes, [value("x", "FP32", size)], [value("y", "FP32", size)], initializers=[shape])


def test_a_file_that_is_larger_than_the_budget_is_not_opened(tmp_path):
    large(tmp_path, "m", 24)
    with running(tmp_path, "--model-memory", "40MiB", "--model-cache-byte-size", "0") as server:

        def peak():
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) << 10

        before = peak()
        with pytest.raises(InferenceServerException, match=r"it takes more than .* MiB, --model-memory"):
            ask(server, "m", np.ones((1, SIZE), np.float32))
        assert peak() - before < 30 << 20


def test_versions_that_nobody_loads_count_for_nothing(tmp_path):
    large(tmp_path, "m", 5)
    for version in "23":
        shutil.copytree(tmp_path / "m" / "1", tmp_path / "m" / version)
    options = ("--model-control-mode", "explicit", "--model-memory", "56MiB", "--model-cache-byte-size", "0")
    with (
        running(tmp_path, *options) as server,
        http.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=60) as client,
    ):
        client.load_model("m")
        assert ask(server, "m", np.ones((1, SIZE), np.float32)).shape == (1, SIZE)


def test_worker_processes_count_and_leave(tmp_path):
    """Each worker process takes some 30 MB. Two have room."""
    isolated = 'parameters { key: "isolation" value { string_value: "process" } }'
    for i in range(4):
        times(tmp_path, f"m{i}", i, config=batching() + isolated)
    with running(tmp_path, "--model-memory", "70MiB") as server:
        for _ in range(2):
            for i in range(4):
                assert (ask(server, f"m{i}", ONES) == i).all()
        found = metrics(server)
        assert found['opgate_model_memory_bytes{model="m3",version="1"}'] > 30 << 20
        assert 1 <= len(resident(server)) < 4
        assert sum(found[f'opgate_model_processes{{model="m{i}",version="1"}}'] for i in range(4)) < 4


ROWS_OF_4 = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
HOLDS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.held = np.ones(40 << 20, np.uint8)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())])
                for r in requests]
"""


def test_models_in_python_of_which_nobody_knows_what_they_take_keep_to_the_budget(tmp_path):
    """Their files say nothing of it. Each takes some 55 MB, so two have room."""
    for i in range(4):
        write(tmp_path, f"m{i}", ROWS_OF_4, HOLDS)
    with running(tmp_path, "--model-memory", "150MiB", "--allow-python-models") as server:
        with ThreadPoolExecutor(4) as pool:
            for y in pool.map(lambda i: ask(server, f"m{i}", ONES), range(4)):
                assert (y == ONES).all()
        wait_until(lambda: len(resident(server)) < 4, 30)
        wait_until(lambda: metrics(server)["opgate_model_memory_used_bytes"] < 150 << 20, 30)


def test_a_large_model_gets_room_although_small_ones_are_asked_for_all_the_time(tmp_path):
    for i in range(8):
        large(tmp_path, f"m{i}", 5, i)
    expected = large(tmp_path, "large", 18, 9)
    row = np.ones((1, SIZE), np.float32)
    ends = threading.Event()
    with (
        running(tmp_path, "--model-memory", "200MiB", "--model-cache-byte-size", "0") as server,
        ThreadPoolExecutor(4) as pool,
    ):

        def small(first):
            for i in itertools.count(first):
                if ends.is_set():
                    return
                ask(server, f"m{i % 8}", row)

        others = [pool.submit(small, 2 * i) for i in range(4)]
        time.sleep(2)
        try:
            for _ in range(2):
                assert np.allclose(ask(server, "large", row), expected, rtol=1e-3, atol=1e-3)
        finally:
            ends.set()
        for other in others:
            other.result()


def test_what_never_leaves_is_named_as_what_has_the_room(tmp_path):
    large(tmp_path, "stays", 8)
    (tmp_path / "stays" / "config.pbtxt").write_text(ALWAYS)
    large(tmp_path, "m", 8)
    with running(tmp_path, "--model-memory", "50MiB", "--model-cache-byte-size", "0") as server:
        for _ in range(2):
            text = "no room for 'm': at least 32.0 MiB are needed, what never leaves takes .* MiB"
            with pytest.raises(InferenceServerException, match=text):
                ask(server, "m", np.ones((1, SIZE), np.float32))


@pytest.mark.parametrize(
    ("given", "got"),
    [("50%", "got '50%'"), ("16XB", "got '16XB'"), ("-5", "got '-5'"), ("", "got ''"), ("5", "got 5 bytes")],
)
def test_a_budget_that_is_no_size_is_refused(given, got):
    with pytest.raises(ValueError, match=f"a size such as 16GiB, {got}"):
        Settings(model_memory=given)


def test_a_version_that_came_or_went_meanwhile(tmp_path):
    """A request for what is gone gets an answer, and one that came is not served in the mode `none`."""
    times(tmp_path, "m", 2, 1, config=ON_DEMAND)
    times(tmp_path, "gone", 2, 1, config=ON_DEMAND)
    with running(tmp_path) as server:
        times(tmp_path, "m", 3, 2)
        shutil.rmtree(tmp_path / "gone" / "1")
        assert (ask(server, "m", ONES) == 2).all()
        with pytest.raises(InferenceServerException, match="its folder is gone"):
            ask(server, "gone", ONES)


def test_an_ensemble_of_two_versions_of_a_model_one_of_which_is_there(tmp_path):
    for version in (1, 2):
        times(tmp_path, "a", version + 1, version)
    (tmp_path / "a" / "config.pbtxt").write_text("version_policy { all {} } " + ON_DEMAND)
    write_config(tmp_path, "e", PIPELINE)
    text = PIPELINE.replace('"double"', '"a"').replace("max_batch_size: 8", "max_batch_size: 4")
    text = text.replace("model_version: -1", "model_version: 1", 1).replace("model_version: -1", "model_version: 2", 1)
    (tmp_path / "e" / "config.pbtxt").write_text(text + ON_DEMAND)
    with running(tmp_path) as server:
        assert (ask(server, "a", ONES, "1") == 2).all()
        assert (ask(server, "e", ONES) == 6).all()


def test_a_model_that_a_client_has_sent_stays_that_when_it_leaves(tmp_path):
    """It leaves for others, and comes back with an ensemble that a client loads."""
    times(tmp_path, "double", 5, config=batching() + ON_DEMAND)
    write_config(tmp_path, "pipeline", PIPELINE)
    times(tmp_path / "sent", "double", 7)
    for i in range(4):
        large(tmp_path, f"m{i}", 4, i)
    content = base64.b64encode((tmp_path / "sent" / "double" / "1" / "model.onnx").read_bytes()).decode()
    shutil.rmtree(tmp_path / "sent")
    options = ("--model-control-mode", "explicit", "--load-model", "m*", "--model-memory", "60MiB")
    options = (*options[:2], *(part for i in range(4) for part in ("--load-model", f"m{i}")), *options[4:])
    with running(tmp_path, *options, "--model-cache-byte-size", "0") as server:
        body = {"parameters": {"config": json.dumps({"max_batch_size": 16}), "file:1/model.onnx": content}}
        request = urllib.request.Request(f"{server.url}/v2/repository/models/double/load", json.dumps(body).encode())
        urllib.request.urlopen(request).close()
        assert (ask(server, "double", ONES) == 7).all()
        for i in range(4):
            time.sleep(0.3)
            ask(server, f"m{i}", np.ones((1, SIZE), np.float32))
        assert (ask(server, "double", ONES) == 7).all()
        urllib.request.urlopen(f"{server.url}/v2/repository/models/pipeline/load", b"{}").close()
        assert (ask(server, "pipeline", ONES) == 49).all()


def test_a_poll_that_meets_a_load_of_the_old_files_serves_the_new_ones(tmp_path):
    write(tmp_path, "m", ON_DEMAND, SLEEPS.replace("time.sleep(5)", "time.sleep(2)"))
    options = ("--allow-python-models", "--model-control-mode", "poll", "--repository-poll-secs", "0.3")
    with running(tmp_path, *options) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, "m", np.ones(4, np.float32))
        time.sleep(0.8)
        source = SLEEPS.replace("time.sleep(5)", "pass").replace("* 2", "* 3")
        (tmp_path / "m" / "1" / "model.py").write_text(source)
        assert first.result(30) is not None
        wait_until(lambda: ask(server, "m", np.ones(4, np.float32))[0] == 3)


def test_a_stop_does_not_wait_for_a_reload(tmp_path):
    write(tmp_path, "m", "", SLEEPS.replace("time.sleep(5)", "pass"))
    server = Server(tmp_path, "--allow-python-models", "--model-control-mode", "poll", "--repository-poll-secs", "0.2")
    try:
        assert (ask(server, "m", np.ones(4, np.float32)) == 2).all()
        (tmp_path / "m" / "1" / "model.py").write_text(SLEEPS.replace("time.sleep(5)", "time.sleep(1000)"))
        time.sleep(1.5)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    finally:
        server.stop()


def test_a_model_without_a_version_says_so(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text(ALWAYS)
    with (
        running(tmp_path, "--model-memory", "1GiB", "--no-strict-readiness") as server,
        pytest.raises(InferenceServerException, match="the model's folder has no version"),
    ):
        ask(server, "m", ONES)


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_a_model_that_changes_serves_what_it_is_now(tmp_path, mode):
    times(tmp_path, "m", 2, config=ON_DEMAND)
    options = ["--model-control-mode", mode, "--repository-poll-secs", "0.2"]
    if mode == "explicit":
        options += ["--load-model", "*"]
    with running(tmp_path, *options) as server, http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        if mode == "poll":
            time.sleep(0.5)
        assert resident(server) == set()
        times(tmp_path, "m", 3, config=ON_DEMAND)
        if mode == "poll":
            time.sleep(0.7)
        assert (ask(server, "m", ONES) == 3).all()
        times(tmp_path, "m", 5, config=ON_DEMAND)
        if mode == "poll":
            wait_until(lambda: ask(server, "m", ONES)[0, 0] == 5)
        else:
            assert (ask(server, "m", ONES) == 3).all()
            client.load_model("m")
            assert (ask(server, "m", ONES) == 5).all()
            client.unload_model("m")
            with pytest.raises(InferenceServerException, match="unloaded"):
                ask(server, "m", ONES)
            client.load_model("m")
            assert (ask(server, "m", ONES) == 5).all()


def test_several_processes_have_their_share_of_the_budget(tmp_path):
    for i in range(4):
        large(tmp_path, f"m{i}", 2, i)
    with running(tmp_path, "--workers", "2", "--model-memory", "120MiB", "--model-cache-byte-size", "0") as server:
        assert metrics(server)["opgate_model_memory_budget_bytes"] in (60 << 20, 120 << 20)
        x = np.ones((1, SIZE), np.float32)
        for _ in range(6):
            for i in range(4):
                ask(server, f"m{i}", x)


def test_a_load_that_never_ends_holds_up_nobody(tmp_path):
    """Whoever asks for others is answered, and the stop is clean."""
    write(tmp_path, "hangs", ON_DEMAND, SLEEPS.replace("time.sleep(5)", "time.sleep(100_000)"))
    for i in range(6):
        double(tmp_path, f"m{i}", batching() + ON_DEMAND)
    server = Server(tmp_path, "--allow-python-models", "--model-load-thread-count", "2")
    try:
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(ask, server, "hangs", np.ones(4, np.float32))
            for i in range(6):
                assert (ask(server, f"m{i}", ONES) == 2).all()
            assert not hanging.done()
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(InferenceServerException, match="shutting down"):
                hanging.result(30)
            assert server.process.wait(60) == 0
            assert time.monotonic() - began < 20
    finally:
        server.stop()
