"""Reads bodies into requests and writes results as bodies: round trips for every type, and bad input of every kind."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from opgate.service import deflate
from opgate.service.core import tensors
from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.tensors import aligned, from_raw, join_rows
from opgate.service.native import json_tensors as native
from opgate.service.native.protobuf import Broken, split
from opgate.service.rpc.connection import Budget
from opgate.service.shared_memory import Regions
from opgate.service.wire import compression, generate, json_tensors, kserve_grpc
from opgate.service.wire.kserve_json import Decoder, encode
from tests.conftest import examples

LIMITS = Limits()
NUMERIC = [name for name in DATATYPES if name not in ("BYTES", "BF16")]


def spec(datatype="FP32", dims=(-1,), max_batch_size=0, **more):
    tensor = DATATYPES[datatype]
    return ModelSpec(
        "m",
        "1",
        {"x": TensorSpec("x", tensor, dims)},
        {"y": TensorSpec("y", tensor, dims)},
        max_batch_size=max_batch_size,
        **more,
    )


def message(array, datatype, binary, **top):
    tensor = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    tail = b""
    if binary:
        tail = bytes(tensors.to_raw(array, DATATYPES[datatype]))
        tensor["parameters"] = {"binary_data_size": len(tail)}
    else:
        tensor["data"] = json.loads(b"".join(json_tensors.write(array, DATATYPES[datatype], nested=False, name="y")))
    # orjson writes no integer beyond 64 bits, and a float may look like one.
    head = json.dumps({"inputs": [tensor], **top}).encode()
    return head + tail, len(head) if binary else None


def arrays(datatype):
    shape = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
    if datatype == "BYTES":
        element = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    elif datatype == "BOOL":
        element = st.booleans()
    elif datatype.startswith(("UINT", "INT")):
        bounds = np.iinfo(DATATYPES[datatype].dtype)
        element = st.integers(int(bounds.min), int(bounds.max))
    elif datatype == "BF16":
        element = st.integers(0, 0x7F7F)
    else:
        width = DATATYPES[datatype].itemsize * 8
        element = st.floats(width=width, allow_nan=False, allow_infinity=False)

    def build(size):
        count = math.prod(size)
        return st.lists(element, min_size=count, max_size=count).map(
            lambda values: np.array(values, dtype=DATATYPES[datatype].dtype).reshape(size)
        )

    return shape.flatmap(build)


@pytest.mark.parametrize("datatype", list(DATATYPES))
@pytest.mark.parametrize("binary", [True, False])
def test_round_trip(datatype, binary):
    @given(arrays(datatype))
    @hypothesis_settings(max_examples=25, deadline=None)
    def check(array):
        model = spec(datatype, (-1,) * array.ndim)
        body, header_length = message(array, datatype, binary, parameters={"binary_data_output": binary}, id="q")
        request = Decoder(model, LIMITS).decode(body, header_length)
        assert request.inputs["x"].shape == array.shape
        assert request.inputs["x"].dtype == array.dtype
        assert (request.inputs["x"] == array).all()
        request.result = {"y": request.inputs["x"]}
        length, parts = encode(request)
        answer = b"".join(parts)
        head = json.loads(answer[:length] if binary else answer)
        assert head["id"] == "q"
        assert head["outputs"][0]["shape"] == list(array.shape)
        if binary:
            assert head["outputs"][0]["parameters"]["binary_data_size"] == len(answer) - length
            assert answer[length:] == tensors.to_raw(array, DATATYPES[datatype])

    check()


def over_grpc(asked, model, limits=LIMITS):
    """Decodes a message as the gateway does, from its bytes."""
    message = kserve_grpc.Message(asked.SerializeToString())
    asked = service_pb2.ModelInferRequest.FromString(message.envelope)
    return kserve_grpc.Decoder(limits).decode(message, asked, model)


@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_grpc_round_trip(datatype):
    @given(arrays(datatype))
    @hypothesis_settings(max_examples=25, deadline=None)
    def check(array):
        model = spec(datatype, (-1,) * array.ndim)
        raw = bytes(tensors.to_raw(array, DATATYPES[datatype]))
        asked = service_pb2.ModelInferRequest(model_name="m", id="q", raw_input_contents=[raw])
        asked.inputs.add(name="x", datatype=datatype, shape=array.shape)
        request = over_grpc(asked, model)
        assert (request.inputs["x"] == array).all()
        request.result = {"y": array}
        response = service_pb2.ModelInferResponse.FromString(b"".join(kserve_grpc.encode(request)))
        assert response.raw_output_contents[0] == raw
        assert list(response.outputs[0].shape) == list(array.shape)

    check()


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("FP16", "BF16")])
def test_grpc_typed_contents(datatype):
    model = spec(datatype)
    asked = service_pb2.ModelInferRequest(model_name="m")
    tensor = asked.inputs.add(name="x", datatype=datatype, shape=[2])
    getattr(tensor.contents, kserve_grpc._CONTENTS[datatype].name).extend(
        [b"1", b"0"] if datatype == "BYTES" else [1, 0]
    )
    array = over_grpc(asked, model).inputs["x"]
    assert array.tolist() == (["1", "0"] if datatype == "BYTES" else [1, 0])


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("datatype", ["INT8", "INT64", "UINT32", "BOOL", "FP32", "FP64", "BYTES"])
def test_typed_contents_in_every_encoding(datatype):
    """Lists may be packed or not, in one message or in several that protobuf merges. upb says what they mean."""
    field = kserve_grpc._CONTENTS[datatype]
    values = {"BOOL": [True, False, True], "BYTES": [b"a", b"", "ä".encode()], "FP32": [1.5, -0.0, 3e38]}.get(
        datatype, [1.0, -2.5, 1e300] if datatype == "FP64" else [0, 127, 1] if datatype[0] == "U" else [0, 127, -128]
    )
    contents = service_pb2.InferTensorContents()
    getattr(contents, field.name).extend(values)
    packed = contents.SerializeToString()
    single = []
    for value in values:
        one = service_pb2.InferTensorContents()
        getattr(one, field.name).append(value)
        single.append(one.SerializeToString())
    sizes = {"FP32": 4, "FP64": 8}
    unpacked = [
        part if datatype == "BYTES" else bytes([field.number << 3 | field.wire_type]) + part[2:] for part in single
    ]
    assert datatype not in sizes or all(len(part) == 1 + sizes[datatype] for part in unpacked)
    model = spec(datatype)
    base = service_pb2.ModelInferRequest(model_name="m")
    tensor = base.inputs.add(name="x", datatype=datatype, shape=[3]).SerializeToString()
    name = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    for lists in ([packed], single, unpacked, [single[0] + unpacked[1], single[2]], [b"", packed, b""]):
        inner = b"".join(b"\x2a" + varint(len(part)) + part for part in lists)
        for body in (tensor + inner, inner + tensor):
            data = name + b"\x2a" + varint(len(body)) + body
            meant = getattr(service_pb2.ModelInferRequest.FromString(data).inputs[0].contents, field.name)
            message = kserve_grpc.Message(data)
            asked = service_pb2.ModelInferRequest.FromString(message.envelope)
            assert asked == base
            array = kserve_grpc.Decoder(LIMITS).decode(message, asked, model).inputs["x"]
            wanted = [value.decode() for value in meant] if datatype == "BYTES" else list(meant)
            assert array.tolist() == wanted and array.dtype == (
                object if datatype == "BYTES" else DATATYPES[datatype].dtype
            )
    for count in (2, 4):
        base.inputs[0].shape[:] = [count]
        base.inputs[0].contents.CopyFrom(contents)
        with pytest.raises(ServingError, match=f"expected {count} elements in {field.name} .* got 3"):
            over_grpc(base, model)


message_parts = st.one_of(
    st.builds(lambda text: service_pb2.ModelInferRequest(model_name=text), st.text(max_size=3)),
    st.builds(lambda text: service_pb2.ModelInferRequest(id=text), st.text(max_size=3)),
    st.builds(lambda raw: service_pb2.ModelInferRequest(raw_input_contents=[raw]), st.binary(max_size=5)),
    st.builds(
        lambda name, shape, floats, strings: service_pb2.ModelInferRequest(
            inputs=[
                service_pb2.ModelInferRequest.InferInputTensor(
                    name=name,
                    shape=shape,
                    contents=service_pb2.InferTensorContents(fp32_contents=floats, bytes_contents=strings),
                )
            ]
        ),
        st.text(max_size=2),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
        st.lists(st.floats(width=32, allow_nan=False), max_size=2),
        st.lists(st.binary(max_size=2), max_size=2),
    ),
)


@given(st.lists(message_parts, max_size=6), st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=2)), max_size=2))
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_a_split_message_says_the_same(parts, edits):
    """Fields come in any order. Broken messages are refused, or protobuf's own library refuses their parts."""
    data = b"".join(part.SerializeToString() for part in parts)
    for at, new in edits:
        data = data[:at] + new + data[at + 1 :]
    try:
        meant = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        meant = None
    try:
        head, raws, contents = split(data, 1000, 100)
        again = service_pb2.ModelInferRequest.FromString(head)
        again.raw_input_contents.extend(data[at : at + size] for at, size in raws)
        for index, at, size in contents:
            again.inputs[index].contents.MergeFromString(data[at : at + size])
    except (Broken, DecodeError):
        # Groups, which proto3 hasn't, are no error for upb where it knows nothing of the field.
        assert meant is None or any(byte & 7 in (3, 4) for byte in data)
    else:
        assert again == meant


