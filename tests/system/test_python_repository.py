"""A repository as people write it: a tokenizer before an encoder, an ensemble with a post-processor, an engine that
streams words, speech in pieces, a client with a fall-back. A real Triton and the gateway give the same answers."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.system.clients import connect
from tests.system.conftest import wait_until
from tests.system.running import running
from tests.system.test_python_models import running_triton, tensor

SOURCES = Path(__file__).with_name("python_repository")
BATCHES = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500 }"
TEXT = 'input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]'
IDS = """{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
    { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }"""
ANSWER = '{ name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] }, { name: "SHARE" data_type: TYPE_FP32 dims: [ 1 ] }'
CONFIGS = {
    "tokenizer": f"{BATCHES} {TEXT} output [ {IDS} ]",
    "encoder": f"""{BATCHES} input [ {IDS} ] output [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ 8 ] }} ]
        parameters {{ key: "size" value: {{ string_value: "8" }} }}""",
    "postprocess": f"""{BATCHES} input [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ 8 ] }} ]
        output [ {ANSWER} ]""",
    "words": """model_transaction_policy { decoupled: true }
        input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
          { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
        output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]""",
    "speech": """max_batch_size: 4 input [ { name: "WAV" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "LOUDNESS" data_type: TYPE_FP32 dims: [ -1 ] } ]
        sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 16 } }""",
    "fallback": f"""max_batch_size: 8 {TEXT}
        output [ {ANSWER}, {{ name: "USED" data_type: TYPE_STRING dims: [ 1 ] }} ]""",
}
PIPELINE = f"""platform: "ensemble" max_batch_size: 8 {TEXT} output [ {ANSWER} ]
ensemble_scheduling {{ step [
  {{ model_name: "tokenizer" model_version: -1 input_map {{ key: "TEXT" value: "TEXT" }}
    output_map {{ key: "input_ids" value: "ids" }} output_map {{ key: "attention_mask" value: "mask" }} }},
  {{ model_name: "encoder" model_version: -1 input_map {{ key: "input_ids" value: "ids" }}
    input_map {{ key: "attention_mask" value: "mask" }} output_map {{ key: "embedding" value: "vector" }} }},
  {{ model_name: "postprocess" model_version: -1 input_map {{ key: "embedding" value: "vector" }}
    output_map {{ key: "LABEL" value: "LABEL" }} output_map {{ key: "SHARE" value: "SHARE" }} }} ] }}"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "models"
    for name, config in CONFIGS.items():
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(SOURCES / f"{name}.py", folder / name / "1" / "model.py")
        group = "instance_group [ { count: 1 kind: KIND_CPU } ]"
        (folder / name / "config.pbtxt").write_text(f'name: "{name}" backend: "python" {group} {config}')
    (folder / "pipeline" / "1").mkdir(parents=True)
    (folder / "pipeline" / "config.pbtxt").write_text(PIPELINE)
    return folder


@pytest.fixture(scope="module", params=["gateway", "triton"])
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[Any]:
    started = running(repository, "--allow-python-models") if request.param == "gateway" else running_triton(repository)
    with started as server:
        yield server


def texts(protocol: str, *lines: str) -> list[Any]:
    return [tensor(protocol, "TEXT", np.array([[line.encode()] for line in lines], np.object_), "BYTES")]


LINES = ("Der Hund bellt laut", "ein", "", "Ärger mit Öl und Übel")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_texts_to_vectors(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    ids = client.infer("tokenizer", texts(protocol, *LINES)).as_numpy("input_ids")
    assert ids.tolist() == [[3, 4, 5, 4, 0], [3, 0, 0, 0, 0], [0] * 5, [5, 3, 2, 3, 4]]
    given = [tensor(protocol, "input_ids", ids, "INT64"), tensor(protocol, "attention_mask", (ids > 0) * 1, "INT64")]
    found = client.infer("encoder", given).as_numpy("embedding")
    table = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    np.testing.assert_allclose(found[1], table[3], rtol=1e-6)
    np.testing.assert_allclose(found[0], table[[3, 4, 5, 4]].mean(0), rtol=1e-5)
    client.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["pipeline", "fallback"])
