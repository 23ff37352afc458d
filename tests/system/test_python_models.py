"""Models with a model.py: the same files in the gateway and in a real Triton server give the same answers."""

from __future__ import annotations

import json
import queue
import re
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

import opgate
from opgate.ops_build.building.build import Build
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import wait_until
from tests.system.running import ROOT, Server, running
from tests.system.test_triton import Triton, installed, serving

MODELS = Path(__file__).with_name("python_models")
CONFIGS = {
    "add_sub": "",
    "echo": """input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "LOUD" data_type: TYPE_STRING dims: [ -1 ] }, { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]""",
    "caller": """max_batch_size: 8 input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]""",
    "counter": """input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
        model_transaction_policy { decoupled: true }""",
    "several": """input [ { name: "WORDS" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ] model_transaction_policy { decoupled: true }""",
    "chat": """input [ { name: "ENDS" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "ENDED" data_type: TYPE_BOOL dims: [ 1 ] } ] model_transaction_policy { decoupled: true }""",
    "late": """input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]""",
    "keeps_loop": """input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "TICKS" data_type: TYPE_INT32 dims: [ 1 ] } ]""",
    "calls": """input [ { name: "HOW" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]""",
    "functions": """input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ] output [
        { name: "NUMBERS" data_type: TYPE_STRING dims: [ -1 ] }, { name: "LEFT_OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]""",
    "again": """max_batch_size: 8 input [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "COUNTED" data_type: TYPE_INT32 dims: [ 2 ] } ]
        sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }""",
}
BESIDE = {"functions/1/beside.py": 'NAME = "beside"', "functions/above.py": 'NAME = "above"'}