def test_a_message_with_much_beside_its_tensors_is_refused():
    parameters = service_pb2.ModelInferRequest()
    for i in range(5000):
        parameters.parameters[f"p{i}"].bool_param = True
    inputs = service_pb2.ModelInferRequest(inputs=[service_pb2.ModelInferRequest.InferInputTensor()] * 300)
    dims = service_pb2.ModelInferRequest()
    dims.inputs.add(name="x", datatype="FP32", shape=[1] * 65)
    with pytest.raises(ServingError, match="at most 4096 parameters, got 5000"):
        parameters.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
        over_grpc(parameters, spec("FP32"))
    with pytest.raises(ServingError, match="300 inputs, the limit is"):
        over_grpc(inputs, spec("FP32"))
    with pytest.raises(ServingError, match="at most 64 sizes, got 65"):
        over_grpc(dims, spec("FP32"))
    for data in (
        b"\x1a\x80\x80\x80\x01" + bytes(1 << 21),
        b"\x3a\0" * 5000,
        b"\x2a\x02\x2a\0" * 5000,
        b"\xa0\x06\1" * 400_000,
    ):
        with pytest.raises(ServingError, match="beside the data of its tensors") as caught:
            kserve_grpc.Message(data)
        assert caught.value.kind is Kind.TOO_LARGE


