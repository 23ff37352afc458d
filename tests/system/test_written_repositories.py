"""What repositories of others rely on without saying so: a real Triton and the gateway do the same with the same files.

The models run what the client sends, so that a case is a line of Python.
"""

from __future__ import annotations

import ast
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from tests.system.clients import connect
from tests.system.conftest import wait_until
from tests.system.running import Server, running
from tests.system.test_python_models import running_triton, tensor, write

HEAD = """
import json, os, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def numbers(values, dtype=np.float32):
    return pb_utils.InferenceResponse([pb_utils.Tensor("NUMBERS", np.array(values, dtype))])


def failed(text, *code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, *code))


def told(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([text], object))])


def ask(model, name, value):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=[], inputs=[pb_utils.Tensor(name, np.array(value))]
    )
"""
RETURNS = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            found.append(eval(code, globals(), {"request": request}))
        return found
"""
)
SENDS = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            sender = request.get_response_sender()
            exec(code, globals(), {"sender": sender, "request": request})
"""
)
TELLS = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            (given,) = request.inputs()
            facts = [given.name(), list(given.shape()), given.as_numpy().tolist(), json.loads(request.parameters())]
            text = np.array([json.dumps(facts)], object).reshape((1,) * len(given.shape()) if BATCHES else (1,))
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]))
        return found
"""
)
REPEATS = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [numbers(np.repeat(one.inputs()[0].as_numpy(), one.inputs()[0].as_numpy()[:, 0].astype(int), axis=0))
                for one in requests]
"""
)
# A thread sends the responses of all requests, as in Triton's backend for vLLM. CODE: how many, of how many numbers, and
# the seconds between them.
ONE_SENDER = (
    HEAD
    + """
import queue


class TritonPythonModel:
    def initialize(self, arguments):
        self.made = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()

    def send(self):
        while True:
            sender, response, flags = self.made.get()
            try:
                sender.send(response, flags)
            except Exception:  # the client has left
                pass

    def make(self, sender, count, size, seconds):
        for i in range(count):
            time.sleep(seconds)
            self.made.put((sender, numbers([i] * size), FINAL if i + 1 == count else 0))

    def execute(self, requests):
        for request in requests:
            code = json.loads(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0])
            threading.Thread(target=self.make, args=(request.get_response_sender(), *code), daemon=True).start()
"""
)
SLOW = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.6)
        return [numbers(pb_utils.get_input_tensor_by_name(r, "X").as_numpy()) for r in requests]
"""
)
HELPED = (
    HEAD
    + """
import models, service, tests

class TritonPythonModel:
    def execute(self, requests):
        return [told(models.NAME + service.NAME + tests.NAME) for _ in requests]