def write(repository: Path, name: str, config: str, source: str = "") -> Path:
    """Writes a model in Python."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if source:
        (folder / "1" / "model.py").write_text(source)
    else:
        shutil.copy(MODELS / f"{name}.py", folder / "1" / "model.py")
    group = "" if "instance_group" in config else "instance_group { kind: KIND_CPU }"
    (folder / "config.pbtxt").write_text(f'backend: "python" {group} {config}')
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python") / "models"
    for name, config in CONFIGS.items():
        write(folder, name, config)
    for name, text in BESIDE.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[Server]:
    with running(repository, "--allow-python-models") as server:
        yield server


@contextmanager
def running_triton(repository: Path, *options: str) -> Iterator[Any]:
    installed()
    server = serving(Triton(repository, *options), lambda: Triton(repository, *options))
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0, "".join(server.log)


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[Any]:
    with running_triton(repository) as server:
        yield server


@pytest.fixture(params=["gateway", "triton"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def tensor(protocol: str, name: str, array: np.ndarray, datatype: str) -> Any:
    made = CLIENTS[protocol].InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


def pair(protocol: str, a: np.ndarray, b: np.ndarray) -> list[Any]:
    return [tensor(protocol, "INPUT0", a, "FP32"), tensor(protocol, "INPUT1", b, "FP32")]


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_config_that_the_model_completes(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 0.5, np.float32)
    found = client.infer("add_sub", pair(protocol, a, b))
    np.testing.assert_array_equal(found.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(found.as_numpy("OUTPUT1"), a - b)
    only = [CLIENTS[protocol].InferRequestedOutput("OUTPUT1")]
    assert client.infer("add_sub", pair(protocol, a, b), outputs=only).as_numpy("OUTPUT0") is None
    client.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_errors(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    good, bad = np.ones((1, 4), np.float32), np.full((1, 4), -1, np.float32)
    with pytest.raises(InferenceServerException, match="INPUT0 is negative") as raised:
        client.infer("add_sub", pair(protocol, bad, good))
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    with pytest.raises(InferenceServerException, match="thirteen is not served"):
        client.infer("add_sub", pair(protocol, 13 * good, good))
    np.testing.assert_array_equal(client.infer("add_sub", pair(protocol, good, good)).as_numpy("OUTPUT0"), 2 * good)
    client.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_strings_and_what_a_request_says_of_itself(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    text = np.array(["viele", "Wörter", ""], np.object_)
    inputs = [tensor(protocol, "TEXT", text, "BYTES")]
    found = client.infer("echo", inputs, request_id="r7", parameters={"mine": "x", "number": 3, "flag": True})
    assert [element.decode() for element in found.as_numpy("LOUD")] == ["VIELE", "WÖRTER", ""]
    told = json.loads(found.as_numpy("TOLD")[0])
    assert told["id"] == "r7" and told["outputs"] == ["LOUD", "TOLD"] and told["cancelled"] is False
    assert told["parameters"] == {"mine": "x", "number": 3, "flag": True}
    client.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_model_calls_another(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    found = client.infer("caller", [tensor(protocol, "X", x, "FP32")])
    np.testing.assert_array_equal(found.as_numpy("Y"), 2 * x)
    with pytest.raises(InferenceServerException, match="INPUT0 is negative"):
        client.infer("caller", [tensor(protocol, "X", -1 - x, "FP32")])
    client.close()


def stream(server: Any, counts: list[int], final: bool = False) -> list[Any]:
    """Returns the numbers that a stream sends for these counts, errors as text, and None for an empty final response."""
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    found: list[Any] = []
    for count in counts:
        inputs = [tensor("grpc", "COUNT", np.array([count], np.int32), "INT32")]
        client.async_stream_infer("counter", inputs, enable_empty_final_response=final)
        expected = 1 if count < 0 else count + final
        for _ in range(expected):
            result, error = answers.get(timeout=20)
            number = None if error is not None else result.as_numpy("NUMBER")
            found.append(str(error) if error is not None else None if number is None else int(number[0]))
    client.stop_stream()
    assert answers.empty()
    client.close()
    return found


def test_a_decoupled_model_sends_responses_from_a_thread(server: Any) -> None:
    assert stream(server, [3, 0, 2]) == [0, 1, 2, 0, 1]
    assert stream(server, [2, 0], final=True) == [0, 1, None, None]
    (error,) = stream(server, [-1])
    assert "-1 responses can't be sent" in error


def test_responses_come_while_the_model_runs(gateway: Server) -> None:
    """A client that takes nothing stops the model, and one that leaves cancels it."""
    body = json.dumps({"COUNT": 10_000_000}).encode()
    request = urllib.request.Request(f"{gateway.url}/v2/models/counter/generate_stream", body)
    with urllib.request.urlopen(request, timeout=20) as answer:
        lines = [answer.readline() for _ in range(5)]
    assert json.loads(lines[2].removeprefix(b"data: "))["NUMBER"] == 1
    # The instance is free again.
    assert stream(gateway, [2]) == [0, 1]


def test_the_model_of_the_page(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "workers.md").read_text()
    files = re.findall(r"```(?:python)?\n# (models/calm/\S+)\n(.*?)```", text, re.DOTALL)
    assert len(files) == 2
    for name, content in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (route, body) = re.findall(r"^curl localhost:8000(/v2/models/calm/\S+) -d '(.*)'$", text, re.MULTILINE)[0]
    with (
        running(tmp_path / "models", "--allow-python-models") as server,
        urllib.request.urlopen(server.url + route, body.encode()) as answer,
    ):
        y = json.loads(answer.read())["Y"]
    np.testing.assert_allclose(y, [0, 0.865098], rtol=1e-5)


def test_generate_stream_and_generate(gateway: Server) -> None:
    url = f"{gateway.url}/v2/models/counter/generate"
    with urllib.request.urlopen(f"{url}_stream", json.dumps({"COUNT": 2}).encode(), timeout=20) as answer:
        events = [line for line in answer.read().split(b"\n\n") if line]
    assert [json.loads(event.removeprefix(b"data: "))["NUMBER"] for event in events] == [0, 1]
    with urllib.request.urlopen(url, json.dumps({"COUNT": 1}).encode(), timeout=20) as answer:
        assert json.loads(answer.read())["NUMBER"] == 0
    for path, count, status in ((url, 2, 501), (url, 0, 501), (f"{url}_stream", -1, 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(path, json.dumps({"COUNT": count}).encode(), timeout=20)
        assert refused.value.code == status


class Stream:
    """A stream of one client, whose answers come in any order."""

    def __init__(self, server: Any) -> None:
        self._client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))

    def ask(self, model: str, name: str, values: list[Any], datatype: str, id: str = "") -> None:
        """Sends a request, and asks for an empty response after the last one."""
        kind = {"BYTES": np.object_, "INT32": np.int32, "FP32": np.float32}[datatype]
        inputs = [tensor("grpc", name, np.array(values, kind), datatype)]
        self._client.async_stream_infer(model, inputs, request_id=id, enable_empty_final_response=True)

    def next(self, output: str) -> Any:
        """Returns the values of an output of the next answer, the text of an error, or None for an answer without."""
        result, error = self._answers.get(timeout=20)
        if error is not None:
            return error.message()
        found = result.as_numpy(output)
        return None if found is None else found.reshape(-1).tolist()

    def close(self) -> None:
        """Ends the stream. No more answers may have come."""
        self._client.stop_stream()
        assert self._answers.empty()
        self._client.close()


@pytest.mark.parametrize(
    ("words", "come"),
    [
        (["1", "2!"], [[1], [2]]),
        (["1", "2", "!"], [[1], [2], None]),
        (["1", "empty!"], [[1], None]),
        (["!"], [None]),
        (["1", "error", "3!"], [[1], "as it was asked for", [3]]),
        (["error", "!"], ["as it was asked for", None]),
    ],
    ids=lambda given: "-".join(map(str, given)),
)
def test_responses_empty_ones_and_errors_come_in_their_order(server: Any, words: list[str], come: list[Any]) -> None:
    stream = Stream(server)
    stream.ask("several", "WORDS", [word.encode() for word in words], "BYTES")
    for expected in come:
        found = stream.next("NUMBER")
        assert expected in found if isinstance(expected, str) else found == expected
    stream.close()


def test_a_request_comes_while_another_one_waits(server: Any) -> None:
    """An instance is free when `execute` has returned, so that one request can end another."""
    waiting, ending = Stream(server), Stream(server)
    waiting.ask("chat", "ENDS", [b""], "BYTES", id="a")
    time.sleep(0.3)
    ending.ask("chat", "ENDS", [b"a"], "BYTES")
    assert ending.next("ENDED") is None
    assert waiting.next("ENDED") == [True]
    for each in (waiting, ending):
        each.close()


@pytest.mark.parametrize("x", [3.0, 0.0, -2.0], ids=["returned", "sent at once", "sent later"])
def test_a_sender_in_a_model_that_is_not_decoupled(server: Any, x: float) -> None:
    client = connect(server, "http")
    found = client.infer("late", [tensor("http", "X", np.array([x], np.float32), "FP32")]).as_numpy("Y")
    assert found.tolist() == [2 * x]
    client.close()


def test_the_event_loop_of_a_model_lasts(server: Any) -> None:
    client = connect(server, "http")
    asked = [tensor("http", "X", np.ones(1, np.float32), "FP32")]
    ticks = [int(client.infer("keeps_loop", asked).as_numpy("TICKS")[0])]
    wait_until(lambda: int(client.infer("keeps_loop", asked).as_numpy("TICKS")[0]) > ticks[0] + 5)
    client.close()


CALLS = {
    "streamed": [[1], [2], [3], []],
    "streamed_on_the_loop": [[1], [2], [3]],
    "not_streamed": "decoupled=True",
    "nobody": "none",
    "with_bytes": [2],
    "side_by_side": [[[1]], [[]]],
}


def told_of_calls(server: Any, how: str) -> Any:
    client = connect(server, "http")
    found = client.infer("calls", [tensor("http", "HOW", np.array([how.encode()], np.object_), "BYTES")])
    client.close()
    return json.loads(found.as_numpy("TOLD")[0])


@pytest.mark.parametrize("how", CALLS)
def test_calls_of_other_models(server: Any, how: str) -> None:
    found, expected = told_of_calls(server, how), CALLS[how]
    if isinstance(expected, str):
        assert expected in found
        return
    for one, wanted in zip(found, expected, strict=True):
        assert wanted in one if isinstance(wanted, str) else one == wanted


def test_an_error_between_the_responses_to_a_call(gateway: Server) -> None:
    """A Triton server doesn't stop any more after such a call."""
    first, error, last = told_of_calls(gateway, "error_in_a_stream")
    assert (first, last) == ([1], [3]) and "as it was asked for" in error