def test_grpc_contents_out_of_range_are_refused():
    asked = service_pb2.ModelInferRequest(model_name="m")
    asked.inputs.add(name="x", datatype="INT8", shape=[1]).contents.int_contents.append(300)
    with pytest.raises(ServingError, match="-128 to 127, got 300"):
        over_grpc(asked, spec("INT8"))


def test_a_binary_head_is_checked_once_and_its_data_every_time():
    decoder = Decoder(spec(max_batch_size=4, dims=(2,)), LIMITS)
    for fill in (1.0, 2.0):
        body, length = message(np.full((3, 2), fill, np.float32), "FP32", True)
        request = decoder.decode(body, length)
        assert request.rows == 3
        assert (request.inputs["x"] == fill).all()
    with pytest.raises(ServingError, match="add up to 24 bytes, but 20 follow"):
        decoder.decode(body[:-4], length)


def test_arrays_are_views_of_the_body():
    array = np.arange(8192, dtype=np.float32)  # fewer bytes are copied
    body, length = message(array, "FP32", True)
    pad = -length % 4
    aligned = np.frombuffer(b"\0" * pad + body, np.uint8)[pad:]
    decoded = Decoder(spec(), LIMITS).decode(aligned, length).inputs["x"]
    if aligned.__array_interface__["data"][0] % 4 == (-length) % 4:
        assert np.shares_memory(decoded, aligned)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("size", [1, 3, 16, 1000, 4096, 4097, 100_000])
@pytest.mark.parametrize("at", [0, 1, 2, 4, 17, 63])
def test_tensors_that_are_copied_are_aligned(size, at):
    array = np.arange(size, dtype=np.float32)
    decoded = from_raw(b"." * at + array.tobytes(), at, array.nbytes, DATATYPES["FP32"], (size,), "x", LIMITS)
    np.testing.assert_array_equal(decoded, array)
    assert address(decoded) % 4 == 0
    moved = np.frombuffer(b"." * 4096 + array.tobytes(), np.uint8)[4096:].view(np.float32)
    for shifted in (moved, moved.reshape(1, -1), moved[::-1], array.astype(np.float16)):
        found = aligned(shifted)
        assert address(found) % 64 == 0
        np.testing.assert_array_equal(found, shifted)
        assert found is shifted or not np.shares_memory(found, shifted)
    rows = join_rows([array.reshape(1, -1), 2 * array.reshape(1, -1)])
    assert address(rows) % 64 == 0
    np.testing.assert_array_equal(rows, [array, 2 * array])