"""
)
CODE = 'input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]'
NUMBERS = '{ name: "NUMBERS" data_type: TYPE_FP32 dims: [ -1 ] }'
TOLD = '{ name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }'
X = f"input [ {NUMBERS.replace('NUMBERS', 'X')} ]"
SEQUENCES = "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 } }"


def state(kind: str, stated: str, data: str = "zero_data: true", dims: str = "") -> str:
    initial = f'initial_state {{ name: "first" data_type: TYPE_{kind} dims: [ {dims or stated} ] {data} }}'
    return f'{{ input_name: "KEPT" output_name: "KEPT" data_type: TYPE_{kind} dims: [ {stated} ] {initial} }}'


# Each is that of a model, and what the model finds at first: Triton mixes up several states of one model.
STATES = {
    "state_of_zeros": (state("FP16", "1, 2"), ("<f2", [1, 2], [[0.0, 0.0]])),
    "state_filed": (state("INT32", "2", 'data_file: "five_six"'), ("<i4", [2], [5, 6])),
    "state_text": (state("STRING", "1", 'data_file: "abc"'), ("|O", [1], [b"abc"])),
    "state_grows": (state("FP32", "-1", dims="3"), ("<f4", [3], [0.0, 0.0, 0.0])),
}
STATE_FILES = {"five_six": np.array([5, 6], np.int32).tobytes(), "abc": b"\x03\0\0\0abc"}
MODELS = {
    "returns": (f"{CODE} output [ {TOLD}, {NUMBERS} ]", RETURNS),
    "asks": (f"{CODE} output [ {TOLD}, {NUMBERS} ]", RETURNS),
    "sends": (f"{CODE} output [ {TOLD}, {NUMBERS} ] model_transaction_policy {{ decoupled: true }}", SENDS),
    "tuples": (f"{CODE} output [ {TOLD}, {NUMBERS} ]", RETURNS.replace("return found", "return tuple(found)")),
    "waits": (f"{CODE} output [ {TOLD}, {NUMBERS} ]", RETURNS.replace("def execute", "async def execute")),
    "waits_sends": (
        f"{CODE} output [ {TOLD}, {NUMBERS} ] model_transaction_policy {{ decoupled: true }}",
        SENDS.replace("def execute", "async def execute"),
    ),
    "tells": (f"{X} output [ {TOLD} ]", "BATCHES = False" + TELLS),
    "ragged": (
        f"max_batch_size: 4 dynamic_batching {{ }} {X} output [ {TOLD} ]".replace(
            "dims: [ -1 ]", "dims: [ -1 ] allow_ragged_batch: true"
        ),
        "BATCHES = True" + TELLS,
    ),
    "optional": (
        f"{X[:-1]}, {NUMBERS[:-1].replace('NUMBERS', 'MORE')} optional: true }} ] output [ {TOLD} ]",
        "BATCHES = False" + TELLS,
    ),
    "reshapes": (f"{CODE} output [ {{ {NUMBERS[1:-1].replace('-1', '1, 2')} reshape {{ shape: [ 2 ] }} }} ]", RETURNS),
    "sends_reshaped": (
        f"{CODE} output [ {{ {NUMBERS[1:-1].replace('-1', '1, 2')} reshape {{ shape: [ 2 ] }} }} ] "
        "model_transaction_policy { decoupled: true }",
        SENDS,
    ),
    "repeats": (f"max_batch_size: 4 {X} output [ {NUMBERS} ]", REPEATS),
    "joins": (f"max_batch_size: 8 {X} output [ {TOLD} ]", "BATCHES = True" + TELLS),
    "keeps": (
        f"""{CODE} output [ {TOLD}, {NUMBERS} ] sequence_batching {{ state [ {{ input_name: "KEPT" output_name: "KEPT"
        data_type: TYPE_FP32 dims: [ 1 ] initial_state {{ name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }} }} ] }}""",
        RETURNS,
    ),
    **{
        name: (f"{CODE} output [ {TOLD} ] sequence_batching {{ state [ {one} ] }}", RETURNS)
        for name, (one, _) in STATES.items()
    },
    "one_sender": (f"{CODE} output [ {NUMBERS} ] model_transaction_policy {{ decoupled: true }}", ONE_SENDER),
    "slow": (
        f"""max_batch_size: 4 {X} output [ {NUMBERS} ] dynamic_batching {{
        default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: 300000 }} }}""",
        SLOW,
    ),
    "helped": (f"{CODE} output [ {TOLD} ]", HELPED),
    "halves": (f'{CODE} output [ {{ name: "HALVES" data_type: TYPE_FP16 dims: [ -1 ] }} ]', RETURNS),
    "sequences": (f"{SEQUENCES} {X} output [ {TOLD} ]", "BATCHES = True" + TELLS),
}


def ensemble(*steps: str, output: str = TOLD) -> str:
    return f"""platform: "ensemble" {CODE} output [ {output} ] ensemble_scheduling {{ step [ {", ".join(steps)} ] }}"""


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = "".join(
        f' {kind} {{ key: "{key}" value: "{value}" }}'
        for kind, pairs in (("input_map", inputs), ("output_map", outputs))
        for key, value in pairs.items()
    )
    return f'{{ model_name: "{model}" model_version: -1{maps} }}'


ENSEMBLES = {
    "returns_tells": ensemble(
        step("returns", {"CODE": "CODE"}, {"NUMBERS": "between"}), step("tells", {"X": "between"}, {"TOLD": "TOLD"})
    ),
    "sends_tells": ensemble(
        step("sends", {"CODE": "CODE"}, {"NUMBERS": "between"}), step("tells", {"X": "between"}, {"TOLD": "TOLD"})
    ),
    "sends_alone": ensemble(step("sends", {"CODE": "CODE"}, {"NUMBERS": "NUMBERS"}), output=NUMBERS),
    "says_decoupled": ensemble(step("returns", {"CODE": "CODE"}, {"NUMBERS": "NUMBERS"}), output=NUMBERS)
    + " model_transaction_policy { decoupled: true }",
    "repeats_joins": ensemble(
        step("repeats", {"X": "X"}, {"NUMBERS": "between"}), step("joins", {"X": "between"}, {"TOLD": "TOLD"})
    ).replace(CODE, f"max_batch_size: 4 {X}"),
    "in_ensemble": ensemble(step("sends_tells", {"CODE": "CODE"}, {"TOLD": "TOLD"})),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "models"
    for name, (config, source) in MODELS.items():
        write(folder, name, config, source)
    for model in STATES:
        (folder / model / "initial_state").mkdir()
        for name, data in STATE_FILES.items():
            (folder / model / "initial_state" / name).write_bytes(data)
    for name in ("models", "service", "tests"):
        (folder / "helped" / "1" / f"{name}.py").write_text(f"NAME = {name!r}")
    for name, config in ENSEMBLES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[Any]:
    with running(repository, "--allow-python-models") as server:
        yield server


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[Any]:
    with running_triton(repository) as server:
        yield server


@pytest.fixture(params=["gateway", "triton"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def is_triton(server: Any) -> bool:
    return not hasattr(server, "url")


def texts(protocol: str, *values: str, name: str = "CODE") -> list[Any]:
    return [tensor(protocol, name, np.array([value.encode() for value in values], np.object_), "BYTES")]


def post(server: Any, path: str, body: Any) -> tuple[int, Any]:
    """Returns the status of an answer over HTTP, and its JSON. Events are a list."""
    url = f"http://127.0.0.1:{server.http}/v2/models/{path}"
    try:
        with urllib.request.urlopen(url, None if body is None else json.dumps(body).encode(), timeout=30) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, data = error.code, error.read()
    if data.startswith(b"data: "):
        return status, [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n") if part]
    return status, json.loads(data) if data else None


def infer(server: Any, model: str, code: str, **members: Any) -> tuple[int, Any]:
    inputs = [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]
    return post(server, f"{model}/infer", {"inputs": inputs, **members})


def streamed(server: Any, model: str, inputs: list[Any], id: str = "mine") -> list[Any]:
    """Returns what a stream sends for one request: id, outputs or text of an error, and whether it is the last."""
    message = pb.ModelInferRequest(model_name=model, id=id, inputs=[given._get_tensor() for given in inputs])
    message.raw_input_contents.extend(given._get_content() for given in inputs)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    found = []
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for answer in GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]), timeout=30):
            response = answer.infer_response
            result = grpc_client.InferResult(response)
            arrays = [result.as_numpy(output.name).reshape(-1).tolist() for output in response.outputs]
            final = response.parameters["triton_final_response"].bool_param if response.parameters else None
            found.append((response.id, answer.error_message or arrays, final))
    return found


def sent(*codes: list[Any]) -> list[pb.ModelInferRequest]:
    """Returns requests to `one_sender`, whose ids are their places."""
    found = []
    for place, code in enumerate(codes):
        (given,) = texts("grpc", json.dumps(code))
        message = pb.ModelInferRequest(model_name="one_sender", id=str(place), inputs=[given._get_tensor()])
        message.raw_input_contents.append(given._get_content())
        found.append(message)
    return found


def ids(server: Any, *codes: list[Any]) -> list[str]:
    """Returns the ids of the responses in the order in which they come."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        answers = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(sent(*codes)), timeout=30)
        return [answer.infer_response.id for answer in answers if answer.infer_response.outputs]


