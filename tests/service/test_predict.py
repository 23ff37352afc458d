"""/predict over ASGI, and the OpenAPI document that describes it."""

from __future__ import annotations

import asyncio
import base64
import math

import httpx
import jsonschema
import numpy as np
import pytest
from onnx import TensorProto, helper

from opgate.service.api.predict import wanted_media
from opgate.service.app import create_app
from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import ServingError
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.wire import friendly
from opgate.service.wire.friendly import rows_of
from tests.service.onnx_models import batching, double, identity, pick, save, value, write_config

FILE, NUMBER = TensorSpec("f", DATATYPES["UINT8"], (-1,)), TensorSpec("t", DATATYPES["FP32"], (1,))
IN_BASE64 = "iVBORw0KGgpyZXN0"
PNG = b"\x89PNG\r\n\x1a\n" + b"rest"

COUNTER = """max_batch_size: 4
input [ { name: "data" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true } ]
batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "data" } ]
output [
  { name: "labels" data_type: TYPE_INT32 dims: [ 3 ] label_filename: "labels.txt" },
  { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "count" data_type: TYPE_INT32 dims: [ 1 ] }
]
parameters { key: "predict_count_output" value { string_value: "count" } }
parameters { key: "predict_fields" value { string_value: "label=labels,score=scores" } }
parameters { key: "predict_picture_model" value { string_value: "picture" } }
"""


def counter(repository):
    """Saves a "detector" that finds two of three boxes in any picture. The first score is the size of the picture."""
    int64, int32 = TensorProto.INT64, TensorProto.INT32
    initializers = [
        helper.make_tensor("column", int64, [2], [-1, 1]),
        helper.make_tensor("labels_row", int32, [1, 3], [1, 0, -1]),
        helper.make_tensor("two", int32, [1, 1], [2]),
        helper.make_tensor("nothing", int32, [1, 1], [0]),
        helper.make_tensor("halves", TensorProto.FLOAT, [1, 2], [0.5, 0.0]),
        helper.make_tensor("zero_f", TensorProto.FLOAT, [1, 1], [0.0]),
    ]
    nodes = [
        helper.make_node("Reshape", ["ends", "column"], ["e"]),
        helper.make_node("Mul", ["e", "nothing"], ["z"]),
        helper.make_node("Add", ["z", "labels_row"], ["labels"]),
        helper.make_node("Add", ["z", "two"], ["count"]),
        helper.make_node("Cast", ["e"], ["ef"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ef", "zero_f"], ["zf"]),
        helper.make_node("Add", ["zf", "halves"], ["h"]),
        helper.make_node("Concat", ["ef", "h"], ["scores"], axis=1),
        helper.make_node("Size", ["data"], ["unused"]),
    ]
    outputs = [
        value("labels", "INT32", ["batch", 3]),
        value("scores", "FP32", ["batch", 3]),
        value("count", "INT32", ["batch", 1]),
    ]
    inputs = [value("data", "UINT8", ["total"]), value("ends", "INT32", ["batch"])]
    folder = save(repository, "counter", nodes, inputs, outputs, initializers=initializers, config=COUNTER)
    (folder / "labels.txt").write_text("cat\ndog\n")


@pytest.fixture
def gateway(repository, load):
    counter(repository)
    identity(repository, "picture", "UINT8", shape=("n",))
    double(repository, "floats", config=batching())
    pick(repository, "numbers", batching())
    identity(repository, "text", "BYTES", shape=("batch", 1), config=batching())
    save(
        repository,
        "two",
        [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)],
        [value("a", "INT32", ["batch", "n"]), value("b", "INT32", ["batch", 1])],
        [value("y", "INT32", ["batch", "m"])],
        config=batching(),
    )
    return load(max_body_bytes=100_000)


@pytest.fixture
def post(gateway):
    app = create_app(gateway)

    def send(path, method="POST", **request):
        async def main():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **request)

        return asyncio.run(main())

    return send


WANTED = [{"label": "dog", "score": float(len(PNG))}, {"label": "cat", "score": 0.5}]


@pytest.mark.parametrize(
    "body",
    [
        {"content": PNG, "headers": {"content-type": "image/png"}},
        {"content": PNG, "headers": {"content-type": "application/octet-stream"}},
        {"files": {"data": ("a.png", PNG, "image/png")}},
        {"json": {"data": list(PNG)}},
        {"json": {"data": IN_BASE64}},
        {"json": {"data": "data:image/png;base64," + IN_BASE64}},
        {"files": {"data": (None, IN_BASE64)}},
        {"files": {"data": (None, f'"{IN_BASE64}"')}},
    ],
    ids=["image", "octets", "form", "json", "base64", "url", "base64 in a form", "quoted in a form"],
)
def test_a_picture_in_every_kind_of_body(post, body):
    answer = post("/predict/counter", **body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"model_name": "counter", "model_version": "1", "predictions": WANTED}


