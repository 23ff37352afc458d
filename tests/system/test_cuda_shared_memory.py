"""CUDA shared memory with the unmodified tritonclient. The driver is a stand-in, which plays two GPUs."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from opgate.service import cuda_memory
from opgate.service import gateway as gateway_module
from opgate.service.core.errors import Kind, ServingError
from opgate.service.rpc.connection import Budget
from opgate.service.settings import Settings
from opgate.service.shared_memory import CudaRegion, Regions
from tests.service.onnx_models import double, identity
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import wait_until
from tests.system.running import running
from tests.system.shared_files import shared_file
from tests.system.test_shared_memory import INVALID, NOT_FOUND, ask

SIZE = 4096


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The folder of the stand-in."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("cuda_memory_driver.c")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*command, str(source)], check=True)
    return folder


class Memory:
    """Memory on a GPU of the stand-in, that this process has allocated."""

    def __init__(self, driver, device=0, size=SIZE):
        context, self.address, handle = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_char * 64)()
        self.driver, self.size, self.device = driver, size, device
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        driver.cuCtxSetCurrent(context)
        assert driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)) == 0
        assert driver.cuIpcGetMemHandle(handle, self.address) == 0
        self.handle = bytes(handle)

    @property
    def raw_handle(self):
        return base64.b64encode(self.handle)  # as tritonclient's get_raw_handle

    @property
    def opened(self):
        return self.driver.opened(self.address)

    def put(self, array, offset=0):
        data = array.tobytes()
        assert self.driver.cuMemcpyHtoD_v2(ctypes.c_uint64(self.address.value + offset), data, len(data)) == 0
        assert self.driver.cuStreamSynchronize(None) == 0

    def get(self, dtype, count, offset=0):
        data = ctypes.create_string_buffer(count * np.dtype(dtype).itemsize)
        place = ctypes.c_uint64(self.address.value + offset)
        assert self.driver.cuMemcpyDtoH_v2(data, place, len(data)) == 0
        return np.frombuffer(data, dtype)


@pytest.fixture
def memory(library):
    """A function that makes memory on a GPU."""
    driver = ctypes.CDLL(str(library / "libcuda.so.1"))
    driver.opened.restype = ctypes.c_int64
    made = []

    def make(**more):
        made.append(Memory(driver, **more))
        return made[-1]

    yield make
    for each in made:
        driver.cuMemFree_v2(each.address)


@contextlib.contextmanager
def gateway(library, folder, *options):
    """Runs a gateway that finds the stand-in. A new process does: a fork of one that has begun looks nowhere else."""
    double(folder, "double", shape=("batch", 2))
    identity(folder, "texts", "BYTES", ("batch", 2))
    python = str(Path(sys.executable).with_name("python3"))
    with running(folder, *options, env={"LD_LIBRARY_PATH": str(library)}, python=python) as server:
        yield server


@pytest.fixture(scope="module")
def server(library, tmp_path_factory):
    with gateway(library, tmp_path_factory.mktemp("models")) as server:
        yield server


@pytest.fixture
def client(server, protocol):
    with connect(server, protocol) as connected:
        yield connected
        connected.unregister_cuda_shared_memory()
        connected.unregister_system_shared_memory()


def register(client, memory, name="gpu", byte_size=SIZE):
    client.register_cuda_shared_memory(name, memory.raw_handle, memory.device, byte_size)


def tensors(protocol, size, into=64, region="gpu", shape=(2, 2), datatype="FP32"):
    given = CLIENTS[protocol].InferInput("x", list(shape), datatype)
    given.set_shared_memory(region, size, 0)
    asked = CLIENTS[protocol].InferRequestedOutput("y")
    asked.set_shared_memory(region, SIZE - into, into)
    return [given], [asked]


def described(client, protocol, name=""):
    status = client.get_cuda_shared_memory_status(name)
    rows = status if protocol == "http" else status.regions.values()
    fields = ("name", "device_id", "byte_size")
    return sorted(tuple(row[f] if protocol == "http" else getattr(row, f) for f in fields) for row in rows)


def test_a_region_is_registered_described_and_forgotten(client, protocol, memory):
    first, second = memory(), memory(device=1)
    assert described(client, protocol) == []
    register(client, first)
    register(client, second, "other", 8)
    assert described(client, protocol) == [("gpu", 0, SIZE), ("other", 1, 8)]
    assert described(client, protocol, "other") == [("other", 1, 8)]
    assert (first.opened, second.opened) == (1, 1)
    with pytest.raises(InferenceServerException, match="'gpu' is registered already"):
        register(client, second)
    client.unregister_cuda_shared_memory("gpu")
    client.unregister_cuda_shared_memory("gpu")  # as in Triton, nothing happens
    assert described(client, protocol) == [("other", 1, 8)]
    with pytest.raises(InferenceServerException, match="no shared memory region 'gpu'") as caught:
        client.get_cuda_shared_memory_status("gpu")
    assert caught.value.status() == NOT_FOUND[protocol]
    client.unregister_cuda_shared_memory()
    assert described(client, protocol) == []
    wait_until(lambda: (first.opened, second.opened) == (0, 0))


def test_names_are_those_of_both_kinds(client, protocol, memory):
    with shared_file(bytes(64)) as file:
        client.register_system_shared_memory("host", file.key, 64)
        register(client, memory())
        with pytest.raises(InferenceServerException, match="'host' is registered already"):
            register(client, memory(), "host")
        with pytest.raises(InferenceServerException, match="'gpu' is registered already"):
            client.register_system_shared_memory("gpu", file.key, 64)
        client.unregister_cuda_shared_memory("host")
        client.unregister_system_shared_memory("gpu")
        assert described(client, protocol) == [("gpu", 0, SIZE)]
        client.unregister_cuda_shared_memory()
        status = client.get_system_shared_memory_status()
        assert len(status if protocol == "http" else status.regions) == 1


def test_tensors_there_and_back(client, protocol, memory):
    gpu = memory()
    register(client, gpu)
    x = np.array([[1, 2], [3, 4]], np.float32)
    gpu.put(x)
    inputs, outputs = tensors(protocol, x.nbytes)
    result = client.infer("double", inputs, outputs=outputs)
    assert result.get_output("y") is not None
    assert gpu.get(np.float32, 4, 64).tolist() == [2, 4, 6, 8]
    assert gpu.get(np.float32, 4).tolist() == [1, 2, 3, 4]


def test_texts(client, protocol, memory):
    gpu = memory()
    register(client, gpu)
    content = serialize_byte_tensor(np.array([["a", "long"]], object)).item()
    gpu.put(np.frombuffer(content, np.uint8))
    inputs, outputs = tensors(protocol, len(content), shape=(1, 2), datatype="BYTES")
    client.infer("texts", inputs, outputs=outputs)
    assert gpu.get(np.uint8, len(content), 64).tobytes() == content


@pytest.mark.parametrize(
    ("change", "words", "status"),
    [
        ({"raw_handle": base64.b64encode(b"abc")}, "expected a raw_handle of 64 bytes, got 3", INVALID),
        ({"raw_handle": base64.b64encode(b"secret" + bytes(58))}, "CUDA_ERROR_INVALID_VALUE", INVALID),
        ({"device_id": 1}, "allocated on that GPU", INVALID),
        ({"device_id": 2}, "device_id: expected the number of one of 2 GPUs, from 0 on, got 2", INVALID),
        ({"device_id": -1}, "one of 2 GPUs, from 0 on, got -1", INVALID),
        ({"byte_size": SIZE + 1}, f"within the {SIZE} bytes of the memory, got {SIZE + 1}", INVALID),
        ({"byte_size": 0}, "a byte_size of 1 or more", INVALID),
        ({"byte_size": 2**63 - 1}, f"within the {SIZE} bytes", INVALID),
    ],
)
def test_what_can_not_be_registered(client, protocol, memory, change, words, status):
    gpu = memory()
    place = {"raw_handle": gpu.raw_handle, "device_id": 0, "byte_size": SIZE, **change}
    with pytest.raises(InferenceServerException, match=words) as caught:
        client.register_cuda_shared_memory("gpu", **place)
    assert caught.value.status() == status[protocol]
    assert "secret" not in caught.value.message() and "opgate_test" not in caught.value.message()
    assert described(client, protocol) == []
    wait_until(lambda: gpu.opened == 0)
    register(client, gpu)


def test_places_are_within_the_region(client, protocol, memory):
    gpu = memory()
    register(client, gpu, byte_size=64)
    inputs, outputs = tensors(protocol, 16)
    with pytest.raises(InferenceServerException, match="within the 64 bytes of shared memory region 'gpu'") as caught:
        client.infer("double", inputs, outputs=outputs)
    assert caught.value.status() == INVALID[protocol]


def test_a_copy_that_fails_is_an_error_of_the_request(client, protocol, memory):
    gpu = memory()
    register(client, gpu)
    inputs, outputs = tensors(protocol, 16)
    gpu.driver.set_broken(gpu.address, 1)
    with pytest.raises(InferenceServerException, match="'gpu' can't be read: CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        client.infer("double", inputs, outputs=outputs)
    assert caught.value.status() == ("503" if protocol == "http" else "StatusCode.UNAVAILABLE")
    gpu.driver.set_broken(gpu.address, 0)
    client.infer("double", inputs, outputs=outputs)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"raw_handle": {"b64": "AAAA"}, "byte_size": 8}, "device_id: expected the number of a GPU, got nothing"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": "0", "byte_size": 8}, "device_id: expected the number of a GPU"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": 0}, "byte_size: expected a number of bytes, got nothing"),
        ({"device_id": 0, "byte_size": 8}, "raw_handle: expected {"),
        ({"raw_handle": "AAAA", "device_id": 0, "byte_size": 8}, "raw_handle: expected {"),
        ({"raw_handle": {"b64": "A!AA"}, "device_id": 0, "byte_size": 8}, "raw_handle: expected {"),
        ({"raw_handle": {"b64": 3}, "device_id": 0, "byte_size": 8}, "raw_handle: expected {"),
        ({"raw_handle": {"b64": "é"}, "device_id": 0, "byte_size": 8}, "raw_handle: expected {"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": 10**18, "byte_size": 8}, "one of 2 GPUs"),
    ],
)
def test_bad_bodies_of_register(server, body, words):
    status, text = ask(server, "/v2/cudasharedmemory/region/r/register", json.dumps(body).encode())
    assert status == 400 and words in text


def test_the_extension_is_announced_with_a_driver(client, protocol):
    metadata = client.get_server_metadata()
    assert "cuda_shared_memory" in (metadata["extensions"] if protocol == "http" else metadata.extensions)


@pytest.mark.parametrize("protocol", ["http"])
def test_every_gateway_process_opens_it(library, tmp_path, memory, protocol):
    gpu = memory()
    with gateway(library, tmp_path, "--workers", "2") as server, connect(server, protocol) as client:
        register(client, gpu)
        assert gpu.opened == 2
        client.unregister_cuda_shared_memory("gpu")
        wait_until(lambda: gpu.opened == 0)


def test_without_a_driver(monkeypatch):
    monkeypatch.setattr(cuda_memory, "driver", lambda: None)
    regions = Regions(4, Budget(1 << 20))
    with pytest.raises(ServingError, match=r"not supported by this server: there is no libcuda\.so\.1") as caught:
        regions.register_cuda("gpu", bytes(64), 0, 8)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert regions.status("", CudaRegion) == []
    monkeypatch.setattr(gateway_module, "driver", lambda: None)
    assert "cuda_shared_memory" not in gateway_module.extensions(Settings())
    gc.collect()
