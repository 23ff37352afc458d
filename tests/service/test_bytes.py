"""Elements of BYTES tensors that are not text: on the wire, in the engine, and in everything that keeps or compares them."""

from __future__ import annotations

import asyncio
import ctypes
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.presentation import Presentation
from opgate.service.core.request import Options, Request, Sequence, run
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.tensors import element, from_raw, to_raw
from opgate.service.execution import engine_strings as engine_module
from opgate.service.execution import session as session_module
from opgate.service.execution.engine_strings import EngineStrings, engine_strings
from opgate.service.execution.response_cache import digest
from opgate.service.execution.session import Session, SessionOptions
from opgate.service.native import engine_strings as native
from opgate.service.wire.classification import Classification
from opgate.service.wire.friendly import labelled
from opgate.service.wire.json_tensors import write
from opgate.service.wire.kserve_grpc import Decoder, Message
from tests.conftest import examples
from tests.service.onnx_models import batching, identity, save, value, write_config

BYTES = DATATYPES["BYTES"]
LIMITS = Limits()
JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffdb0043") + bytes(range(256)) * 40 + b"\xff\xd9\0\0"
ANY = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode), st.binary(min_size=100, max_size=300))


def objects(elements, shape=None):
    """Returns a BYTES array as the gateway has it."""
    array = np.empty(len(elements), np.object_)
    array[:] = [element(e) for e in elements]
    return array if shape is None else array.reshape(shape)


def raw(elements):
    return b"".join(len(e).to_bytes(4, "little") + e for e in elements)


def exact(array):
    """Returns the elements of an array as bytes. An element must be a str if it is UTF-8, otherwise bytes."""
    found = [e.encode() if isinstance(e, str) else e for e in array.reshape(-1).tolist()]
    assert array.reshape(-1).tolist() == [element(e) for e in found]
    return found


@given(st.lists(ANY, max_size=20))
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_any_bytes_come_from_the_wire_and_go_there(elements):
    data = raw(elements)
    array = from_raw(data, 0, len(data), BYTES, (len(elements),), "x", LIMITS)
    assert array.tolist() == objects(elements).tolist()
    assert bytes(to_raw(array, BYTES)) == data


def test_text_is_what_python_takes_for_utf8():
    """Every first byte, and the bounds of the others."""
    bounds = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xFF]
    pairs = [bytes([a, b]) for a in range(256) for b in bounds]
    found = [
        *pairs,
        *(p + bytes([c]) for p in pairs for c in (0x7F, 0x80, 0xBF, 0xC0)),
        *(p + b"\x80\xbf" for p in pairs),
    ]
    found += [b"seven..", b"text of more than a word", *(b"a word.." + e for e in pairs)]
    data = raw(found)
    got = from_raw(data, 0, len(data), BYTES, (len(found),), "x", LIMITS).tolist()
    assert got == [element(e) for e in found]