@pytest.mark.parametrize("body", [{"json": {"a": [1, 2]}}, {"files": {"a": (None, "[1, 2]")}}], ids=["json", "form"])
def test_the_query_has_values_like_a_form(post, body):
    wanted = post("/predict/two", json={"a": [1, 2], "b": [7]})
    assert wanted.status_code == 200
    assert post("/predict/two?b=7", **body).json() == wanted.json()
    assert post("/predict/two?a=%5B1,2%5D&b=7", json={}).json() == wanted.json()


def test_the_query_belongs_to_every_row(post):
    rows = [post("/predict/two", json={"a": [a], "b": [7]}).json() for a in (1, 2)]
    several = post("/predict/two?b=7", files=[("a", (None, "[1]")), ("a", (None, "[2]"))])
    assert several.json() == {"results": rows}


def test_a_query_beside_a_file(post):
    picture = {"content": PNG, "headers": {"content-type": "image/png"}}
    assert "no input 'z'" in post("/predict/counter?z=1", **picture).json()["error"]
    assert post(f"/predict/counter?data={IN_BASE64}", **picture).status_code == 400


@pytest.mark.parametrize("query", ["b=7&b=8", "a=%5B1%5D&b=7"], ids=["in the query", "in the body"])
def test_what_is_given_twice_is_refused(post, query):
    answer = post(f"/predict/two?{query}", json={"a": [1, 2]})
    assert answer.status_code == 400 and "is given twice" in answer.json()["error"]


def test_several_files_are_answered_one_by_one(post, gateway):
    """Each gets the answer that it gets alone. A broken one gets its error, and costs the others nothing."""
    other = PNG + b"more"
    kind = {"content-type": "image/png"}
    alone = [post("/predict/counter", content=data, headers=kind).json() for data in (PNG, other)]
    for body in (
        {"files": [("data", PNG), ("data", other)]},
        {"json": {"data": [IN_BASE64, base64.b64encode(other).decode()]}},
    ):
        answer = post("/predict/counter", **body)
        assert (answer.status_code, answer.json()) == (200, {"results": alone})
    answer = post("/predict/counter", json={"data": [IN_BASE64, "???", "data:image/png;base64," + IN_BASE64]}).json()
    assert [answer["results"][i] for i in (0, 2)] == [alone[0]] * 2
    assert "input 'data': expected base64 or a data: URL with base64, got '???'" in answer["results"][1]["error"]
    assert post("/predict/counter", json={"data": [IN_BASE64]}).json() == {"results": alone[:1]}
    assert gateway.running == 0


def test_several_rows_of_values(post):
    """What is given once belongs to each row."""
    fields = [("a", (None, "[1, 2]")), ("a", (None, "[7]")), ("b", (None, "3"))]
    answers = post("/predict/two", files=fields).json()["results"]
    assert [answer["outputs"] for answer in answers] == [{"y": [1, 2, 3]}, {"y": [7, 3]}]
    answer = post("/predict/two", files=[*fields, ("b", (None, "3")), ("b", (None, "3"))])
    assert answer.status_code == 400 and "given equally often, got 'a' 2 times, 'b' 3 times" in answer.json()["error"]
    many = [("a", (None, "[1]"))] * 2000
    assert post("/predict/two", files=many).status_code in (400, 413)
    answer = post("/predict/two", files=[("nope", (None, "1"))] * 2)
    assert answer.status_code == 400 and "no input 'nope'" in answer.json()["error"]


def test_what_is_given_once_is_read_once(post, monkeypatch):
    """A long value beside many files costs its own reading, on a thread where that takes long."""
    read = []
    monkeypatch.setattr(friendly, "_from_value", lambda tensor, *_: read.append(tensor.name) or np.zeros(4, np.float32))
    files = [("x", (None, "[1]"))] * 3
    assert post("/predict/floats", files=files).status_code == 200
    assert read == ["x"] * 3
    read.clear()
    post("/predict/two", files=[("a", (None, "[1]"))] * 5 + [("b", (None, "[1]"))])
    assert sorted(read) == ["a"] * 5 + ["b"]


