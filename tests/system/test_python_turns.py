"""The thread of a model in Python and the event loop take turns: small and large messages, at once and one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http

from tests.system.running import Server, running
from tests.system.test_python_models import CLIENTS, connect, tensor, write

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
#: Answers with x, or with as many numbers as `wide` says, all of them the first one of x.
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            x, wide = (pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in ("x", "wide"))
            y = np.full(int(wide[0]), x[0], np.float32) if wide[0] else x
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return found
"""
#: Asks the echo for a small and a large answer, and adds what both begin with.
ASKS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.asked(r))]) for r in requests]

    def asked(self, r):
        x, wide = (pb_utils.get_input_tensor_by_name(r, name) for name in ("x", "wide"))
        sums = np.zeros(1, np.float32)
        for width in (0, int(wide.as_numpy()[0])) * 2:
            inputs = [x, pb_utils.Tensor("wide", np.array([width], np.int32))]
            asked = pb_utils.InferenceRequest(model_name="echo", inputs=inputs, requested_output_names=["y"])
            sums += pb_utils.get_output_tensor_by_name(asked.exec(), "y").as_numpy()[:1]
        return sums
"""
CONFIG = """input { name: "x" data_type: TYPE_FP32 dims: -1 } input { name: "wide" data_type: TYPE_INT32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 } instance_group { count: 2 kind: KIND_CPU }"""
#: Numbers: a few, just below and above what is small, and 4 MB.
WIDTHS = (1, 3, 16_000, 16_400, 1_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("turns")
    for name, source in (("echo", ECHO), ("asks", ASKS)):
        write(folder, name, CONFIG, HEAD + source)
    with running(folder, "--allow-python-models") as started:
        yield started


def ask(client: Any, protocol: str, model: str, x: np.ndarray, wide: int = 0) -> np.ndarray:
    inputs = [tensor(protocol, "x", x, "FP32"), tensor(protocol, "wide", np.array([wide], np.int32), "INT32")]
    return client.infer(model, inputs).as_numpy("y")


@pytest.mark.parametrize("protocol", CLIENTS)
def test_messages_of_all_sizes_at_once(server: Server, protocol: str) -> None:
    """Each client sends and gets what is small and what is large, in another order than the others."""

    def run(number: int) -> None:
        client = connect(server, protocol)
        rng = np.random.default_rng(number)
        for step in range(40):
            sent, wanted = rng.choice(WIDTHS), int(rng.choice((0, *WIDTHS)))
            x = np.full(sent, number * 1000 + step, np.float32)
            y = ask(client, protocol, "echo", x, wanted)
            assert y.shape == (wanted or sent,) and (y == x[0]).all()
        client.close()

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(run, range(6)))


@pytest.mark.parametrize("protocol", CLIENTS)
def test_calls_of_all_sizes_at_once(server: Server, protocol: str) -> None:
    def run(number: int) -> None:
        client = connect(server, protocol)
        for step in range(10):
            x = np.full(WIDTHS[step % len(WIDTHS)], number + step / 16, np.float32)
            assert ask(client, protocol, "asks", x, WIDTHS[-1 - step % 2])[0] == 4 * x[0]
        client.close()

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(run, range(4)))


def test_a_small_request_passes_while_large_ones_are_copied(server: Server) -> None:
    """The event loop never waits for the thread that copies: what else it serves goes on."""
    large, ended = np.ones(4_000_000, np.float32), threading.Event()

    def flood() -> None:
        client = connect(server, "grpc")
        while not ended.is_set():
            assert ask(client, "grpc", "echo", large).size == large.size
        client.close()

    with ThreadPoolExecutor(3) as clients:
        running_floods = [clients.submit(flood) for _ in range(3)]
        try:
            client = http.InferenceServerClient(server.url.removeprefix("http://"), network_timeout=20)
            for _ in range(200):
                assert client.is_server_live()
            client.close()
        finally:
            ended.set()
        for each in running_floods:
            each.result()
