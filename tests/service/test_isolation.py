"""Shared memory between the gateway and its workers, and what a worker may not do."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from opgate.service.core.errors import ServingError
from opgate.service.execution.session import EngineError, Session, SessionOptions
from opgate.service.isolation import tensors
from opgate.service.isolation.confinement import Confinement, NotConfinedError, confine
from opgate.service.isolation.file_session import ProcessSession
from opgate.service.isolation.memory import SharedMemory
from opgate.service.isolation.opening import OnnxOpening
from opgate.service.isolation.tensors import DTYPES, Layout, copy, view
from opgate.service.isolation.worker_session import WorkerLimits
from tests import PROJECT
from tests.service.hostile_workers import WAYS, Hostile, Liar, Slow


def shared_files() -> int:
    """Returns how many segments this process has open."""
    targets = []
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the file of this list has been closed
            targets.append(os.readlink(f"/proc/self/fd/{file}"))
    return sum("memfd:opgate" in target for target in targets)


def test_a_closed_session_frees_what_it_shared(tmp_path: Path) -> None:
    """Also while something still refers to the session, such as a cycle that Python has not collected."""
    before = shared_files()
    session = ProcessSession(
        "same",
        OnnxOpening("same", model(tmp_path / "model.onnx", TensorProto.FLOAT), SessionOptions(), Confinement(), False),
        WorkerLimits(60),
    )
    outputs = [session.run(["y"], {"x": np.ones(size, np.float32)}) for size in (3, 1 << 20)]
    assert shared_files() > before
    session.close()
    assert outputs[1][0].sum() == 1 << 20  # what was given stays
    del outputs
    assert shared_files() == before and session.deaths == 0


def test_nobody_can_shrink_shared_memory() -> None:
    memory = SharedMemory.create("test", 100_000)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.file, 10)


def test_shared_memory_gives_back_what_it_need_not_keep() -> None:
    memory = SharedMemory.create("test", 1 << 24)
    memory.memory[:] = b"x" * memory.size
    memory.keep(1 << 24)
    assert os.fstat(memory.file).st_blocks * 512 == 1 << 24
    memory.keep(1 << 20)
    assert os.fstat(memory.file).st_blocks * 512 == 1 << 20
    assert memory.memory[(1 << 20) - 1 : (1 << 20) + 1] == b"x\0"


ARRAYS = {
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(5, np.int64),
    "sliced": np.arange(24, dtype=np.float64).reshape(4, 6)[::2, 1::2],
    "flags": np.array([True, False]),
    "half": np.array([1.5], np.float16),
    "texts": np.array([["a", "é"], ["", b"\xff\x00"]], np.object_),
    "no_texts": np.zeros((0,), np.object_),
}


@pytest.mark.parametrize("native", [True, False])
def test_tensors_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    if not native:
        monkeypatch.setattr(tensors, "pack_strings", None)
        monkeypatch.setattr(tensors, "unpack_strings", None)
    layout = Layout(list(ARRAYS), list(ARRAYS.values()))
    shared = SharedMemory.create("test", layout.end)
    layout.write(shared.memory)
    for entry in json.loads(json.dumps(layout.entries)):
        for reader in (view, copy):
            name, array = reader(entry, shared.memory, shared.size)
            np.testing.assert_array_equal(array, ARRAYS[name])
            assert array.dtype == ARRAYS[name].dtype and array.shape == ARRAYS[name].shape


def test_a_copy_stays_when_the_memory_changes() -> None:
    layout = Layout(list(ARRAYS), list(ARRAYS.values()))
    shared = SharedMemory.create("test", layout.end)
    layout.write(shared.memory)
    copies = [copy(entry, shared.memory, shared.size) for entry in layout.entries]
    shared.memory[:] = b"\xfb" * shared.size
    for name, array in copies:
        np.testing.assert_array_equal(array, ARRAYS[name])


@pytest.mark.parametrize(
    "entry",
    [
        ["x", "<f4", [4], 1 << 20, 16],
        ["x", "<f4", [4], -16, 16],
        ["x", "<f4", [-4], 0, 16],
        ["x", "<f4", [4], 0, 12],
        ["x", "<f4", [1 << 62, 8], 0, 0],
        ["x", "|O", [3], 0, 8],
        ["x", "|O", [1], 0, 1 << 30],
        ["x", "<M8[s]", [1], 0, 8],
        ["x", "<f4", ["a"], 0, 8],
        ["x", "<f4", ["4"], 0, 16],
        ["x", "<f4", [4.0], 0, 16],
        ["x", "<f4", [1] * 33, 0, 4],
        ["x", "<f4", [4], 0.0, 16],
        ["x", "<f4", [4], 0, 10**300],
        ["x", ["<f4"], [4], 0, 16],
        [5, "<f4", [4], 0, 16],
        ["x", "|O", [1 << 40], 0, 8],
        ["x", "|O", [1 << 62, 1 << 62], 0, 8],
        ["x", "<f4", 4, 0, 16],
        ["x"],
        None,
    ],
)
def test_entries_that_a_crash_has_overwritten_are_refused(entry: object) -> None:
    shared = SharedMemory.create("test", 1000)
    shared.memory[:8] = b"\x02\0\0\0ab\x01\0"
    with pytest.raises(ValueError):
        view(entry, shared.memory, shared.size)  # type: ignore[arg-type]


def test_a_dtype_that_no_tensor_has_is_refused() -> None:
    with pytest.raises(TypeError, match="tensor 'x' has the dtype bfloat16"):
        Layout(["x"], [np.zeros(3, ml_dtypes.bfloat16)])
    assert len(DTYPES) == 14


ATTEMPTS = """
import json, mmap, os, socket, sys, threading
from opgate.service.isolation.confinement import Confinement, confine
confine(Confinement(**json.loads(sys.argv[1])))
def attempt(name, action):
    try:
        action()
        print(name, "done")
    except (OSError, MemoryError) as error:
        print(name, type(error).__name__)
