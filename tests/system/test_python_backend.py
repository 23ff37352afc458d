"""What newer versions of Triton's python_backend promise to a model.py, and what takes a gateway of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.service.onnx_models import double
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import wait_until
from tests.system.running import Server, running
from tests.system.test_python_models import Stream, tensor, write

ONE = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
)
TOLD = """input [ { name: "HOW" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]"""
DECOUPLED = " model_transaction_policy { decoupled: true }"
HEAD = """
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def text(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([json.dumps(value).encode()], np.object_))])

def how(request):
    return pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0].decode()
"""
RAISES = """
from .fails import fail

class TritonPythonModel:
    def execute(self, requests):
        fail(requests[0])
"""
FAILS = """
def fail(request):
    raise ValueError("no such thing")
"""
WATCHES = """
class TritonPythonModel:
    def initialize(self, args):
        self.first = threading.Event()

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.watch, args=(request, request.get_response_sender())).start()

    def watch(self, request, sender):
        if how(request) == "wait":
            self.first.set()
            while not request.is_cancelled():
                time.sleep(0.01)
            self.cancelled = sender.is_cancelled()
        elif how(request) == "call":
            called = pb_utils.InferenceRequest(
                model_name="watches", inputs=[pb_utils.Tensor("HOW", np.array([b"endless"], np.object_))]
            ).exec(decoupled=True)
            next(called)
            called.cancel()
            sender.send(text("called"))
        elif how(request) == "endless":
            while not request.is_cancelled():
                sender.send(text("more"))
            self.cancelled = True
        else:
            self.first.wait()
            sender.send(text([request.is_cancelled(), getattr(self, "cancelled", None)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TELLS = """
class TritonPythonModel:
    def execute(self, requests):
        parameters = {"text": "ä", "number": 7, "flag": True}
        return [pb_utils.InferenceResponse(r.inputs() and [pb_utils.Tensor("y", r.inputs()[0].as_numpy())],
                                           parameters=parameters) for r in requests]
"""
STREAMS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            for i in range(2):
                y = pb_utils.Tensor("y", np.array([i], np.float32))
                request.get_response_sender().send(pb_utils.InferenceResponse([y], parameters={"number": i}))
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        found = []
        for r in requests:
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[r.correlation_id()] = 0
            self.sums[r.correlation_id()] += r.inputs()[0].as_numpy()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", self.sums[r.correlation_id()])]))
        return found
"""
DOES = """
class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("own_counts", "What a test counts", pb_utils.MetricFamily.COUNTER)
        self.count = family.Metric(labels={"which": 'a "b"'})
        self.count.increment(2)
        sizes = pb_utils.MetricFamily("own_sizes", "Sizes", pb_utils.MetricFamily.HISTOGRAM)
        self.sizes = sizes.Metric(buckets=[1, 10])
        self.level = pb_utils.MetricFamily("own_level", "A level", pb_utils.MetricFamily.GAUGE).Metric()
        pb_utils.MetricFamily("nv_own", "Not its own", pb_utils.MetricFamily.GAUGE).Metric()
        self.ready = True

    def is_ready(self):
        return self.ready

    def execute(self, requests):
        found = []
        for request in requests:
            name, _, rest = how(request).partition(" ")
            try:
                found.append(text(getattr(self, name)(rest)))
            except pb_utils.TritonModelException as error:
                found.append(text("refused: " + str(error)))
        return found

    def metrics(self, rest):
        self.count.increment(0.5)
        for value in (0.5, 1, 3, 50):
            self.sizes.observe(value)
        self.level.set(7)
        self.level.increment(-3)
        return [self.count.value(), self.level.value()]

    def wrong(self, rest):
        return self.count.set(1)

    def switch(self, rest):
        self.ready = json.loads(rest)

    def load(self, rest):
        return pb_utils.load_model(rest)

    def unload(self, rest):
        return pb_utils.unload_model(rest)

    def ask(self, rest):
        return pb_utils.is_model_ready(rest)

    def sequence(self, rest):
        sums = []
        for step in range(3):
            called = pb_utils.InferenceRequest(
                model_name="sums", requested_output_names=["y"], correlation_id=5, flags=(1, 0, 2)[step],
                inputs=[pb_utils.Tensor("x", np.array([step + 1], np.float32))]).exec()
            sums.append(float(called.output_tensors()[0].as_numpy()[0]))
        return sums

    def parameters(self, rest):
        called = pb_utils.InferenceRequest(
            model_name="tells", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", np.ones(1, np.float32))]).exec()
        return json.loads(called.parameters())
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("backend")
    folder = write(models, "raises", ONE, RAISES)
    (folder / "1" / "fails.py").write_text(FAILS)
    write(models, "watches", TOLD + DECOUPLED, HEAD + WATCHES)
    write(models, "tells", ONE, HEAD + TELLS)
    write(models, "streams", ONE + DECOUPLED, HEAD + STREAMS)
    write(models, "sums", ONE + " sequence_batching { }", HEAD + SUMS)
    write(models, "does", TOLD, HEAD + DOES)
    double(models, "double")
    names = [
        option
        for name in ("raises", "watches", "tells", "streams", "sums", "does")
        for option in ("--load-model", name)
    ]
    with running(models, "--allow-python-models", "--model-control-mode", "explicit", *names) as server:
        yield server


def told(server: Server, what: str, model: str = "does") -> Any:
    """Returns what a model tells for a request."""
    client = connect(server, "http")
    found = client.infer(model, [tensor("http", "HOW", np.array([what.encode()], np.object_), "BYTES")])
    client.close()
    return json.loads(found.as_numpy("TOLD")[0])


@pytest.mark.parametrize("protocol", CLIENTS)
def test_an_error_says_where_it_came_from(gateway: Server, protocol: str) -> None:
    client = connect(gateway, protocol)
    with pytest.raises(InferenceServerException) as raised:
        client.infer("raises", [tensor(protocol, "x", np.ones(1, np.float32), "FP32")])
    client.close()
    said = raised.value.message()
    assert said.endswith("ValueError: no such thing\n\nAt:\n  1/fails.py(3): fail\n  1/model.py(6): execute\n")
    wait_until(lambda: any("execute failed" in line for line in gateway.log))
    lines = [json.loads(line) for line in gateway.log if "execute failed" in line]
    assert all("1/fails.py(3): fail" in line["message"] and "no such" not in line["message"] for line in lines)


def test_an_error_with_attributes_of_its_own(tmp_path: Path) -> None:
    """They are not the gateway's: the client learns its class and where it came from, and the process lives on."""
    source = """
import os, numpy as np, triton_python_backend_utils as pb_utils
class OutOfLuck(Exception):
    kind, message = "luck", "nothing to see"
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] < 0:
            raise OutOfLuck("no luck")
        y = pb_utils.Tensor("y", np.array([os.getpid() % 10_000], np.float32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
    write(tmp_path, "luck", ONE, source)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")

        def ask(x: float) -> Any:
            return client.infer("luck", [tensor("http", "x", np.array([x], np.float32), "FP32")]).as_numpy("y")[0]

        process = ask(1)
        with pytest.raises(InferenceServerException, match=r"OutOfLuck: no luck\n\nAt:\n  1/model.py\(8\): execute"):
            ask(-1)
        assert ask(1) == process
        client.close()


def test_the_lines_can_be_hidden(tmp_path: Path) -> None:
    folder = write(tmp_path, "raises", ONE, RAISES)
    (folder / "1" / "fails.py").write_text(FAILS)
    with running(tmp_path, "--allow-python-models", "--no-python-error-lines") as server:
        client = connect(server, "http")
        with pytest.raises(InferenceServerException) as raised:
            client.infer("raises", [tensor("http", "x", np.ones(1, np.float32), "FP32")])
        client.close()
        assert raised.value.message().endswith("ValueError: no such thing")


def test_each_request_knows_whether_it_is_wanted(gateway: Server) -> None:
    leaving = grpc_client.InferenceServerClient(f"127.0.0.1:{gateway.grpc}")
    leaving.start_stream(lambda result, error: None)
    leaving.async_stream_infer("watches", [tensor("grpc", "HOW", np.array([b"wait"], np.object_), "BYTES")])
    staying = Stream(gateway)
    staying.ask("watches", "HOW", [b"look"], "BYTES")
    assert json.loads(staying.next("TOLD")[0]) == [False, None]
    assert staying.next("TOLD") is None
    leaving.stop_stream(cancel_requests=True)
    leaving.close()

    def cancelled() -> Any:
        staying.ask("watches", "HOW", [b"look"], "BYTES")
        found = json.loads(staying.next("TOLD")[0])
        assert staying.next("TOLD") is None
        return found[1]

    wait_until(cancelled)
    staying.ask("watches", "HOW", [b"call"], "BYTES")
    assert json.loads(staying.next("TOLD")[0]) == "called" and staying.next("TOLD") is None
    staying.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_parameters_of_a_response(gateway: Server, protocol: str) -> None:
    client = connect(gateway, protocol)
    given = {"text": "ä", "number": 7, "flag": True}
    for _ in range(2):  # the second request has the envelope of the first
        found = client.infer("tells", [tensor(protocol, "x", np.ones(1, np.float32), "FP32")]).get_response()
        if protocol == "http":
            assert found["parameters"] == given
        else:
            values = {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in found.parameters.items()}
            assert values == given
    client.close()
    assert told(gateway, "parameters") == given


def test_parameters_of_the_responses_of_a_stream(gateway: Server) -> None:
    found: list[Any] = []
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{gateway.grpc}")
    client.start_stream(
        lambda result, error: found.append(error or result.get_response().parameters["number"].int64_param)
    )
    client.async_stream_infer("streams", [tensor("grpc", "x", np.ones(1, np.float32), "FP32")])
    wait_until(lambda: len(found) == 2)
    client.stop_stream()
    client.close()
    assert found == [0, 1]


def test_a_call_of_a_model_with_sequences(gateway: Server) -> None:
    assert told(gateway, "sequence") == [1, 3, 6]


def test_metrics_of_a_model(gateway: Server) -> None:
    assert told(gateway, "metrics") == [2.5, 4.0]
    assert told(gateway, "wrong").startswith("refused: set: expected a gauge")
    text = gateway.get("/metrics")
    for line in (
        "# HELP own_counts What a test counts",
        "# TYPE own_counts counter",
        r'own_counts{which="a \"b\""} 2.5',
        "# TYPE own_sizes histogram",
        'own_sizes_bucket{le="1.0"} 2.0',
        'own_sizes_bucket{le="10.0"} 3.0',
        'own_sizes_bucket{le="+Inf"} 4.0',
        "own_sizes_count 4.0",
        "own_sizes_sum 54.5",
        "own_level 4.0",
    ):
        assert f"{line}\n" in text, line
    assert "nv_own" not in text
    assert any("nv_own" in line and "no name that begins with" in line for line in gateway.log)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_model_that_says_whether_it_is_ready(gateway: Server, protocol: str) -> None:
    client = connect(gateway, protocol)
    assert client.is_model_ready("does")
    for said in ("false", "3"):
        told(gateway, f"switch {said}")
        assert not client.is_model_ready("does")
    told(gateway, "switch true")
    assert client.is_model_ready("does") and client.is_server_ready()
    client.close()


def test_readiness_while_the_model_runs(tmp_path: Path) -> None:
    source = """
import time, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    async def is_ready(self):
        return True
    def execute(self, requests):
        time.sleep(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    write(tmp_path, "sleeps", ONE, source)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        asked = client.async_infer("sleeps", [tensor("http", "x", np.ones(1, np.float32), "FP32")])
        time.sleep(0.3)
        other = connect(server, "http")
        assert other.is_model_ready("sleeps")
        assert server.metric("nv_inference_count", "sleeps") == 0  # it still runs
        other.close()
        asked.get_result()
        client.close()


def test_a_model_loads_another(gateway: Server) -> None:
    assert told(gateway, "ask double") is False
    assert told(gateway, "load double") is None
    assert told(gateway, "ask double") is True
    client = connect(gateway, "http")
    assert client.is_model_ready("double")
    assert told(gateway, "unload double") is None
    wait_until(lambda: not client.is_model_ready("double"))
    assert "refused" in told(gateway, "load nothing")
    client.close()


def test_a_model_loads_no_other_where_clients_can_not(tmp_path: Path) -> None:
    write(tmp_path, "does", TOLD, HEAD + DOES)
    with running(tmp_path, "--allow-python-models") as server:
        assert "--model-control-mode none, expected explicit" in told(server, "load does")


def test_metrics_of_several_processes_are_added_up(tmp_path: Path) -> None:
    write(tmp_path, "does", TOLD, HEAD + DOES)
    with running(tmp_path, "--allow-python-models", "--workers", "2") as server:
        assert 'own_counts{which="a \\"b\\""} 4.0\n' in server.get("/metrics")


def test_a_file_beside_the_config_hides_no_package(tmp_path: Path) -> None:
    source = """
import json, numpy as np, triton_python_backend_utils as pb_utils
import model_helper
class TritonPythonModel:
    def execute(self, requests):
        y = np.array([float(hasattr(json, "loads") and model_helper.READY)], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]) for _ in requests]
"""
    folder = write(tmp_path, "hides", ONE, source)
    (folder / "1" / "json.py").write_text("")
    (folder / "1" / "model_helper.py").write_text("READY = True")
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, "http")
        assert client.infer("hides", [tensor("http", "x", np.ones(1, np.float32), "FP32")]).as_numpy("y") == [1]
        client.close()


def test_a_request_for_which_nothing_comes(tmp_path: Path) -> None:
    """It ends in time, and others are served meanwhile and afterwards."""
    source = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [None if r.inputs()[0].as_numpy()[0] < 0 else
                pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    write(tmp_path, "forgets", ONE, source)
    with running(tmp_path, "--allow-python-models", env={"OPGATE_RUN_TIMEOUT": "1"}) as server:
        client = connect(server, "http")
        lost = client.async_infer("forgets", [tensor("http", "x", np.array([-1], np.float32), "FP32")])
        other = connect(server, "http")
        for _ in range(3):
            found = other.infer("forgets", [tensor("http", "x", np.array([2], np.float32), "FP32")])
            assert found.as_numpy("y") == [2]
        with pytest.raises(InferenceServerException, match="sent nothing for 1 s"):
            lost.get_result()
        found = other.infer("forgets", [tensor("http", "x", np.array([2], np.float32), "FP32")])
        assert found.as_numpy("y") == [2]
        client.close()
        other.close()


def test_a_stop_waits_for_responses(tmp_path: Path) -> None:
    source = """
import threading, time, numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            threading.Thread(target=self.send, args=(r.get_response_sender(),)).start()
    def send(self, sender):
        time.sleep(1)
        y = pb_utils.Tensor("y", np.array([1], np.float32))
        sender.send(pb_utils.InferenceResponse([y]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write(tmp_path, "slow", ONE + DECOUPLED, source)
    with running(tmp_path, "--allow-python-models", "--model-control-mode", "explicit", "--load-model", "*") as server:
        url = f"{server.url}/v2/models/slow/generate_stream"
        with urllib.request.urlopen(urllib.request.Request(url, b'{"x": 1}'), timeout=20) as answer:
            client = connect(server, "http")
            client.unload_model("slow")
            client.close()
            assert json.loads(answer.read().removeprefix(b"data: "))["y"] == 1
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, b'{"x": 1}'), timeout=20)


def test_a_stream_may_take_longer_than_a_run(tmp_path: Path) -> None:
    """The time of a run begins anew with each response, also of a model that sends them within `execute`."""
    source = """
import time, numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(8):
                time.sleep(0.4)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([i], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write(tmp_path, "long", ONE + DECOUPLED, source)
    with running(tmp_path, "--allow-python-models", env={"OPGATE_RUN_TIMEOUT": "2"}) as server:
        stream = Stream(server)
        stream.ask("long", "x", [1], "FP32")
        assert [stream.next("y")[0] for _ in range(8)] == list(range(8)) and stream.next("y") is None
        stream.close()


def test_two_ask_whether_a_model_is_ready_and_one_leaves(tmp_path: Path) -> None:
    source = """
import time, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def is_ready(self):
        time.sleep(1)
        return True
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    write(tmp_path, "asked", ONE, source)
    with running(tmp_path, "--allow-python-models") as server:
        with socket.create_connection(("127.0.0.1", server.http)) as leaving:
            leaving.sendall(b"GET /v2/models/asked/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.3)
            found: list[int] = []

            def ask() -> None:
                with urllib.request.urlopen(f"{server.url}/v2/models/asked/ready", timeout=20) as answer:
                    found.append(answer.status)

            staying = threading.Thread(target=ask)
            staying.start()
            time.sleep(0.3)
        staying.join(20)
        ask()
        assert found == [200, 200]


def test_loads_that_fail_leave_nothing_open(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("not today")
    def execute(self, requests):
        pass
"""
    write(tmp_path, "fails", ONE, source)
    with running(tmp_path, "--allow-python-models", "--model-control-mode", "explicit") as server:
        client = connect(server, "http")

        def descriptors() -> int:
            with pytest.raises(InferenceServerException, match="not today"):
                client.load_model("fails")
            return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

        descriptors()
        before = descriptors()
        for _ in range(5):
            descriptors()
        wait_until(lambda: descriptors() <= before)
        client.close()


def test_coroutines_that_are_cancelled_and_loops_that_are_closed(tmp_path: Path) -> None:
    """A client learns of the first, and the second end nobody but themselves."""
    source = """
import asyncio, threading, numpy as np, triton_python_backend_utils as pb_utils

class Own(threading.Thread):
    def run(self):
        async def leave():
            call = pb_utils.InferenceRequest(
                model_name="slow", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", np.ones(1, np.float32))])
            asyncio.ensure_future(call.async_exec())
            await asyncio.sleep(0.05)
        asyncio.new_event_loop().run_until_complete(leave())  # nobody takes the answer any more

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if x[0] < 0:
                raise asyncio.CancelledError
            own = Own()
            own.start()
            await asyncio.sleep(0.5)
            y = pb_utils.Tensor("y", x)
            request.get_response_sender().send(
                pb_utils.InferenceResponse([y]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    slow = """
import time, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.2)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    write(tmp_path, "own", ONE + DECOUPLED, source)
    write(tmp_path, "slow", ONE, slow)
    with running(tmp_path, "--allow-python-models") as server:
        stream = Stream(server)
        for x in (1, -1, 2):
            stream.ask("own", "x", [x], "FP32")
            if x < 0:
                assert "cancelled" in stream.next("y")
            else:
                assert stream.next("y") == [x]
        stream.close()
        assert server.metric("nv_inference_request_success", "slow") == 2


@pytest.mark.parametrize("protocol", CLIENTS)
def test_bf16(tmp_path: Path, protocol: str) -> None:
    """Tensors of BF16 go to PyTorch and come from it by DLPack. NumPy has no such type."""
    pytest.importorskip("torch")
    source = """
import torch, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.doubled(r.inputs()[0])]) for r in requests]
    def doubled(self, tensor):
        try:
            tensor.as_numpy()
        except pb_utils.TritonModelException as error:
            assert "to_dlpack" in str(error)
        x = torch.from_dlpack(tensor)
        again = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        assert x.dtype == again.dtype == torch.bfloat16 and tensor.triton_dtype() == 14 and torch.equal(x, again)
        return pb_utils.Tensor.from_dlpack("y", 2 * x)
"""
    caller = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            called = pb_utils.InferenceRequest(
                model_name="doubles", requested_output_names=["y"], inputs=request.inputs()).exec()
            assert called.output_tensors()[0].triton_dtype() == 14
            found.append(pb_utils.InferenceResponse(called.output_tensors()))
        return found
"""
    config = ONE.replace("FP32", "BF16").replace("dims: [ 1 ]", "dims: [ -1 ]")
    write(tmp_path, "doubles", config, source)
    write(tmp_path, "calls", config, caller)
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, protocol)
        x = np.array([1, -2.5, 1e30, 0, np.inf], ml_dtypes.bfloat16)
        for model in ("doubles", "calls"):
            found = client.infer(model, [tensor(protocol, "x", x, "BF16")]).as_numpy("y")
            assert found.astype(np.float32).tolist() == (2 * x).astype(np.float32).tolist()
        client.close()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_an_output_that_a_later_step_needs_is_left_out(tmp_path: Path, protocol: str) -> None:
    """It is the model's fault and not the client's."""
    source = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]
                                           if r.inputs()[0].as_numpy()[0] > 0 else []) for r in requests]
"""
    write(tmp_path, "leaves", ONE, source)
    double(tmp_path, "double", shape=(1,))
    (tmp_path / "both" / "1").mkdir(parents=True)
    steps = """platform: "ensemble" ensemble_scheduling { step [
        { model_name: "leaves" input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
        { model_name: "double" input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } } ] }"""
    (tmp_path / "both" / "config.pbtxt").write_text(f"{ONE} {steps}")
    with running(tmp_path, "--allow-python-models") as server:
        client = connect(server, protocol)
        found = client.infer("both", [tensor(protocol, "x", np.array([3], np.float32), "FP32")])
        assert found.as_numpy("y") == [6]
        with pytest.raises(InferenceServerException, match="'leaves' left out 'between'") as raised:
            client.infer("both", [tensor(protocol, "x", np.array([-3], np.float32), "FP32")])
        assert raised.value.status() == ("500" if protocol == "http" else "StatusCode.INTERNAL")
        client.close()
