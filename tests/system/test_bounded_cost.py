"""No request holds the event loop for long, or takes more memory than a small multiple of its body.

The bounds are generous, because machines differ. `benchmarks/hostile.py` reports the figures of the same requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import threading
import time

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.service.onnx_models import double, identity
from tests.system.running import running
from tests.system.shared_files import shared_file
from tests.system.test_http import Connection

MB = 1 << 20
SPARSE = 1 << 40  # bytes of a file in /dev/shm that has none until they are written
# Milliseconds of CPU time for one turn of the event loop. Alone on a machine the longest takes 33; with compilers beside it on
# the same cores, twice that.
TURN = 100
# Models of a gateway with many, and what they may cost a turn. All at once they take several times as much.
CROWD, MANY_MODELS_TURN = 400, 30


@contextlib.contextmanager
def watched(folder):
    """Runs a gateway that measures its event loop, with models in this folder."""
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    identity(folder, "texts", "BYTES", shape=("a",), config='backend: "onnxruntime"')
    identity(folder, "bytes", "UINT8", shape=("a",), config='backend: "onnxruntime"')
    identity(folder, "numbers", "INT32", shape=("a",), config='backend: "onnxruntime"')
    identity(folder, "truth", "BOOL", shape=("a",), config='backend: "onnxruntime"')
    with shared_file(b"") as file, running(folder, program="tests.system.watched_server") as started:
        os.truncate(file.path, SPARSE)
        register = json.dumps({"key": file.key, "byte_size": SPARSE}).encode()
        ask(started, "/v2/systemsharedmemory/region/sparse/register", register)
        # The first runs of everything import modules and allocate what stays.
        for name, datatype, data in (("double", "FP32", [[1.0]]), ("texts", "BYTES", ["a"]), ("bytes", "UINT8", [1])):
            ask(started, *infer(name, datatype, np.shape(data), json.dumps(data).encode()))
        ask(started, *infer("double", "FP32", [1, MB], b"[" + b"1," * (MB - 1) + b"1]"))
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("repository")) as started:
        yield started


def infer(model, datatype, shape, data, extra=b""):
    """Returns the path and the body of a JSON request."""
    head = json.dumps({"name": "x", "datatype": datatype, "shape": list(shape)}).encode()
    return f"/v2/models/{model}/infer", b'{"inputs":[' + head[:-1] + b',"data":' + data + b"}]" + extra + b"}"


def ask(server, path, body, headers="Content-Type: application/json\r\n"):
    """Sends a request, while another client asks whether the server is alive. Returns the status and the answer."""
    with Connection(server) as connection, Connection(server) as other:
        connection.socket.settimeout(120)
        stop = threading.Event()

        def poll():
            while not stop.is_set():
                assert other.send(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200
                time.sleep(0.01)

        polling = threading.Thread(target=poll)
        polling.start()
        try:
            length = "" if "chunked" in headers else f"Content-Length: {len(body)}\r\n"
            head = f"POST {path} HTTP/1.1\r\nHost: t\r\n{headers}{length}\r\n"

            def send():
                with contextlib.suppress(OSError):  # a request that is refused early is not read to its end
                    connection.send(head.encode() + body)

            threading.Thread(target=send, daemon=True).start()
            status, _, answer = connection.read()
        finally:
            stop.set()
            polling.join()
        return status, answer


def packed(data):
    return gzip.compress(data, 6), "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"


def chunked(body, size):
    """Returns a body in chunks of so many bytes, and the headers that say so."""
    chunks = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for i in range(0, len(body), size) if (chunk := body[i : i + size])]
    return b"".join([*chunks, b"0\r\n\r\n"]), "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n"


def shared(model, datatype, shape, size, output=None, **classes):
    """Returns the path and the body of a request for a tensor of so many bytes in shared memory, whose output goes
    there too if it has this offset."""
    place = {"shared_memory_region": "sparse", "shared_memory_byte_size": size}
    wanted = {"name": "y", "parameters": classes}
    if output is not None:
        wanted["parameters"] |= {**place, "shared_memory_offset": output}
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": place}
    return f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()


def raw_texts(count):
    return np.zeros(4 * count, np.uint8).tobytes()


FORM = "Content-Type: multipart/form-data; boundary=b\r\n"


def lists():
    return b'{"inputs":[' + b"[]," * (20 * MB) + b"[]]}"


def numbers():
    return b"[" + b"1," * (15 * MB - 1) + b"1]"


# Name: what makes the request, the status of its answer, and the memory in megabytes that it may take.
REQUESTS = {
    "60 MB of lists, packed": (lambda: ("/v2/models/double/infer", *packed(lists())), 413, 200),
    "60 MB of lists": (lambda: ("/v2/models/double/infer", lists()), 413, 200),
    "lists in the tensor": (lambda: infer("double", "FP32", [1, 1], b"[" + b"[]," * (15 * MB) + b"[]]"), 400, 150),
    "deep lists": (lambda: infer("double", "FP32", [1, 1], b"[" * (30 * MB)), 400, 150),
    "30 MB of numbers": (lambda: infer("double", "FP32", [1, 15 * MB], numbers()), 200, 500),
    "numbers of another shape": (lambda: infer("double", "FP32", [1, 3], numbers()), 400, 150),
    "numbers and a mistake": (lambda: infer("double", "FP32", [1, 15 * MB], numbers()[:-2] + b"x]"), 400, 300),
    "a long id": (lambda: infer("double", "FP32", [1, 1], b"[1]", b',"id":"' + b"a" * (30 * MB) + b'"'), 413, 150),
    "many parameters": (lambda: infer("double", "FP32", [1, 1], b"[1]", b',"parameters":{' + b'"a":{},' * MB + b'"b":1}'), 413, 80),
    "over the limit of JSON": (lambda: ("/v2/models/double/infer", b" " * (65 * MB)), 413, 20),
    "a long shape": (lambda: ("/v2/models/double/infer", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[' + b"1," * 250_000
                      + b'1],"data":[1]}]}'), 400, 40),
    "a small packed body": (lambda: ("/v2/models/double/infer", *packed(b'{"inputs":[]' + b" " * (8 * MB) + b"}")), 413, 30),
    "many empty strings": (lambda: infer("texts", "BYTES", [130_000], b"[" + b'"",' * 129_999 + b'""]'), 200, 60),
    "one long string": (lambda: infer("texts", "BYTES", [1], b'["' + b"\\u00e9" * (2 * MB) + b'"]'), 200, 150),
    "as many strings as may be": (lambda: infer("texts", "BYTES", [MB // 8], b"[" + b'"ab",' * (MB // 8 - 1) + b'"ab"]'), 200, 60),
    "as many raw strings as may be": (lambda: ("/v2/models/texts/infer", raw_texts(MB // 8), None), 200, 40),
    "a million strings": (lambda: infer("texts", "BYTES", [MB], b"[" + b'"ab",' * (MB - 1) + b'"ab"]'), 413, 40),
    "a million raw strings": (lambda: ("/v2/models/texts/infer", raw_texts(MB), None), 413, 20),
    "8 million raw booleans": (lambda: ("/v2/models/truth/infer", b"\1" * (8 * MB), None), 200, 100),
    "booleans other than 0 and 1": (lambda: ("/v2/models/truth/infer", b"\1" * (64 * MB - 1) + b"\2", None), 200, 300),
    "many small parts of a form": (lambda: ("/predict/double", b"--b\r\n" * MB + b"--b--\r\n", FORM), 400, 100),
    "ends of lines in a form": (lambda: ("/predict/bytes", b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n'
                                 + b"\r\n-\r" * (2 * MB) + b"\r\n--b--\r\n", FORM), 200, 100),
    "a form of one long field": (lambda: ("/predict/double", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n['
                                  + b"[1]," * (4 * MB) + b"[1]]\r\n--b--\r\n", FORM), 200, 300),
    "a long head of a part": (lambda: ("/predict/double", b"--b\r\nX: " + b"y" * (8 * MB), FORM), 400, 100),
    "values for /predict": (lambda: ("/predict/double", b'{"x":[' + numbers() + b"]}"), 200, 700),
    "a file of 16 MB for /predict": (lambda: ("/predict/bytes", bytes(16 * MB), "Content-Type: application/octet-stream\r\n"), 200, 400),
    "a file of 16 MB in chunks": (lambda: ("/predict/bytes", *chunked(bytes(16 * MB), MB)), 200, 400),
    "numbers in small chunks": (lambda: ("/v2/models/double/infer", *chunked(infer("double", "FP32", [1, 3], numbers()[: 4 * MB])[1], 1000)),
                                400, 200),
    "a file of 16 MB in a form": (lambda: ("/predict/bytes", b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n'
                                   + bytes(16 * MB) + b"\r\n--b--\r\n", FORM), 200, 700),
    "60 MB in shared memory": (lambda: shared("bytes", "UINT8", [60 * MB], 60 * MB, 64 * MB), 200, 250),
    "as many strings in shared memory as may be": (lambda: shared("texts", "BYTES", [MB // 8], MB // 2, 64 * MB), 200, 60),
    "a terabyte of strings in shared memory": (lambda: shared("texts", "BYTES", [1], SPARSE), 413, 20),
    "as many classes as may be": (lambda: shared("numbers", "INT32", [15 * MB], 60 * MB, classification=MB // 8), 200, 800),
    "a million classes": (lambda: shared("numbers", "INT32", [15 * MB], 60 * MB, classification=MB), 413, 200),
    "as many classes of strings as may be": (lambda: shared("texts", "BYTES", [MB // 8], MB // 2, classification=MB // 8), 200, 60),
}  # fmt: skip


def test_many_small_packed_bodies_at_once(server):
    """Each becomes 40 MB. They are unpacked where they are read, two at a time."""
    path, body = infer("double", "FP32", [1, 1], b"[1" + b" " * (40 * MB) + b"]")
    body, headers = packed(body)
    server.forget_peak()
    before = server.megabytes("VmRSS")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, path, body, headers))) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} <= {200, 503} and (200 in {status for status, _ in answers})
    assert server.megabytes("VmHWM") - before < 300


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def call(model, datatype, shape, contents=b"", **more):
    """Returns the bytes of a ModelInferRequest whose input has these encoded contents."""
    head = service_pb2.ModelInferRequest(model_name=model, **more)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape)
    body = tensor.SerializeToString() + (b"\x2a" + varint(len(contents)) + contents if contents else b"")
    return head.SerializeToString() + b"\x2a" + varint(len(body)) + body


def raw(data):
    return b"\x3a" + varint(len(data)) + data


def packed_list(field, data):
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def shared_call(model, datatype, shape, size, output=None, **classes):
    """Returns the bytes of a ModelInferRequest as `shared` returns a JSON request."""
    message = service_pb2.ModelInferRequest(model_name=model)
    tensors = [
        (message.inputs.add(name="x", datatype=datatype, shape=shape), 0),
        (message.outputs.add(name="y"), output),
    ]
    for tensor, offset in tensors:
        if offset is not None:
            tensor.parameters["shared_memory_region"].string_param = "sparse"
            tensor.parameters["shared_memory_byte_size"].int64_param = size
            tensor.parameters["shared_memory_offset"].int64_param = offset
    for key, value in classes.items():
        message.outputs[0].parameters[key].int64_param = value
    return message.SerializeToString()


def numbers_and_parameters(count):
    message = service_pb2.ModelInferRequest()
    for i in range(count):
        message.parameters[f"p{i}"].int64_param = i
    return message.SerializeToString() + call("double", "FP32", [1, 1], packed_list(6, bytes(4)))


def unknown_inputs(count, parameters):
    message = service_pb2.ModelInferRequest(model_name="double")
    for i in range(count):
        tensor = message.inputs.add(name=f"n{i}", datatype="FP32", shape=[1, 1])
        for k in range(parameters):
            tensor.parameters[f"{k}"].int64_param = 1
    return message.SerializeToString()


# Name: what makes the message, whether it comes packed, the code of its answer, and the memory in megabytes that it may take.
CALLS = {
    "4 million packed numbers": (lambda: call("numbers", "INT32", [4 * MB], packed_list(2, b"\1" * (4 * MB))), False, "OK", 80),
    "15 million numbers one by one": (lambda: call("numbers", "INT32", [15 * MB], b"\x10\1" * (15 * MB)), False, "OK", 250),
    "numbers for another shape": (lambda: call("numbers", "INT32", [3], b"\x10\1" * (15 * MB)), False, "INVALID_ARGUMENT", 80),
    "numbers of another type": (lambda: call("double", "FP32", [1, 3], b"\x10\1" * (15 * MB)), False, "INVALID_ARGUMENT", 80),
    "as many strings as may be": (lambda: call("texts", "BYTES", [MB // 8], b"\x42\2ab" * (MB // 8)), False, "OK", 60),
    "a million strings": (lambda: call("texts", "BYTES", [MB], b"\x42\2ab" * MB), False, "RESOURCE_EXHAUSTED", 40),
    "strings for another shape": (lambda: call("texts", "BYTES", [3], b"\x42\0" * (8 * MB)), False, "INVALID_ARGUMENT", 40),
    "as many raw strings as may be": (lambda: call("texts", "BYTES", [MB // 8]) + raw(bytes(MB // 2)), False, "OK", 40),
    "8 million raw booleans": (lambda: call("truth", "BOOL", [8 * MB]) + raw(b"\1" * (8 * MB)), False, "OK", 100),
    "60 MB of zeros, packed": (lambda: call("bytes", "UINT8", [60 * MB]) + raw(bytes(60 * MB)), True, "OK", 400),
    "a long id": (lambda: call("double", "FP32", [1, 1], packed_list(6, bytes(4)), id="a" * (30 * MB)), False,
                  "RESOURCE_EXHAUSTED", 70),
    "a megabyte of inputs": (lambda: b"\x0a\6double" + b"\x2a\0" * 500_000, False, "RESOURCE_EXHAUSTED", 150),
    "ten million inputs": (lambda: b"\x2a\0" * (10 * MB), False, "RESOURCE_EXHAUSTED", 60),
    "ten million raw contents": (lambda: call("double", "FP32", [1, 1]) + b"\x3a\0" * (10 * MB), False, "RESOURCE_EXHAUSTED", 60),
    "parameters of unknown inputs": (lambda: unknown_inputs(230, 400), False, "INVALID_ARGUMENT", 60),
    "many parameters": (lambda: numbers_and_parameters(40_000), False, "INVALID_ARGUMENT", 60),
    "unknown fields": (lambda: b"\xa0\x06\1" * (10 * MB), False, "RESOURCE_EXHAUSTED", 60),
    "a long shape": (lambda: call("double", "FP32", [1] * 500_000, packed_list(6, bytes(4))), False, "INVALID_ARGUMENT", 40),
    "a long name": (lambda: call("m" * (MB - 100), "FP32", [1, 1]), False, "NOT_FOUND", 40),
    "60 MB in shared memory": (lambda: shared_call("bytes", "UINT8", [60 * MB], 60 * MB, 64 * MB), False, "OK", 250),
    "as many strings in shared memory as may be": (lambda: shared_call("texts", "BYTES", [MB // 8], MB // 2, 64 * MB), False, "OK", 60),
    "a terabyte of strings in shared memory": (lambda: shared_call("texts", "BYTES", [1], SPARSE), False, "RESOURCE_EXHAUSTED", 20),
    "as many classes as may be": (lambda: shared_call("numbers", "INT32", [15 * MB], 60 * MB, classification=MB // 8), False, "OK", 800),
    "a million classes": (lambda: shared_call("numbers", "INT32", [15 * MB], 60 * MB, classification=MB), False, "RESOURCE_EXHAUSTED", 200),
}  # fmt: skip


def measure_call(server, name):
    """Sends a message of CALLS, as `measure` sends a request. The status is the name of the code."""
    make, packed_message, *_ = CALLS[name]
    message = make()
    compression = grpc.Compression.Gzip if packed_message else grpc.Compression.NoCompression
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options=unlimited) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer(call("double", "FP32", [1, 1], packed_list(6, bytes(4))), timeout=60)
        server.longest_turn()
        server.forget_peak()
        before = server.megabytes("VmRSS")
        status, answer = "OK", b""
        with Connection(server) as other:  # the loop turns
            done = infer.future(message, timeout=60, compression=compression)
            while not done.done():
                assert other.send(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200
                time.sleep(0.01)
        try:
            answer = done.result()
        except grpc.RpcError as error:
            status, answer = error.code().name, error.details()
        turn, wall = server.longest_turns()
        return status, answer, turn, wall, server.megabytes("VmHWM") - before, len(message) / MB


@pytest.mark.parametrize("name", CALLS)
def test_a_hostile_call_is_cheap(server, name):
    _, _, wanted, megabytes = CALLS[name]
    status, answer, turn, _, most, _ = measure_call(server, name)
    assert status == wanted, answer[:300]
    assert turn < TURN and most < megabytes, (turn, most)


def binary(path, data):
    """Returns the path, the body and the headers of a binary request, whose data are empty strings or booleans."""
    datatype, size = ("BYTES", 4) if "texts" in path else ("BOOL", 1)
    tensor = {"name": "x", "datatype": datatype, "shape": [len(data) // size]}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return path, head + data, f"Inference-Header-Content-Length: {len(head)}\r\n"


def measure(server, name):
    """Sends a request of REQUESTS. Returns the status, the answer, the longest turn of the event loop in milliseconds
    of CPU time and of time, the memory that the process took for it in megabytes, and the megabytes of the body."""
    request = REQUESTS[name][0]()
    if request[-1] is None:
        request = binary(*request[:2])
    server.longest_turn()
    server.forget_peak()
    before = server.megabytes("VmRSS")
    status, answer = ask(server, *request)
    turn, wall = server.longest_turns()
    return status, answer, turn, wall, server.megabytes("VmHWM") - before, len(request[1]) / MB


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_cheap(server, name):
    _, wanted, megabytes = REQUESTS[name]
    status, answer, turn, _, most, _ = measure(server, name)
    assert status == wanted, answer[:300]
    assert turn < TURN and most < megabytes, (turn, most)


def test_a_thousand_calls_at_once(server):
    """On one connection. Each is answered, and they take little memory together."""

    async def main():
        message = service_pb2.ModelInferRequest(model_name="double", raw_input_contents=[bytes(4096)])
        message.inputs.add(name="x", datatype="FP32", shape=[1, 1024])
        data = message.SerializeToString()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            await call(data)
            server.longest_turn()
            server.forget_peak()
            before = server.megabytes("VmRSS")
            answers = await asyncio.gather(*(call(data) for _ in range(1000)))
            assert len({len(answer) for answer in answers}) == 1
            return server.longest_turn(), server.megabytes("VmHWM") - before

    turn, most = asyncio.run(main())
    assert turn < TURN and most < 60, (turn, most)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """A gateway with many models whose names are alike and long."""
    folder = tmp_path_factory.mktemp("crowd")
    for i in range(CROWD):
        double(folder, f"{'encoder-' * 7}{i:03}", config='backend: "onnxruntime"')
    with running(folder, program="tests.system.watched_server") as started:
        started.get("/metrics")
        yield started


@pytest.mark.parametrize("path", ["/metrics", "/v2/models/stats", f"/v2/models/{'encoder-' * 7}9999"])
def test_many_models_cost_no_turn(crowd, path):
    """What has a part for each model is made on a thread, and an unknown name is compared with few others."""
    with Connection(crowd) as connection:
        connection.socket.settimeout(60)
        for _ in range(2):
            crowd.longest_turn()
            status, _, body = connection.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode()).read()
            longest = crowd.longest_turn()
        assert status == (404 if "9999" in path else 200)
        assert status == 200 or b"did you mean" in body
        assert longest < MANY_MODELS_TURN


def test_who_scrapes_at_once_gets_the_same_text(crowd):
    """However many ask, the metrics are written by one thread."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Connection(crowd)) for _ in range(30)]
        for client in clients:
            client.socket.settimeout(60)
            client.send(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
        texts = {client.read()[2] for client in clients}
    assert 1 <= len(texts) <= 4