def test_responses_of_a_stream_come_as_they_are_made(server: Any) -> None:
    """Those of a request that takes long hold up no others, also where one thread of the model sends all of them."""
    came = ids(server, [20, 1, 0.05], [3, 1, 0.0])
    assert (came.count("0"), came.count("1")) == (20, 3)
    assert came[-1] == "0" and came.index("1") < 5
    came = ids(server, [300, 1, 0.001], [300, 1, 0.001])
    assert (came.count("0"), came.count("1")) == (300, 300)


def test_a_client_that_reads_nothing_holds_up_no_other(server: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        unread = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(sent([1000, 5000, 0.0])), timeout=60)
        next(iter(unread))
        assert ids(server, [20, 1, 0.0]) == ["0"] * 20
        unread.cancel()
    assert ids(server, [20, 1, 0.0]) == ["0"] * 20


def test_what_waits_for_a_client_that_left_is_let_go(gateway: Server) -> None:
    def held() -> float:
        found = [line for line in gateway.get("/metrics").splitlines() if line.startswith("opgate_held_bytes ")]
        return float(found[0].split()[1])

    before = held()
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc}") as channel:
        unread = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(sent([2000, 5000, 0.0])), timeout=60)
        next(iter(unread))
        wait_until(lambda: held() > before + 5_000_000)
        unread.cancel()
    wait_until(lambda: held() <= before)


def test_a_default_timeout_ends_no_run(server: Any) -> None:
    """It is that of the queue."""
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    status, answer = post(server, "slow/infer", {"inputs": inputs})
    assert (status, answer["outputs"][0]["data"]) == (200, [1, 2])


def test_a_helper_may_have_any_name(gateway: Server) -> None:
    assert infer(gateway, "helped", "")[1]["outputs"][0]["data"] == ["modelsservicetests"]


OWN = ['{"code": 17, "text": "not found"}', "an error occurred"]


@pytest.mark.parametrize("text", OWN)
def test_the_text_of_an_error_is_the_model_s_own(server: Any, text: str) -> None:
    """Clients read it by a program."""
    code = f"failed({text!r}, pb_utils.TritonError.NOT_FOUND)"
    assert infer(server, "returns", code) == (404, {"error": text})
    client = connect(server, "grpc")
    with pytest.raises(InferenceServerException) as raised:
        client.infer("returns", texts("grpc", code))
    assert raised.value.message() == text and raised.value.status() == "StatusCode.NOT_FOUND"
    client.close()
    assert post(server, "returns/generate", {"CODE": code})[1] == {"error": text}
    assert streamed(server, "returns", texts("grpc", code)) == [("mine", text, True)]
    assert streamed(server, "sends", texts("grpc", f"sender.send({code}, flags=FINAL)")) == [("mine", text, True)]
    # A model that calls it reads it, too.
    called = f'told(ask("returns", "CODE", np.array([{code!r}.encode()], object)).exec().error().message())'
    assert infer(server, "asks", called)[1]["outputs"][0]["data"] == [text]


def test_what_a_client_of_a_stream_learns_of_an_error(server: Any) -> None:
    """Whose it is, and whether more responses come."""
    ((id, text, final),) = streamed(server, "returns", texts("grpc", "1 / 0"))
    assert id == "mine" and "division by zero" in text and final is True
    # A request that can't be read has no response that could be the last one.
    ((id, text, final),) = streamed(server, "returns", [tensor("grpc", "CODE", np.ones(1, np.float32), "FP32")])
    assert id == "mine" and "FP32" in text and final is None


# What a model may raise that is no Exception, and how the text of the error begins.
NO_EXCEPTIONS = {
    "sys.exit(3)": "SystemExit: 3",
    "exec('raise KeyboardInterrupt')": "KeyboardInterrupt: ",
    "exec('raise GeneratorExit')": "GeneratorExit: ",
    "exec('import asyncio; raise asyncio.CancelledError(3)')": "CancelledError: ",
    "exec('class Odd(BaseException): pass') or exec('raise Odd(3)')": "Odd: 3",
}
PROCESS = "told(str(os.getpid()))"


@pytest.mark.parametrize("code", NO_EXCEPTIONS)
def test_an_exit_is_an_error_of_its_request(server: Any, code: str) -> None:
    """The parser of arguments exits, for example."""
    before = infer(server, "returns", PROCESS)[1]["outputs"][0]["data"]
    status, answer = infer(server, "returns", code)
    assert status == 500 and NO_EXCEPTIONS[code] in answer["error"]
    assert infer(server, "returns", PROCESS)[1]["outputs"][0]["data"] == before