def test_functions_and_helper_modules(server: Any) -> None:
    client = connect(server, "http")
    found = client.infer("functions", [tensor("http", "X", np.ones(1, np.float32), "FP32")])
    assert json.loads(found.as_numpy("TOLD")[0]) == {
        "helpers": ["beside", "above"],
        "packed": 11,
        "unpacked": ["ab", "c"],
        "empty": 0,
        "table": True,
        "unknown": True,
        "strings": 13,
        "release": [1, 2],
        "names": ["LEFT_OUT", "NUMBERS", "TOLD"],
        "instances": 1,
        "left out": True,
    }
    assert found.as_numpy("NUMBERS").tolist() == [b"1", b"None", b"2.5", b"x", b"y"]
    assert found.as_numpy("LEFT_OUT") is None
    assert {output["name"] for output in found.get_response()["outputs"]} == {"TOLD", "NUMBERS"}
    client.close()


def test_a_request_comes_again_until_the_model_has_done_with_it(server: Any) -> None:
    client = connect(server, "grpc")
    asked = [client.async_infer for _ in range(4)]
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for number, infer in zip((5, 1, 30, 30), asked, strict=True):
        inputs = [tensor("grpc", "NUMBER", np.array([[number]], np.int32), "INT32")]
        infer("again", inputs, lambda result, error: answers.put(error or result.as_numpy("COUNTED")))
    found = sorted(answers.get(timeout=20)[0].tolist() for _ in asked)
    assert [count for count, _ in found] == [1, 5, 30, 30]
    assert max(together for _, together in found) > 1  # requests that come again share runs
    client.close()


