"""Models in worker processes: an op that ends its process costs the request that it was given, and nobody else's."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tritonclient.utils import InferenceServerException

from tests.conftest import ALL
from tests.service.onnx_models import batching, save, value
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import wait_until
from tests.system.running import Server, running

RUN_TIMEOUT = 3.0
#: What an element makes the op do, and how the error must name it.
WAYS = {
    101: "died of SIGSEGV .* in op DiesOn",
    102: "died of SIGABRT .* in op DiesOn",
    103: "died of SIGSEGV .* in op DiesOn",
    104: "ended with the exit status 7",
    105: "a run took longer than 3 s, .* in op DiesOn",
    106: "DiesOn: out of memory",
    107: "died of SIGKILL",
}


def dying(repository: Path, name: str, library: Path, config: str = "") -> None:
    """Writes a model of the op DiesOn."""
    node = helper.make_node("DiesOn", ["x"], ["y"], domain="fixture_ops")
    tensors = [value("x", "FP32", ["n", 2])], [value("y", "FP32", ["n", 2])]
    graph = helper.make_graph([node], "dying", *tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1)]
    (repository / name / "1").mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: 8 model_operations {{ op_library_filename: "{library.name}" }}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }} ]
        dynamic_batching {{ max_queue_delay_microseconds: 5000 }}
        parameters {{ key: "isolation" value {{ string_value: "process" }} }} {config}"""
    )


@pytest.fixture(scope="module")
def library(fixture_library: Path) -> Path:
    return fixture_library


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("isolated")
    dying(repository, "dying", library)
    dying(repository, "stubborn", library)
    node = helper.make_node("Neg", ["x"], ["y"])
    save(repository, "neg", [node], [value("x", "FP32", ["n", 2])], [value("y", "FP32", ["n", 2])], config=batching())
    env = {
        "OPGATE_OPS_PATH": str(library.parent),
        "OPGATE_RUN_TIMEOUT": str(RUN_TIMEOUT),
        "OPGATE_ISOLATION_MEMORY_BYTES": str(1 << 29),
    }
    with running(repository, env=env) as started:
        yield started


def infer(client: Any, protocol: str, model: str, rows: list[list[float]]) -> np.ndarray:
    x = CLIENTS[protocol].InferInput("x", [len(rows), 2], "FP32")
    x.set_data_from_numpy(np.array(rows, np.float32))
    return client.infer(model, [x]).as_numpy("y")


class Others:
    """Clients of both protocols, which send good requests to a model and to a bystander, and note what went wrong."""

    def __init__(self, server: Server, model: str) -> None:
        self.wrong: list[str] = []
        self.answers = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(server, protocol, name, number))
            for number, (protocol, name) in enumerate((p, m) for p in CLIENTS for m in (model, "neg"))
        ]

    def _work(self, server: Server, protocol: str, model: str, number: int) -> None:
        client = connect(server, protocol)
        factor = 2 if model != "neg" else -1
        sent = 0.0
        while not self._stop.is_set():
            sent += 1
            rows = [[sent % 90, number]]
            try:
                answer = infer(client, protocol, model, rows)
                if not np.array_equal(answer, factor * np.array(rows, np.float32)):
                    self.wrong.append(f"{model}: {rows} became {answer}")
            except InferenceServerException as error:
                self.wrong.append(f"{protocol} {model}: {error}")
            self.answers += 1
        client.close()

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def wait(self, answers: int) -> None:
        wanted, end = self.answers + answers, time.monotonic() + 60
        while self.answers < wanted:
            assert time.monotonic() < end, "no answers"
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


#: Ways and protocols. `make test` takes one of the two protocols for each way.
DEATHS = [(w, p) for w in WAYS for i, p in enumerate(CLIENTS) if ALL or (w + i) % len(CLIENTS) == 0]


def deaths(server: Server) -> float:
    """Returns how many processes of the model have died, when all deaths are counted: a request may cost two, and the
    gateway answers before it counts."""
    found, now = -1.0, server.metric("opgate_model_process_deaths_total", "dying")
    while found != now:
        time.sleep(0.5)
        found, now = now, server.metric("opgate_model_process_deaths_total", "dying")
    return now


@pytest.mark.parametrize(("way", "protocol"), DEATHS)
def test_a_death_costs_one_request(server: Server, protocol: str, way: int) -> None:
    before = deaths(server)
    client = connect(server, protocol)
    with Others(server, "dying") as others:
        others.wait(10)
        with pytest.raises(InferenceServerException, match=rf"(?s)model 'dying': .*{WAYS[way]}") as raised:
            infer(client, protocol, "dying", [[1, 2], [3, way]])
        assert raised.value.status() in ("500", "StatusCode.INTERNAL")
        others.wait(20)
    client.close()
    assert not others.wrong
    if way == 106:
        assert deaths(server) == before
    else:
        wait_until(lambda: deaths(server) > before)
    assert server.metric("opgate_model_processes", "dying") == 1


def worker_of(server: Server) -> list[int]:
    """Returns the worker processes of a server."""
    listed = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(pid) for path in listed for pid in path.read_text().split()]


def test_an_idle_worker_that_is_killed_is_replaced(server: Server) -> None:
    before = set(worker_of(server))
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while (
        len(now := set(worker_of(server))) != 2 or now & before or server.metric("opgate_model_processes", "dying") != 1
    ):
        assert time.monotonic() < end, now
        time.sleep(0.05)
    client = connect(server, "http")
    np.testing.assert_array_equal(infer(client, "http", "dying", [[1, 2]]), [[2, 4]])
    client.close()


def test_a_worker_that_keeps_dying_makes_its_model_unready(server: Server) -> None:
    client = connect(server, "http")
    for _ in range(5):
        with pytest.raises(InferenceServerException, match="exit status 7"):
            infer(client, "http", "stubborn", [[104, 0]])
    assert not client.is_model_ready("stubborn")
    assert client.is_model_ready("dying") and client.is_model_ready("neg")
    with pytest.raises(InferenceServerException, match=r"times in a row\. The next start is in") as raised:
        infer(client, "http", "stubborn", [[1, 2]])
    assert raised.value.status() == "503"
    end = time.monotonic() + 30
    while not client.is_model_ready("stubborn"):
        assert time.monotonic() < end
        time.sleep(0.1)
    np.testing.assert_array_equal(infer(client, "http", "stubborn", [[1, 2]]), [[2, 4]])
    client.close()


def test_the_log_says_what_confines_the_workers(server: Server) -> None:
    said = [line for line in server.log if "a worker process runs model" in line]
    assert len(said) == 2 and all("no new privileges, at most 536870912 bytes" in line for line in said)


def test_large_results_are_kept_while_others_run(server: Server) -> None:
    """Results are views of shared memory, which must not be used again before they are sent."""
    client = connect(server, "http")
    arrays = [np.full((8, 2), k % 90, np.float32) for k in range(300)]
    wanted = []
    for array in arrays:
        x = CLIENTS["http"].InferInput("x", array.shape, "FP32")
        x.set_data_from_numpy(array)
        wanted.append(client.async_infer("dying", [x]))
    for array, answer in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(answer.get_result().as_numpy("y"), 2 * array)
    client.close()


def test_workers_end_with_the_gateway(tmp_path: Path, library: Path) -> None:
    dying(tmp_path, "dying", library, "instance_group { count: 2 kind: KIND_CPU }")
    server = Server(tmp_path, env={"OPGATE_OPS_PATH": str(library.parent)})
    workers = worker_of(server)
    assert len(workers) == 2
    server.process.kill()
    server.stop()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)
