"""The registry of shared memory: which files it opens, what it keeps open, and what changes of a file do to it."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from opgate.service.core.checks import Limits
from opgate.service.core.errors import Kind, ServingError
from opgate.service.rpc.connection import Budget
from opgate.service.shared_memory import Regions, SystemRegion
from opgate.service.wire import kserve_grpc
from opgate.service.wire.kserve_json import Decoder, encode
from tests.service.test_wire import spec

FOLDER = Path("/dev/shm")


@pytest.fixture
def shared():
    """A function that makes a file in /dev/shm with these bytes and returns its key."""
    made = []

    def make(data=bytes(4096), suffix=""):
        path = FOLDER / f"opgate_test_{uuid.uuid4().hex}{suffix}"
        path.write_bytes(data)
        made.append(path)
        return f"/{path.name}"

    yield make
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture
def regions():
    return Regions(4, Budget(1 << 20))


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def refusal(regions, name, key, offset=0, byte_size=8):
    with pytest.raises(ServingError) as caught:
        regions.register(name, key, offset, byte_size)
    assert key.strip("/.") == "" or key not in caught.value.message
    return caught.value


class TestKeys:
    @pytest.mark.parametrize("form", ["/{}", "{}"])
    def test_a_key_is_a_name_with_or_without_a_slash(self, regions, shared, form):
        regions.register("r", form.format(shared(suffix=".with.dots")[1:]), 0, 4096)
        assert regions.copy(regions.find("r"), 0, 4).tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize(
        "key",
        ["", "/", ".", "/.", "/..", "../etc/passwd", "/../../etc/passwd", "/a/../b", "/etc/passwd", "//{}", "/{}/", "/x\0{}",
         "/none{}", "/" + "x" * 5000, "/sem.{}", "/triton_python_backend_shm_region_1", "/opgate_triton_1_x"],
    )  # fmt: skip
    def test_other_keys_get_one_and_the_same_answer(self, regions, shared, key):
        name = shared()[1:]
        error = refusal(regions, "r", key.format(name))
        assert error.kind is Kind.INVALID
        assert error.message == (
            "shared memory region 'r' can't be opened: its key must name shared memory of this machine which the server "
            "may read and write"
        )

    @pytest.mark.parametrize("kind", ["link", "folder", "pipe", "socket"])
    def test_only_a_regular_file_is_opened(self, regions, shared, kind):
        target = shared()
        path = FOLDER / f"{target[1:]}_{kind}"
        try:
            if kind == "link":
                path.symlink_to(FOLDER / target[1:])
            elif kind == "folder":
                path.mkdir()
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(str(path))
            before = descriptors()
            assert "can't be opened" in refusal(regions, "r", f"/{path.name}").message
            assert descriptors() == before
        finally:
            path.rmdir() if kind == "folder" else path.unlink()

    def test_a_process_without_room_for_files_says_that(self, regions, shared):
        key = shared()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            assert refusal(regions, "r", key).kind is Kind.UNAVAILABLE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestRegister:
    def test_a_name_is_taken_until_it_is_unregistered(self, regions, shared):
        key = shared()
        regions.register("r", key, 0, 8)
        assert refusal(regions, "r", key).kind is Kind.ALREADY_EXISTS
        regions.unregister("r", SystemRegion)
        regions.register("r", key, 16, 32)
        assert [(r.name, r.key, r.offset, r.byte_size) for r in regions.status("", SystemRegion)] == [
            ("r", key, 16, 32)
        ]

    @pytest.mark.parametrize(
        "place", [(0, 4097), (4096, 1), (4000, 97), (1 << 70, 1), (0, 1 << 70), (-1, 8), (0, 0), (0, -1)]
    )
    def test_a_place_outside_of_the_file_is_refused(self, regions, shared, place):
        before = descriptors()
        error = refusal(regions, "r", shared(), *place)
        assert error.kind is Kind.INVALID
        assert f"got offset {place[0]} and byte_size {place[1]}" in error.message
        assert descriptors() == before

    @pytest.mark.parametrize("name", ["", "n" * 257])
    def test_a_name_is_neither_empty_nor_long(self, regions, shared, name):
        assert "1 to 256 characters" in refusal(regions, name, shared()).message

    def test_unknown_regions(self, regions, shared):
        regions.register("r", shared(), 0, 8)
        for ask in (regions.find, lambda name: regions.status(name, SystemRegion)):
            with pytest.raises(ServingError, match="no shared memory region 'other'") as caught:
                ask("other")
            assert caught.value.kind is Kind.NOT_FOUND
        regions.unregister("other", SystemRegion)
        assert len(regions.status("", SystemRegion)) == 1

    def test_files_are_closed_when_nobody_uses_them(self, regions, shared):
        before = descriptors()
        for name in "abcd":
            regions.register(name, shared(), 0, 8)
        used = regions.find("a")
        assert "4 shared memory regions are registered or in use" in refusal(regions, "e", shared()).message
        regions.unregister("", SystemRegion)
        assert regions.status("", SystemRegion) == []
        assert descriptors() == before + 1
        for name in "bcd":
            regions.register(name, shared(), 0, 8)
        error = refusal(regions, "a", shared())  # a request still uses the other
        assert error.kind is Kind.OVERLOADED and "OPGATE_MAX_SHARED_MEMORY_REGIONS" in error.message
        assert regions.copy(used, 0, 8).sum() == 0
        del used
        regions.register("a", shared(), 0, 8)
        regions.unregister("", SystemRegion)
        assert descriptors() == before


class TestCopies:
    def test_a_region_is_a_part_of_its_file(self, regions, shared):
        key = shared(bytes(range(256)))
        regions.register("r", key, 100, 50)
        region = regions.find("r")
        assert regions.copy(region, 3, 4).tolist() == [103, 104, 105, 106]
        region.write(48, b"\xff\xfe")
        assert (FOLDER / key[1:]).read_bytes() == bytes(range(148)) + b"\xff\xfe" + bytes(range(150, 256))

    def test_a_file_that_shrinks_is_an_error_and_stays_small(self, regions, shared):
        key = shared()
        regions.register("r", key, 0, 4096)
        region = regions.find("r")
        os.truncate(FOLDER / key[1:], 100)
        assert regions.copy(region, 0, 100).size == 100
        for act in (
            lambda: regions.copy(region, 0, 101),
            lambda: regions.copy(region, 4000, 8),
            lambda: region.write(96, b"12345"),
            lambda: region.write(0, bytes(4096)),
        ):
            with pytest.raises(ServingError, match="'r' has become smaller since it was registered") as caught:
                act()
            assert caught.value.kind is Kind.INVALID
        assert (FOLDER / key[1:]).stat().st_size == 100
        region.write(96, b"1234")
        (FOLDER / key[1:]).unlink()
        assert regions.copy(region, 96, 4).tobytes() == b"1234"  # as a mapping would

    def test_a_file_that_can_not_be_written(self, regions, shared):
        """A limit of the process on the size of files stands in for a /dev/shm that is full."""
        regions.register("r", shared(), 0, 4096)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        try:
            with pytest.raises(ServingError, match="region 'r' can't be written: File too large") as caught:
                regions.find("r").write(2000, b"12345678")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.kind is Kind.UNAVAILABLE

    def test_the_copies_that_are_not_freed_are_bounded(self, shared):
        regions = Regions(4, Budget(10_000))
        regions.register("r", shared(), 0, 4096)
        region = regions.find("r")
        held = [regions.copy(region, 0, 4096).view(np.float32)[1:] for _ in range(2)]
        with pytest.raises(ServingError, match="hold 8192 bytes, an input in shared memory has 4096") as caught:
            regions.copy(region, 0, 4096)
        assert caught.value.kind is Kind.OVERLOADED
        held.pop()
        held.append(regions.copy(region, 0, 4096))

    def test_copies_on_several_threads_are_all_counted_off(self, shared):
        budget = Budget(1 << 20)
        regions = Regions(4, budget)
        regions.register("r", shared(), 0, 4096)
        region = regions.find("r")

        def work():
            for _ in range(500):
                regions.copy(region, 0, 4096)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert budget.used == 0


LIMITS = Limits()


def head(place, dims=(2,), datatype="FP32", **more):
    tensor = {"name": "x", "datatype": datatype, "shape": list(dims), "parameters": place}
    return json.dumps({"inputs": [tensor], **more}).encode()


def at(region="r", offset=0, size=8):
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}


class TestRequests:
    """Heads that come again are known, and their regions are looked up each time."""

    def test_json(self, regions, shared):
        key = shared(np.arange(1024, dtype=np.float32).tobytes())
        decoder = Decoder(spec(), LIMITS, regions)
        body = head(at(offset=8), outputs=[{"name": "y", "parameters": at(offset=64)}])
        with pytest.raises(ServingError, match="no shared memory region 'r'"):
            decoder.decode(body, None)
        for first in (2.0, 102.0):
            regions.register("r", key, 0, 4096)
            for _ in range(3):
                request = decoder.decode(body, None)
                assert request.shared.unread and "x" not in request.inputs
                regions.unregister("r", SystemRegion)  # the request keeps its region
                assert request.shared.read(request).inputs["x"].tolist() == [first, first + 1]
                request.result = {"y": 10 * request.inputs["x"]}
                length, parts = encode(request)
                assert length is None
                assert b"".join(parts) == (
                    b'{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[2]}]}'
                )
                written = np.frombuffer((FOLDER / key[1:]).read_bytes(), np.float32)[16:18]
                assert written.tolist() == [10 * first, 10 * first + 10]
                regions.register("r", key, 0, 4096)
            assert len(decoder._plans) == 1
            regions.unregister("", SystemRegion)
            key = shared(np.arange(100, 1124, dtype=np.float32).tobytes())

    def test_grpc(self, regions, shared):
        key = shared(np.arange(1024, dtype=np.float32).tobytes())
        asked = service_pb2.ModelInferRequest(model_name="m")
        tensors = asked.inputs.add(name="x", datatype="FP32", shape=[2]), asked.outputs.add(name="y")
        for tensor, offset in zip(tensors, (8, 64), strict=True):
            tensor.parameters["shared_memory_region"].string_param = "r"
            tensor.parameters["shared_memory_offset"].int64_param = offset
            tensor.parameters["shared_memory_byte_size"].int64_param = 8
        decoder, model = kserve_grpc.Decoder(LIMITS, regions), spec()
        data = asked.SerializeToString(deterministic=True)
        for turn in range(3):
            regions.register("r", key, 0, 4096)
            message = kserve_grpc.Message(data)
            plan = decoder.known(message)
            assert (plan is None) == (turn == 0)
            request = decoder.repeat(message, plan) if plan else decoder.decode(message, asked, model)
            decoder.keep(message, request)
            regions.unregister("r", SystemRegion)
            assert request.shared.read(request).inputs["x"].tolist() == [2, 3]
            request.result = {"y": request.inputs["x"] + turn}
            answer = service_pb2.ModelInferResponse.FromString(b"".join(kserve_grpc.encode(request)))
            assert answer.raw_output_contents == [b""] and answer.outputs[0].shape == [2]
            written = np.frombuffer((FOLDER / key[1:]).read_bytes(), np.float32)[16:18]
            assert written.tolist() == [2 + turn, 3 + turn]
        with pytest.raises(ServingError, match="no shared memory region 'r'"):
            decoder.repeat(message, plan)

    def test_empty_tensors_over_grpc_need_no_data_each_time(self):
        asked = service_pb2.ModelInferRequest(model_name="m")
        asked.inputs.add(name="x", datatype="FP32", shape=[0])
        decoder = kserve_grpc.Decoder(LIMITS)
        message = kserve_grpc.Message(asked.SerializeToString())
        request = decoder.decode(message, asked, spec())
        decoder.keep(message, request)
        assert request.inputs["x"].shape == (0,) and decoder.known(message) is None

    def test_regions_that_are_turned_off(self):
        with pytest.raises(ServingError, match="shared memory is turned off") as caught:
            Decoder(spec(), LIMITS).decode(head(at()), None)
        assert caught.value.kind is Kind.UNSUPPORTED