def test_rows_of_texts_are_joined():
    texts = np.array([["a"], ["ß"]], np.object_)
    assert join_rows([texts, texts]).tolist() == [["a"], ["ß"], ["a"], ["ß"]]


def test_copies_lie_inside_of_their_buffer():
    for offset, size in ((0, 9), (-1, 2), (8, 1), (5, -1), (1 << 62, 1 << 62)):
        with pytest.raises(ValueError, match="outside of a buffer of 8"):
            native.aligned_copy(b"12345678", offset, size)


BAD = [
    (b" ", None, "not valid JSON"),
    (b"[]", None, "expected a JSON object, got a list"),
    (b"null", None, "expected a JSON object, got null"),
    (b"{}", None, "'inputs': expected a list of objects, got nothing"),
    (b'{"inputs":{}}', None, "'inputs': expected a list"),
    (b'{"inputs":[1]}', None, "'inputs': expected a list"),
    (b'{"inputs":[{}]}', None, "an input's name"),
    (b'{"inputs":[{"name":"x"}]}', None, "input 'x': datatype"),
    (b'{"inputs":[{"name":"x","datatype":"FP31","shape":[1],"data":[1]}]}', None, "FP31"),
    (b'{"inputs":[{"name":"x","datatype":"FP32"}]}', None, "input 'x': shape"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1.5],"data":[1]}]}', None, "input 'x': shape"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[true],"data":[1]}]}', None, "input 'x': shape"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[' + b"1," * 200 + b'1],"data":[1]}]}',
        None,
        "at most 64 sizes",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"data":[1]}]}', None, "negative size"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}', None, "neither data nor binary_data_size"),
    (b'{"inputs":[{"name":"q","datatype":"FP32","shape":[1],"data":[1]}]}', None, "no input 'q', its inputs are 'x'"),
    (b'{"inputs":[]}', None, "input 'x' of model 'm' is missing"),
    (b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]}', None, "expected datatype FP32, got INT8"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}', None, "shape [-1], got shape [1, 1]"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1]}]}', None, "expected 2 elements"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":["a","b"]}]}',
        None,
        "expected FP32 values, got the string",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[[1],[2]]}]}', None, "nested as shape [2]"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[[1],2]}]}', None, "uneven"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1e39]}]}', None, "too large for FP32"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[null]}]}', None, "got null"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[true]}]}', None, "boolean"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[{}]}]}', None, "object"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":3}]}', None, "parameters"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}]}',
        None,
        "binary_data_size",
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":8}}]}',
        None,
        "add up to 8 bytes, but 0 follow",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}', 999, "but the body has"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}', 5, "not valid JSON"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{"name":"z"}]}',
        None,
        "no output 'z'",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{}]}', None, "lacks its name"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{"name":"y"},{"name":"y"}]}',
        None,
        "asked for twice",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"id":3}', None, "id: expected a string"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"timeout":-1}}',
        None,
        "timeout",
    ),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[4611686018427387904],"data":[1]}]}', None, "shape"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * 200 + b"]" * 200 + b"}]}", None, "deep"),
    (b"[" * 5000, None, "nested more than 32 deep"),
    (b"123", 0, "multiple of 4 bytes, got 3"),
    (b"\xff\xfe", None, "not valid JSON"),
    (b'{"inputs":[{"name":"x","parameters":{"binary_data_size":4}}]}\xff', None, "Inference-Header-Content-Length"),
    (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1,]}]}', None, "not valid JSON: input 'x' has ']'"),
]


