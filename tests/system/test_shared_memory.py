"""System shared memory with the unmodified tritonclient and its own regions, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from onnx import helper
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, triton_to_np_dtype

from tests.service.onnx_models import batching, double, endless, identity, pick, save, value
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import TYPES, wait_until
from tests.system.running import running
from tests.system.shared_files import shared_file
from tests.system.test_tritonclient import sample

NOT_FOUND = {"http": "404", "grpc": "StatusCode.NOT_FOUND"}
INVALID = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}
UNSUPPORTED = {"http": "501", "grpc": "StatusCode.UNIMPLEMENTED"}


@pytest.fixture
def client(server, protocol):
    with connect(server, protocol) as connected:
        connected.unregister_system_shared_memory()
        yield connected
        connected.unregister_system_shared_memory()


@pytest.fixture
def region():
    """A region of tritonclient's own, with a megabyte, that no server knows."""
    handle = shm.create_shared_memory_region("region", f"/opgate_test_{uuid.uuid4().hex}", 1 << 20)
    yield handle
    shm.destroy_shared_memory_region(handle)


def register(client, region, name="region", offset=0, byte_size=1 << 20):
    client.register_system_shared_memory(name, region._shm_key, byte_size, offset)


def shared_input(protocol, array, datatype, region, offset, name="x", in_region="region"):
    """Puts an array into a region, and returns the input that lies there, and its size."""
    content = serialize_byte_tensor(array) if datatype == "BYTES" else array
    size = len(content.item()) if datatype == "BYTES" else array.nbytes
    shm.set_shared_memory_region(region, [content], offset)
    tensor = CLIENTS[protocol].InferInput(name, list(array.shape), datatype)
    tensor.set_shared_memory(in_region, size, offset)
    return tensor, size


def shared_output(protocol, size, offset, name="y"):
    output = CLIENTS[protocol].InferRequestedOutput(name)
    output.set_shared_memory("region", size, offset)
    return output


def plain_input(protocol, array, datatype="FP32", name="x"):
    tensor = CLIENTS[protocol].InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def text(array):
    return [e.decode() if isinstance(e, bytes) else e for e in array.reshape(-1)]


def is_open(server, region):
    """Returns whether a server has the file of a region open."""
    folder = Path(f"/proc/{server.process.pid}/fd")
    found = False
    for file in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            found |= os.readlink(folder / file).endswith(region._shm_key)
    return found


class TestRegions:
    def test_a_region_is_registered_described_and_forgotten(self, client, protocol, region):
        def described(name=""):
            status = client.get_system_shared_memory_status(name)
            rows = status if protocol == "http" else status.regions.values()
            fields = ("name", "key", "offset", "byte_size")
            return [tuple(row[f] if protocol == "http" else getattr(row, f) for f in fields) for row in rows]

        assert described() == []
        register(client, region)
        register(client, region, "part", 64, 128)
        rows = {("region", region._shm_key, 0, 1 << 20), ("part", region._shm_key, 64, 128)}
        assert set(described()) == rows
        assert described("part") == [("part", region._shm_key, 64, 128)]
        with pytest.raises(InferenceServerException, match="'part' is registered already") as caught:
            register(client, region, "part")
        assert caught.value.status() == ("400" if protocol == "http" else "StatusCode.ALREADY_EXISTS")
        client.unregister_system_shared_memory("part")
        client.unregister_system_shared_memory("part")  # as in Triton, nothing happens
        assert [row[0] for row in described()] == ["region"]
        with pytest.raises(InferenceServerException, match="no shared memory region 'part'") as caught:
            described("part")
        assert caught.value.status() == NOT_FOUND[protocol]
        client.unregister_system_shared_memory()
        assert described() == []

    @pytest.mark.parametrize("key", ["/opgate_test_none", "/../etc/passwd", "/etc/passwd", "../../etc/passwd", ""])
    def test_errors_do_not_tell_the_key(self, client, protocol, key):
        with pytest.raises(InferenceServerException, match="'secret' can't be opened") as caught:
            client.register_system_shared_memory("secret", key, 8)
        assert caught.value.status() == INVALID[protocol]
        assert "etc" not in caught.value.message() and "opgate_test" not in caught.value.message()

    def test_a_place_outside_of_the_file(self, client, protocol, region):
        with pytest.raises(InferenceServerException, match="within the 1048576 bytes of the shared memory") as caught:
            register(client, region, "region", 1, 1 << 20)
        assert caught.value.status() == INVALID[protocol]

    def test_cuda_shared_memory_can_be_asked_for_but_not_registered_without_a_driver(self, client, protocol):
        status = client.get_cuda_shared_memory_status()
        assert (status if protocol == "http" else list(status.regions)) == []
        client.unregister_cuda_shared_memory()
        client.unregister_cuda_shared_memory("region")
        with pytest.raises(InferenceServerException, match="no shared memory region 'region'") as caught:
            client.get_cuda_shared_memory_status("region")
        assert caught.value.status() == NOT_FOUND[protocol]
        with pytest.raises(InferenceServerException, match="not supported by this server") as caught:
            client.register_cuda_shared_memory("region", b"AAAA", 0, 8)
        assert caught.value.status() == UNSUPPORTED[protocol]

    def test_both_protocols_know_the_same_regions(self, server, region):
        with connect(server, "http") as http, connect(server, "grpc") as grpc:
            register(http, region)
            assert list(grpc.get_system_shared_memory_status().regions) == ["region"]
            grpc.unregister_system_shared_memory("region")
            assert http.get_system_shared_memory_status() == []


