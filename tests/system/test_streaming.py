"""ModelStreamInfer, decoupled models, generate and generate_stream."""

from __future__ import annotations

import asyncio
import json
import queue
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
from onnx import helper
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.service.onnx_models import batching, double, endless, identity, pick, save, value
from tests.system.conftest import wait_until
from tests.system.running import running

DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    double(folder, "double", config=batching(max_batch_size=16))
    identity(folder, "texts", "BYTES", config=batching())
    identity(folder, "text", "BYTES", shape=("batch", 1), config=batching())
    pick(folder, "pick", batching())
    endless(folder, "endless")
    # One response for each entry: the input n times, and none for an empty one.
    double(folder, "each", config=DECOUPLED, shape=("n",))
    double(folder, "each_of_batch", config=f"max_batch_size: 4 {DECOUPLED}", shape=("batch", "n"))
    node = helper.make_node("Split", ["x"], ["y", "z"], axis=0, num_outputs=2)
    outputs = [value("y", "FP32", ["m"]), value("z", "FP32", ["k"])]
    save(folder, "uneven", [node], [value("x", "FP32", ["n"])], outputs, config=DECOUPLED)
    with running(folder) as started:
        yield started


def tensor(array, datatype="FP32", name="x", module=grpc):
    given = module.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


class Stream:
    """A stream of tritonclient, with what its callback gets."""

    def __init__(self, server, headers=None):
        self.client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        self.got = queue.Queue()
        self.client.start_stream(lambda result, error: self.got.put((result, error)), headers=headers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        self.client.close()

    def ask(self, model, array, datatype="FP32", name="x", **options):
        self.client.async_stream_infer(model, [tensor(array, datatype, name)], **options)

    def answer(self):
        result, error = self.got.get(timeout=20)
        if error is not None:
            raise error
        return result


def final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def test_answers_come_in_the_order_of_the_requests(server):
    with Stream(server) as stream:
        for i in range(300):
            stream.ask("double", np.full((1, 4), i, np.float32), request_id=str(i))
        for i in range(300):
            result = stream.answer()
            assert result.get_response().id == str(i)
            assert result.as_numpy("y")[0, 0] == 2 * i
            assert final(result)


def test_an_error_is_an_answer_and_the_stream_goes_on(server):
    with Stream(server) as stream:
        stream.ask("double", np.ones((1, 4), np.float32), request_id="a")
        stream.ask("none", np.ones((1, 4), np.float32), request_id="b")
        stream.ask("double", np.ones((1, 5), np.float32), request_id="c")
        stream.ask("pick", np.full((1, 1), 99, np.int64), "INT64", "i", request_id="d")
        stream.ask("double", np.ones((1, 4), np.float32), request_id="e")
        assert stream.answer().get_response().id == "a"
        for expected in ("unknown model: 'none'", "expected datatype FP32 and shape", "model 'pick'"):
            with pytest.raises(InferenceServerException, match=expected):
                stream.answer()
        assert stream.answer().get_response().id == "e"


def test_a_client_may_want_errors_as_the_status_of_the_call(server):
    with Stream(server, {"triton_grpc_error": "true"}) as stream:
        stream.ask("double", np.ones((1, 4), np.float32))
        assert stream.answer().as_numpy("y")[0, 0] == 2
        stream.ask("none", np.ones((1, 4), np.float32))
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*unknown model"):
            stream.answer()


def test_a_message_that_is_none(server):
    import grpc as plain

    with plain.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            service_pb2.ModelStreamInferResponse.FromString(a) for a in call(iter([b"\xff\xff", b"", b"\x0a\x01"]))
        ]
        assert len(answers) == 3
        assert all(answer.error_message for answer in answers)
        assert [bytes(a) for a in call(iter([]))] == []


def test_strings_and_large_tensors(server):
    large = np.arange(16 * 4, dtype=np.float32).reshape(16, 4)
    texts = np.array([["ä", "b", "", "d" * 100_000]], np.object_)
    with Stream(server) as stream:
        for _ in range(3):
            stream.ask("double", large)
            stream.ask("texts", texts, "BYTES")
        for _ in range(3):
            np.testing.assert_array_equal(stream.answer().as_numpy("y"), 2 * large)
            assert [t.decode() for t in stream.answer().as_numpy("y")[0]] == list(texts[0])