attempt("internet", lambda: socket.socket())
attempt("internet6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("local", lambda: socket.socketpair())
attempt("write", lambda: open(sys.argv[2], "w"))
attempt("truncate", lambda: os.truncate(sys.argv[0], 0))
attempt("remove", lambda: os.rmdir(sys.argv[3]))
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("read", lambda: open(sys.argv[0]).read())
attempt("memory", lambda: bytearray(1 << 30))
attempt("memfd", lambda: os.close(os.memfd_create("more")))
attempt("shared", lambda: mmap.mmap(-1, 1 << 20).close())
attempt("private", lambda: mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close())
attempt("child", lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0))
attempt("thread", lambda: threading.Thread(target=int).start())
attempt("chmod", lambda: os.chmod(sys.argv[0], 0o600))
print("privileges", open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0])
"""


@pytest.mark.parametrize("confined", [True, False])
def test_a_confined_process(tmp_path: Path, confined: bool) -> None:
    script, folder = tmp_path / "attempts.py", tmp_path / "folder"
    script.write_text(ATTEMPTS)
    folder.mkdir()
    how = {"memory_bytes": 1 << 29, "no_network": True, "read_only": True} if confined else {}
    command = [sys.executable, str(script), json.dumps(how), str(tmp_path / "new"), str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    told = dict(line.split() for line in finished.stdout.splitlines())
    refused = "PermissionError" if confined else "done"
    assert told == {
        "internet": refused, "internet6": refused, "local": "done", "write": refused, "truncate": refused,
        "remove": refused, "null": "done", "memory": "MemoryError" if confined else "done", "privileges": "1",
        "read": "done", "memfd": refused, "shared": refused, "private": "done", "child": refused, "thread": "done",
        "chmod": refused,
    }  # fmt: skip
    assert (script.read_text() == ATTEMPTS) == confined


def test_a_process_with_threads_is_not_confined() -> None:
    """They would keep their rights."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(NotConfinedError, match="threads"):
            confine(Confinement())
    finally:
        end.set()
        thread.join()


def model(path: Path, kind: int) -> Path:
    """Writes a model that returns its input."""
    x, y = (helper.make_tensor_value_info(name, kind, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (TensorProto.FLOAT, np.arange(100_000, dtype=np.float32)),
        (TensorProto.BFLOAT16, np.array([1, 2], np.uint16)),
        (TensorProto.STRING, np.array(["a", b"\xff"], np.object_)),
        (TensorProto.BOOL, np.array([], np.bool_)),
    ],
)
def test_a_process_gives_what_a_session_gives(tmp_path: Path, kind: int, array: np.ndarray) -> None:
    path = model(tmp_path / "model.onnx", kind)
    here = Session(path, SessionOptions())
    opening = OnnxOpening("same", path, SessionOptions(), Confinement(no_network=True, read_only=True), False)
    there = ProcessSession("same", opening, WorkerLimits(60))
    try:
        assert (there.inputs, there.outputs, there.defaulted) == (here.inputs, here.outputs, here.defaulted)
        for _ in range(2):
            np.testing.assert_array_equal(there.run(["y"], {"x": array})[0], here.run(["y"], {"x": array})[0])
        errors = []
        for session in (here, there):
            with pytest.raises(ServingError) as raised:
                session.run(["y"], {})
            errors.append((raised.value.kind, raised.value.message))
        assert errors[0] == errors[1]
    finally:
        there.close()


