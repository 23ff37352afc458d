"""MLServer's content types, with the unmodified tritonclient over HTTP and gRPC, and in plain JSON."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.service.onnx_models import batching, double, identity, ragged_sum
from tests.system.clients import CLIENTS
from tests.system.running import running

PICTURE = b"\xff\xd8\xff\xe0" + bytes(range(256))
IN_BASE64 = "/9j/4AABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj9AQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVpbXF1eX2BhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4SFhoeIiYqLjI2Oj5CRkpOUlZaXmJmam5ydnp+goaKjpKWmp6ipqqusra6vsLGys7S1tre4ubq7vL2+v8DBwsPExcbHyMnKy8zNzs/Q0dLT1NXW19jZ2tvc3d7f4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8="  # fmt: skip
STATUS = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    identity(folder, "texts", "BYTES", ("batch", 1), batching())
    identity(folder, "list", "BYTES", ("n",))
    identity(folder, "numbers", "FP32", ("batch", 1), batching())
    identity(folder, "matrix", "FP64", ("a", "b"))
    double(folder, "double", config=batching(max_batch_size=16))
    ragged_sum(folder, "ragged")
    with running(folder) as started:
        yield started


def tensor(protocol, elements, content="", shape=None, datatype="BYTES", name="x"):
    array = np.array(elements, object if datatype == "BYTES" else np.float32)
    array = array if shape is None else array.reshape(shape)
    made = CLIENTS[protocol].InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    if content and protocol == "http":
        made._parameters["content_type"] = content
    elif content:
        made._get_tensor().parameters["content_type"].string_param = content
    return made


def wanted(protocol, content="", name="y", **options):
    made = CLIENTS[protocol].InferRequestedOutput(name, **options)
    if content and protocol == "http":
        made._parameters["content_type"] = content
    elif content:
        made._get_tensor().parameters["content_type"].string_param = content
    return made


def stated(part):
    """The content type that an answer or one of its outputs has."""
    if isinstance(part, dict):
        return part.get("parameters", {}).get("content_type", "")
    return part.parameters["content_type"].string_param if "content_type" in part.parameters else ""


def infer(server, model, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http}/v2/models/{model}/infer",
        body if isinstance(body, bytes) else json.dumps(body).encode(),
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    except urllib.error.HTTPError as error:
        return json.loads(error.read())["error"]


def of(content):
    return {"parameters": {"content_type": content}}


class TestBase64:
    def test_a_model_gets_and_gives_the_bytes(self, client, protocol):
        for _ in range(2):  # the second time the envelope is known
            plain = client.infer("texts", [tensor(protocol, [IN_BASE64], "base64", (1, 1))], outputs=[wanted(protocol)])
            assert plain.as_numpy("y").tolist() == [[PICTURE]] and stated(plain.get_output("y")) == ""
            back = client.infer(
                "texts", [tensor(protocol, [PICTURE], shape=(1, 1))], outputs=[wanted(protocol, "base64")]
            )
            assert back.as_numpy("y").tolist() == [[IN_BASE64.encode()]]
            assert stated(back.get_output("y")) == "base64"

    def test_in_json(self, server):
        tensors = {"name": "x", "datatype": "BYTES", "shape": [2, 1], "data": [IN_BASE64, ""], **of("base64")}
        answer = infer(server, "texts", {"inputs": [tensors], "outputs": [{"name": "y", **of("base64")}]})
        assert answer["outputs"] == [
            {"name": "y", "datatype": "BYTES", "shape": [2, 1], "data": [IN_BASE64, ""], **of("base64")}
        ]

    def test_bytes_that_are_not_asked_for_in_base64_are_refused_with_a_hint(self, server):
        tensors = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": [IN_BASE64], **of("base64")}
        assert "element 0 is not UTF-8" in (problem := infer(server, "texts", {"inputs": [tensors]}))
        assert "content_type base64" in problem

    @pytest.mark.parametrize("text", ["a", "====", "AAA", "AA A", "é", "AAAA\n", "A-_A"])
    def test_what_is_not_base64_is_refused(self, client, protocol, text):
        with pytest.raises(InferenceServerException, match="element 1: expected base64, got") as caught:
            client.infer("texts", [tensor(protocol, ["AAAA", text], "base64", (2, 1))])
        assert caught.value.status() == STATUS[protocol]

    def test_in_shared_memory(self, client, protocol):
        data = np.array([IN_BASE64], object)
        region = shm.create_shared_memory_region("region", "/opgate_content", 4096)
        try:
            shm.set_shared_memory_region(region, [serialize_byte_tensor(data)])
            client.register_system_shared_memory("region", "/opgate_content", 4096)
            asked = tensor(protocol, data, "base64", (1, 1))
            asked.set_shared_memory("region", len(IN_BASE64) + 4)
            back = wanted(protocol, "base64")
            back.set_shared_memory("region", 2048, 2048)
            client.infer("texts", [asked], outputs=[back])
            written = bytes(shm.get_contents_as_numpy(region, np.uint8, [4096], 0))[2048:]
            assert written[4 : 4 + len(IN_BASE64)] == IN_BASE64.encode()
            assert client.infer("texts", [asked]).as_numpy("y").tolist() == [[PICTURE]]
        finally:
            client.unregister_system_shared_memory()
            shm.destroy_shared_memory_region(region)

    def test_in_a_stream(self, server):
        answers = queue.SimpleQueue()
        with CLIENTS["grpc"].InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            for _ in range(2):
                asked = tensor("grpc", [IN_BASE64], "base64", (1, 1))
                client.async_stream_infer("texts", [asked], outputs=[wanted("grpc", "base64")])
                result = answers.get(timeout=10)
                assert result.as_numpy("y").tolist() == [[IN_BASE64.encode()]]
                assert stated(result.get_output("y")) == "base64"


class TestTexts:
    def test_text_comes_back(self, client, protocol):
        result = client.infer("list", [tensor(protocol, ["Grüße", "a"], "str")], outputs=[wanted(protocol, "str")])
        assert result.as_numpy("y").tolist() == ["Grüße".encode(), b"a"]
        assert stated(result.get_output("y")) == "str"

    def test_bytes_are_refused(self, client, protocol):
        with pytest.raises(InferenceServerException, match="input 'x': element 1: expected UTF-8"):
            client.infer("list", [tensor(protocol, ["a", PICTURE], "str")])
        with pytest.raises(InferenceServerException, match="output 'y': element 0: expected UTF-8"):
            client.infer("list", [tensor(protocol, [PICTURE])], outputs=[wanted(protocol, "str")])

    @pytest.mark.parametrize("moment", ["2026-11-23T05:03:26", "2026-11-23T05:03:26.5+01:00", "2026-11-23", "20261123"])
    def test_a_moment_comes_back(self, client, protocol, moment):
        result = client.infer("list", [tensor(protocol, [moment], "datetime")], outputs=[wanted(protocol, "datetime")])
        assert result.as_numpy("y").tolist() == [moment.encode()]
        assert stated(result.get_output("y")) == "datetime"

    @pytest.mark.parametrize("moment", ["yesterday", "", "2026-13-01", PICTURE, "x" * 1000])
    def test_what_is_no_moment_is_refused(self, client, protocol, moment):
        with pytest.raises(InferenceServerException, match="element 1: expected a date and time in ISO 8601") as caught:
            client.infer("list", [tensor(protocol, ["2026-11-23", moment], "datetime")])
        assert len(str(caught.value)) < 400


class TestNumbers:
    def test_nan_is_null(self, server):
        tensors = {"name": "x", "datatype": "FP64", "shape": [2, 2], "data": [1.5, 2, None, 4], **of("np")}
        answer = infer(server, "matrix", {"inputs": [tensors], "outputs": [{"name": "y", **of("np")}]})
        assert answer["outputs"] == [
            {"name": "y", "datatype": "FP64", "shape": [2, 2], "data": [1.5, 2.0, None, 4.0], **of("np")}
        ]
        assert "parameters" not in answer
        nested = {**tensors, "data": [[1.5, 2], [None, 4]]}
        assert infer(server, "matrix", {"inputs": [nested], **of("np")}) == {**answer, **of("np")}

    def test_null_is_refused_without(self, server):
        tensors = {"name": "x", "datatype": "FP64", "shape": [2, 1], "data": [None, 4]}
        assert "expected FP64 values, got null" in infer(server, "matrix", {"inputs": [tensors]})
        number = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [None], **of("np")}
        assert "datatype" in infer(server, "matrix", {"inputs": [number]})

    def test_binary_data_keeps_nan(self, client, protocol):
        result = client.infer(
            "numbers",
            [tensor(protocol, [1, float("nan")], "np", (2, 1), "FP32")],
            outputs=[wanted(protocol, "np")],
        )
        assert np.isnan(result.as_numpy("y")).tolist() == [[False], [True]]
        assert stated(result.get_output("y")) == "np"

    def test_a_request_may_name_it(self, client, protocol):
        for _ in range(2):
            result = client.infer(
                "numbers", [tensor(protocol, [1, 2], shape=(2, 1), datatype="FP32")], parameters={"content_type": "np"}
            )
            assert stated(result.get_response()) == "np" and stated(result.get_output("y")) == "np"


class TestShapes:
    """A list of N values may be [N] or [N, 1]."""

    def test_a_list_for_a_column(self, client, protocol):
        for content, elements, back in (("str", ["a", "b"], [[b"a"], [b"b"]]), ("base64", ["YQ=="], [[b"a"]])):
            result = client.infer("texts", [tensor(protocol, elements, content)])
            assert result.as_numpy("y").tolist() == back
        assert client.infer("numbers", [tensor(protocol, [1, 2], "np", datatype="FP32")]).as_numpy("y").shape == (2, 1)

    def test_a_column_for_a_list(self, client, protocol):
        result = client.infer("list", [tensor(protocol, ["a", "b"], "str", (2, 1))])
        assert result.as_numpy("y").tolist() == [b"a", b"b"]

    def test_in_json(self, server):
        nested = {"name": "x", "datatype": "BYTES", "shape": [2, 1], "data": [["a"], ["b"]], **of("str")}
        assert infer(server, "list", {"inputs": [nested]})["outputs"][0]["shape"] == [2]
        flat = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "b"], **of("str")}
        assert infer(server, "texts", {"inputs": [flat]})["outputs"][0]["shape"] == [2, 1]

    def test_without_a_content_type_the_shape_counts(self, client, protocol):
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("texts", [tensor(protocol, ["a", "b"])])

    def test_other_shapes_are_refused(self, client, protocol):
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("texts", [tensor(protocol, ["a", "b"], "str", (1, 2))])


class TestTables:
    def test_each_output_is_a_column(self, server):
        column = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, None, 3]}
        answer = infer(server, "numbers", {"inputs": [column], **of("pd")})
        assert answer == {
            "model_name": "numbers",
            "model_version": "1",
            **of("pd"),
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [3, 1], "data": [1.0, None, 3.0]}],
        }
        texts = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
        answer = infer(server, "texts", {"inputs": [texts], **of("pd")})
        assert answer["outputs"] == [
            {"name": "y", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"], **of("str")}
        ]

    def test_with_columns_of_other_types(self, client, protocol):
        result = client.infer(
            "texts",
            [tensor(protocol, [IN_BASE64], "base64")],
            outputs=[wanted(protocol, "base64")],
            parameters={"content_type": "pd"},
        )
        assert result.as_numpy("y").tolist() == [[IN_BASE64.encode()]]
        assert stated(result.get_response()) == "pd" and stated(result.get_output("y")) == "base64"

    def test_what_is_no_column_is_refused(self, client, protocol):
        rows = tensor(protocol, range(4), shape=(1, 4), datatype="FP32")
        with pytest.raises(
            InferenceServerException, match=r"input 'x': content_type pd: expected a column .* \[1, 4\]"
        ):
            client.infer("double", [rows], parameters={"content_type": "pd"})
        rows = tensor(protocol, range(3), shape=(1, 3), datatype="FP32", name="data")
        with pytest.raises(InferenceServerException, match="expected a column"):
            client.infer("ragged", [rows], parameters={"content_type": "pd"})


class TestRefusals:
    @pytest.mark.parametrize("content", ["pd", "pillow_image", "NP", " np"])
    def test_unknown_types_of_tensors(self, client, protocol, content):
        expected = f"content_type: expected one of base64, datetime, np, str, got '{content}'"
        for inputs, outputs in (([content], [""]), ([""], [content])):
            asked = [tensor(protocol, ["a"], inputs[0])]
            with pytest.raises(InferenceServerException, match=expected) as caught:
                client.infer("list", asked, outputs=[wanted(protocol, outputs[0])])
            assert caught.value.status() == STATUS[protocol]

    @pytest.mark.parametrize("content", ["base64", "hf", 7, True])
    def test_unknown_types_of_requests(self, client, protocol, content):
        with pytest.raises(InferenceServerException, match=f"expected one of np, pd, str, got '{content}'"):
            client.infer("list", [tensor(protocol, ["a"])], parameters={"content_type": content})

    @pytest.mark.parametrize("content", ["base64", "datetime", "str"])
    def test_texts_need_bytes(self, client, protocol, content):
        expected = f"content_type {content} needs the datatype BYTES, got FP32"
        asked = tensor(protocol, [1], shape=(1, 1), datatype="FP32")
        with pytest.raises(InferenceServerException, match=f"output 'y': {expected}"):
            client.infer("numbers", [asked], outputs=[wanted(protocol, content)])
        with pytest.raises(InferenceServerException, match=f"input 'x': {expected}"):
            client.infer("numbers", [tensor(protocol, [1], content, (1, 1), "FP32")])

    def test_lists_of_contents(self, server):
        tensors = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"], **of(["str"])}
        assert "content_type: expected one of" in infer(server, "list", {"inputs": [tensors]})