@pytest.mark.parametrize(("body", "header_length", "text"), BAD, ids=[text for _, _, text in BAD])
def test_a_bad_body_is_refused_with_what_was_expected(body, header_length, text):
    with pytest.raises(ServingError) as caught:
        Decoder(spec(), LIMITS).decode(body, header_length)
    assert caught.value.kind is Kind.INVALID
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("INT8", [300], "-128 to 127, got 300"),
        ("UINT8", [-1], "0 to 255, got -1"),
        ("INT32", [1.5], "number with a fraction"),
        ("INT64", [10**30], "got 1000000000000000000000000000000"),
        ("BOOL", [1], "expected BOOL values, got the number 1"),
        ("FP16", [70000], "too large for FP16"),
        ("BYTES", [1], "expected BYTES values, got the number 1"),
        ("BYTES", [["a"], "b"], "uneven"),
    ],
)
def test_json_values_are_checked_against_the_type(datatype, data, text):
    with pytest.raises(ServingError, match=text):
        json_tensors.read(json_tensors.from_text(json.dumps(data), "x", LIMITS), DATATYPES[datatype], None, "x", LIMITS)


def test_every_byte_but_zero_is_true():
    """perf_analyzer sends any bytes."""
    array = tensors.from_raw(b"\x02\x00\xff\x01", 0, 4, DATATYPES["BOOL"], (4,), "x", LIMITS)
    assert array.tobytes() == b"\x01\x00\x01\x01"


@pytest.mark.parametrize(
    ("dims", "body", "shape"),
    [
        ((-1, 2), b'{"x": [1, 2, 3, 4]}', (2, 2)),
        ((2, 2), b'{"x": [1, 2, 3, 4]}', (2, 2)),
        ((-1, 2), b'{"x": [[1, 2], [3, 4]]}', (2, 2)),
        ((-1, 2), b'{"x": [1, 2, 3]}', None),
        ((-1, -1), b'{"x": [1, 2, 3]}', None),
    ],
)
def test_generate_takes_flat_lists(dims, body, shape):
    if shape is None:
        with pytest.raises(ServingError, match=r"of shape \[-1, "):
            generate.read(spec(dims=dims), body, LIMITS)
    else:
        assert generate.read(spec(dims=dims), body, LIMITS).inputs["x"].shape == shape


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x01", "can't hold their lengths"),
        (b"\x05\0\0\0ab", "element 0 says 5 bytes, 2 are left"),
        (b"\x01\0\0\0ab", "1 bytes are left over"),
        (b"\xff\xff\xff\xff", "4294967295 bytes"),
    ],
)
def test_bytes_elements_are_checked(data, text):
    with pytest.raises(ServingError, match=text):
        tensors.from_raw(data, 0, len(data), DATATYPES["BYTES"], (1,), "x", LIMITS)


@given(st.binary(max_size=300), st.one_of(st.none(), st.integers(0, 400)))
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_any_bytes_cause_at_most_a_client_error(body, header_length):
    for model in (spec(), spec("BYTES"), spec("INT64", (2, -1), max_batch_size=4)):
        try:
            Decoder(model, LIMITS).decode(body, header_length)
        except ServingError as error:
            assert error.kind in (Kind.INVALID, Kind.TOO_LARGE, Kind.UNSUPPORTED)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"name": JSON_VALUES | st.just("x"), "datatype": JSON_VALUES | st.sampled_from(list(DATATYPES))},
        optional={
            "shape": JSON_VALUES | st.lists(st.integers(-2, 3), max_size=3),
            "data": JSON_VALUES,
            "parameters": JSON_VALUES | st.fixed_dictionaries({"binary_data_size": JSON_VALUES}),
        },
    ),
    st.sampled_from(list(DATATYPES)),
)
@hypothesis_settings(max_examples=examples(300), deadline=None)
def test_any_json_causes_at_most_a_client_error(tensor, datatype):
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        Decoder(spec(datatype), LIMITS).decode(body, None)
    except ServingError as error:
        assert error.kind in (Kind.INVALID, Kind.TOO_LARGE, Kind.UNSUPPORTED)


def test_limits():
    limits = Limits(max_rank=1, max_elements=4, max_tensors=1, max_string_bytes=3)
    with pytest.raises(ServingError, match="rank 2 is over the limit of 1"):
        Decoder(spec(dims=(-1, -1)), limits).decode(*message(np.zeros((1, 1), np.float32), "FP32", True))
    with pytest.raises(ServingError, match="5 elements are over the limit of 4"):
        Decoder(spec(), limits).decode(*message(np.zeros(5, np.float32), "FP32", True))
    with pytest.raises(ServingError, match="'inputs' has 2 entries"):
        Decoder(spec(), limits).decode(b'{"inputs":[{},{}]}', None)
    with pytest.raises(ServingError, match="element 0 has 4 bytes"):
        tensors.from_raw(b"\4\0\0\0abcd", 0, 8, DATATYPES["BYTES"], (1,), "x", limits)


REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
BAD_INPUTS = [
    ({REGION: "r"}, "input 'x': parameter shared_memory_region needs shared_memory_byte_size"),
    ({SIZE: 4}, "input 'x': parameter shared_memory_byte_size needs shared_memory_region"),
    ({OFFSET: 0}, "input 'x': parameter shared_memory_offset needs shared_memory_region"),
    ({REGION: 3, SIZE: 4}, "parameter shared_memory_region: expected a name, got '3'"),
    ({REGION: "r", SIZE: "4"}, "parameter shared_memory_byte_size: expected a number of bytes from 0 on, got '4'"),
    ({REGION: "r", SIZE: True}, "parameter shared_memory_byte_size: expected a number of bytes from 0 on, got 'True'"),
    ({REGION: "r", SIZE: -4}, "parameter shared_memory_byte_size: expected a number of bytes from 0 on, got '-4'"),
    ({REGION: "r", SIZE: 4, OFFSET: -1}, "parameter shared_memory_offset: expected a number of bytes from 0 on"),
    ({REGION: "r", SIZE: 4, OFFSET: 1.5}, "parameter shared_memory_offset: expected a number of bytes from 0 on"),
    ({REGION: "r", SIZE: 5}, "input 'x': expected 4 bytes for shape [1] of FP32, got 5"),
]
BAD_OUTPUTS = [
    ({REGION: "r"}, "output 'y': parameter shared_memory_region needs shared_memory_byte_size"),
    ({SIZE: 4}, "output 'y': parameter shared_memory_byte_size needs shared_memory_region"),
    ({"classification": 0}, "output 'y': parameter classification: expected a positive integer, got '0'"),
    ({"classification": -1}, "parameter classification: expected a positive integer, got '-1'"),
    ({"classification": True}, "parameter classification: expected a positive integer, got 'True'"),
    ({"classification": 2.0}, "parameter classification: expected a positive integer, got '2.0'"),
    ({"classification": "2"}, "parameter classification: expected a positive integer, got '2'"),
]
ONLY_JSON = [
    ({}, {"binary_data": 1}, "output 'y': parameter binary_data: expected a boolean, got '1'"),
    ({}, {"classification": None}, "parameter classification: expected a positive integer, got 'None'"),
    ({}, {"binary_data": True, REGION: "r", SIZE: 4}, "expected either binary_data or shared_memory_region, got both"),
    ({"binary_data_size": 4, REGION: "r", SIZE: 4}, {}, "has both binary_data_size and shared_memory_region"),
]