def test_requests_share_a_batch(gateway: Server) -> None:
    clients = [
        threading.Thread(target=test_a_config_that_the_model_completes, args=(gateway, "http")) for _ in range(8)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    rows = gateway.metric("nv_inference_count", "add_sub")
    assert rows > gateway.metric("nv_inference_exec_count", "add_sub")


SERVED = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
)


COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {}
        return config
    def execute(self, requests): ...
"""

FACTS = """
import json
import numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        groups = [[group["count"], group["name"], group["kind"]] for group in config["instance_group"]]
        own = [args[f"model_instance_{name}"] for name in ("name", "kind", "device_id")]
        self.text = json.dumps([groups, config["backend"], config["default_model_filename"], own])
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([self.text], object))]) for _ in requests]
"""
OF_FACTS = 'output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]'


def test_what_a_model_is_told_of_its_instance(tmp_path: Path) -> None:
    """The configs are written as a whole. None has an input, and some say neither backend nor group."""
    configs = {
        "bare": (
            f"{OF_FACTS} instance_group {{ kind: KIND_CPU }}",
            [[1, "bare_0", "KIND_CPU"]],
            ["bare_0_0", "CPU", "0"],
        ),
        "itself": (
            f'backend: "python" {OF_FACTS} instance_group {{ kind: KIND_MODEL name: "own" }}',
            [[1, "own", "KIND_MODEL"]],
            ["own_0", "MODEL", "0"],
        ),
        "platform": (
            f'platform: "python" {OF_FACTS} runtime: "libtriton_python.so" parameters {{ key: "mine" }} '
            "instance_group { kind: KIND_CPU } optimization { priority: PRIORITY_MAX }",
            [[1, "platform_0", "KIND_CPU"]],
            ["platform_0_0", "CPU", "0"],
        ),
    }
    for name, (config, _, _) in configs.items():
        folder = write(tmp_path, name, "", FACTS)
        (folder / "config.pbtxt").write_text(config)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        for name, (_, groups, own) in configs.items():
            told = json.loads(client.infer(name, []).as_numpy("y")[0])
            assert told == [groups, "python", "model.py", own]
            assert client.get_model_config(name)["default_model_filename"] == "model.py"
        client.close()
        lines = [json.loads(line) for line in server.log if "ignored, because" in line]
    assert [line["message"].split(": ")[-1] for line in lines] == ["runtime; optimization"]


def test_instances_of_a_group_are_counted(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", "", FACTS)
    (folder / "config.pbtxt").write_text(
        f'backend: "python" {OF_FACTS} instance_group {{ count: 2 kind: KIND_CPU name: "g" }}'
    )
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        names = set()
        for _ in range(50):
            pending = [client.async_infer("m", []) for _ in range(4)]
            names |= {json.loads(one.get_result().as_numpy("y")[0])[3][0] for one in pending}
        client.close()
    assert names and names <= {"g_0", "g_1"}


SLOW_ECHO = """
import time
import numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_dynamic_batching()
        return config
    def execute(self, requests):
        time.sleep(0.05)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""