def test_contents_of_grpc():
    spec = ModelSpec("m", "1", {"x": TensorSpec("x", BYTES, (-1,))}, {"y": TensorSpec("y", BYTES, (-1,))}, 0, None)
    asked = service_pb2.ModelInferRequest(model_name="m")
    asked.inputs.add(name="x", datatype="BYTES", shape=[3]).contents.bytes_contents.extend([JPEG, b"", "é".encode()])
    message = Message(asked.SerializeToString())
    request = Decoder(LIMITS).decode(message, service_pb2.ModelInferRequest.FromString(message.envelope), spec)
    assert request.inputs["x"].tolist() == [JPEG, "", "é"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A session that answers with its input."""
    folder = identity(tmp_path_factory.mktemp("copies"), "m", "BYTES", shape=None)
    return Session(folder / "1" / "model.onnx", SessionOptions())


@given(st.lists(ANY, max_size=12), st.integers(0, 3))
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_the_engine_keeps_any_bytes(copies, elements, extra):
    shape = (len(elements), 1) if extra == 1 else (1, len(elements), 1) if extra == 2 else (len(elements),)
    (array,) = copies.run(["y"], {"x": objects(elements, shape)})
    assert array.shape == shape and array.dtype == object and exact(array) == elements


def test_shapes_without_dims_and_views(copies):
    for one in (JPEG, b"text"):
        (array,) = copies.run(["y"], {"x": np.asarray(element(one), np.object_)})
        assert array.shape == () and exact(array) == [one]
    turned = objects([b"a", b"\xff", b"\0", b"", b"\xfe\0", b"d"], (2, 3)).T
    (array,) = copies.run(["y"], {"x": turned})
    assert array.tolist() == turned.tolist()
    (array,) = copies.run(["y"], {"x": objects([b"\xff"] * 0, (0, 3))})
    assert array.shape == (0, 3)


def test_many_and_large_elements(copies):
    random = np.random.default_rng(0)
    many = [random.bytes(int(size)) for size in random.integers(0, 40, 50_000)]
    (array,) = copies.run(["y"], {"x": objects(many)})
    assert exact(array) == many
    large = [random.bytes(3 << 20), b"", b"a" * (2 << 20), "é".encode() * (1 << 20)]
    (array,) = copies.run(["y"], {"x": objects(large)})
    assert exact(array) == large


def test_tensors_that_live_at_once_do_not_share_their_strings():
    strings = engine_strings()
    assert isinstance(strings, EngineStrings)
    values = [strings.make(objects([bytes([255, i]) * 40], shape)) for i in range(50) for shape in ((), (1,))]
    for i, value_ in enumerate(values):
        assert exact(strings.read(value_)) == [bytes([255, i // 2]) * 40]


def table(folder, entries):
    """Saves a model that answers with entries of a table, which the caller doesn't send."""
    constant = TensorProto(name="table", data_type=TensorProto.STRING, dims=[len(entries)], string_data=entries)
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    inputs, outputs = [value("i", "INT64", ["batch", 1])], [value("y", "BYTES", ["batch", 1])]
    return save(folder, "table", [node], inputs, outputs, initializers=[constant], config=batching())


def test_outputs_that_the_request_did_not_bring(tmp_path):
    session = Session(table(tmp_path, [b"text", JPEG, "é\0".encode()]) / "1" / "model.onnx", SessionOptions())
    for indices in ([0, 2], [0, 1, 2], [1], [0], [2, 2]):
        (array,) = session.run(["y"], {"i": np.array(indices, np.int64)[:, None]})
        assert exact(array) == [[b"text", JPEG, "é\0".encode()][i] for i in indices]


def test_numbers_beside_strings(tmp_path):
    constant = TensorProto(name="table", data_type=TensorProto.STRING, dims=[1], string_data=[JPEG])
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Add", ["n", "n"], ["m"])]
    nodes.append(helper.make_node("Identity", ["table"], ["t"]))
    inputs, outputs = ([value(a, "BYTES", None), value(b, "FP32", None)] for a, b in (("x", "n"), ("y", "m")))
    outputs.append(value("t", "BYTES", [1]))
    folder = save(tmp_path, "m", nodes, inputs, outputs, initializers=[constant])
    session = Session(folder / "1" / "model.onnx", SessionOptions())
    numbers = np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32).reshape(2, 3)
    for names in (["y", "m"], ["t"], ["m", "t", "y"]):  # from the second on, outputs are read in the engine's memory
        for elements in ([b"a\0", "é".encode()], [b"a", JPEG]):
            found = dict(zip(names, session.run(names, {"x": objects(elements), "n": numbers}), strict=True))
            assert exact(found.get("y", objects(elements))) == elements
            assert exact(found.get("t", objects([JPEG]))) == [JPEG]
            np.testing.assert_array_equal(found.get("m", 2 * numbers), 2 * numbers)
    with pytest.raises(ServingError) as error:
        session.run(["y"], {"x": objects([JPEG]), "n": numbers.astype(np.float64)})
    assert error.value.kind is Kind.INVALID


def test_an_engine_whose_strings_are_out_of_reach(tmp_path, monkeypatch):
    """Text works, and anything else is refused by name."""
    monkeypatch.setattr(session_module, "engine_strings", lambda: None)
    folder = identity(tmp_path, "m", "BYTES", shape=None)
    session = Session(folder / "1" / "model.onnx", SessionOptions())
    assert exact(session.run(["y"], {"x": objects([b"a", "é\0".encode()])})[0]) == [b"a", "é\0".encode()]
    with pytest.raises(ServingError, match=r"input 'x': element 1 is not UTF-8, .* with ONNX Runtime \d") as error:
        session.run(["y"], {"x": objects([b"a", JPEG])})
    assert error.value.kind is Kind.INVALID
    session = Session(table(tmp_path, [b"text", JPEG]) / "1" / "model.onnx", SessionOptions())
    assert exact(session.run(["y"], {"i": np.array([[0]])})[0]) == [b"text"]
    with pytest.raises(ServingError, match="an output has an element that is not UTF-8") as error:
        session.run(["y"], {"i": np.array([[1]])})
    assert error.value.kind is Kind.INTERNAL
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["v"], ["w"])]
    tensors = [value(n, t, ["n"]) for n, t in (("x", "BYTES"), ("v", "BF16"), ("y", "BYTES"), ("w", "BF16"))]
    folder = save(tmp_path, "both", nodes, tensors[:2], tensors[2:])
    with pytest.raises(ServingError, match="takes no strings as input of a model with BF16 tensors"):
        Session(folder / "1" / "model.onnx", SessionOptions())


