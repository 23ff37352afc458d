"""How long ops take, as their libraries count it: in this process and in workers, over restarts, reloads and threads."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import signal
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from opgate.service.console.process_view import ProcessView
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.op_times import BOUNDS_NS, OpTimesOfModel, by_op, quantile, read_times, rows_of, sum_of
from opgate.service.core.request import OpCall, Request, StepRun
from opgate.service.execution.engine_profile import MOST_BYTES, read_profile
from opgate.service.execution.session import EngineError, Session, SessionOptions
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.file_session import ProcessSession
from opgate.service.isolation.opening import OnnxOpening
from opgate.service.isolation.worker_session import WorkerLimits
from opgate.service.repository.profiling import profile
from opgate.service.telemetry.journal import Answer
from opgate.service.telemetry.metrics import ModelMetrics
from opgate.service.telemetry.recent_requests import RecentRequests
from tests.service.onnx_models import ONNX_TYPES, value
from tests.system.conftest import wait_until

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model_file(path, nodes, types=("FP32", "FP32"), shape=None):
    """Writes a model from x to y."""
    tensors = [helper.make_tensor_value_info(n, ONNX_TYPES[t], shape) for n, t in zip("xy", types, strict=True)]
    graph = helper.make_graph(nodes, "g", [tensors[0]], [tensors[1]])
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def mish(source, target, name=None):
    return helper.make_node("Mish", [source], [target], domain="opgate", name=name)


def inside(path, *libraries):
    return Session(path, SessionOptions(libraries=libraries))


def worker(path, *libraries):
    opening = OnnxOpening("m", path, SessionOptions(libraries=libraries), Confinement(), False)
    return ProcessSession("m", opening, WorkerLimits(60))


@pytest.fixture(params=["this process", "a worker"])
def opened(request):
    """A function that opens a model file in this process or in a worker."""
    sessions = []

    def make(path, *libraries):
        session = (inside if request.param == "this process" else worker)(path, *libraries)
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        with contextlib.suppress(OSError):  # a worker's session that the test has closed
            session.close()


def counts(session):
    return {key: sum(numbers[1:]) for key, numbers in session.op_times().items()}


def test_every_call_of_every_node_is_counted(tmp_path, library, opened):
    path = model_file(tmp_path / "m.onnx", [mish("x", "a", "first"), mish("a", "b", "second"), mish("b", "y")])
    session = opened(path, library)
    assert set(counts(session).values()) <= {0}
    before = time.perf_counter_ns()
    for _ in range(20):
        session.run(["y"], {"x": X})
    took = time.perf_counter_ns() - before
    names = {node for _, node in counts(session)}
    assert {"first", "second"} <= names and len(names) == 3
    assert set(counts(session).values()) == {20}
    assert 0 < sum(numbers[0] for numbers in session.op_times().values()) < took
    ((key, numbers),) = by_op(session.op_times()).items()
    assert key == ("Mish", "") and sum(numbers[1:]) == 60


def test_a_session_that_is_closed_keeps_its_numbers(tmp_path, library, opened):
    session = opened(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), library)
    session.run(["y"], {"x": X})
    before = session.op_times()
    session.close()
    assert session.op_times() == before and counts(session) == {("Mish", "n"): 1}


def test_calls_that_fail_are_not_counted(tmp_path, library, opened):
    node = helper.make_node("DecodeImage", ["x"], ["y"], domain="opgate", name="n")
    session = opened(model_file(tmp_path / "m.onnx", [node], ("UINT8", "UINT8")), library)
    calls: list[OpCall] = []
    with pytest.raises(EngineError, match="DecodeImage"):
        session.run(["y"], {"x": np.zeros(9, np.uint8)}, None, calls)
    assert counts(session) == {("DecodeImage", "n"): 0} and calls == []


def test_a_recorded_run_says_what_each_call_was_given(tmp_path, library, opened):
    session = opened(model_file(tmp_path / "m.onnx", [mish("x", "a", "first"), mish("a", "y", "second")]), library)
    session.run(["y"], {"x": X})
    for shape in ((2, 3), (0, 5), ()):
        calls: list[OpCall] = []
        before = time.perf_counter_ns()
        session.run(["y"], {"x": np.zeros(shape, np.float32)}, None, calls)
        after = time.perf_counter_ns()
        text = f"f32[{','.join(map(str, shape))}]"
        assert [(c.op, c.node, c.inputs, c.outputs) for c in calls] == [
            ("Mish", "first", (text,), (text,)),
            ("Mish", "second", (text,), (text,)),
        ]
        assert before <= calls[0].begin_ns <= calls[0].end_ns <= calls[1].begin_ns <= calls[1].end_ns <= after
    session.run(["y"], {"x": X})  # is not recorded
    calls = []
    session.run(["y"], {"x": X}, None, calls)
    assert len(calls) == 2 and counts(session) == {("Mish", "first"): 6, ("Mish", "second"): 6}


def test_absent_tensors_and_texts_have_their_place(tmp_path, library, fixture_library, opened):
    nodes = [
        helper.make_node("RMSNorm", ["x", "w"], ["y"], domain="opgate", name="norm"),
        helper.make_node("Constant", [], ["w"], value_floats=[1.0, 1.0, 1.0]),
    ]
    session = opened(model_file(tmp_path / "m.onnx", nodes[::-1]), library)
    calls: list[OpCall] = []
    session.run(["y"], {"x": X}, None, calls)
    (call,) = calls
    assert call.inputs[:2] == ("f32[2,3]", "f32[3]") and set(call.inputs[2:]) <= {"none"}
    assert call.outputs == ("f32[2,3]", "none")
    shout = helper.make_node("Shout", ["x"], ["y"], domain="fixture_ops", name="loud")
    session = opened(model_file(tmp_path / "t.onnx", [shout], ("BYTES", "BYTES")), fixture_library)
    calls = []
    session.run(["y"], {"x": np.array(["a", "b"], np.object_)}, None, calls)
    assert [(call.inputs, call.outputs) for call in calls] == [(("str[2]",), ("str[2]",))]


def test_many_calls_are_recorded_up_to_a_thousand(tmp_path, library, opened):
    session = opened(model_file(tmp_path / "m.onnx", looped(1500)), library)
    calls: list[OpCall] = []
    session.run(["y"], {"x": X}, None, calls)
    assert len(calls) == 1000 and sum(counts(session).values()) == 1500


def looped(times):
    """Nodes that call Mish so many times."""
    body = helper.make_graph(
        [mish("v", "w", "inner"), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", "INT64", []), value("c", "BOOL", []), value("v", "FP32", None)],
        [value("d", "BOOL", []), value("w", "FP32", None)],
    )
    return [
        helper.make_node("Constant", [], ["n"], value_int=times),
        helper.make_node("Constant", [], ["t"], value=helper.make_tensor("t", ONNX_TYPES["BOOL"], [], [True])),
        helper.make_node("Loop", ["n", "t", "x"], ["y"], body=body),
        # So that the model imports the domain.
        mish("x", "unused", "outer"),
    ][:3]


def test_a_worker_that_died_has_counted(tmp_path, library):
    session = worker(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), library)
    try:
        for expected in (2, 4, 6):
            for _ in range(2):
                session.run(["y"], {"x": X})
            assert counts(session) == {("Mish", "n"): expected}
            deaths = session.deaths
            os.kill(session.pid, signal.SIGKILL)
            wait_until(lambda deaths=deaths: session.deaths > deaths)
            assert counts(session) == {("Mish", "n"): expected}
    finally:
        session.close()
    assert counts(session) == {("Mish", "n"): 6}


def test_threads_at_once_lose_no_call(tmp_path, library):
    session = Session(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), SessionOptions(libraries=(library,)))
    threads, runs = 8, 500
    seen = []
    ended = threading.Event()

    def watch():
        while not ended.is_set():
            seen.append(sum(counts(session).values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    recorded: list[list[OpCall]] = [[] for _ in range(threads)]

    def work(number):
        for i in range(runs):
            session.run(["y"], {"x": X}, None, recorded[number] if i % 10 == 0 else None)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    ended.set()
    watcher.join()
    assert counts(session) == {("Mish", "n"): threads * runs}
    assert seen == sorted(seen)
    assert [len(calls) for calls in recorded] == [runs // 10] * threads
    session.close()


def test_sessions_opened_at_once_have_their_own_numbers(tmp_path, library):
    path = model_file(tmp_path / "m.onnx", [mish("x", "y", "n")])

    def work(number):
        session = Session(path, SessionOptions(libraries=(library,)))
        for _ in range(number):
            session.run(["y"], {"x": X})
        found = counts(session)
        session.close()
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [{("Mish", "n"): number} for number in range(16)]


def test_two_libraries(tmp_path, library, fixture_library, opened):
    nodes = [mish("x", "m", "a"), helper.make_node("SumAll", ["m", "x"], ["y"], domain="fixture_ops", name="b")]
    session = opened(model_file(tmp_path / "m.onnx", nodes), library, fixture_library)
    calls: list[OpCall] = []
    session.run(["y"], {"x": X}, None, calls)
    assert counts(session) == {("Mish", "a"): 1, ("SumAll", "b"): 1}
    assert [(call.op, call.inputs) for call in calls] == [("Mish", ("f32[2,3]",)), ("SumAll", ("f32[2,3]",) * 2)]


def test_a_library_without_the_functions_serves_as_before(tmp_path, library, opened):
    """Those that others and older versions of opgate have built don't have them."""
    older = tmp_path / "libolder.so"
    data = library.read_bytes()
    for name in (b"opgate_recorded_calls", b"opgate_op_times", b"opgate_state_owner"):
        assert name in data
        data = data.replace(name, name.replace(b"opgate", b"foreig"))
    older.write_bytes(data)
    session = opened(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), older)
    calls: list[OpCall] = []
    (y,) = session.run(["y"], {"x": X}, None, calls)
    assert y.shape == X.shape and calls == [] and session.op_times() == {}