@pytest.mark.parametrize("code", NO_EXCEPTIONS)
def test_an_exit_does_not_end_the_event_loop(gateway: Server, code: str) -> None:
    """In Triton 2.51 neither this request nor the next ones have an answer."""
    before = infer(gateway, "waits", PROCESS)[1]["outputs"][0]["data"]
    status, answer = infer(gateway, "waits", code)
    assert status == 500 and NO_EXCEPTIONS[code] in answer["error"]
    assert infer(gateway, "waits", PROCESS)[1]["outputs"][0]["data"] == before
    ((_, text, final),) = streamed(gateway, "waits_sends", texts("grpc", code))
    assert NO_EXCEPTIONS[code] in text and final is True
    ((_, outputs, _),) = streamed(gateway, "waits_sends", texts("grpc", "sender.send(numbers([4]), flags=FINAL)"))
    assert outputs == [[4]]


def test_the_innermost_line_of_an_error_comes_first(server: Any) -> None:
    source = "ask(3, 4, 5)"
    lines = [
        line.rsplit(": ")[-1]
        for line in infer(server, "returns", source)[1]["error"].splitlines()
        if "model.py(" in line
    ]
    assert lines == ["ask", "execute"]


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**70, -(2**63) - 1, 2**63 - 1, -(2**63), 1.5, True, "é"])
def test_any_number_may_be_a_parameter(server: Any, value: Any) -> None:
    """An integer that has no room in 64 bits comes as a float. It ends no process."""
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]
    status, answer = post(server, "tells/infer", {"inputs": inputs, "parameters": {"mine": value}})
    assert status == 200
    found = json.loads(answer["outputs"][0]["data"][0])[3]["mine"]
    inside = not isinstance(value, int) or -(2**63) <= value < 2**63
    assert (found, type(found)) == ((value, type(value)) if inside else (float(value), float))


def told_parameters(server: Any, path: str, body: str) -> Any:
    """Posts JSON that is written by hand. Returns the parameters that the model was given."""
    url = f"http://127.0.0.1:{server.http}/v2/models/{path}"
    with urllib.request.urlopen(url, body.encode(), timeout=30) as answer:
        found = json.load(answer)
    return json.loads(found["outputs"][0]["data"][0] if "outputs" in found else found["TOLD"])[3]


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
def test_a_parameter_need_not_be_finite(server: Any, value: str) -> None:
    """Python's json writes such numbers, and tritonclient too."""
    inputs = '"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]'
    given = f'{{{inputs}, "parameters": {{"mine": {value}, "text": "é NaN"}}}}'
    expected = {"mine": float(value), "text": "é NaN"}
    assert repr(told_parameters(server, "tells/infer", given)) == repr(expected)
    assert repr(told_parameters(server, "tells/generate", f'{{"X": 0, "mine": {value}}}')) == repr(
        {"mine": float(value)}
    )
    message = pb.ModelInferRequest(model_name="tells")
    message.inputs.append(tensor("grpc", "X", np.zeros(1, np.float32), "FP32")._get_tensor())
    message.raw_input_contents.append(bytes(4))
    message.parameters["mine"].double_param = float(value)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    (told,) = grpc_client.InferResult(answer).as_numpy("TOLD")
    assert repr(json.loads(told)[3]) == repr({"mine": float(value)})


@pytest.mark.parametrize("name", ["headers", "classification", "shared_memory_region"])
def test_a_parameter_of_a_request_that_means_something_elsewhere(server: Any, name: str) -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]
    answer = post(server, "tells/infer", {"inputs": inputs, "parameters": {name: "mine"}})[1]
    assert json.loads(answer["outputs"][0]["data"][0])[3] == {name: "mine"}


def test_ragged_inputs_keep_their_shape(server: Any) -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]
    answer = post(server, "ragged/infer", {"inputs": inputs})[1]
    assert json.loads(answer["outputs"][0]["data"][0])[:3] == ["X", [1, 3], [[1, 2, 3]]]


@pytest.mark.parametrize(("rows", "repeated"), [([3], [[3]] * 3), ([2, 1], [[2], [2], [1]]), ([0], [])])
def test_a_response_has_any_number_of_rows(server: Any, rows: list[int], repeated: list[list[int]]) -> None:
    """A model finds several things in a picture, or none, and the next one classifies them."""
    inputs = [{"name": "X", "datatype": "FP32", "shape": [len(rows), 1], "data": rows}]
    (output,) = post(server, "repeats/infer", {"inputs": inputs})[1]["outputs"]
    assert output["shape"] == [len(repeated), 1] and output["data"] == [row[0] for row in repeated]
    if repeated:
        (output,) = post(server, "repeats_joins/infer", {"inputs": inputs})[1]["outputs"]
        assert output["shape"] == [1, 1] and json.loads(output["data"][0])[1:3] == [[len(repeated), 1], repeated]