def test_strings_of_another_layout_are_left_alone(monkeypatch, caplog):
    """Memory that is no array of this compiler's strings is not written."""
    zeros = (ctypes.c_uint64 * 16)()
    assert not native.has_layout(ctypes.addressof(zeros))
    zeros[0] = ctypes.addressof(zeros)  # strings that begin with their size, or point elsewhere
    assert not native.has_layout(ctypes.addressof(zeros))
    filled = []
    monkeypatch.setattr(engine_module.native, "has_layout", lambda address: False)
    monkeypatch.setattr(engine_module.native, "fill", lambda *arguments: filled.append(arguments))
    assert engine_strings.__wrapped__() is None and not filled
    assert "BYTES tensors can hold UTF-8 text only" in caplog.text


def test_only_str_and_bytes_enter_the_engine():
    for wrong in (1, None, bytearray(b"a"), ["a"]):
        array = np.empty(1, np.object_)
        array[0] = wrong
        with pytest.raises(TypeError, match="str and bytes"):
            engine_strings().make(array)
    for array in (np.array(["a"]), np.array([1])):
        with pytest.raises(TypeError, match="array of objects"):
            native.first_bytes(array)
    with pytest.raises(UnicodeEncodeError):
        engine_strings().make(np.array(["\ud800"], np.object_))


def test_json_refuses_what_it_cannot_hold():
    for nested in (False, True):
        with pytest.raises(ServingError, match=r"output 'y': element 3 is not UTF-8.*binary_data") as error:
            write(objects([b"a", b"", "é".encode(), JPEG], (2, 2)), BYTES, nested, "y")
        assert error.value.kind is Kind.INVALID
    with pytest.raises(ServingError, match="element 70000 is not UTF-8"):
        write(objects([b"a"] * 70_000 + [b"\xff"]), BYTES, False, "y")
    assert json.loads(b"".join(write(objects([b"a", "é\0".encode()]), BYTES, False, "y"))) == ["a", "é\0"]


def test_predict_says_which_output_is_not_text():
    fields = Presentation("n", (("name", "y"), ("count", "n")), "")
    outputs = {"y": TensorSpec("y", BYTES, (-1,)), "n": TensorSpec("n", DATATYPES["INT64"], (1,))}
    spec = ModelSpec("m", "1", {}, outputs, 0, None)
    result = {"y": objects([b"a\0"]), "n": np.array([1])}
    for presentation, want in ((fields, {"name": "a\0", "count": 1}), (Presentation("", (), ""), None)):
        answer = json.loads(labelled(spec, presentation, result, {}))
        assert answer["predictions"] == [want] if want else answer["outputs"] == {"y": ["a\0"], "n": [1]}
        with pytest.raises(ServingError, match="output 'y': element 0 is not UTF-8"):
            labelled(spec, presentation, {**result, "y": objects([b"\xff\0"])}, {})


def test_classes_hold_the_bytes_and_compare_by_them():
    tensor = TensorSpec("y", BYTES, (4,), labels=("", "é"))
    rows = objects(
        [b"a", b"\xff\0", "é".encode(), b"\xc2", "\U0001f600".encode(), b"b", "\uffff".encode(), b""], (2, 4)
    )
    found = Classification(tensor, 3, True, 100).classes(rows)
    want = [
        [b"\xff\0:1:\xc3\xa9", "é:2".encode(), b"\xc2:3"],
        ["\U0001f600:0".encode(), "\uffff:2".encode(), b"b:1:\xc3\xa9"],
    ]
    assert [exact(row) for row in found] == want


def request(elements, options=None):
    return Request({"x": objects(elements, (1, len(elements)))}, 1, "k", ("y",), options=options or Options())


def test_the_digest_tells_bytes_apart():
    different = [
        [b"\xff"],
        [b"\xfe"],
        [b"\xff\0"],
        [b""],
        [b"b'\\xff'"],
        ["ÿ".encode()],
        [b"\xff", b""],
        [b"", b"\xff"],
    ]
    assert len({digest(request(elements)) for elements in different}) == len(different)
    assert digest(request([b"\xff"])) == digest(request([b"\xff"]))