def test_streams_of_asyncio(server):
    async def main():
        async with grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:

            async def requests():
                for i in range(50):
                    yield {
                        "model_name": "double",
                        "inputs": [tensor(np.full((1, 4), i, np.float32))],
                        "request_id": str(i),
                    }

            got = [result async for result, error in client.stream_infer(requests()) if error is None]
            assert [result.get_response().id for result in got] == [str(i) for i in range(50)]

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_requests(server):
    stub_server = f"127.0.0.1:{server.grpc}"
    import grpc as plain

    with plain.insecure_channel(stub_server) as channel:
        request = service_pb2.ModelInferRequest(model_name="endless")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(np.ones(1, np.float32).tobytes())
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        wait_until(lambda: "opgate_running_requests 1" in server.get("/metrics"))
        call.cancel()
        wait_until(lambda: "opgate_running_requests 0" in server.get("/metrics"))
        left = 'opgate_responses_total{code="CANCELLED",protocol="grpc",route="/inference.GRPCInferenceService/Model'
        assert f'{left}StreamInfer"}} 1.0' in server.get("/metrics")
    assert server.get("/v2/health/live") == ""


class TestDecoupled:
    def test_a_response_for_each_entry(self, server):
        with Stream(server) as stream:
            stream.ask("each", np.array([1, 2, 3], np.float32), request_id="a")
            results = [stream.answer() for _ in range(3)]
            assert [float(r.as_numpy("y")[0]) for r in results] == [2, 4, 6]
            assert [final(r) for r in results] == [False, False, True]
            assert {r.get_response().id for r in results} == {"a"}

    def test_with_a_batch_dim(self, server):
        with Stream(server) as stream:
            stream.ask("each_of_batch", np.arange(6, dtype=np.float32).reshape(2, 3))
            results = [stream.answer().as_numpy("y") for _ in range(3)]
            np.testing.assert_array_equal(np.concatenate(results, axis=1), 2 * np.arange(6).reshape(2, 3))

    def test_no_response_at_all(self, server):
        """A client that wants to know gets an empty one."""
        with Stream(server) as stream:
            stream.ask("each", np.empty(0, np.float32), request_id="a")
            stream.ask("each", np.empty(0, np.float32), request_id="b", enable_empty_final_response=True)
            stream.ask("each", np.ones(1, np.float32), request_id="c", enable_empty_final_response=True)
            empty, last = stream.answer(), stream.answer()
            assert empty.get_response().id == "b" and final(empty) and not empty.get_response().outputs
            assert last.get_response().id == "c" and final(last)

    def test_outputs_of_different_lengths(self, server):
        with Stream(server) as stream:
            stream.ask("uneven", np.ones(3, np.float32))
            with pytest.raises(InferenceServerException, match="different numbers of entries"):
                stream.answer()

    def test_other_endpoints_refuse(self, server):
        array = np.ones(3, np.float32)
        with pytest.raises(InferenceServerException, match=r"UNIMPLEMENTED.*'each' is decoupled"):
            grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}").infer("each", [tensor(array)])
        with pytest.raises(InferenceServerException, match="'each' is decoupled"):
            http.InferenceServerClient(f"127.0.0.1:{server.http}").infer("each", [tensor(array, module=http)])

    def test_the_config_says_so(self, server):
        config = json.loads(server.get("/v2/models/each/config"))
        assert config["model_transaction_policy"] == {"decoupled": True}