@pytest.mark.parametrize(("row", "answered"), [(0, []), (1, [1]), (2, [[2], [2]])])
def test_predict_answers_with_what_was_found(gateway: Server, row: int, answered: list[Any]) -> None:
    body = json.dumps({"X": [row]}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{gateway.url}/predict/repeats", body, headers)) as answer:
        assert json.load(answer)["outputs"] == {"NUMBERS": answered}


SCALAR = 'pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array("alone", object))])'


def test_a_scalar_stays_one(server: Any) -> None:
    """The config states one text."""
    (output,) = infer(server, "returns", SCALAR)[1]["outputs"]
    assert output["shape"] == [] and output["data"] == ["alone"]


def test_a_model_that_parses_arguments_finds_none(server: Any) -> None:
    (output,) = infer(server, "returns", "told(str(sys.argv))")[1]["outputs"]
    assert output["data"] == ["['']"]


def test_a_metric_may_be_infinite(server: Any) -> None:
    family = 'pb_utils.MetricFamily(name="written_level", description="x", kind=pb_utils.MetricFamily.GAUGE)'
    # In Triton a metric ends with its family.
    metric = f"globals().setdefault('family', {family}).Metric(labels={{'of': 'a'}})"
    values = ["inf", "-inf", "nan", "0.1", "5e-324"]
    code = f"(lambda m: told(repr([m.set(float(v)) or m.value() for v in {values}])))({metric})"
    (output,) = infer(server, "returns", code)[1]["outputs"]
    assert output["data"] == [f"[{', '.join(values)}]"]


def test_the_text_of_an_error_may_be_bytes(server: Any) -> None:
    assert infer(server, "returns", "failed('é'.encode())") == (500, {"error": "é"})


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], 5, [[[7]]], [], [[], []]], ids=str)
def test_a_response_has_any_rank(server: Any, values: Any) -> None:
    """The config of this model states a list of numbers."""
    status, answer = infer(server, "returns", f"numbers({values})")
    assert status == 200
    (output,) = answer["outputs"]
    array = np.array(values, np.float32)
    assert output["data"] == array.reshape(-1).tolist() and output["shape"] == list(array.shape)


def test_outputs_have_the_shape_of_the_config(server: Any) -> None:
    (output,) = infer(server, "reshapes", "numbers([1, 2])")[1]["outputs"]
    assert output["shape"] == [1, 2]
    found = []
    message = pb.ModelInferRequest(model_name="sends_reshaped")
    (given,) = texts("grpc", "sender.send(numbers([1, 2]), flags=FINAL)")
    message.inputs.append(given._get_tensor())
    message.raw_input_contents.append(given._get_content())
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for answer in GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]), timeout=30):
            found += [list(output.shape) for output in answer.infer_response.outputs]
    assert found == [[1, 2]]


def first_state(server: Any, model: str) -> Any:
    """Returns dtype, shape and elements of the state at the first request of a sequence."""
    code = "(lambda t: told(repr((t.as_numpy().dtype.str, list(t.shape()), t.as_numpy().tolist()))))"
    code += '(pb_utils.get_input_tensor_by_name(request, "KEPT"))'
    place = {"sequence_id": 6, "sequence_start": True, "sequence_end": True}
    status, answer = infer(server, model, code, parameters=place)
    assert status == 200
    return ast.literal_eval(answer["outputs"][0]["data"][0])


@pytest.mark.parametrize("model", [name for name in STATES if name != "state_grows"])
def test_a_state_begins_as_the_config_says(server: Any, model: str) -> None:
    assert first_state(server, model) == STATES[model][1]


def test_a_state_that_a_model_leaves_out_stays_as_it_was(gateway: Server) -> None:
    """In Triton, models in Python can't change the state of a sequence."""
    look = 'told(str(pb_utils.get_input_tensor_by_name(request, "KEPT").as_numpy().tolist()))'
    keep = 'pb_utils.InferenceResponse([pb_utils.Tensor("KEPT", np.array([7], np.float32))])'
    found = []
    for i, code in enumerate([look, keep, look, look]):
        place = {"sequence_id": 5, "sequence_start": i == 0, "sequence_end": i == 3}
        status, answer = infer(gateway, "keeps", code, parameters=place)
        assert status == 200
        found.append([output["data"] for output in answer["outputs"]])
    assert found == [[["[0.0]"]], [], [["[7.0]"]], [["[7.0]"]]]


def test_a_config_says_what_its_scheduler_does(server: Any) -> None:
    batching = post(server, "ragged/config", None)[1]["dynamic_batching"]
    assert batching["preferred_batch_size"] == [4]
    sequences = post(server, "sequences/config", None)[1]["sequence_batching"]
    assert sequences["max_sequence_idle_microseconds"] == 1_000_000
    assert sequences["oldest"]["preferred_batch_size"] == [4]
    for name, decoupled in (("sends_tells", True), ("in_ensemble", True), ("returns_tells", False)):
        assert post(server, f"{name}/config", None)[1]["model_transaction_policy"] == {"decoupled": decoupled}


def test_an_ensemble_is_decoupled_only_if_a_step_is(server: Any) -> None:
    assert post(server, "says_decoupled/config", None)[1]["model_transaction_policy"] == {"decoupled": False}
    status, answer = infer(server, "says_decoupled", "numbers([1, 2])")
    assert status == 200 and answer["outputs"][0]["data"] == [1, 2]


def told_numbers(came: list[Any]) -> list[Any]:
    """Returns the numbers that the last step was given, or the text of an error."""
    return [json.loads(what[0][0])[2] if isinstance(what, list) else what for _, what, _ in came if what]


