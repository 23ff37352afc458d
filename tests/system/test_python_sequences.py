"""Sequences of models in Python: each request says whose it is, over both protocols, with both strategies."""

from __future__ import annotations

import json
import queue
import threading
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.system.running import running
from tests.system.test_python_models import write

SUMS = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            key = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[key] = 0.0
            self.sums[key] += float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().sum())
            told = [key, request.flags(), self.sums[key], json.loads(request.parameters()), request.request_id()]
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[key]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[json.dumps(told)]], object))]))
        return answers
"""
SPEECH = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                y = np.array([[f"{request.correlation_id()} {request.flags()} {number}"]], object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_STRING dims: [ 1 ] }"""
MODELS = ("oldest-1", "oldest-2", "direct-1", "direct-2")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    for name in MODELS:
        kind, instances = name.split("-")
        strategy = "oldest { max_candidate_sequences: 16 }" if kind == "oldest" else "direct { }"
        groups = f"instance_group {{ kind: KIND_CPU count: {instances} }}"
        model = write(folder, name, "", SUMS)
        (model / "config.pbtxt").write_text(f'backend: "python" {groups} {TENSORS} sequence_batching {{ {strategy} }}')
    decoupled = "model_transaction_policy { decoupled: true }"
    for kind, strategy in (("oldest", "oldest { max_candidate_sequences: 4 }"), ("direct", "direct { }")):
        write(folder, f"speech-{kind}", f"{TENSORS} sequence_batching {{ {strategy} }} {decoupled}", SPEECH)
    with running(folder, "--allow-python-models") as started:
        yield started


def ask(module: Any, client: Any, model: str, x: float, **place: Any) -> list[Any]:
    given = module.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), x, np.float32))
    return json.loads(client.infer(model, [given], **place).as_numpy("Y")[0, 0])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", MODELS)
def test_each_request_says_whose_it_is(server, model, protocol):
    """Eight sequences at once, with ids of both kinds, each in a thread of its own, twice with the same ids."""
    module, port = (http, server.http) if protocol == "http" else (grpc, server.grpc)
    wrong = []

    def talk(user: int, id: int | str) -> None:
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        for _ in range(2):
            total = 0
            for step in range(6):
                total += user + step
                flags = (step == 0) + 2 * (step == 5)
                own = {"of": f"user {user}", "step": step}
                place = {"sequence_id": id, "sequence_start": step == 0, "sequence_end": step == 5}
                told = ask(module, client, model, user + step, request_id=f"{user}.{step}", parameters=own, **place)
                if told != [id, flags, total, own, f"{user}.{step}"]:
                    wrong.append((user, step, told))
        client.close()

    ids = [user + 1 if user % 2 else f"customer {user}" for user in range(8)]
    threads = [threading.Thread(target=talk, args=(user, id)) for user, id in enumerate(ids)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


@pytest.mark.parametrize("kind", ["oldest", "direct"])
def test_a_sequence_of_streams(server, kind):
    client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    came: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: came.put(error or result))
    given = grpc.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.zeros((1, 1), np.float32))
    for flags in (1, 0, 2):
        place = {"sequence_id": 7, "sequence_start": flags == 1, "sequence_end": flags == 2}
        client.async_stream_infer(f"speech-{kind}", [given], enable_empty_final_response=True, **place)
        said = []
        while True:
            response = came.get(timeout=30)
            if response.get_response().parameters["triton_final_response"].bool_param:
                break
            said.append(response.as_numpy("Y")[0, 0].decode())
        assert said == [f"7 {flags} {number}" for number in range(3)]
    client.stop_stream()
    client.close()


def test_a_client_that_leaves_ends_no_sequence(server):
    """It leaves while its second request runs. The sequence goes on from where it is."""
    client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    assert ask(grpc, client, "oldest-1", 1, sequence_id=99, sequence_start=True)[2] == 1
    given = grpc.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), 10, np.float32))
    for _ in range(20):
        done = threading.Event()
        call = client.async_infer("oldest-1", [given], lambda result, error, done=done: done.set(), sequence_id=99)
        call.cancel()
        done.wait(10)
    told = ask(grpc, client, "oldest-1", 1000, sequence_id=99, sequence_end=True)
    # Each request that the client left was either run as a whole or not at all.
    assert told[0] == 99 and told[2] in {1001 + 10 * runs for runs in range(21)}
    client.close()