def serve(load, main):
    async def whole():
        gateway = load()
        await main(gateway)
        await gateway.catalog.close()

    asyncio.run(whole())


def test_batches_of_text_and_of_other_bytes(repository, load):
    identity(
        repository,
        "m",
        "BYTES",
        ("batch", 2),
        config=batching("dynamic_batching { max_queue_delay_microseconds: 50000 }"),
    )

    async def main(gateway):
        model = gateway.find("m").model
        sent = [[b"text %d" % i, JPEG + bytes([i]) if i % 3 else b"more"] for i in range(16)]
        results = await asyncio.gather(*(run(model.submit, request(elements)) for elements in sent))
        assert [exact(result["y"]) for result in results] == sent
        assert model.statistics.executions < 16

    serve(load, main)


def test_the_cache_keeps_bytes(repository, load):
    identity(repository, "m", "BYTES", ("batch", 2), config=batching() + "response_cache { enable: true }")

    async def main(gateway):
        model = gateway.find("m").model
        for elements in ([JPEG, b"a"], [JPEG, b"b"], [JPEG, b"a"]):
            assert exact((await run(model.submit, request(elements)))["y"]) == elements
        assert (model.statistics.cache_hits, model.statistics.cache_misses) == (1, 2)

    serve(load, main)


CHAIN = """platform: "ensemble" max_batch_size: 8
input [ { name: "x" data_type: TYPE_STRING dims: [ 2 ] } ] output [ { name: "y" data_type: TYPE_STRING dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "mid" } },
  { model_name: "m" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } } ] }"""


def test_an_ensemble_hands_bytes_on(repository, load):
    identity(repository, "m", "BYTES", ("batch", 2), config=batching())
    write_config(repository, "chain", CHAIN)

    async def main(gateway):
        result = await run(gateway.find("chain").model.submit, request([JPEG, b"text"]))
        assert exact(result["y"]) == [JPEG, b"text"]

    serve(load, main)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_the_state_of_a_sequence(repository, load, strategy):
    """The model answers with the x of the request before."""
    nodes = [helper.make_node("Identity", ["x"], ["next"]), helper.make_node("Identity", ["last"], ["y"])]
    shape = ["batch", 1]
    inputs, outputs = ([value(n, "BYTES", shape) for n in names] for names in (("x", "last"), ("next", "y")))
    state = """state [ { input_name: "last" output_name: "next" data_type: TYPE_STRING dims: [ 1 ]
      initial_state { name: "first" data_type: TYPE_STRING dims: [ 1 ] data_file: "first" } } ]"""
    tensors = """input [ { name: "x" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]"""
    config = f"max_batch_size: 4 {tensors} sequence_batching {{ {strategy} {state} }}"
    folder = save(repository, "m", nodes, inputs, outputs, config=config)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "first").write_bytes(raw([b"\xfe first \0"]))

    async def main(gateway):
        model = gateway.find("m").model
        sent = [JPEG, b"text", b"\xff\0", b""]
        found = []
        for i, x in enumerate(sent):
            place = Sequence(7, i == 0, i == len(sent) - 1)
            found += exact((await run(model.submit, request([x], Options(sequence=place))))["y"])
        assert found == [b"\xfe first \0", *sent[:-1]]

    serve(load, main)


WARM_UP = """model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_STRING dims: [ 2 ]
  input_data_file: "x" } } }"""


def test_warm_up_and_golden_outputs(repository, load, reason):
    folder = identity(repository, "m", "BYTES", ("batch", 2), config=batching(extra=WARM_UP))
    (folder / "warmup").mkdir()
    (folder / "warmup" / "x").write_bytes(raw([JPEG, b"text"]))
    for x in (np.array([[b"\xff\xfe", b"text"]]), np.array([[b"\xff\0", b"\xfe\0"]], "V2"), np.array([["é", ""]])):
        np.savez(folder / "golden.npz", x=x, y=x)
        assert load().find("m").model.spec.name == "m"
    np.savez(folder / "golden.npz", x=np.array([[b"\xff\0", b"a\0"]], "V2"), y=np.array([[b"\xff\0", b"ab"]], "V2"))
    assert "output 'y' differs in 1 of 2 elements, first at [0, 1]" in reason("m")
    np.savez(folder / "golden.npz", x=np.zeros((1, 2), [("a", "V1")]), y=np.array([["a", "b"]]))
    assert "'x': expected strings" in reason("m")