def test_a_model_that_sets_dynamic_batching_without_batches(tmp_path: Path) -> None:
    write(tmp_path, "echo", "", SLOW_ECHO)
    with running(tmp_path, "--allow-python-models") as server:
        client = CLIENTS["http"].InferenceServerClient(f"127.0.0.1:{server.http}", concurrency=8)
        given = [tensor("http", "x", np.array([i], np.float32), "FP32") for i in range(8)]
        pending = [client.async_infer("echo", [one]) for one in given]
        assert [one.get_result(timeout=20).as_numpy("y")[0] for one in pending] == list(range(8))
        client.close()


def test_a_model_without_outputs(tmp_path: Path) -> None:
    source = ANSWERS.replace("{}", "[pb_utils.InferenceResponse([]) for _ in requests]")
    write(tmp_path, "sink", 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]', source)
    with running(tmp_path, "--allow-python-models") as server:
        for protocol in CLIENTS:
            client = connect(server, protocol)
            answer = client.infer("sink", [tensor(protocol, "x", np.ones(1, np.float32), "FP32")]).get_response()
            assert not (answer["outputs"] if protocol == "http" else answer.outputs)
            client.close()


def test_a_batch_input_of_a_model_in_python_is_not_computed(tmp_path: Path) -> None:
    config = """max_batch_size: 4 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "y" data_type: TYPE_INT32 dims: [ 1 ] } ]
        batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "x" }"""
    write(tmp_path, "m", config, ANSWERS.replace("{}", COUNTED))
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        x = tensor("http", "x", np.ones((1, 3), np.float32), "FP32")
        assert client.infer("m", [x]).as_numpy("y").tolist() == [[1]]
        client.close()


@pytest.mark.parametrize("ends", ["sys.exit(3)", "os._exit(3)", "raise KeyboardInterrupt"])
def test_a_model_that_ends_while_it_finalizes(tmp_path: Path, ends: str) -> None:
    source = f"import os, sys\n{ANSWERS}\n    def finalize(self): {ends}\n"
    write(tmp_path, "ends", SERVED, source.replace("{}", "[]"))
    with running(tmp_path, "--allow-python-models", "--model-control-mode", "explicit") as server:
        client = connect(server, "http")
        for _ in range(2):
            client.load_model("ends")
            begun = time.monotonic()
            client.unload_model("ends")
            wait_until(lambda: not client.is_model_ready("ends"))
        assert time.monotonic() - begun < 5  # it has 10 s
        client.close()