def test_an_owner_may_have_any_name(tmp_path, library):
    """What the functions of a library do with what no gateway gives them."""
    functions = ctypes.CDLL(str(library))
    functions.opgate_op_times.restype = ctypes.c_int64
    functions.opgate_recorded_calls.restype = ctypes.c_char_p
    path = model_file(tmp_path / "m.onnx", [mish("x", "y", 'a "node"\n\\ \x01 é')])
    options = SessionOptions(libraries=(library,))
    memory = ctypes.create_string_buffer(1 << 16)

    def numbers(owner):
        needed = functions.opgate_op_times(owner, memory, ctypes.c_int64(len(memory)))
        return read_times(memory.raw, 0, needed)

    session = Session(path, options)
    for owner in (b"", b"\xff\xfe", b'"\n\\', b"x" * 100_000, b"session 1\x01"):
        session.ops._owner = owner
        with session.ops.owning():
            inner = engine_session(path, library)
        before = sum(map(sum, numbers(owner).values()))
        functions.opgate_record_calls(1)
        inner.run(None, {"x": X})
        functions.opgate_record_calls(0)
        assert {node for _, node in numbers(owner)} >= {'a "node"\n\\ \x01 é'}
        assert sum(map(sum, numbers(owner).values())) > before
        assert 'a \\"node\\"\\n\\\\ \\u0001 é' in functions.opgate_recorded_calls().decode()
        functions.opgate_forget_owner(owner)
        assert numbers(owner) == {}
        inner.run(None, {"x": X})  # a node that nobody counts any more
        assert numbers(owner) == {}
    # Memory that is too small gets no part of a row, and no byte is written behind it.
    session = Session(path, options)
    owner = session.ops._owner
    needed = functions.opgate_op_times(owner, None, ctypes.c_int64(0))
    for size in range(needed):
        memory[:] = b"\xaa" * len(memory)
        assert functions.opgate_op_times(owner, memory, ctypes.c_int64(size)) == needed
        assert memory.raw[size:] == b"\xaa" * (len(memory) - size)
        assert size < 8 or struct.unpack_from("<Q", memory) == (0,)
    session.close()