STREAMS = {
    "two": ("sender.send(numbers([1])); sender.send(numbers([2, 3]), flags=FINAL)", [[1], [2, 3]]),
    "a flag": ("sender.send(numbers([1])); sender.send(flags=FINAL)", [[1]]),
    "nothing": ("sender.send(flags=FINAL)", []),
    "many": ("for i in range(50): sender.send(numbers([i]), flags=FINAL * (i == 49))", [[i] for i in range(50)]),
    "an error": ("sender.send(failed('as it was asked for'), flags=FINAL)", "as it was asked for"),
    "an exception": ("1 / 0", "division by zero"),
}


@pytest.mark.parametrize("model", ["sends_tells", "in_ensemble"])
@pytest.mark.parametrize("code", STREAMS)
def test_an_ensemble_with_a_decoupled_step(server: Any, model: str, code: str) -> None:
    """What follows a step runs for each of its responses."""
    sent, expected = STREAMS[code]
    came = streamed(server, model, texts("grpc", sent))
    found = told_numbers(came)
    if isinstance(expected, str):
        assert len(found) == 1 and expected in found[0]
    else:
        assert found == expected
    assert [final for _, _, final in came] == [False] * (len(came) - 1) + [True]
    events = post(server, f"{model}/generate_stream", {"CODE": sent})[1] or []
    if not isinstance(expected, str):
        assert [json.loads(event["TOLD"])[2] for event in events] == expected


def test_a_decoupled_step_is_the_last_one(server: Any) -> None:
    came = streamed(server, "sends_alone", texts("grpc", STREAMS["two"][0]))
    assert [what for _, what, _ in came] == [[[1]], [[2, 3]]]


def test_an_error_ends_an_ensemble(gateway: Server) -> None:
    """In Triton, too, but its process waits for the rest when it stops."""
    rest = "sender.send(failed('no more')); sender.send(numbers([2])); sender.send(flags=FINAL)"
    came = streamed(gateway, "sends_alone", texts("grpc", f"sender.send(numbers([1])); {rest}"))
    assert came[0][1:] == ([[1]], False) and "no more" in came[1][1] and came[1][2] is True and len(came) == 2


def test_a_step_runs_for_each_combination_of_responses(tmp_path: Path) -> None:
    """Triton refuses an ensemble whose step has inputs of several decoupled steps."""
    both = """
class TritonPythonModel:
    def execute(self, requests):
        return [numbers([t.as_numpy()[0] for t in request.inputs()]) for request in requests]
"""
    write(tmp_path, "both", f"{X[:-1]}, {NUMBERS.replace('NUMBERS', 'Z')} ] output [ {NUMBERS} ]", HEAD + both)
    write(tmp_path, "sends", *MODELS["sends"])
    (tmp_path / "ensemble" / "1").mkdir(parents=True)
    config = ensemble(
        step("sends", {"CODE": "CODE"}, {"NUMBERS": "one"}),
        step("sends", {"CODE": "OTHER"}, {"NUMBERS": "other"}),
        step("both", {"X": "one", "Z": "other"}, {"NUMBERS": "NUMBERS"}),
        output=NUMBERS,
    ).replace(CODE, f"{CODE[:-1]}, {TOLD.replace('TOLD', 'OTHER')} ]")
    (tmp_path / "ensemble" / "config.pbtxt").write_text(config)
    send = "sender.send(numbers([{}])); sender.send(numbers([{}]), flags=FINAL)"
    with running(tmp_path, "--allow-python-models") as server:
        body = {"CODE": send.format(1, 2), "OTHER": send.format(3, 4)}
        status, events = post(server, "ensemble/generate_stream", body)
    assert status == 200 and sorted(event["NUMBERS"] for event in events) == [[1, 3], [1, 4], [2, 3], [2, 4]]


def test_infer_is_not_for_an_ensemble_with_a_decoupled_step(server: Any) -> None:
    assert infer(server, "sends_alone", STREAMS["two"][0])[0] == 501
    status, answer = post(server, "sends_tells/generate", {"CODE": "sender.send(numbers([4]), flags=FINAL)"})
    assert status == 200 and json.loads(answer["TOLD"])[2] == [4]


def test_a_model_calls_an_ensemble_with_a_decoupled_step(server: Any) -> None:
    code = STREAMS["two"][0]
    called = f"""told(json.dumps([[t.as_numpy().tolist() for t in found.output_tensors()] for found in
        ask("sends_alone", "CODE", np.array([{code!r}.encode()], object)).exec(decoupled=True)]))"""
    found = json.loads(infer(server, "asks", called.replace("\n", " "))[1]["outputs"][0]["data"][0])
    assert found[:2] == [[[1.0]], [[2.0, 3.0]]]


def test_a_client_that_leaves_ends_the_decoupled_step(gateway: Server, tmp_path: Path) -> None:
    """In Triton 2.51 the step doesn't learn of it."""
    left = tmp_path / "left"
    code = f"""
def run():
    while not request.is_cancelled():
        sender.send(numbers([1]))
        time.sleep(0.01)
    sender.send(flags=FINAL)
    open({str(left)!r}, "w").close()
threading.Thread(target=run).start()"""
    code = f"exec({code!r}, {{**globals(), **locals()}})"
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{gateway.grpc}")
    came: list[Any] = []
    client.start_stream(lambda result, error: came.append(result))
    client.async_stream_infer("sends_tells", texts("grpc", code))
    wait_until(lambda: len(came) > 3)
    client.stop_stream(cancel_requests=True)
    client.close()
    wait_until(left.exists, 20)


# Where the two differ: what Triton says, what the gateway says, and the line of docs/triton-differences.md about it.
HALVES = 'pb_utils.InferenceResponse([pb_utils.Tensor("HALVES", np.ones(2, np.float16))])'
STRINGS = 'pb_utils.InferenceResponse([pb_utils.Tensor("NUMBERS", np.array(["a"], object))])'