def test_models_that_can_not_be_loaded(tmp_path: Path) -> None:
    broken = {
        "import nothing_of_that_name": "Install it into the Python that runs the model: that of the gateway, or",
        "class Other: pass": "has no class TritonPythonModel",
        "class TritonPythonModel: pass": "has no method execute",
        "def (": "SyntaxError",
        "class TritonPythonModel:\n def initialize(self, a): raise ValueError('no weights')\n def execute(self, r): ...": (
            "no weights"
        ),
        "import os\nos._exit(3)": "exit status 3",
        "import asyncio\nraise asyncio.CancelledError('while it was imported')": "while it was imported",
        COMPLETES.replace("{}", "config.as_dict()['instance_group'] = [{'passive': True}]"): (
            "instance_group[0].passive: its instances would get no requests"
        ),
    }
    for i, source in enumerate(broken):
        write(tmp_path, f"broken{i}", SERVED, source)
    broken[ANSWERS] = "needs inputs or outputs, in its config or from auto_complete_config"
    write(tmp_path, f"broken{len(broken) - 1}", "", ANSWERS)
    with running(tmp_path, "--allow-python-models", "--no-strict-readiness") as server:
        client = connect(server, "http")
        listed = {model["name"]: model for model in client.get_model_repository_index()}
        assert len(listed) == len(broken)
        for i, said in enumerate(broken.values()):
            model = listed[f"broken{i}"]
            assert model["state"] == "UNAVAILABLE" and said in model["reason"]
        client.close()


ANSWERS = """
import numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return {}
"""
COUNTED = """[
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[len(request.inputs())]], np.int32))])
            for request in requests
        ]"""


def test_responses_that_break_the_rules(tmp_path: Path) -> None:
    wrong = {
        "()": "expected a list of 1 responses, got 0",
        "[]": "expected a list of 1 responses, got 0",
        "[3]": "expected pb_utils.InferenceResponse, got int",
        "[pb_utils.InferenceResponse([pb_utils.Tensor('y', np.ones(1, bool))])]": "expected FP32, the model gave bool",
        "[pb_utils.InferenceResponse([pb_utils.Tensor('y', np.ones(1, 'M8[s]'))])]": "no type for datetime64",
    }
    for i, returned in enumerate(wrong):
        write(tmp_path, f"wrong{i}", SERVED, ANSWERS.replace("{}", returned))
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        for i, said in enumerate(wrong.values()):
            with pytest.raises(InferenceServerException, match=said) as raised:
                client.infer(f"wrong{i}", [tensor("http", "x", np.ones(1, np.float32), "FP32")])
            assert raised.value.status() == "500"
        client.close()


def test_python_models_are_off_unless_they_are_allowed(repository: Path) -> None:
    with running(repository, "--no-strict-readiness") as server:
        client = connect(server, "http")
        reasons = {model["name"]: model["reason"] for model in client.get_model_repository_index()}
        assert all("--allow-python-models" in reason for reason in reasons.values()) and len(reasons) == len(CONFIGS)
        client.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_load_call_brings_no_code(repository: Path, protocol: str) -> None:
    with running(repository, "--allow-python-models", "--model-control-mode", "explicit") as server:
        client = connect(server, protocol)
        config = {"backend": "python", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}
        attempts: list[tuple[str, dict[str, Any], dict[str, bytes], str]] = [
            ("new", config, {"file:1/model.py": b"x"}, "no code"),
            ("new", config, {"file:1/model.onnx": b"x"}, "backend"),
            ("echo", {**config, "default_model_filename": "other.py"}, {}, "default_model_filename"),
            (
                "echo",
                {**config, "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp"}}},
                {},
                "EXECUTION_ENV_PATH",
            ),
            ("echo", {"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp"}}}, {}, "EXECUTION_ENV_PATH"),
            ("echo", {**config, "model_operations": {"op_library_filename": ["x.so"]}}, {}, "model_operations"),
            ("add", {"platform": "python"}, {"file:1/model.onnx": b"x"}, "backend"),
        ]
        for name, given, files, said in attempts:
            with pytest.raises(InferenceServerException, match=said):
                client.load_model(name, config=json.dumps(given), files=files or None)
        assert (
            all(model.get("state", "") != "READY" for model in client.get_model_repository_index())
            if protocol == "http"
            else True
        )
        client.close()