def engine_session(path, library):
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_an_owner_has_a_bounded_number_of_nodes(tmp_path, library):
    functions = ctypes.CDLL(str(library))
    functions.opgate_op_times.restype = ctypes.c_int64
    functions.opgate_state_owner(b"many")
    try:
        total = 0
        for turn in range(4):
            names = ["x", *(f"v{i}" for i in range(799)), "y"]
            nodes = [mish(a, b, f"{turn} {i}") for i, (a, b) in enumerate(itertools.pairwise(names))]
            path = model_file(tmp_path / f"{turn}.onnx", nodes)
            session = engine_session(path, library)
            session.run(None, {"x": X})
            total += 800
            del session
            memory = ctypes.create_string_buffer(1 << 20)
            needed = functions.opgate_op_times(b"many", memory, ctypes.c_int64(len(memory)))
            found = read_times(memory.raw, 0, needed)
            assert len(found) <= 2049 and sum(sum(numbers[1:]) for numbers in found.values()) == total
        assert found["Mish", ""][0] > 0  # those that are gone
    finally:
        functions.opgate_state_owner(b"")
        functions.opgate_forget_owner(b"many")


def test_memory_that_another_process_has_written_is_read_with_care(tmp_path, library):
    session = Session(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), SessionOptions(libraries=(library,)))
    memory = ctypes.create_string_buffer(1 << 12)
    session.ops.write(ctypes.addressof(memory), len(memory))
    good = memory.raw
    session.close()
    assert read_times(good, 0, len(good)) == {("Mish", "n"): [0] * 24}
    rng = random.Random(7)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 9)):
            bad[rng.randrange(0, 220)] = rng.choice((0, 1, 127, 128, 255))
        end = rng.choice((8, 16, 200, 230, len(bad)))
        for (op, node), numbers in read_times(bytes(bad), 0, end).items():
            assert len(op) <= 256 and len(node) <= 256 and len(numbers) == 24 and min(numbers) >= 0