def test_runs_of_the_same_shapes(tmp_path: Path) -> None:
    """They read and write the same memory, unless an output may have another shape, or is an input."""
    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    nodes = [("Add", ["x", "x"], ["twice"]), ("Gather", ["x", "i"], ["y"]), ("NonZero", ["x"], ["places"])]
    nodes += [("Flatten", ["places"], ["rows"]), ("Gather", ["x", "places"], ["falsely_declared"])]
    constant = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("", f32, [1], [9.0]))
    shapes = {"x": ["n"], "y": [1], "twice": ["n"], "c": [1], "falsely_declared": [1, "n"]}
    graph = helper.make_graph(
        [constant, *(helper.make_node(*node) for node in nodes)],
        "several",
        [helper.make_tensor_value_info("x", f32, ["n"]), helper.make_tensor_value_info("i", i64, [1])],
        [helper.make_tensor_value_info(name, f32, shape) for name, shape in shapes.items()]
        + [helper.make_tensor_value_info(name, i64, [1, "m"]) for name in ("places", "rows")],
    )
    path = tmp_path / "model.onnx"
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    here = Session(path, SessionOptions())
    there = ProcessSession(
        "several", OnnxOpening("several", path, SessionOptions(), Confinement(), False), WorkerLimits(60)
    )

    def outcome(session: Session | ProcessSession, outputs: list[str], x: list[float], i: int) -> object:
        feeds = {"x": np.array(x, np.float32), "i": np.array([i])}
        try:
            return [array.tolist() for array in session.run(outputs, feeds)]
        except EngineError as error:
            return error.kind, error.message[error.message.index("Non-zero status") :]

    values = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 0.0, 8.0], [1.0, 1.0, 2.0]]
    try:
        for outputs in (["y", "twice", "c"], ["twice", "places", "rows"], ["x", "y"], ["y", "y"], ["falsely_declared"]):
            for x, i in [(x, i) for x in values for i in (0, 2, 7, 1)]:
                assert outcome(there, outputs, x, i) == outcome(here, outputs, x, i), (outputs, x, i)
    finally:
        there.close()


def test_a_request_runs_once(tmp_path: Path) -> None:
    """The numbers that a model draws tell how often it has run, whether a run fails or an output has another size."""
    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["drawn"], seed=1.0),
        helper.make_node("Gather", ["drawn", "i"], ["y"]),
        helper.make_node("NonZero", ["x"], ["places"]),
    ]
    graph = helper.make_graph(
        nodes,
        "draws",
        [helper.make_tensor_value_info("x", f32, ["n"]), helper.make_tensor_value_info("i", i64, [1])],
        [helper.make_tensor_value_info("y", f32, [1]), helper.make_tensor_value_info("places", i64, [1, "m"])],
    )
    path = tmp_path / "model.onnx"
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    drawn: list[list[float]] = []
    sessions = [Session(path, SessionOptions())]
    sessions += [
        ProcessSession("draws", OnnxOpening("draws", path, SessionOptions(), Confinement(), False), WorkerLimits(60))
    ]  # type: ignore[list-item]
    for session in sessions:
        numbers = []
        for outputs in (["y"], ["y", "places"]):
            for x, i in (([1.0, 2.0], 0), ([1.0, 2.0], 1), ([1.0, 2.0], 5), ([0.0, 2.0], 1), ([1.0, 2.0], 0)):
                with contextlib.suppress(EngineError):
                    numbers.append(
                        float(session.run(outputs, {"x": np.array(x, np.float32), "i": np.array([i])})[0][0])
                    )
        session.close()
        drawn.append(numbers)
    assert len(drawn[0]) == 8 and drawn[0] == drawn[1]


def test_a_model_that_can_not_be_opened(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ServingError) as here:
        Session(tmp_path / "model.onnx", SessionOptions())
    opening = OnnxOpening("bad", tmp_path / "model.onnx", SessionOptions(), Confinement(), False)
    with pytest.raises(ServingError) as there:
        ProcessSession("bad", opening, WorkerLimits(60))
    assert (there.value.kind, there.value.message) == (here.value.kind, here.value.message)


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_breaks_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Each run ends in time, with the result of its own input or an error, and the next process serves again."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    files = len(os.listdir("/proc/self/fd"))
    session = ProcessSession("hostile", Hostile(way), WorkerLimits(2, 1 << 24))
    bad, good = np.array([666, 1, 2], np.float32), np.array([5, 6, 7], np.float32)
    try:
        for _ in range(2):
            began = time.monotonic()
            with contextlib.suppress(ServingError):
                (y,) = session.run(["y"], {"x": bad})
                assert y.dtype == np.float32 and y.shape == (3,)
            for number in range(200 if way == "late" else 5):
                x = good + number
                with contextlib.suppress(ServingError):
                    (y,) = session.run(["y"], {"x": x})
                    if way != "changes":  # that one changes what it says itself
                        np.testing.assert_array_equal(y, 2 * x)
                if way == "late" and not session.deaths:
                    time.sleep(0.1)  # until what it says too late is there
                elif number >= 4:
                    break
            assert time.monotonic() - began < 30
            if session.down:
                break
        assert session.deaths >= (way not in ("rings", "changes"))
    finally:
        session.close()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_session_that_closes_while_its_process_starts_keeps_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collector, which may come much later."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        session = ProcessSession("slow", Slow(str(tmp_path / "opened")), WorkerLimits(4, 1 << 24))
        os.kill(session.pid, signal.SIGKILL)
        until = time.monotonic() + 30
        while not session.deaths and time.monotonic() < until:
            time.sleep(0.05)
        session.close()
        assert len(os.listdir("/proc/self/fd")) == files
    finally:
        gc.enable()


def test_what_a_process_says_of_its_model_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    for way, said in (("Opens nothing", "exit status 1"), ("Describes nothing", "says of the model what no model has")):
        with pytest.raises(ServingError, match=said):
            ProcessSession("hostile", Liar(way), WorkerLimits(4, 1 << 24))