class TestTensors:
    @pytest.mark.parametrize("datatype", TYPES)
    def test_every_type_there_and_back(self, client, protocol, region, datatype):
        register(client, region)
        for turn in range(3):  # the second time the envelope is known
            array = np.roll(sample(datatype), turn)
            tensor, size = shared_input(protocol, array, datatype, region, 64)
            result = client.infer(f"identity_{datatype}", [tensor], outputs=[shared_output(protocol, size, 4096)])
            stated = result.get_output("y")
            shape = stated["shape"] if protocol == "http" else list(stated.shape)
            assert shape == list(array.shape)
            got = shm.get_contents_as_numpy(region, triton_to_np_dtype(datatype), shape, 4096)
            assert text(got) == text(array) if datatype == "BYTES" else (got == array).all()
            if protocol == "http":
                assert stated == {"name": "y", "datatype": datatype, "shape": shape}

    def test_only_the_input_or_only_the_output(self, client, protocol, region):
        register(client, region)
        for fill in (1, 2, 3):
            array = np.full((2, 4), fill, np.float32)
            tensor, _ = shared_input(protocol, array, "FP32", region, 12)
            for request_id in ("", "with-an-id"):
                result = client.infer("double", [tensor], request_id=request_id)
                assert (result.as_numpy("y") == 2 * array).all()
                output = shared_output(protocol, 100_000, 1000)
                client.infer("double", [plain_input(protocol, 5 * array)], outputs=[output], request_id=request_id)
                assert (shm.get_contents_as_numpy(region, np.float32, [2, 4], 1000) == 10 * array).all()

    def test_tensors_that_are_copied_on_threads(self, client, protocol):
        """They are larger than a body may be."""
        array = np.random.default_rng(0).random((4, 1 << 20), dtype=np.float32)
        with shared_file(array.tobytes() + bytes(array.nbytes)) as file:
            client.register_system_shared_memory("region", file.key, 2 * array.nbytes)
            tensor = CLIENTS[protocol].InferInput("x", list(array.shape), "FP32")
            tensor.set_shared_memory("region", array.nbytes)
            for _ in range(3):
                client.infer("plain", [tensor], outputs=[shared_output(protocol, array.nbytes, array.nbytes)])
                got = np.frombuffer(file.get(array.nbytes, array.nbytes), np.float32)
                assert np.array_equal(got, 2 * array.reshape(-1))
                file.put(array.nbytes, bytes(array.nbytes))
            tensor.set_shared_memory("region", array.nbytes - 4)
            with pytest.raises(InferenceServerException, match="input 'x': expected 16777216 bytes"):
                client.infer("plain", [tensor])

    def test_strings_that_are_read_on_threads(self, client, protocol, region):
        register(client, region)
        array = np.array([[f"{i}é" * 4000 for i in range(4)]] * 3, object)
        tensor, size = shared_input(protocol, np.char.encode(array.astype(str)).astype(object), "BYTES", region, 0)
        output = shared_output(protocol, size, 1 << 19)
        client.infer("identity_BYTES", [tensor], outputs=[output])
        assert text(shm.get_contents_as_numpy(region, np.object_, [3, 4], 1 << 19)) == array.reshape(-1).tolist()

    def test_mixed_inputs_and_outputs_keep_their_places(self, two, protocol, region):
        """tritonclient finds the data of an output by its place among all outputs."""
        with connect(two, protocol) as client:
            register(client, region)
            arrays = {name: np.full((1, 4), value, np.float32) for name, value in (("a", 1), ("b", 10), ("c", 100))}
            for shared in ("", "a", "b", "c", "ab", "bc", "abc"):
                inputs, outputs = [], []
                for i, (name, array) in enumerate(arrays.items()):
                    if name in shared:
                        inputs.append(shared_input(protocol, array, "FP32", region, 64 * i, name)[0])
                        outputs.append(shared_output(protocol, 16, 1024 + 64 * i, f"twice_{name}"))
                    else:
                        inputs.append(plain_input(protocol, array, name=name))
                        outputs.append(CLIENTS[protocol].InferRequestedOutput(f"twice_{name}"))
                for _ in range(2):
                    region._mpsm_handle.buf[1024:2048] = bytes(1024)
                    result = client.infer("two", inputs, outputs=outputs)
                    for i, (name, array) in enumerate(arrays.items()):
                        if name in shared:
                            got = shm.get_contents_as_numpy(region, np.float32, [1, 4], 1024 + 64 * i)
                        else:
                            got = result.as_numpy(f"twice_{name}")
                        assert (got == 2 * array).all(), (shared, name)
            client.unregister_system_shared_memory()

    def test_asyncio_clients_with_a_region_for_each(self, server):
        async def one(module, address, i):
            handle = shm.create_shared_memory_region(f"r{i}", f"/opgate_test_{uuid.uuid4().hex}", 256)
            try:
                async with module.InferenceServerClient(address) as client:
                    await client.register_system_shared_memory(f"r{i}", handle._shm_key, 256)
                    tensor, output = module.InferInput("x", [1, 4], "FP32"), module.InferRequestedOutput("y")
                    tensor.set_shared_memory(f"r{i}", 16)
                    output.set_shared_memory(f"r{i}", 16, 64)
                    for turn in range(5):
                        shm.set_shared_memory_region(handle, [np.full((1, 4), i * turn, np.float32)])
                        await client.infer("double", [tensor], outputs=[output])
                        assert (shm.get_contents_as_numpy(handle, np.float32, [1, 4], 64) == 2 * i * turn).all()
                    await client.unregister_system_shared_memory(f"r{i}")
            finally:
                shm.destroy_shared_memory_region(handle)

        async def all_of_them():
            over_http = [one(http_aio, f"127.0.0.1:{server.http}", i) for i in range(20)]
            over_grpc = [one(grpc_aio, f"127.0.0.1:{server.grpc}", i) for i in range(20, 40)]
            await asyncio.gather(*over_http, *over_grpc)

        asyncio.run(all_of_them())

    def test_a_packed_request_and_a_packed_answer(self, server, region):
        with connect(server, "http") as client:
            register(client, region)
            tensor, _ = shared_input("http", np.ones((1, 4), np.float32), "FP32", region, 0)
            packed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
            for outputs in (None, [shared_output("http", 16, 64)]):
                result = client.infer("double", [tensor], outputs=outputs, **packed)
            assert result.get_output("y") == {"name": "y", "datatype": "FP32", "shape": [1, 4]}
            assert (shm.get_contents_as_numpy(region, np.float32, [1, 4], 64) == 2).all()
            client.unregister_system_shared_memory()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A server of its own with a model of three inputs and outputs, and one that never ends by itself."""
    folder = tmp_path_factory.mktemp("two")
    names = "abc"
    nodes = [helper.make_node("Add", [name, name], [f"twice_{name}"]) for name in names]
    shape = ("batch", 4)
    inputs, outputs = ([value(f"{p}{n}", "FP32", shape) for n in names] for p in ("", "twice_"))
    save(folder, "two", nodes, inputs, outputs, config=batching())
    double(folder, "double", config=batching())
    endless(folder, "times", config='backend: "onnxruntime"', times=None)
    with running(folder) as started:
        yield started


class TestErrors:
    def test_unknown_regions_and_places(self, client, protocol, region):
        register(client, region, byte_size=100)
        array = np.ones((1, 4), np.float32)
        tensor, _ = shared_input(protocol, array, "FP32", region, 0)

        def refused(tensor, *outputs):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("double", [tensor], outputs=list(outputs) or None)
            return caught.value.status(), caught.value.message()

        for change, code, words in [
            (("other", 16, 0), NOT_FOUND, "no shared memory region 'other'"),
            (
                ("region", 16, 85),
                INVALID,
                "input 'x': expected a place within the 100 bytes of shared memory region 'region'",
            ),
            (("region", 16, 1 << 61), INVALID, "got shared_memory_offset 2305843009213693952"),
            (("region", 20, 0), INVALID, "input 'x': expected 16 bytes for shape [1, 4] of FP32, got 20"),
        ]:
            wrong = CLIENTS[protocol].InferInput("x", [1, 4], "FP32")
            wrong.set_shared_memory(*change)
            status, message = refused(wrong)
            assert status == code[protocol] and words in message, message
        output = shared_output(protocol, 16, 90)
        status, message = refused(tensor, output)
        assert status == INVALID[protocol] and "output 'y': expected a place within the 100 bytes" in message
        status, message = refused(tensor, shared_output(protocol, 15, 64))
        assert status == INVALID[protocol] and "output 'y' has 16 bytes, its shared_memory_byte_size is 15" in message
        assert (client.infer("double", [tensor]).as_numpy("y") == 2).all()

    def test_strings_that_their_place_does_not_hold(self, client, protocol, region):
        register(client, region)
        array = np.array([["a", "bc", "", "def"]], object)
        tensor, size = shared_input(protocol, array, "BYTES", region, 0)
        for wrong, words in ((size - 1, "element 3 says 3 bytes, 2 are left"), (size + 1, "1 bytes are left over")):
            tensor.set_shared_memory("region", wrong)
            with pytest.raises(InferenceServerException, match=words):
                client.infer("identity_BYTES", [tensor])
        tensor.set_shared_memory("region", size)
        with pytest.raises(
            InferenceServerException, match=f"has {size} bytes, its shared_memory_byte_size is {size - 1}"
        ):
            client.infer("identity_BYTES", [tensor], outputs=[shared_output(protocol, size - 1, 64)])

    @pytest.mark.parametrize("length", [0, 8])
    def test_a_file_that_has_become_smaller(self, server, client, protocol, length):
        with shared_file(np.ones(64, np.float32).tobytes()) as file:
            client.register_system_shared_memory("region", file.key, 256)
            tensor = CLIENTS[protocol].InferInput("x", [1, 4], "FP32")
            tensor.set_shared_memory("region", 16)
            assert (client.infer("double", [tensor]).as_numpy("y") == 2).all()
            os.truncate(file.path, length)
            for inputs, outputs in (
                ([tensor], None),
                ([plain_input(protocol, np.ones((1, 4), np.float32))], [shared_output(protocol, 16, 0)]),
            ):
                with pytest.raises(InferenceServerException, match="'region' has become smaller") as caught:
                    client.infer("double", inputs, outputs=outputs)
                assert caught.value.status() == INVALID[protocol]
            assert file.path.stat().st_size == length
            os.truncate(file.path, 256)
            client.infer("double", [tensor], outputs=[shared_output(protocol, 16, 32)])

    def test_a_file_whose_size_changes_all_the_time(self, server, client, protocol):
        """Each request gets its answer or an error, and the server lives."""
        with shared_file(bytes(1 << 20)) as file:
            client.register_system_shared_memory("region", file.key, 1 << 20)
            stop = threading.Event()

            def change():
                while not stop.is_set():
                    os.truncate(file.path, 100)
                    os.truncate(file.path, 1 << 20)

            thread = threading.Thread(target=change)
            thread.start()
            tensor = CLIENTS[protocol].InferInput("x", [1, 1 << 16], "FP32")
            tensor.set_shared_memory("region", 1 << 18, 1 << 18)
            answers = []
            try:
                for _ in range(300):
                    try:
                        client.infer("plain", [tensor], outputs=[shared_output(protocol, 1 << 18, 1 << 19)])
                        answers.append("")
                    except InferenceServerException as error:
                        answers.append(error.message())
            finally:
                stop.set()
                thread.join()
            assert all(not answer or "has become smaller" in answer for answer in answers)
        assert server.process.poll() is None


class TestBudget:
    @pytest.fixture(scope="class")
    @classmethod
    def tight(cls, tmp_path_factory):
        """A server in which a request under way may have one large input in shared memory."""
        folder = tmp_path_factory.mktemp("tight")
        identity(folder, "truth", "BOOL", shape=("a",), config='backend: "onnxruntime"')
        identity(folder, "texts", "BYTES", shape=("a",), config='backend: "onnxruntime"')
        pick(folder, "pick", 'backend: "onnxruntime"\nmax_batch_size: 8')
        endless(folder, "endless", config='backend: "onnxruntime"')
        with running(folder, env={"OPGATE_MAX_HELD_BYTES": "400000"}) as started:
            yield started

    @pytest.mark.parametrize(
        ("protocol", "packed"), [("http", False), ("http", True), ("grpc", False)], indirect=["protocol"]
    )
    @pytest.mark.parametrize("problem", ["", "a bad value", "a failing run", "a small place"])
    def test_requests_that_end_free_their_copies(self, tight, protocol, region, problem, packed):
        with connect(tight, protocol) as client:
            client.unregister_system_shared_memory()
            register(client, region)
            model, name, datatype = "pick", "i", "INT64"
            array = np.full((8, 1), 99 if problem == "a failing run" else 3, np.int64)
            if problem == "a bad value":
                model, name, datatype, array = "texts", "x", "UINT8", np.full(64, 255, np.uint8)
            tensor, size = shared_input(protocol, array, datatype, region, 0, name)
            assert size == 64
            if problem == "a bad value":  # a string longer than its tensor
                tensor = CLIENTS[protocol].InferInput(name, [8], "BYTES")
                tensor.set_shared_memory("region", size)
            outputs = [shared_output(protocol, 31 if problem == "a small place" else 64, 64)]
            how = {"request_compression_algorithm": "gzip"} if packed else {}
            for _ in range(30):
                with pytest.raises(InferenceServerException) if problem else contextlib.nullcontext() as caught:
                    client.infer(model, [tensor], outputs=outputs, **how)
                assert not problem or "OPGATE_MAX_HELD_BYTES" not in str(caught.value), caught.value
        wait_until(lambda: "opgate_held_bytes 0.0" in tight.get("/metrics"))

    def test_clients_that_leave_free_their_copies(self, tight, protocol, region):
        """The copy goes with the run, which ends a little later."""
        with connect(tight, protocol) as client:
            client.unregister_system_shared_memory()
            register(client, region)
            tensor, _ = shared_input(protocol, np.zeros((50_000, 1), np.float32), "FP32", region, 0)
            how = {"timeout": 200_000} if protocol == "http" else {"client_timeout": 0.2}

            def is_accepted():
                with pytest.raises(InferenceServerException) as caught:
                    client.infer("endless", [tensor], **how)
                return "OPGATE_MAX_HELD_BYTES" not in str(caught.value)

            for _ in range(3):
                wait_until(is_accepted)

    def test_more_than_may_be_copied_at_once(self, tight, protocol, region):
        with connect(tight, protocol) as client:
            client.unregister_system_shared_memory()
            register(client, region)
            # A run of an earlier test, whose client has left, may still hold its copy.
            wait_until(lambda: tight.number("opgate_held_bytes") == 0)
            running = threading.Thread(target=lambda: self._wait(tight, region), daemon=True)
            running.start()
            wait_until(lambda: tight.number("opgate_held_bytes") >= 200_000)
            tensor, _ = shared_input(protocol, np.ones(200_000, np.bool_), "BOOL", region, 400_000)
            with pytest.raises(
                InferenceServerException, match=r"hold 200\d\d\d bytes, .* has 200000, the limit"
            ) as caught:
                client.infer("truth", [tensor])
            assert caught.value.status() == {"http": "503", "grpc": "StatusCode.UNAVAILABLE"}[protocol]
            running.join()
            wait_until(lambda: "opgate_held_bytes 0.0" in tight.get("/metrics"))
            client.infer("truth", [tensor], outputs=[shared_output(protocol, 200_000, 700_000)])

    @staticmethod
    def _wait(tight, region):
        with connect(tight, "http") as client, contextlib.suppress(InferenceServerException):
            tensor, _ = shared_input("http", np.zeros((50_000, 1), np.float32), "FP32", region, 0)
            client.infer("endless", [tensor], timeout=4_000_000)

    def test_an_input_for_which_there_is_never_room(self, tight, protocol, region):
        with connect(tight, protocol) as client:
            client.unregister_system_shared_memory()
            register(client, region)
            tensor, _ = shared_input(protocol, np.ones(375_001, np.bool_), "BOOL", region, 0)
            with pytest.raises(InferenceServerException, match="has 375001 bytes, the limit is 375000") as caught:
                client.infer("truth", [tensor])
            assert caught.value.status() == {"http": "413", "grpc": "StatusCode.RESOURCE_EXHAUSTED"}[protocol]


class TestUnregister:
    def test_requests_under_way_keep_their_regions(self, two, protocol, region):
        with connect(two, "http") as control:
            register(control, region)
            array = np.zeros((1, 4), np.float32)
            times = np.array([400_000], np.int64)
            inputs = [
                shared_input(protocol, array, "FP32", region, 0)[0],
                plain_input(protocol, times, "INT64", "times"),
            ]
            answer = []

            def ask():
                with connect(two, protocol) as client:
                    answer.append(client.infer("times", inputs, outputs=[shared_output(protocol, 16, 64)]))

            region._mpsm_handle.buf[64:80] = bytes(16)
            thread = threading.Thread(target=ask)
            thread.start()
            wait_until(lambda: "opgate_running_requests 1.0" in two.get("/metrics"))
            assert is_open(two, region)
            control.unregister_system_shared_memory("region")
            thread.join(60)
            assert answer and (shm.get_contents_as_numpy(region, np.float32, [1, 4], 64) == 400_000).all()
            unknown = pytest.raises(InferenceServerException, match="no shared memory region 'region'")
            with connect(two, protocol) as client, unknown:
                client.infer("times", inputs)
        wait_until(lambda: not is_open(two, region))

    def test_registering_and_unregistering_while_requests_run(self, server, protocol, region):
        """A request gets its answer or hears that the region is not there, and the files of old regions are closed."""
        stop = threading.Event()

        def churn():
            with connect(server, "grpc") as control:
                while not stop.is_set():
                    register(control, region)
                    control.unregister_system_shared_memory("region")

        thread = threading.Thread(target=churn)
        tensor, _ = shared_input(protocol, np.ones((1, 4), np.float32), "FP32", region, 0)
        thread.start()
        answers = []
        try:
            with connect(server, protocol) as client:
                for _ in range(400):
                    try:
                        client.infer("double", [tensor], outputs=[shared_output(protocol, 16, 64)])
                        answers.append("")
                    except InferenceServerException as error:
                        answers.append(error.message())
        finally:
            stop.set()
            thread.join()
        assert all(not answer or "no shared memory region 'region'" in answer for answer in answers)
        assert "" in answers
        wait_until(lambda: not is_open(server, region))


@pytest.fixture(scope="module", params=["option", "variable"])
def without(request, tmp_path_factory):
    """A server whose clients may not use shared memory."""
    folder = tmp_path_factory.mktemp("without")
    double(folder, "double", config=batching())
    options, variables = (
        (["--no-shared-memory"], {}) if request.param == "option" else ([], {"OPGATE_SHARED_MEMORY": "0"})
    )
    with running(folder, *options, env=variables) as started:
        yield started


class TestSwitch:
    def test_everything_of_shared_memory_is_refused_by_name(self, without, protocol, region):
        with connect(without, protocol) as client:
            extensions = client.get_server_metadata()
            extensions = extensions["extensions"] if protocol == "http" else extensions.extensions
            assert "system_shared_memory" not in extensions and "classification" in extensions
            for call, arguments in [
                (client.get_system_shared_memory_status, ()),
                (client.register_system_shared_memory, ("region", region._shm_key, 8)),
                (client.unregister_system_shared_memory, ()),
                (client.get_cuda_shared_memory_status, ()),
                (client.unregister_cuda_shared_memory, ()),
            ]:
                words = "shared memory is turned off" if protocol == "http" else "SharedMemory.* is not supported"
                with pytest.raises(InferenceServerException, match=words) as caught:
                    call(*arguments)
                assert caught.value.status() == UNSUPPORTED[protocol]
            tensor, _ = shared_input(protocol, np.ones((1, 4), np.float32), "FP32", region, 0)
            for inputs, outputs in (
                ([tensor], None),
                ([plain_input(protocol, np.ones((1, 4), np.float32))], [shared_output(protocol, 16, 0)]),
            ):
                with pytest.raises(InferenceServerException, match="shared memory is turned off") as caught:
                    client.infer("double", inputs, outputs=outputs)
                assert caught.value.status() == UNSUPPORTED[protocol]

    def test_the_extension_is_announced_otherwise(self, server):
        with connect(server, "http") as client:
            assert "system_shared_memory" in client.get_server_metadata()["extensions"]
            assert "cuda_shared_memory" not in client.get_server_metadata()["extensions"]


def ask(server, path, body=None, method="POST"):
    request = urllib.request.Request(server.url + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "expected a JSON object, got a list"),
        (b"{}", "key: expected the name of shared memory, got nothing"),
        (b'{"key": 3, "byte_size": 8}', "key: expected the name of shared memory, got 3"),
        (b'{"key": "/k"}', "byte_size: expected a number of bytes, got nothing"),
        (b'{"key": "/k", "byte_size": "8"}', "byte_size: expected a number of bytes, got '8'"),
        (b'{"key": "/k", "byte_size": true}', "byte_size: expected a number of bytes, got True"),
        (b'{"key": "/k", "byte_size": 8.5}', "byte_size: expected a number of bytes, got 8.5"),
        (b'{"key": "/k", "byte_size": 8, "offset": -1}', "expected an offset of 0 or more"),
        (b'{"key": "/k\\u0000", "byte_size": 8}', "can't be opened"),
    ],
)
def test_bad_bodies_of_register(server, body, words):
    status, text = ask(server, "/v2/systemsharedmemory/region/r/register", body)
    assert status == 400 and words in text


def test_routes(server):
    assert ask(server, "/v2/systemsharedmemory/unregister", b"anything") == (200, "")
    assert ask(server, "/v2/systemsharedmemory/region/r/unregister", b"") == (200, "")
    assert ask(server, "/v2/cudasharedmemory/unregister", b"") == (200, "")
    assert ask(server, "/v2/systemsharedmemory/status", method="GET") == (200, "[]")
    assert ask(server, "/v2/systemsharedmemory/register", b'{"key": "/k", "byte_size": 8}')[0] == 400
    assert ask(server, "/v2/systemsharedmemory/unregister", b"x" * 65537)[0] == 413
    assert ask(server, "/v2/systemsharedmemory/region/r/register", method="GET")[0] == 405
    assert ask(server, "/v2/systemsharedmemory/status", b"")[0] == 405
    assert ask(server, "/v2/systemsharedmemory", method="GET")[0] == 404


def test_messages_of_register_are_checked(server):
    """The numbers are 64 bits without a sign, so their sum may be more."""
    import grpc
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel, shared_file(bytes(64)) as file:
        stub = GRPCInferenceServiceStub(channel)
        for offset, size in ((2**64 - 1, 2), (1, 2**64 - 1), (0, 0)):
            message = service_pb2.SystemSharedMemoryRegisterRequest(
                name="r", key=file.key, offset=offset, byte_size=size
            )
            with pytest.raises(grpc.RpcError) as caught:
                stub.SystemSharedMemoryRegister(message)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"got offset {offset} and byte_size {size}" in caught.value.details()