def test_the_bounds_are_those_of_the_library(tmp_path, library):
    """A call lies in the bucket of its time."""
    session = Session(model_file(tmp_path / "m.onnx", [mish("x", "y", "n")]), SessionOptions(libraries=(library,)))
    seen = [0] * 24
    for size in (1, 1000, 100_000, 1_000_000):
        calls: list[OpCall] = []
        session.run(["y"], {"x": np.zeros(size, np.float32)}, None, calls)
        ns = calls[0].end_ns - calls[0].begin_ns
        seen[0] += ns
        seen[1 + sum(ns > bound for bound in BOUNDS_NS)] += 1
        assert session.op_times() == {("Mish", "n"): seen}
    session.close()


def test_quantiles():
    none = [0] * 23
    assert quantile(none, 0.5) == 0
    assert quantile([10, *none[1:]], 0.5) == pytest.approx(0.5e-6)
    assert quantile([0, 0, 4, *none[3:]], 0.5) == pytest.approx(3e-6)  # the middle of 2 to 4 us
    assert quantile([50, 0, 50, *none[3:]], 0.99) == pytest.approx(3.96e-6)
    assert quantile([*none[1:], 3], 0.5) == BOUNDS_NS[-1] / 1e9


class Fixed:
    """A session with numbers."""

    def __init__(self, count, node="n"):
        self.times = {("Op", node): [count * 1000, count, *[0] * 22]}

    def op_times(self):
        return self.times


def total(model):
    return sum(numbers[0] for numbers in model.read().values())


def test_a_load_goes_on_where_the_one_before_has_stopped():
    first = OpTimesOfModel([Fixed(3), Fixed(4)])
    assert total(first) == 7000
    second = OpTimesOfModel([Fixed(5)])
    second.follow(first)
    assert total(second) == 12_000  # the first one still answers requests
    first.close()
    assert total(second) == 12_000
    third = OpTimesOfModel([Fixed(1)])
    third.follow(second)
    second.close()
    assert total(third) == 13_000 and total(OpTimesOfModel([Fixed(1)])) == 1000


def test_loads_of_other_nodes_don_t_grow_for_ever():
    model = OpTimesOfModel()
    for turn in range(20):
        after = OpTimesOfModel([Fixed(1, f"node {turn} {i}") for i in range(500)])
        after.follow(model)
        model.close()
        model = after
    assert total(model) == 10_000_000 and len(model.read()) <= 4096 + 500


def test_rows_and_metrics():
    times = sum_of([Fixed(3, "a").times, Fixed(1, "b").times, {("Other", "c"): [9_000_000_000, *[0] * 22, 1]}])
    assert rows_of(times) == [
        {"op": "Other", "node": "c", "count": 1, "seconds": 9.0, "p50": 2.097152, "p99": 2.097152},
        {"op": "Op", "node": "a", "count": 3, "seconds": 3e-6, "p50": 5e-7, "p99": pytest.approx(9.9e-7)},
        {"op": "Op", "node": "b", "count": 1, "seconds": 1e-6, "p50": 5e-7, "p99": pytest.approx(9.9e-7)},
    ]


def write_model(repository, library):
    model_file(repository / "m" / "1" / "model.onnx", [mish("x", "y", "n")], shape=["n", 3])
    tensor = 'name: "{}" data_type: TYPE_FP32 dims: [ -1, 3 ]'
    (repository / "m" / "config.pbtxt").write_text(
        f'max_batch_size: 0 model_operations {{ op_library_filename: "{library.name}" }} '
        f"input [ {{ {tensor.format('x')} }} ] output [ {{ {tensor.format('y')} }} ]"
    )


