"""The memory that requests take goes when their answers or their clients have gone, without Python's collector."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
import struct
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import trustme
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from tests.conftest import ALL
from tests.service.onnx_models import double, endless, identity, save, value, write_config
from tests.system.conftest import PIPELINE, wait_until
from tests.system.resources import descendants
from tests.system.running import running
from tests.system.test_http import Connection, infer_request

MB = 1 << 20


def make_models(folder):
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    write_config(folder, "twice", PIPELINE.replace("max_batch_size: 8", "").replace("dims: [ 4 ]", "dims: [ -1, -1 ]"))
    identity(folder, "texts", "BYTES", ("n",))
    endless(folder, "endless", config='backend: "onnxruntime"')
    # The engine refuses sizes that seven doesn't divide.
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [7, -1])
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    save(folder, "sevens", [node], [value("x", "FP32", ("n",))], [value("y", "FP32", (7, "k"))], initializers=[shape])


@pytest.fixture
def repository(tmp_path):
    make_models(tmp_path)
    return tmp_path


@contextlib.contextmanager
def uncollected(repository, *options, env=None):
    options = ("--max-body-bytes", str(64 * MB), *options)
    with running(repository, *options, env=env, program="tests.system.uncollected_server") as started:
        yield started


@pytest.fixture
def server(repository):
    with uncollected(repository) as started:
        yield started


@pytest.mark.parametrize(
    ("model", "protocol"),
    itertools.product(("double", "twice"), ("http", "grpc")) if ALL else [("double", "http"), ("twice", "grpc")],
)
def test_many_large_requests_take_the_memory_of_a_few(server, protocol, model):
    """Each brings 16 MB and gets 16 MB. All connections stay open."""
    triton, port = (triton_http, server.http) if protocol == "http" else (triton_grpc, server.grpc)
    options = {} if protocol == "http" else {"channel_args": [("grpc.max_receive_message_length", -1)]}
    x = triton.InferInput("x", [1024, 4096], "FP32")
    x.set_data_from_numpy(np.ones((1024, 4096), np.float32))
    before = server.megabytes("VmRSS")
    clients = [triton.InferenceServerClient(f"127.0.0.1:{port}", **options) for _ in range(8)]
    for i in range(48):
        assert clients[i % 8].infer(model, [x]).as_numpy("y")[0, 0] == (2 if model == "double" else 4)
    most = server.megabytes("VmHWM") - before
    left = server.megabytes("VmRSS") - before
    # gRPC's library keeps some buffers, however many requests there were.
    assert most < 32 * 16 and left < (8 if protocol == "http" else 16) * 16, (most, left)
    for client in clients:
        client.close()


WRONG_SIZE, IN_THE_ENGINE, IN_THE_ANSWER = "a wrong size", "an error of the engine", "an answer that can't be written"


def failing(kind):
    """A message of 16 MB, which is refused."""
    if kind == IN_THE_ANSWER:
        message = service_pb2.ModelInferRequest(model_name="texts")
        message.inputs.add(name="x", datatype="BYTES", shape=[2])
        message.outputs.add(name="y").parameters["content_type"].string_param = "str"
        content = (16 * MB).to_bytes(4, "little") + b"a" * (16 * MB) + b"\1\0\0\0\xff"
    else:
        message = service_pb2.ModelInferRequest(model_name="sevens")
        message.inputs.add(name="x", datatype="FP32", shape=[4 * MB if kind == IN_THE_ENGINE else 3])
        content = bytes(16 * MB)
    message.raw_input_contents.append(content)
    return message


@contextlib.contextmanager
def calls(server):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options=options) as channel:
        yield GRPCInferenceServiceStub(channel)


#: Each call and each kind once at least. `make test-all` runs all pairs.
REFUSED = [
    ("ModelInfer", WRONG_SIZE),
    ("ModelInfer", IN_THE_ANSWER),
    ("ModelStreamInfer", IN_THE_ENGINE),
    ("http", IN_THE_ANSWER),
]
if ALL:
    REFUSED = list(
        itertools.product(("ModelInfer", "ModelStreamInfer", "http"), (WRONG_SIZE, IN_THE_ENGINE, IN_THE_ANSWER))
    )


@pytest.mark.parametrize(("call", "kind"), REFUSED)
def test_many_refused_requests_take_the_memory_of_a_few(server, call, kind):
    """An error knows the frames that raised it, and these know the data."""
    message = failing(kind)
    before = server.megabytes("VmRSS")
    with calls(server) as stub:
        if call == "ModelStreamInfer":
            assert all(answer.error_message for answer in stub.ModelStreamInfer(message for _ in range(25)))
        for _ in range(25 if call == "ModelInfer" else 0):
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(message)
        for _ in range(25 if call == "http" else 0):
            assert over_http(server, message) in (400, 500)
    left = server.megabytes("VmRSS") - before
    assert left < 10 * 16, left


def over_http(server, message):
    """Sends a message as a binary request. Returns the status."""
    (tensor,), (content,) = message.inputs, message.raw_input_contents
    item = {"name": "x", "datatype": tensor.datatype, "shape": list(tensor.shape)}
    item["parameters"] = {"binary_data_size": len(content)}
    outputs = [{"name": "y", "parameters": {"content_type": "str", "binary_data": True}}] if message.outputs else None
    head = json.dumps({"inputs": [item], **({"outputs": outputs} if outputs else {})}).encode()
    headers = f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + len(content)}\r\n\r\n"
    with Connection(server) as connection:
        path = f"POST /v2/models/{message.model_name}/infer HTTP/1.1\r\nHost: t\r\n"
        return connection.send(f"{path}{headers}".encode() + head + content).read()[0]


def test_streams_that_wait_hold_no_data(repository):
    """Each has sent 16 MB and read as many. What is freed goes back to the system at once."""
    go_on = threading.Event()

    def once():
        message = service_pb2.ModelInferRequest(model_name="double")
        message.inputs.add(name="x", datatype="FP32", shape=[1, 4 * MB])
        message.raw_input_contents.append(bytes(16 * MB))
        yield message
        go_on.wait(60)

    at_once = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}
    with uncollected(repository, env=at_once) as server, calls(server) as stub:
        next(stub.ModelStreamInfer(once()))
        before = server.megabytes("VmRSS")
        waiting = []
        for _ in range(10):  # one after the other, because the engine keeps the memory of outputs that it had at once
            waiting.append(stream := stub.ModelStreamInfer(once()))
            assert len(next(stream).infer_response.raw_output_contents[0]) == 16 * MB
        wait_until(lambda: server.megabytes("VmRSS") - before < 6 * 16)
        go_on.set()
        for stream in waiting:
            assert list(stream) == []


def half_a_body(server):
    connection = Connection(server)
    connection.send(BINARY[: 12 * MB])
    return connection


def half_a_chunked_body(server):
    connection = Connection(server)
    connection.send(b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.send(b"%x\r\n" % (16 * MB) + b" " * (12 * MB))
    return connection


def half_a_body_of_another_route(server):
    connection = Connection(server)
    connection.send(b"POST /predict/double HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (16 * MB))
    connection.send(b" " * (12 * MB))
    return connection


def a_request_that_runs(server):
    connection = Connection(server)
    connection.send(BINARY)
    return connection


def an_answer_that_is_not_read(server):
    connection = Connection(server)
    connection.send(BINARY)
    connection.socket.recv(100)
    return connection


def two_requests_at_once(server):
    connection = Connection(server)
    connection.socket.settimeout(0.1)
    with contextlib.suppress(TimeoutError):  # the second is not read before the first is answered
        connection.send(BINARY * 2)
    return connection


HEAD = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 4 * MB], "parameters": {"binary_data_size": 16 * MB}},
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY = (
    b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    % (len(HEAD), len(HEAD) + 16 * MB)
    + HEAD
    + bytes(16 * MB)
)


@pytest.mark.parametrize(
    "begin",
    [
        half_a_body,
        half_a_chunked_body,
        half_a_body_of_another_route,
        a_request_that_runs,
        an_answer_that_is_not_read,
        two_requests_at_once,
    ],
)
def test_the_memory_of_clients_that_leave_goes_with_them(server, begin):
    """Each of 30 clients makes the gateway hold 12 MB or more, and then leaves without another request."""
    begin(server).socket.close()
    time.sleep(0.5)
    before = server.megabytes("VmRSS")
    for i in range(30):
        connection = begin(server)
        time.sleep(0.01 * (i % 4))
        connection.socket.close()
    wait_until(lambda: server.megabytes("VmRSS") - before < 100)


def test_an_idle_gateway_gives_freed_memory_back(repository):
    """A large request lets the C library keep what later ones free, up to twice as much as it took."""
    with running(repository, "--max-body-bytes", str(64 * MB)) as server:
        infer(server, rows=6 * MB)
        before = server.megabytes("RssAnon")
        threads = [threading.Thread(target=infer, args=(server, MB // 2)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: server.megabytes("RssAnon") - before < 4)


@pytest.mark.parametrize("isolated", [False, True])
def test_an_idle_gateway_gives_the_memory_of_answers_back(tmp_path, isolated):
    """Twelve clients hold 64 MB each, which ONNX Runtime has made. It keeps what they free for the next runs."""
    zeros = helper.make_node("ConstantOfShape", ["n"], ["y"])
    isolation = 'parameters { key: "isolation" value { string_value: "process" } }' if isolated else ""
    given, made = value("n", "INT64", (1,)), value("y", "FP32", ("k",))
    save(tmp_path, "zeros", [zeros], [given], [made], config=f'backend: "onnxruntime" {isolation}')
    body = json.dumps(
        {
            "inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [16 * MB]}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    head = b"POST /v2/models/zeros/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body)
    with running(tmp_path) as server:

        def megabytes():
            return sum(resident(pid) for pid in (server.process.pid, *descendants(server.process.pid)))

        before = megabytes()
        connections = [Connection(server) for _ in range(12)]
        for connection in connections:
            connection.send(head + body)
            assert connection.socket.recv(20).startswith(b"HTTP/1.1 200")
        assert megabytes() - before > 12 * 40
        for connection in connections:
            connection.socket.close()
        wait_until(lambda: megabytes() - before < 2 * 64 + 40, 30)


def resident(pid):
    """Returns the megabytes of a process that are in memory and no file's."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