FINALIZES = """
import triton_python_backend_utils as pb_utils, pathlib
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        pb_utils.Logger.log_warn("it begins in " + pb_utils.get_model_dir())
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]
    def finalize(self):
        pathlib.Path(self.args["model_repository"], "ended").write_text(self.args["model_instance_name"])
"""


def test_a_model_logs_and_finalizes(tmp_path: Path) -> None:
    folder = write(tmp_path, "ending", SERVED, FINALIZES)
    with running(tmp_path, "--allow-python-models") as server:
        assert any("it begins in " + str(folder / "1") in line for line in server.log)
    end = time.monotonic() + 10
    while not (folder / "ended").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (folder / "ended").read_text() == "ending_0_0"


WHERE = """
import importlib.util, os, shutil, sys
import numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        found = [os.environ.get("VIRTUAL_ENV"), shutil.which("its_program"), os.environ["LD_LIBRARY_PATH"].split(":")[0]]
        told = f"{sys.prefix} {importlib.util.find_spec('fastapi') is None} {found == [sys.prefix, sys.prefix + '/bin/its_program', sys.prefix + '/lib']}"
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("PREFIX", np.array([told.encode()], np.object_))])
        return [answer for _ in requests]
"""
TOLD = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "PREFIX" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has NumPy and nothing else."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    program = folder / "bin" / "its_program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    packages = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        (site / name).symlink_to(packages / name)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_an_environment_of_its_own(tmp_path: Path, environment: Path, packed: bool) -> None:
    folder = write(
        tmp_path, "where", TOLD % "$$TRITON_MODEL_DIRECTORY/env.tar.gz" if packed else TOLD % environment, WHERE
    )
    if packed:
        with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
            archive.add(environment, ".")
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        found = client.infer("where", [tensor("http", "x", np.ones(1, np.float32), "FP32")]).as_numpy("PREFIX")[0]
        client.close()
    prefix, alone, activated = found.decode().split()
    assert alone == "True"
    # The script of a virtual environment names the folder in which it was made.
    assert activated == str(not packed)
    assert (Path(prefix) == environment) == (not packed)
    if packed:
        shutil.rmtree(prefix)  # it is kept for the next start of such a model


def test_an_environment_that_is_none(tmp_path: Path) -> None:
    write(tmp_path, "where", TOLD % "nothing", WHERE)
    with running(tmp_path, "--allow-python-models", "--no-strict-readiness") as server:
        client = connect(server, "http")
        (listed,) = client.get_model_repository_index()
        assert "EXECUTION_ENV_PATH" in listed["reason"] and "bin/python3" in listed["reason"]
        client.close()


def test_a_step_of_an_ensemble(tmp_path: Path) -> None:
    write(tmp_path, "add_sub", "")
    (tmp_path / "twice" / "1").mkdir(parents=True)
    (tmp_path / "twice" / "config.pbtxt").write_text("""platform: "ensemble" max_batch_size: 8
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
        ensemble_scheduling { step [
          { model_name: "add_sub" model_version: -1 input_map { key: "INPUT0" value: "X" }
            input_map { key: "INPUT1" value: "X" } output_map { key: "OUTPUT0" value: "Z" } },
          { model_name: "add_sub" model_version: -1 input_map { key: "INPUT0" value: "Z" }
            input_map { key: "INPUT1" value: "X" } output_map { key: "OUTPUT0" value: "Y" } } ] }""")
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        x = np.arange(4, dtype=np.float32).reshape(1, 4)
        found = client.infer("twice", [tensor("http", "X", x, "FP32")]).as_numpy("Y")
        np.testing.assert_array_equal(found, 3 * x)
        client.close()


