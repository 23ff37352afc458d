"""Sequences with tritonclient over both protocols, and over a stream."""

from __future__ import annotations

import queue

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.service.stateful_models import accumulator
from tests.system.running import running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    accumulator(folder, "oldest", "oldest { max_candidate_sequences: 8 }")
    accumulator(folder, "direct", "direct { }", instances=2)
    with running(folder) as started:
        yield started


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module, port = (http, server.http) if request.param == "http" else (grpc, server.grpc)
    made = module.InferenceServerClient(f"127.0.0.1:{port}")
    made.module = module
    return made


def add(client, model, x, **place):
    given = client.module.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), x, np.float32))
    return float(client.infer(model, [given], **place).as_numpy("sum")[0, 0])


@pytest.mark.parametrize("model", ["oldest", "direct"])
def test_sequences_of_several_clients(client, model):
    ids = range(1, 7)
    for id in ids:
        assert add(client, model, id, sequence_id=id, sequence_start=True) == id
    for id in ids:
        assert add(client, model, 10, sequence_id=id) == id + 10
    for id in ids:
        assert add(client, model, 100, sequence_id=id, sequence_end=True) == id + 110
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        add(client, model, 1, sequence_id=3)
    with pytest.raises(InferenceServerException, match="non-zero or non-empty correlation ID"):
        add(client, model, 1)


def test_an_id_may_be_a_text(client):
    with pytest.raises(InferenceServerException, match="takes UINT64"):
        add(client, "direct", 1, sequence_id="a-b", sequence_start=True)


def test_a_stream_of_two_sequences(server):
    client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    got = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    expected = []
    totals = {21: 0.0, 22: 0.0}
    for step in range(50):
        for id in (21, 22):
            given = grpc.InferInput("x", [1, 1], "FP32")
            given.set_data_from_numpy(np.full((1, 1), step + id, np.float32))
            client.async_stream_infer(
                "oldest", [given], sequence_id=id, sequence_start=step == 0, sequence_end=step == 49
            )
            totals[id] += step + id
            expected.append(totals[id])
    for sum in expected:
        result, error = got.get(timeout=20)
        assert error is None
        assert float(result.as_numpy("sum")[0, 0]) == sum
    client.stop_stream()


def test_the_extension_is_announced(client):
    metadata = client.get_server_metadata()
    assert "sequence" in (metadata["extensions"] if client.module is http else metadata.extensions)