def test_texts_to_labels(server: Any, model: str, protocol: str) -> None:
    client = connect(server, protocol)
    found = client.infer(model, texts(protocol, *LINES))
    table = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    vectors = [table[[len(word) for word in line.split()]].mean(0) if line else np.zeros(8) for line in LINES]
    assert found.as_numpy("LABEL").reshape(-1).tolist() == [f"class {np.argmax(v)}".encode() for v in vectors]
    shares = [np.exp(v).max() / np.exp(v).sum() for v in vectors]
    np.testing.assert_allclose(found.as_numpy("SHARE").reshape(-1), shares, rtol=1e-5)
    if model == "fallback":
        assert found.as_numpy("USED").reshape(-1).tolist() == [b"pipeline"] * len(LINES)
    client.close()


class Words:
    """A client of the engine."""

    def __init__(self, server: Any) -> None:
        self.came: list[Any] = []
        self._client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        self._client.start_stream(self._take)

    def _take(self, result: Any, error: Any) -> None:
        text = None if error is not None else result.as_numpy("text_output")
        self.came.append(error or (None if text is None else text[0].decode()))

    def ask(self, prompt: str, streams: bool | None = None, count: int | None = None) -> None:
        """Sends a prompt, and waits for no answer."""
        inputs = [tensor("grpc", "text_input", np.array([prompt.encode()], np.object_), "BYTES")]
        if streams is not None:
            inputs.append(tensor("grpc", "stream", np.array([streams]), "BOOL"))
        if count is not None:
            parameters = np.array([json.dumps({"max_tokens": count}).encode()], np.object_)
            inputs.append(tensor("grpc", "sampling_parameters", parameters, "BYTES"))
        self._client.async_stream_infer("words", inputs)

    def close(self, leaves: bool = False) -> None:
        """Ends the stream. A client that leaves doesn't wait for its answers."""
        self._client.stop_stream(cancel_requests=leaves)
        self._client.close()


def test_words_of_several_clients_come_as_they_are_made(server: Any) -> None:
    clients = [Words(server) for _ in range(4)]
    for number, client in enumerate(clients):
        client.ask(f"{number}-", streams=True, count=60)
    clients[0].ask("whole", count=3)
    wait_until(lambda: all(len(client.came) >= 60 for client in clients) and len(clients[0].came) == 61, 30)
    for number, client in enumerate(clients):
        assert [word for word in client.came if word.startswith(f"{number}-")] == [f"{number}-{i}" for i in range(60)]
        client.close()
    assert clients[0].came[-1] == "whole0 whole1 whole2" or "whole0 whole1 whole2" in clients[0].came
    asking = Words(server)
    asking.ask("how many")
    wait_until(lambda: asking.came)
    assert int(asking.came[0].split()[0]) >= 4
    asking.close()


def test_a_client_that_leaves_frees_its_place(server: Any) -> None:
    leaving, asking = Words(server), Words(server)
    asking.ask("how many")
    wait_until(lambda: asking.came)
    before = int(asking.came[0].split()[3])
    leaving.ask("x", streams=True, count=100_000)
    wait_until(lambda: len(leaving.came) > 3)
    leaving.close(leaves=True)

    def cancelled() -> bool:
        del asking.came[:]
        asking.ask("how many")
        wait_until(lambda: asking.came)
        time.sleep(0.02)
        return int(asking.came[0].split()[3]) > before

    wait_until(cancelled, 20)
    asking.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_speech_in_pieces_is_as_the_whole(server: Any, protocol: str) -> None:
    client = connect(server, protocol)
    sounds = {11: np.arange(10, dtype=np.float32), 12: np.full(13, -2, np.float32)}
    heard: dict[int, list[float]] = {id: [] for id in sounds}
    for step in range(4):
        for id, sound in sounds.items():
            piece = np.array_split(sound, 4)[step][None]
            found = client.infer(
                "speech",
                [tensor(protocol, "WAV", piece, "FP32")],
                sequence_id=id,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            heard[id] += found.as_numpy("LOUDNESS").reshape(-1).tolist()
    client.close()
    for id, sound in sounds.items():
        whole = sound[: len(sound) // 4 * 4].reshape(-1, 4)
        np.testing.assert_allclose(heard[id], np.sqrt((whole**2).mean(1)), rtol=1e-6)