@pytest.fixture
def gateway(repository, library, load):
    write_model(repository, library)
    return load(ops_path=str(library.parent))


def run(model, op_calls=None):
    request = Request({"x": X}, 1, "k", ("y",))
    request.op_calls = op_calls
    model.executor.try_out(request)
    return request


def test_metrics_have_the_ops_of_a_model(gateway):
    model = gateway.find("m").model
    for _ in range(3):
        run(model)
    lines = [line for part in ModelMetrics(gateway.catalog.models).lines() for line in part.splitlines()]
    ops = [line for line in lines if line.startswith("opgate_op_seconds")]
    assert 'opgate_op_seconds_count{model="m",version="1",op="Mish"} 3.0' in ops
    assert 'opgate_op_seconds_bucket{le="+Inf",model="m",version="1",op="Mish"} 3.0' in ops
    assert len(ops) == 23 + 2


def test_a_request_gets_the_calls_of_its_run(gateway):
    model = gateway.find("m").model
    assert run(model).op_calls is None
    (call,) = run(model, ()).op_calls
    assert (call.op, call.node, call.inputs, call.outputs) == ("Mish", "n", ("f32[2,3]",), ("f32[2,3]",))


def test_a_console_gets_the_calls_of_some_requests(gateway):
    model, request = gateway.find("m").model, Request({"x": X}, 1, "k", ("y",))
    gateway.choose(model, request)
    assert request.op_calls is None and request.traced is None
    gateway.view = ProcessView(gateway, RecentRequests(False))
    gateway.choose(model, request)
    assert request.op_calls is None
    gateway.view.read({})  # a console looks
    gateway.choose(model, request)
    assert request.op_calls == ()


def test_the_console_shows_the_calls_of_a_request_and_of_its_steps(gateway):
    request = run(gateway.find("m").model, ())
    request.run_ns, request.ended_ns = (request.received_ns, time.perf_counter_ns()), time.perf_counter_ns()
    recent = RecentRequests(bodies=False)
    recent.add(Answer("http", "/infer", "200", 10**9, "m"), request, "")
    request.steps = (StepRun("m", request.times(), False, request.op_calls * 300),)
    recent.add(Answer("http", "/infer", "200", 10**9, "m"), request, "")
    alone, pipeline = (each.as_map() for each in recent.since(0))
    (call,) = alone["ops"]
    assert (call["op"], call["node"], call["inputs"], call["outputs"]) == ("Mish", "n", ("f32[2,3]",), ("f32[2,3]",))
    assert call["begin_us"] > 0 and 0 < call["us"] < 10**6
    (step,) = pipeline["steps"]
    assert step["model"] == "m" and len(step["ops"]) == 200 and step["ops"][0]["op"] == "Mish"


def test_a_profile_of_a_model_that_is_no_file_is_refused(gateway):
    model = gateway.find("m").model
    operators = profile(model, Request({"x": X}, 1, "k", ("y",)))
    assert [(one.name, one.op, one.domain, one.inputs) for one in operators] == [("n", "Mish", "opgate", ("f32[2,3]",))]
    with pytest.raises(ServingError, match="'m' can't be profiled: expected an ONNX file") as refused:
        profile(replace(model, try_on=None), Request({"x": X}, 1, "k", ("y",)))
    assert refused.value.kind is Kind.UNSUPPORTED
    assert run(model).error is None


def test_a_profile_of_too_many_operators_is_refused(tmp_path):
    """Reading it would hold up everybody."""
    path = tmp_path / "run.json"
    path.write_bytes(b"[" + b" " * (4 << 20) + b"]")
    with pytest.raises(
        ServingError, match=r"has 4194306 bytes, the limit is 4194304: the run calls too many operators"
    ):
        read_profile(path, {}, MOST_BYTES)


def test_numbers_that_no_worker_can_have_counted_end_the_list(tmp_path):
    row = struct.pack("<II24q", 2, 1, 5, *[1] * 23) + b"opn"
    wrong = struct.pack("<II24q", 2, 1, 1 << 60, *[1] * 23) + b"opm"
    memory = struct.pack("<Q", 3) + row + row + wrong
    assert read_times(memory, 0, len(memory)) == {("op", "n"): [10, *[2] * 23]}