def test_a_file_and_several_other_values(post):
    """One file with many thresholds would be decoded once for each."""
    answer = post("/predict/counter", files=[("data", ("a.png", PNG)), ("x", (None, "1")), ("x", (None, "2"))])
    assert answer.status_code == 400
    several = rows_of(ModelSpec("m", "1", {"f": FILE, "t": NUMBER}, {}), {"f": [b"a", b"b"], "t": "1"}, Limits())
    assert several is not None and [row["f"] for row in several] == [b"a", b"b"]
    with pytest.raises(ServingError, match="'t' 2 times, 'f' 1 time"):
        rows_of(ModelSpec("m", "1", {"f": FILE, "t": NUMBER}, {}), {"f": b"a", "t": ["1", "2"]}, Limits())


def test_answers_to_several_files_are_counted(repository, load):
    """Together they have more bytes than may be held at once: those without room get an error."""
    identity(repository, "copy", "UINT8", shape=("n",))
    gateway = load(max_held_bytes=2_000_000)

    async def main():
        transport = httpx.ASGITransport(create_app(gateway), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            sent = [base64.b64encode(bytes(100_000)).decode()] * 12
            return await client.post("/predict/copy", json={"x": sent})

    answer = asyncio.run(main())
    assert answer.status_code in (200, 503)
    if answer.status_code == 200:
        assert any("OPGATE_MAX_HELD_BYTES" in result.get("error", "") for result in answer.json()["results"])
    assert gateway.running == 0 and gateway.budget.used == 0


@pytest.mark.parametrize("datatype", ["BYTES", "UINT8"])
def test_a_file_in_base64_in_a_request_of_kserve(post, datatype):
    tensor = {"name": "data", "datatype": datatype, "parameters": {"content_type": "base64"}}

    def ask(shape, data, path="counter"):
        return post(f"/v2/models/{path}/infer", json={"inputs": [tensor | {"shape": shape, "data": data}]})

    for shape in ([1], [1, 1]):
        for _ in range(2):  # the second request finds the envelope of the first, and has a file of another size
            for text, size in ((IN_BASE64, 12), ("data:image/png;base64,AAAA", 3), ("", 0)):
                outputs = {output["name"]: output["data"] for output in ask(shape, [text]).json()["outputs"]}
                assert outputs["scores"][0] == size
    outputs = {output["name"]: output["data"] for output in ask([2, 1], ["AAAA", "BBBB"]).json()["outputs"]}
    assert outputs["scores"][::3] == [3, 6]  # the second ends at 6
    for shape, data, text in (
        ([2], ["AAAA", "AAAAAAAA"], "the files of a request must have one size, got 3, 6"),
        ([1], ["A"], "input 'data': element 0: expected base64 or a data: URL with base64, got 'A'"),
        ([3], ["AAAA"], ""),
        ([1, 2], ["AAAA", "AAAA"], "expected the shape [N] or [N, 1], got [1, 2]"),
        ([5], ["AAAA"] * 5, "expected a batch size of 1 to 4"),
        ([], ["AAAA"], "expected the shape"),
        ([1], [3], "input 'data'"),
    ):
        answer = ask(shape, data)
        assert answer.status_code == 400 and text in answer.json()["error"], answer.text
    tensor["name"] = "x"
    outputs = ask([1], [IN_BASE64], "picture").json()["outputs"]
    assert bytes(outputs[0]["data"]) == PNG and outputs[0]["shape"] == [12]


def test_a_picture_as_the_answer(post):
    headers = {"content-type": "image/png", "accept": "image/*"}
    answer = post("/predict/counter", content=PNG, headers=headers)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "image/png", PNG)
    assert post("/predict/counter", content=PNG, headers=headers | {"accept": "image/jpeg"}).status_code == 406
    assert post("/predict/floats", json={"x": [1, 2, 3, 4]}, headers={"accept": "image/png"}).status_code == 406