def of_numbers(answered: tuple[int, Any]) -> tuple[str, Any]:
    (output,) = answered[1]["outputs"]
    return output["datatype"], output["data"]


def parameterized(server: Any, **parameters: Any) -> int:
    """Returns the status of a request over HTTP with these parameters."""
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]
    status: int = post(server, "tells/infer", {"inputs": inputs, "parameters": parameters})[0]
    return status


def by_hand(server: Any, body: str) -> tuple[int, Any]:
    """Posts JSON for the model `tells`. DATA stands for an input. Returns the status and what the model told."""
    data = body.replace("DATA", '"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]').encode()
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.http}/v2/models/tells/infer", data, timeout=30
        ) as answer:
            return answer.status, json.loads(json.load(answer)["outputs"][0]["data"][0])
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def unsigned(server: Any) -> Any:
    """Returns the code of a request over gRPC with an unsigned parameter."""
    message = pb.ModelInferRequest(model_name="tells")
    message.inputs.append(tensor("grpc", "X", np.zeros(1, np.float32), "FP32")._get_tensor())
    message.raw_input_contents.append(bytes(4))
    message.parameters["mine"].uint64_param = 1
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = GRPCInferenceServiceStub(channel).ModelInfer.future(message, timeout=30)
        return call.code()


ONE = '{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": %s}]}'
CALLS = """told(pb_utils.InferenceRequest(model_name="tells", requested_output_names=[], parameters={"mine": 0.5},
    inputs=[pb_utils.Tensor("X", np.zeros(1, np.float32))]).exec().output_tensors()[0].as_numpy()[0].decode())"""