SMALL = infer_request()
ENDLESS = infer_request(path="/v2/models/endless/infer")
GET = b"GET %s HTTP/1.1\r\nHost: t\r\n%s\r\n"


@pytest.fixture(scope="module", params=["HTTP", "HTTPS"])
def door(request, tmp_path_factory):
    """A server, and a function that connects to it and returns a socket that knows HTTP."""
    folder = tmp_path_factory.mktemp("door")
    make_models(folder / "models")
    options, context = [], None
    if request.param == "HTTPS":
        authority = trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "localhost.pem")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        options = [f"--ssl-certfile={folder / 'localhost.pem'}", f"--ssl-keyfile={folder / 'localhost.pem'}"]

    @contextlib.contextmanager
    def connect():
        with Connection(server) as connection:
            if context is not None:
                connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")
            yield connection
            connection.socket.close()

    with uncollected(folder / "models", *options) as server:
        yield server, connect


def answered(request, status=200):
    def talk(server, connect):
        with connect() as connection:
            assert connection.send(request).read()[0] == status

    return talk


def unanswered(request, reset=False):
    def talk(server, connect):
        with connect() as connection:
            connection.send(request)
            if reset:
                time.sleep(0.03)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return talk


def chunked(request):
    head, body = request.split(b"\r\n\r\n", 1)
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(answered(SMALL), id="infer"),
        pytest.param(answered(BINARY), id="a large body"),
        pytest.param(answered(chunked(SMALL)), id="a chunked body"),
        pytest.param(answered(SMALL.replace(b"double", b"treble"), 404), id="no such model"),
        pytest.param(answered(chunked(SMALL.replace(b"FP32", b"FP23")), 400), id="a chunked body that is refused"),
        pytest.param(answered(GET % (b"/v2/models/double", b"")), id="another route"),
        pytest.param(answered(GET % (b"/v2", b"Connection: close\r\n")), id="the last request"),
        pytest.param(answered(GET % (b"/metrics", b"")), id="metrics"),
        pytest.param(answered(b"no HTTP\r\n\r\n", 400), id="no HTTP"),
        pytest.param(unanswered(SMALL), id="a client that doesn't wait"),
        pytest.param(unanswered(5 * SMALL), id="pipelined requests"),
        pytest.param(unanswered(5 * (GET % (b"/v2", b""))), id="pipelined, another route"),
        pytest.param(unanswered(chunked(ENDLESS) + GET % (b"/v2", b""), reset=True), id="pipelined after a run"),
        pytest.param(unanswered(ENDLESS, reset=True), id="a client that leaves a run"),
        pytest.param(unanswered(BINARY[:200_000]), id="a part of a body"),
        pytest.param(unanswered(chunked(BINARY)[:200_000]), id="a part of a chunked body"),
        pytest.param(unanswered(SMALL[:40]), id="a part of a head"),
        pytest.param(unanswered(b""), id="nothing"),
    ],
)
def test_a_connection_that_has_gone_leaves_nothing_for_the_collector(door, talk):
    server, connect = door
    leaves_nothing(server, lambda: talk(*door), connect)