def test_values_as_json_and_as_a_form(post):
    assert post("/predict/floats", json={"x": [1, 2, 3, 4.5]}).json()["outputs"] == {"y": [2, 4, 6, 9]}
    assert post("/predict/numbers", json={"i": 3}).json()["outputs"] == {"y": [30]}
    assert post("/predict/text", json={"x": "héllo"}).json()["outputs"] == {"y": ["héllo"]}
    assert post("/predict/two", files={"a": (None, "[1, 2]"), "b": (None, "3")}).json()["outputs"] == {"y": [1, 2, 3]}
    assert post("/predict/text", files={"x": ("a.txt", b"from a file")}).json()["outputs"] == {"y": ["from a file"]}
    assert post("/predict/text", files={"x": (None, "plain")}).json()["outputs"] == {"y": ["plain"]}
    assert post("/predict/floats/versions/1", json={"x": [1, 2, 3, 4]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("nope", {"json": {}}, 404, "unknown model: 'nope'"),
        ("floats/versions/9", {"json": {}}, 404, "version 9"),
        ("floats", {"json": {}}, 400, "input 'x' of model 'floats' is missing"),
        ("floats", {"json": {"z": 1}}, 400, "no input 'z'"),
        ("floats", {"json": {"x": [1, 2]}}, 400, "expected FP32 of shape [4], got shape [2]"),
        ("floats", {"json": {"x": ["a"] * 4}}, 400, "got the string"),
        ("floats", {"json": [1]}, 400, "expected a JSON object"),
        ("floats", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not valid JSON"),
        ("floats", {"content": PNG, "headers": {"content-type": "image/png"}}, 415, "takes no file"),
        (
            "floats",
            {"data": {"x": "1"}},
            415,
            "expected text/csv, multipart/form-data or application/json, got 'application/x-www-form-urlencoded'",
        ),
        ("floats", {"files": {"x": ("a", b"123")}}, 400, "got 3 bytes"),
        ("floats", {"files": {"x": (None, "abc")}}, 400, "expected FP32, such as 1 or [1, 2], got 'abc'"),
        ("floats", {"files": {"x": (None, "")}}, 400, "got ''"),
        ("floats", {"json": {"x": [1, 2, 3, 4]}, "headers": {"accept": "text/html"}}, 406, "expected application/json"),
        ("numbers", {"json": {"i": 99}}, 500, "model 'numbers'"),
        ("counter", {"content": b"x" * 100_001, "headers": {"content-type": "image/png"}}, 413, "100000 bytes"),
        (
            "floats",
            {"content": b"--b\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            400,
            "",
        ),
        ("floats", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "form can't be read"),
    ],
)
def test_mistakes(post, path, body, status, text):
    answer = post(f"/predict/{path}", **body)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("predict/floats", {"json": {"x": [1, 2]}}, {"floats": "INVALID"}),
        ("predict/floats", {"json": [1]}, {"floats": "INVALID"}),
        (
            "predict/floats",
            {"content": b"--b\r\nno", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            {"floats": "INVALID"},
        ),
        ("predict/floats", {"data": {"x": "1"}}, {"floats": "MEDIA_TYPE"}),
        ("predict/floats", {"content": PNG, "headers": {"content-type": "image/png"}}, {"floats": "MEDIA_TYPE"}),
        ("predict/floats", {"json": {"x": [1] * 4}, "headers": {"accept": "text/html"}}, {"floats": "NOT_ACCEPTABLE"}),
        ("predict/floats", {"json": {"x": [1] * 4}, "headers": {"accept": "image/png"}}, {"floats": "NOT_ACCEPTABLE"}),
        (
            "predict/counter",
            {"content": b"x" * 100_001, "headers": {"content-type": "image/png"}},
            {"counter": "TOO_LARGE"},
        ),
        ("predict/counter", {"json": {"z": 1}, "headers": {"accept": "image/png"}}, {"picture": "INVALID"}),
        ("predict/nope", {"json": {}}, {}),
        ("v2/models/floats/infer", {"content": b"{"}, {"floats": "INVALID"}),
        ("v2/models/floats/infer", {"content": b"x" * 100_001}, {"floats": "TOO_LARGE"}),
        ("v2/models/floats/infer", {"content": b"x", "headers": {"content-encoding": "gzip"}}, {"floats": "INVALID"}),
        (
            "v2/models/floats/infer",
            {"content": b"{}", "headers": {"inference-header-content-length": "x"}},
            {"floats": "INVALID"},
        ),
    ],
)
def test_a_mistake_counts_once_as_a_failure_of_its_model(post, gateway, path, body, counted):
    assert post(f"/{path}", **body).status_code >= 400
    failures = {model.spec.name: dict(model.statistics.failures) for model in gateway.catalog.models()}
    assert {name: kinds for name, kinds in failures.items() if kinds} == {m: {kind: 1} for m, kind in counted.items()}
    assert gateway.running == 0


@pytest.mark.parametrize(
    ("accept", "pictures"),
    [
        ("*/*", set()),
        ("application/json", set()),
        ("image/jpeg", {"image/jpeg"}),
        ("image/jpeg, */*", {"image/jpeg"}),
        ("application/json, image/png;q=0.5", set()),
        ("image/png;q=0.9, application/json;q=0.1", {"image/png"}),
    ],
)
def test_accept(accept, pictures):
    assert wanted_media(accept) == pictures


@pytest.mark.parametrize("accept", ["text/html", "image/png;q=x", "image/png;q=0"])
def test_accept_that_nothing_satisfies(accept):
    with pytest.raises(ServingError):
        wanted_media(accept)


def test_the_document_describes_each_model(post):
    document = post("/openapi.json", "GET").json()
    body = document["paths"]["/predict/counter"]["post"]["requestBody"]["content"]
    assert {"image/jpeg", "image/png", "multipart/form-data", "application/json"} <= set(body)
    answers = document["paths"]["/predict/counter"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "image/jpeg"}
    example = document["paths"]["/predict/two"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert post("/predict/two", json=example).status_code == 200
    example = document["paths"]["/v2/models/floats/infer"]["post"]["requestBody"]["content"]["application/json"][
        "example"
    ]
    assert post("/v2/models/floats/infer", json=example).status_code == 200
    page = post("/docs", "GET")
    assert page.status_code == 200
    assert "cdn" not in page.text
    assert post("/static-offline-docs/swagger-ui-bundle.js", "GET").status_code == 200


def test_the_document_says_what_is_refused(post):
    """schemathesis found each of these: what the document allows is taken, and what it doesn't is refused."""
    paths = post("/openapi.json", "GET").json()["paths"]

    def schema(path, media="application/json"):
        return paths[path]["post"]["requestBody"]["content"][media]["schema"]

    largest = 3.4028235677973366e38  # it rounds to the largest FP32
    for path, good, bad in (
        ("/predict/floats", {"x": [largest, 0, 0, 0]}, {"x": [math.nextafter(largest, math.inf), 0, 0, 0]}),  # no FP32
        ("/predict/numbers", {"i": 7}, {"i": [1, 2]}),  # a tensor of one element needs no list
        ("/predict/numbers", {"i": [7]}, {"i": [2**63]}),  # no INT64
        (
            "/v2/models/floats/infer",
            {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]},
            {"inputs": []},
        ),
    ):
        for body, status in ((good, 200), (bad, 400)):
            assert jsonschema.Draft202012Validator(schema(path)).is_valid(body) == (status == 200), body
            assert post(path, json=body).status_code == status, body
    field = schema("/predict/floats", "multipart/form-data")["properties"]["x"]
    assert (field["type"], field["contentMediaType"]) == ("string", "application/json")
    assert post("/predict/floats", files={"x": (None, "[1, 2, 3, 4]")}).status_code == 200


def test_the_kserve_routes_work_under_any_asgi_server(post):
    answer = post(
        "/v2/models/floats/infer",
        json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
        headers={"accept-encoding": "gzip"},
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]
    assert post("/v2/models/floats/infer", "GET").status_code == 405
    assert post("/v2/nothing", "GET").status_code == 404
    assert "no route" in post("/v2/nothing", "GET").json()["error"]
    assert post("/v2/models/floats/config", "GET").json()["input"][0]["dims"] == [4]


def test_an_ensemble_answers_as_its_model(post, repository, load):
    write_config(
        repository,
        "twice",
        """platform: "ensemble" max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
        ensemble_scheduling { step [ { model_name: "floats" model_version: -1
          input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }""",
    )
    assert load().find("twice").model.spec.platform == "ensemble"


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"predict_text_output": "labels", "predict_fields": "score=scores"}, [{"text": "dogcat", "score": 12.0}]),
        ({"predict_text_output": "labels", "predict_count_output": "count"}, [{"text": "dogcat"}]),
        ({"predict_text_output": "labels"}, [{"text": "dogcat"}]),
        (
            {"predict_fields": "label=labels"},
            [{"label": "dog"}, {"label": "cat"}, {"label": -1}],
        ),
    ],
)
def test_a_text_and_records_without_a_count(repository, load, parameters, wanted):
    counter(repository)
    folder = repository / "counter"
    text = COUNTER.partition("parameters")[0]
    text += "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    (folder / "config.pbtxt").write_text(text)
    app = create_app(load())

    async def post():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/predict/counter", content=PNG, headers={"content-type": "image/png"})
            return answer, (await client.get("/openapi.json")).json()

    answer, document = asyncio.run(post())
    assert answer.json()["predictions"] == wanted
    described = document["paths"]["/predict/counter"]["post"]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(answer.json(), described["schema"])