DIFFERENT = {
    "a timeout as text": (lambda server: parameterized(server, timeout="5000000"), 500, 200, "digits in a text"),
    "null for parameters": (lambda server: by_hand(server, '{DATA, "parameters": null}')[0], 500, 200, "`null`"),
    "null for outputs": (lambda server: by_hand(server, '{DATA, "outputs": null}')[0], 500, 200, "`null`"),
    "a number without brackets": (lambda server: by_hand(server, ONE % "3")[0], 500, 200, "without brackets"),
    "the end of a stream over HTTP": (
        lambda server: parameterized(server, triton_enable_empty_final_response=True),
        400,
        200,
        "`triton_enable_empty_final_response`",
    ),
    "an unsigned parameter": (
        unsigned,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OK,
        "An unsigned integer",
    ),
    "a parameter that is there twice": (
        lambda server: by_hand(server, '{DATA, "parameters": {"mine": 1, "mine": 2}}')[1][3],
        {"mine": 1},
        {"mine": 2},
        "twice in an object",
    ),
    "a mark of the byte order": (lambda server: by_hand(server, "\ufeff{DATA}")[0], 200, 400, "byte order mark"),
    "Inf": (lambda server: by_hand(server, ONE % "[Inf]")[0], 200, 400, "`Inf`"),
    "a number too large": (lambda server: by_hand(server, ONE % "[1e39]")[0], 200, 400, "too large for its type"),
    "a list of parameters of an input": (
        lambda server: by_hand(server, ONE.replace("[1]", '[1], "parameters": []') % "[0]")[0],
        200,
        400,
        "`parameters` of an input",
    ),
    "a tensor made from a list": (
        lambda server: infer(server, "returns", 'pb_utils.InferenceResponse([pb_utils.Tensor("NUMBERS", [1.0])])')[0],
        500,
        200,
        "whatever NumPy makes an array of",
    ),
    "a tuple of responses": (lambda server: infer(server, "tuples", "told('x')")[0], 500, 200, "a tuple of responses"),
    "a call with a float": (
        lambda server: infer(server, "returns", CALLS.replace("\n", " "))[0],
        500,
        200,
        "a float among",
    ),
    "two outputs of one name": (
        lambda server: infer(server, "returns", "pb_utils.InferenceResponse(numbers([1]).output_tensors() * 2)")[0],
        200,
        500,
        "two outputs of one name",
    ),
    "a state that grows": (
        lambda server: first_state(server, "state_grows"),
        ("<f4", [1], [0.0]),
        STATES["state_grows"][1],
        "begins with the dims of its `initial_state`",
    ),
    "generate of a model that fails": (
        lambda server: post(server, "returns/generate", {"CODE": "1 / 0"})[0],
        400,
        500,
        "`generate` and `generate_stream` answer 400",
    ),
    "generate_stream whose first response is an error": (
        lambda server: post(
            server, "sends/generate_stream", {"CODE": "sender.send(failed('x')); sender.send(flags=FINAL)"}
        )[0],
        400,
        200,
        "`generate` and `generate_stream` answer 400",
    ),
    "generate with two responses": (
        lambda server: post(server, "sends/generate", {"CODE": STREAMS["two"][0]})[0],
        200,
        501,
        "not exactly one response",
    ),
    "the code UNKNOWN": (
        lambda server: infer(server, "returns", "failed('x', pb_utils.TritonError.UNKNOWN)")[0],
        400,
        500,
        "`TritonError.UNKNOWN`",
    ),
    "the code CANCELLED": (
        lambda server: infer(server, "returns", "failed('x', pb_utils.TritonError.CANCELLED)")[0],
        400,
        499,
        "`TritonError.UNKNOWN`",
    ),
    "a version that is no number": (
        lambda server: post(server, "returns/versions/first/infer", {})[0],
        404,
        400,
        "A version that is no number",
    ),
    "an output that is asked for twice": (
        lambda server: infer(server, "returns", "told('x')", outputs=[{"name": "TOLD"}] * 2)[0],
        200,
        400,
        "asked for twice",
    ),
    "data that is nested otherwise than its shape": (
        lambda server: post(
            server, "tells/infer", {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [[1], [2]]}]}
        )[0],
        200,
        400,
        "nested otherwise",
    ),
    "an optional input in place of another": (
        lambda server: post(
            server, "optional/infer", {"inputs": [{"name": "MORE", "datatype": "FP32", "shape": [1], "data": [1]}]}
        )[0],
        200,
        400,
        "an input that isn't optional",
    ),
    "FP16 in JSON": (
        lambda server: infer(server, "halves", HALVES)[0],
        400,
        200,
        "JSON has FP16",
    ),
    "a long text": (
        lambda server: len(infer(server, "returns", "failed('x' * 5000)")[1]["error"]),
        5000,
        4096,
        "4096 characters",
    ),
    "an exception": (
        lambda server: infer(server, "returns", "1 / 0")[1]["error"].split(": Z")[0],
        "Failed to process the request(s) for model 'returns_0_0', message",
        "model 'returns'",
        "Failed to process the request(s)",
    ),
    "outputs of another type": (
        lambda server: of_numbers(infer(server, "returns", 'numbers([1, 2], "f8")')),
        ("FP64", [1, 2]),
        ("FP32", [1, 2]),
        "types that the config states",
    ),
    "strings in place of numbers": (
        lambda server: infer(server, "returns", STRINGS)[0],
        200,
        500,
        "types that the config states",
    ),
    "a sequence in generate": (
        lambda server: post(server, "sequences/generate", {"X": 1, "sequence_id": 7, "sequence_start": True})[0],
        400,
        200,
        "`sequence_id`, `timeout`",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_where_the_gateway_answers_otherwise(server: Any, case: str) -> None:
    ask, theirs, ours, line = DIFFERENT[case]
    assert ask(server) == (theirs if is_triton(server) else ours)
    assert line in (Path(__file__).parents[2] / "docs" / "triton-differences.md").read_text()


PLAIN = f"{X} output [ {TOLD} ]"
ONE_NUMBER = NUMBERS.replace("[ -1 ]", "[ 1 ] reshape { }")
NONE_IN_X = X.replace("[ -1 ]", "[ 0 ]")
# What a config says, and the line of docs/triton-differences.md: these load in the gateway only.
LENIENT = {
    "no_elements": (f"{NONE_IN_X} output [ {TOLD} ]", "`dims: [ 0 ]`"),
    "no_elements_out": (f"{CODE} output [ {NUMBERS.replace('-1', '0')} ]", "`dims: [ 0 ]`"),
    "scalar": (PLAIN.replace("[ -1 ]", "[ 1 ] reshape { shape: [ ] }", 1), "reshaped to a scalar"),
    "scalar_out": (f"{CODE} output [ {ONE_NUMBER} ]", "reshaped to a scalar"),
    "format": (PLAIN.replace("[ -1 ]", "[ 1 ] format: FORMAT_NCHW", 1), "`format`"),
    "batch_input": (
        "max_batch_size: 2 batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'N' data_type: TYPE_FP32 source_input: 'Y' }"
        + PLAIN,
        "`batch_input` of a model in Python",
    ),
}
WARM = 'model_warmup {{ name: "w" inputs {{ key: "X" value {{ data_type: TYPE_{} dims: [ {} ] zero_data: true }} }} }}'
# These load in Triton only.
STRICT = {
    "output_twice": (f"{X} output [ {TOLD}, {TOLD} ]", "an input or an output twice"),
    "count": (f"{PLAIN} instance_group {{ kind: KIND_CPU count: -1 }}", "a negative `count`"),
    "passive": (f"{PLAIN} instance_group {{ kind: KIND_CPU passive: true }}", "`passive`"),
    "warm_up_type": (f"{PLAIN} {WARM.format('INT32', 1)}", "warm-up"),
    "warm_up_dims": (f"{PLAIN.replace('[ -1 ]', '[ 1 ]', 1)} {WARM.format('FP32', 2)}", "warm-up"),
    "state_is_input": (
        f'{PLAIN} sequence_batching {{ state {{ input_name: "X" output_name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} }}',
        "a state that is an input as well",
    ),
    "state_without_type": (
        f'{PLAIN} sequence_batching {{ state {{ input_name: "Z" output_name: "Z" dims: [ 1 ] }} }}',
        "a state without names or `data_type`",
    ),
}


@pytest.mark.parametrize("where", ["gateway", "triton"])
def test_configs_that_only_one_of_them_takes(tmp_path: Path, where: str) -> None:
    for name, (config, _) in {**LENIENT, **STRICT}.items():
        write(tmp_path, name, config, "BATCHES = False" + TELLS)
    server_of = running_triton(tmp_path) if where == "triton" else running(tmp_path, "--allow-python-models")
    with server_of as server:
        client = connect(server, "http")
        ready = {model["name"] for model in client.get_model_repository_index() if model.get("state") == "READY"}
        client.close()
    assert ready == set(STRICT if where == "triton" else LENIENT)
    page = (Path(__file__).parents[2] / "docs" / "triton-differences.md").read_text()
    assert all(line in page for _, line in (*LENIENT.values(), *STRICT.values()))