def leaves_nothing(server, talk, connect):
    def all_have_gone():
        with connect() as connection:
            metrics = connection.send(GET % (b"/metrics", b"")).read()[2]
        return b"opgate_http_connections 1.0" in metrics and b"opgate_running_requests 0.0" in metrics

    talk()
    wait_until(all_have_gone)
    server.tell("cycles")
    for _ in range(20):
        talk()
    wait_until(all_have_gone)
    assert server.tell("cycles")["objects"] < 20


def test_calls_of_grpc_leave_nothing_for_the_collector(server):
    def call():
        with contextlib.closing(triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")) as client:
            x = triton_grpc.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.infer("double", [x])
            with pytest.raises(InferenceServerException):
                client.infer("sevens", [x])

    leaves_nothing(server, call, lambda: Connection(server))


def test_a_refused_region_leaves_nothing_for_the_collector(server):
    body = b'{"key": "/not_there", "byte_size": 4}'
    head = b"POST /v2/systemsharedmemory/region/a/register HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"

    def register():
        with Connection(server) as connection:
            assert connection.send(head % len(body) + body).read()[0] == 400

    leaves_nothing(server, register, lambda: Connection(server))


def test_an_idle_gateway_frees_the_models_that_have_gone(repository):
    """Their parts refer to each other, so only the collector frees them. It doesn't come by itself here."""
    with uncollected(repository, "--model-control-mode=explicit", "--load-model=*") as server:
        with contextlib.closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.http}")) as client:
            for _ in range(50):
                client.unload_model("sevens")
                client.load_model("sevens")
        time.sleep(4)
        told = server.tell("cycles")
        assert told["objects"] > 1000 and told["left"] < 100


def infer(server, rows):
    """Sends so many elements, of four bytes."""
    with contextlib.closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.http}")) as client:
        x = triton_http.InferInput("x", [1, rows], "FP32")
        x.set_data_from_numpy(np.ones((1, rows), np.float32))
        assert client.infer("double", [x]).as_numpy("y").sum() == 2 * rows