NEAREST = """input [ { name: "POINTS" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] } ]
    output [ { name: "IDX" data_type: TYPE_INT32 dims: [ -1, 3 ] }, { name: "DIST" data_type: TYPE_FP32 dims: [ -1, 3 ] },
             { name: "PROCESS" data_type: TYPE_INT64 dims: [ 1 ] } ]
    parameters { key: "library" value { string_value: "%s" } }"""


def expected_neighbours(points: np.ndarray) -> np.ndarray:
    distances = ((points[:, None] - points[None]) ** 2).sum(-1)
    return np.argsort(distances, axis=1)[:, :3]


@pytest.mark.parametrize("where", ["gateway", "environment of its own", "triton"])
def test_a_model_calls_ops(tmp_path: Path, library: Path, environment: Path, where: str) -> None:
    config = NEAREST.replace("[ -1, -1, -1 ]", "[ -1, 3 ]") % library
    if where == "environment of its own":
        (site,) = environment.glob("lib/python*/site-packages")
        if not (site / "ml_dtypes").exists():
            (site / "ml_dtypes").symlink_to(Path(ml_dtypes.__file__).parent)
        config += f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    write(tmp_path, "nearest", config)
    server_of = running_triton(tmp_path) if where == "triton" else running(tmp_path, "--allow-python-models")
    with server_of as server:
        client = connect(server, "http")
        for count in (7, 500):
            points = np.random.default_rng(count).random((count, 3), np.float32)
            found = client.infer("nearest", [tensor("http", "POINTS", points, "FP32")])
            np.testing.assert_array_equal(found.as_numpy("IDX"), expected_neighbours(points))
            assert found.as_numpy("DIST").shape == (count, 3)
            assert found.as_numpy("PROCESS")[0] != server.process.pid
        client.close()


def test_the_example_of_the_page(tmp_path: Path, built: Build) -> None:
    page = (Path(opgate.__file__).parents[1] / "docs" / "workers.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    config = SERVED.replace('"x"', '"X"').replace('"y"', '"Y"').replace("[ 1 ]", "[ -1 ]")
    write(tmp_path, "mish", config, source)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        x = np.linspace(-3, 3, 5, dtype=np.float32)
        found = client.infer("mish", [tensor("http", "X", x, "FP32")]).as_numpy("Y")
        np.testing.assert_allclose(found, x * np.tanh(np.log1p(np.exp(x))), rtol=1e-5)
        client.close()


def test_what_an_op_refuses_is_the_error_of_the_request(tmp_path: Path, library: Path) -> None:
    write(tmp_path, "nearest", NEAREST % library)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        said = r"KNNQuery: input 'xyz': expected T\[n, d\], got f32\[1, 2, 3\]"
        with pytest.raises(InferenceServerException, match=said) as raised:
            client.infer("nearest", [tensor("http", "POINTS", np.ones((1, 2, 3), np.float32), "FP32")])
        assert raised.value.status() == "400"
        client.close()


DIES = """
import opgate.numpy, triton_python_backend_utils as pb_utils
mine = opgate.numpy.load({library!r})
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", mine.dies_on(x[None])[0])]) for x in arrays]
"""


def test_a_crash_in_an_op_of_a_model_in_python_names_it(tmp_path: Path, fixture_library: Path) -> None:
    write(tmp_path, "dying", SERVED, DIES.format(library=str(fixture_library)))
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        with pytest.raises(InferenceServerException, match=r"model 'dying': .*died of SIGSEGV .* in op DiesOn"):
            client.infer("dying", [tensor("http", "x", np.array([101], np.float32), "FP32")])
        end = time.monotonic() + 30
        while not client.is_model_ready("dying") and time.monotonic() < end:
            time.sleep(0.05)
        found = client.infer("dying", [tensor("http", "x", np.array([3], np.float32), "FP32")])
        assert found.as_numpy("y") == [6]
        client.close()