def parametrized(of_input, of_output):
    """Returns a JSON request with these parameters of its tensors."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": of_input}
    if not of_input:
        tensor["data"] = [1]
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "y", "parameters": of_output}]}).encode()


def parametrized_message(of_input, of_output):
    """Returns a message with these parameters of its tensors."""
    asked = service_pb2.ModelInferRequest(model_name="m")
    tensors = asked.inputs.add(name="x", datatype="FP32", shape=[1]), asked.outputs.add(name="y")
    for tensor, parameters in zip(tensors, (of_input, of_output), strict=True):
        for key, value in parameters.items():
            field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
            setattr(tensor.parameters[key], field, value)
    if not of_input:
        asked.raw_input_contents.append(b"abcd")
    return asked


class TestParametersOfTensors:
    @pytest.mark.parametrize(
        ("of_input", "of_output", "text"),
        [*((bad, {}, text) for bad, text in BAD_INPUTS), *(({}, bad, text) for bad, text in BAD_OUTPUTS), *ONLY_JSON],
    )
    def test_bad_ones_in_json(self, of_input, of_output, text):
        with pytest.raises(ServingError) as caught:
            Decoder(spec(), LIMITS, Regions(1, Budget(1))).decode(parametrized(of_input, of_output), None)
        assert caught.value.kind is Kind.INVALID
        assert text in caught.value.message

    @pytest.mark.parametrize(
        ("of_input", "of_output", "text"),
        [*((bad, {}, text) for bad, text in BAD_INPUTS), *(({}, bad, text) for bad, text in BAD_OUTPUTS)],
    )
    def test_bad_ones_over_grpc(self, of_input, of_output, text):
        with pytest.raises(ServingError) as caught:
            over_grpc(parametrized_message(of_input, of_output), spec())
        assert caught.value.kind is Kind.INVALID
        assert text in caught.value.message

    def test_data_beside_a_place_in_shared_memory(self):
        place = {REGION: "r", SIZE: 4}
        body = parametrized(place, {}).replace(b'"shape": [1]', b'"shape": [1], "data": [1]')
        with pytest.raises(ServingError, match="input 'x' has both data and shared_memory_region"):
            Decoder(spec(), LIMITS).decode(body, None)
        asked = parametrized_message(place, {})
        asked.inputs[0].contents.fp32_contents.append(1)
        with pytest.raises(ServingError, match="input 'x' has both contents and shared_memory_region"):
            over_grpc(asked, spec())
        asked = parametrized_message(place, {})
        asked.raw_input_contents.append(b"abcd")
        with pytest.raises(ServingError, match="each of the 0 inputs that are not in shared memory, got 1"):
            over_grpc(asked, spec())

    def test_unknown_ones_mean_nothing(self):
        unknown = {"mine": "x", "triton_x": 3}
        body = parametrized({**unknown, "binary_data_size": 4}, {**unknown, "mine": {"a": [None]}})
        request = Decoder(spec(), LIMITS).decode(body + np.ones(1, np.float32).tobytes(), len(body))
        assert request.inputs["x"].tolist() == [1] and request.shared is None
        asked = parametrized_message({**unknown, "binary_data_size": "?"}, {**unknown, "binary_data": 7})
        asked.raw_input_contents.append(np.ones(1, np.float32).tobytes())
        assert over_grpc(asked, spec()).inputs["x"].tolist() == [1]


@pytest.mark.parametrize("header_length", [None, 0])
def test_an_empty_body_is_the_data_of_the_only_input(header_length):
    request = Decoder(spec(dims=(3, -1), max_batch_size=8), LIMITS).decode(b"", header_length)
    assert request.inputs["x"].shape == (1, 3, 0)
    assert Decoder(spec("BYTES", (1,)), LIMITS).decode(b"", header_length).inputs["x"].tolist() == [""]
    with pytest.raises(ServingError, match="expected 8 bytes for shape"):
        Decoder(spec(dims=(2,)), LIMITS).decode(b"", header_length)
    two = spec()
    two = replace(two, inputs={**two.inputs, "z": two.inputs["x"]})
    with pytest.raises(ServingError, match="the body is empty, which needs a model with one input, and 'm' has 2"):
        Decoder(two, LIMITS).decode(b"", header_length)


def test_a_raw_request_is_the_only_input():
    request = Decoder(spec(dims=(2, -1), max_batch_size=8), LIMITS).decode(np.arange(6, dtype="f4").tobytes(), 0)
    assert request.inputs["x"].tolist() == [[[0, 1, 2], [3, 4, 5]]]


class TestCompression:
    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    def test_round_trip(self, encoding):
        data = b"abc" * 1000
        packed = b"".join(deflate.deflate([data, b"d"], encoding))
        assert compression.decompress(packed, encoding, 10000, "THE_SETTING") == data + b"d"
        assert (gzip if encoding == "gzip" else zlib).decompress(packed) == data + b"d"

    def test_a_bomb_is_stopped_at_the_limit(self):
        bomb = gzip.compress(b"\0" * 10_000_000)
        with pytest.raises(ServingError) as caught:
            compression.decompress(bomb, "gzip", 1000, "THE_SETTING")
        assert caught.value.kind is Kind.TOO_LARGE

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"nonsense",
            gzip.compress(b"abc", mtime=0)[:-3],
            gzip.compress(b"abc", mtime=0) + b"x",
            zlib.compress(b"abc"),
        ],
    )
    def test_broken_bodies(self, body):
        with pytest.raises(ServingError) as caught:
            compression.decompress(body, "gzip", 1000, "THE_SETTING")
        assert caught.value.kind is Kind.INVALID

    def test_unknown_encoding(self):
        with pytest.raises(ServingError) as caught:
            compression.decompress(b"", "br", 1000, "THE_SETTING")
        assert caught.value.kind is Kind.MEDIA_TYPE

    def test_only_a_single_accepted_encoding_is_used(self):
        assert compression.wanted_encoding("GZIP ") == "gzip"
        assert compression.wanted_encoding("gzip, deflate") == ""


def decoded(decoder, body, header_length):
    """What a request is, or how it is refused."""
    try:
        request = decoder.decode(body, header_length)
    except ServingError as error:
        return error.kind, error.message
    inputs = {name: (array.dtype, array.shape, array.tobytes()) for name, array in request.inputs.items()}
    return inputs, request.id, request.options, request.outputs, request.rows


@given(st.data())
@hypothesis_settings(max_examples=examples(400), deadline=None)
def test_a_kept_head_changes_no_request(data):
    """Whatever came before, a body is read as if it were the first: with other values, other lengths of the same text, data
    in the JSON and behind it, ids and parameters, and what is no request at all."""
    decoder = Decoder(spec(dims=(-1,), max_batch_size=4), LIMITS)
    numbers = st.sampled_from([0, 1, 2, 0.5, -3, "0", None, [0], [], True])
    values = st.one_of(numbers, st.lists(numbers, max_size=3), st.lists(st.lists(numbers, max_size=2), max_size=2))
    for _ in range(data.draw(st.integers(2, 5))):
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, data.draw(st.integers(0, 2))]}
        tail = b""
        if data.draw(st.booleans()):
            tensor["data"] = data.draw(values)
        if data.draw(st.booleans()):
            tail = bytes(data.draw(st.sampled_from([0, 4, 8])))
            tensor["parameters"] = {"binary_data_size": len(tail)}
        top = data.draw(
            st.sampled_from([{}, {}, {"id": "a"}, {"parameters": {"a": 1}}, {"parameters": {"sequence_id": 1}}])
        )
        text = json.dumps({"inputs": [tensor], **top})
        text = data.draw(st.sampled_from([text, text, text.replace('"data"', '"d\\u0061ta"'), text.replace(" ", "")]))
        body = text.encode() + tail
        header_length = len(body) - len(tail) if tail or data.draw(st.booleans()) else None
        fresh = Decoder(spec(dims=(-1,), max_batch_size=4), LIMITS)
        assert decoded(decoder, body, header_length) == decoded(fresh, body, header_length)


def test_an_answer_without_outputs_is_the_same_each_time():
    model = ModelSpec("m", "1", {"x": TensorSpec("x", DATATYPES["FP32"], (-1,))}, {})
    decoder = Decoder(model, LIMITS)
    answers = []
    for _ in range(2):
        request = decoder.decode(*message(np.zeros(2, np.float32), "FP32", True))
        request.result = {}
        length, parts = encode(request)
        answers.append((length, json.loads(b"".join(parts))))
    assert answers == [(None, {"model_name": "m", "model_version": "1", "outputs": []})] * 2


def test_a_head_is_checked_once(monkeypatch):
    """JSON that differs in the values of its tensors alone, and with an id each time."""
    checked = []
    check = Decoder._plan
    monkeypatch.setattr(Decoder, "_plan", lambda self, *what: checked.append(1) or check(self, *what))
    decoder = Decoder(spec(), LIMITS)
    for value in (1.5, 2, 3e9):
        assert (
            decoder.decode(*message(np.full(2, value, np.float32), "FP32", False)).inputs["x"].tolist() == [value] * 2
        )
    assert len(checked) == 1
    for i in range(3):
        assert decoder.decode(*message(np.zeros(2, np.float32), "FP32", False, id=str(i))).id == str(i)
    assert len(checked) == 4 and len(decoder._plans) == 1


def test_heads_are_kept_by_several_threads(monkeypatch):
    """A plan that makes room for another is removed once."""
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr("opgate.service.wire.request_plan._MAX_PLANS", 4)
    decoder = Decoder(spec(), LIMITS)

    def decode(i):
        body, length = message(np.zeros(i % 50, np.float32), "FP32", True, parameters={"n": i})
        return decoder.decode(body, length).inputs["x"].size == i % 50

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(decode, range(4000)))
    assert len(decoder._plans) <= 4


def test_the_responses_of_a_decoupled_model_are_made_one_after_the_other():
    """A client may make a model send millions. They are not in memory together, over neither protocol."""
    model = spec(decoupled=True)
    asked = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1])
    request = over_grpc(asked, model)
    request.result = {"y": np.zeros(2_000_000, np.float32)}
    tracemalloc.start()
    try:
        messages, events = kserve_grpc.encode_stream(request), generate.events(model, request)
        for _ in range(100):
            assert b"triton_final_response" in b"".join(next(messages))
            assert next(events) == b'data: {"model_name":"m","model_version":"1","y":0.0}\n\n'
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
