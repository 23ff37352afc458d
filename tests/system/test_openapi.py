"""The OpenAPI document has every route of a real gateway, and its answers are as the document says."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from multiprocessing import shared_memory

import jsonschema
import pytest

from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests.service.onnx_models import batching, double, identity
from tests.system.running import running

JSON = "application/json"
#: They can only fail: a region needs a name.
IN_NO_DOCUMENT = {"/v2/systemsharedmemory/register", "/v2/cudasharedmemory/register"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    double(repository, "floats", config=batching())
    identity(repository, "texts", "BYTES", shape=("batch", 1), config=batching())
    double(repository, "two", config=batching() + "\nversion_policy { all { } }")
    shutil.copytree(repository / "two" / "1", repository / "two" / "2")
    for name in ("two_2", "a b%20{c}?d#e"):
        double(repository, name, config=batching())
    with running(repository, "--model-control-mode=explicit", "--load-model=*") as started:
        yield started


@pytest.fixture(scope="module")
def document(server):
    return json.loads(server.get("/openapi.json"))


@pytest.fixture
def validator(document):
    """A function that returns the validator of a schema in the document."""
    return lambda schema: jsonschema.Draft202012Validator({**schema, "components": document["components"]})


@pytest.fixture
def call(server, document, validator):
    """A function that makes a call and checks the answer against the document. Returns its status and what it has."""

    def call(method, path, body=None, template=""):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(server.url + path, data, {"Content-Type": JSON}, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=20)
        except urllib.error.HTTPError as error:
            answer = error
        operation = document["paths"][template or path][method.lower()]
        if data is not None and answer.status == 200:
            validator(operation["requestBody"]["content"][JSON]["schema"]).validate(body)
        content = answer.read()
        found = operation["responses"].get(str(answer.status), operation["responses"]["4XX"]).get("content", {})
        media = answer.headers.get("content-type", "").split(";")[0]
        assert set(found) == ({media} if content else set())
        text = json.loads(content) if media == JSON else content.decode()
        if found:
            validator(found[media].get("schema", {})).validate(text)
        return answer.status, text

    return call


def test_the_document_has_every_route(document, tmp_path):
    described = document["paths"]
    app = create_app(Gateway(Settings(model_repository=tmp_path)))
    routes = [route for part in app.routes for route in getattr(part, "original_router", app).routes]
    missing = [
        (method, route.path)
        for route in routes
        if getattr(route, "path", "").startswith(("/v2", "/predict", "/metrics")) and route.path not in IN_NO_DOCUMENT
        for method in route.methods - {"HEAD"}
        if not any(route.path_regex.fullmatch(path) and method.lower() in described[path] for path in described)
    ]
    assert missing == [] and len(routes) > 40


def test_all_that_only_reads(call, document):
    paths = [path for path, operations in document["paths"].items() if "get" in operations and "{" not in path]
    assert len(paths) > 30
    for path in paths:
        assert call("GET", path)[0] == 200, path


def test_names_of_operations_are_used_once(document):
    names = [o["operationId"] for path in document["paths"].values() for o in path.values() if "operationId" in o]
    assert len(names) == len(set(names)) > 4


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_generate(call, document, route):
    for model in ("floats", "texts", "two/versions/1", "two/versions/2"):
        path = f"/v2/models/{model}/{route}"
        example = document["paths"][path]["post"]["requestBody"]["content"][JSON]["example"]
        status, answer = call("POST", path, {**example, "id": "a", "priority": 0, "parameters": {"temperature": 0.5}})
        assert status == 200, answer
        assert ("model_name" in answer) and isinstance(answer, str) == (route == "generate_stream")


@pytest.mark.parametrize(
    ("path", "changes", "wrong"),
    [
        ("/v2/logging", {"log_verbose_level": 1, "log_info": True}, {"log_file": "a"}),
        (
            "/v2/trace/setting",
            {"trace_rate": ["7"], "trace_level": ["OFF"], "trace_count": 2**62 - 1},
            {"trace_rates": "7"},
        ),
        ("/v2/models/two/trace/setting", {"log_frequency": "9"}, {"log_frequency": 0.5}),
    ],
)
def test_settings(call, document, validator, path, changes, wrong):
    before = call("GET", path)
    status, settings = call("POST", path, changes)
    assert status == 200
    assert {str(settings[name]) for name in changes} >= {str(v) for v in changes.values() if not isinstance(v, list)}
    assert call("GET", path) == (200, settings)
    assert call("POST", path, wrong)[0] >= 400
    schema = document["paths"][path]["post"]["requestBody"]["content"][JSON]["schema"]
    assert not validator(schema).is_valid(wrong)
    assert call("POST", path, dict.fromkeys(changes)) == before


def test_loads_and_unloads(call):
    load, unload = (f"/v2/repository/models/{{model}}/{change}" for change in ("load", "unload"))
    body = {"parameters": {"unload_dependents": True}}
    assert call("POST", "/v2/repository/models/texts/unload", body, unload) == (200, "")
    body = {"parameters": {"config": json.dumps({"max_batch_size": 2, "backend": "onnxruntime"})}}
    assert call("POST", "/v2/repository/models/texts/load", body, load) == (200, "")
    assert call("POST", "/v2/repository/models/none/load", {}, load)[0] == 404
    for path, template in (("", ""), ("/models", "/{repository}")):
        status, rows = call("POST", f"/v2/repository{path}/index", {"ready": True}, f"/v2/repository{template}/index")
        assert (status, len(rows)) == (200, 6)


def test_shared_memory(call, document, validator):
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        base, template = "/v2/systemsharedmemory/region/one", "/v2/systemsharedmemory/region/{region}"
        region = {"key": memory.name, "offset": 64, "byte_size": 1024}
        assert call("POST", f"{base}/register", region, f"{template}/register") == (200, "")
        for state in (call("GET", f"{base}/status", None, f"{template}/status"), call("GET", f"{base[:-11]}/status")):
            assert state == (200, [{"name": "one", **region}])
        for wrong in ({"byte_size": 0}, {"offset": 2**70}, {"byte_size": 2**70}, {"offset": -1}, {"key": 3}):
            assert call("POST", f"{base}_/register", {**region, **wrong}, f"{template}/register")[0] == 400
            assert not validator(document["components"]["schemas"]["SystemRegion"]).is_valid({**region, **wrong})
        assert call("POST", f"{base}/unregister", None, f"{template}/unregister") == (200, "")
        assert call("POST", "/v2/systemsharedmemory/unregister") == (200, "")
        assert call("GET", "/v2/systemsharedmemory/status") == (200, [])
        assert call("POST", "/v2/cudasharedmemory/unregister") == (200, "")
        assert call("GET", "/v2/cudasharedmemory/status") == (200, [])
        body = {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}, "device_id": 0, "byte_size": 8}
        cuda = "/v2/cudasharedmemory/region/one", "/v2/cudasharedmemory/region/{region}"
        assert call("POST", f"{cuda[0]}/register", body, f"{cuda[1]}/register")[0] == 501  # there is no driver
        assert validator(document["components"]["schemas"]["CudaRegion"]).is_valid(body)
    finally:
        memory.close()
        memory.unlink()