def post(server, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


class TestGenerate:
    def test_lists(self, server):
        status, media, text = post(server, "/v2/models/double/generate", {"x": [1, 2, 3, 4]})
        assert (status, media) == (200, "application/json")
        assert json.loads(text) == {"model_name": "double", "model_version": "1", "y": [2, 4, 6, 8]}

    @pytest.mark.parametrize("route", ["generate", "generate_stream"])
    def test_inputs_may_be_among_the_parameters(self, server, route):
        body = {"id": "7", "parameters": {"x": [1, 2, 3, 4], "temperature": 0.5}, "lora": "a"}
        status, _, text = post(server, f"/v2/models/double/{route}", body)
        assert status == 200 and json.loads(text.removeprefix("data: "))["y"] == [2, 4, 6, 8]

    def test_single_values_and_parameters(self, server):
        body = {"x": "hällo", "id": "7", "parameters": {"timeout": 1000000}, "temperature": 0.5, "stream": False}
        status, _, text = post(server, "/v2/models/text/versions/1/generate", body)
        assert status == 200
        assert json.loads(text) == {"model_name": "text", "model_version": "1", "id": "7", "y": "hällo"}

    @pytest.mark.parametrize(
        ("model", "body", "status", "expected"),
        [
            ("double", {"x": 5}, 400, "expected FP32 of shape [4]"),
            ("double", {}, 400, "input 'x' of model 'double' is missing"),
            ("double", {"X": [1, 2, 3, 4]}, 400, "input 'x' is missing: 'X' is no input of the model, which has x"),
            ("double", b"{", 400, "JSON"),
            ("double", b"[]", 400, "JSON"),
            ("double", {"x": [1, 2, 3, 4], "id": 5}, 400, "id: expected a string"),
            ("double", {"x": [1, 2, 3, 4], "parameters": 5}, 400, "parameters: expected an object"),
            ("double", {"x": [1, 2, 3, 4], "parameters": {"x": [1, 2, 3, 4]}}, 400, "input 'x' is given twice"),
            ("double", {"x": [1, 2, 3, 4], "p": 1, "parameters": {"p": 1}}, 400, "parameter 'p' is given twice"),
            ("double", {"x": [1, 2, 3, 4], "parameters": {"parameters": {"p": 1}}}, 400, "parameter parameters"),
            ("double", {"parameters": {"x": [1, 2, 3]}}, 400, "expected FP32 of shape [4]"),
            ("double", {"p": 1, "parameters": {"q": 2}}, 400, "input 'x' is missing: 'p' is no input of the model"),
            ("double", {"x": [1, 2, 3, 4], "timeout": "soon"}, 400, "parameter timeout"),
            ("double", {"x": [1, 2, 3, 4], "triton_x": 1}, 400, "reserved"),
            ("double", {"x": [1, 2, 3, 4], "p": [1]}, 400, "parameter p"),
            ("double", {"x": [1, 2, 3, 4], "p": "a" * 70_000}, 413, "parameter p"),
            ("none", {"x": 5}, 404, "unknown model"),
            ("pick", {"i": 99}, 500, "model 'pick'"),
            ("each", {"x": [1, 2]}, 501, "use generate_stream"),
            ("each", {"x": []}, 501, "made 0"),
        ],
    )
    @pytest.mark.parametrize("route", ["generate", "generate_stream"])
    def test_errors(self, server, route, model, body, status, expected):
        route = "generate" if model == "each" else route  # generate_stream answers what `each` makes
        got, media, text = post(server, f"/v2/models/{model}/{route}", body)
        assert (got, media) == (status, "application/json"), text
        assert expected in json.loads(text)["error"]

    def test_events(self, server):
        status, media, text = post(server, "/v2/models/each/generate_stream", {"x": [1, 2, 3]})
        assert (status, media) == (200, "text/event-stream; charset=utf-8")
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert [json.loads(event)["y"] for event in events] == [2, 4, 6]
        status, _, text = post(server, "/v2/models/double/generate_stream", {"x": [1, 2, 3, 4]})
        assert text == 'data: {"model_name":"double","model_version":"1","y":[2.0,4.0,6.0,8.0]}\n\n'
        assert post(server, "/v2/models/each/generate_stream", {"x": []})[::2] == (200, "")

    def test_an_error_after_the_status_is_an_event(self, server):
        status, _, text = post(server, "/v2/models/uneven/generate_stream", {"x": [1, 2, 3]})
        assert status == 200
        assert "different numbers of entries" in json.loads(text.removeprefix("data: "))["error"]

    def test_generate_with_exactly_one_response(self, server):
        assert json.loads(post(server, "/v2/models/each/generate", {"x": [4]})[2])["y"] == 8