def test_an_output_of_two_dims_has_a_text_for_each_row(repository, load):
    """Rows without labels are texts of nothing."""
    rows = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
    ]
    text = """max_batch_size: 0
    input [ { name: "x" data_type: TYPE_INT32 dims: [ -1, 3 ] } ]
    output [ { name: "y" data_type: TYPE_INT32 dims: [ -1, 3 ] label_filename: "labels.txt" },
             { name: "sum" data_type: TYPE_INT32 dims: [ -1 ] } ]
    parameters { key: "predict_text_output" value { string_value: "y" } }
    parameters { key: "predict_fields" value { string_value: "sum=sum" } }"""
    outputs = [value("y", "INT32", ["n", 3]), value("sum", "INT32", ["n"])]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    folder = save(repository, "texts", rows, [value("x", "INT32", ["n", 3])], outputs, config=text, initializers=[axis])
    (folder / "labels.txt").write_text("a\nb\n")

    async def main():
        transport = httpx.ASGITransport(create_app(load()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            lines = [[1, 0, 1], [0, -1, -1], [-1, -1, -1]]
            return (await client.post("/predict/texts", json={"x": lines})).json()["predictions"]

    assert asyncio.run(main()) == [{"text": "bab", "sum": 2}, {"text": "a", "sum": -2}, {"text": "", "sum": -3}]


def test_fields_that_are_parts_of_a_text(repository, load):
    """Characters are code points, and places outside of the text are none."""
    nodes = [helper.make_node("Identity", ["place"], ["begin"]), helper.make_node("Add", ["place", "two"], ["end"])]
    text = """max_batch_size: 0
    input [ { name: "place" data_type: TYPE_INT64 dims: [ -1 ] },
            { name: "sentence" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "begin" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "end" data_type: TYPE_INT64 dims: [ -1 ] } ]
    parameters { key: "predict_fields" value { string_value: "from=begin,text=sentence[begin:end]" } }"""
    inputs = [value("place", "INT64", ["n"]), value("sentence", "BYTES", [1])]
    outputs = [value("begin", "INT64", ["n"]), value("end", "INT64", ["n"])]
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    save(repository, "cut", nodes, inputs, outputs, config=text, initializers=[two])

    async def main():
        transport = httpx.ASGITransport(create_app(load()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            values = {"place": [0, 3, 99, -9], "sentence": "a\U0001f600éb東京"}
            answer = (await client.post("/predict/cut", json=values)).json()["predictions"]
            document = (await client.get("/openapi.json")).json()
            return answer, document["paths"]["/predict/cut"]["post"]["responses"]["200"]["content"]["application/json"]

    answer, described = asyncio.run(main())
    assert [record["text"] for record in answer] == ["a\U0001f600", "b東", "", ""]
    assert [record["from"] for record in answer] == [0, 3, 99, -9]
    answers = described["schema"]["anyOf"] if "anyOf" in described["schema"] else [described["schema"]]
    record = answers[0]["properties"]["predictions"]["items"]["properties"]
    assert record["text"] == {"type": "string"}


def test_a_text_of_nothing_and_raw_bytes_of_no_size(repository, load):
    """Rows without elements, and a dim whose size bytes can't tell."""
    rows = [helper.make_node("Identity", ["x"], ["y"])]
    text = """max_batch_size: 0
    input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } ]
    output [ { name: "y" data_type: TYPE_INT32 dims: [ -1 ] label_filename: "labels.txt" } ]
    parameters { key: "predict_text_output" value { string_value: "y" } }
    parameters { key: "predict_fields" value { string_value: "first=y" } }"""
    folder = save(repository, "text", rows, [value("x", "INT32", ["n"])], [value("y", "INT32", ["n"])], config=text)
    (folder / "labels.txt").write_text("a\nb\n")
    save(repository, "nothing", rows, [value("x", "FP32", ["n", 0])], [value("y", "FP32", ["n", 0])])

    async def main():
        transport = httpx.ASGITransport(create_app(load()), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            texts = [(await client.post("/predict/text", json={"x": x})).json()["predictions"] for x in ([], [1, 0])]
            raw = {"content-type": "application/octet-stream", "inference-header-content-length": "0"}
            return texts, await client.post("/v2/models/nothing/infer", content=b"abcd", headers=raw)

    texts, raw = asyncio.run(main())
    assert texts == [[{"text": ""}], [{"text": "ba", "first": "b"}]]
    assert raw.status_code == 400 and "can't tell a size of [-1, 0]" in raw.json()["error"]
