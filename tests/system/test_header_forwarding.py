"""Headers that models in Python find among the parameters of a request. A real Triton finds the same."""

from __future__ import annotations

import gzip
import json
import queue
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from opgate.service.header_forwarding import read_pattern
from tests.system.clients import CLIENTS, connect
from tests.system.running import running
from tests.system.test_python_models import running_triton, tensor, write

TELLS = """
import json, numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([r.parameters().encode()], np.object_))])
                for r in requests]
"""
CONFIG = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]"""
TELL_STREAM = TELLS.replace("return [", "for r, response in zip(requests, [").replace(
    "for r in requests]", "for r in requests]): r.get_response_sender().send(response, flags=1)"
)
OPTIONS = ("--http-header-forward-pattern", "MY-Header.*|tok", "--grpc-header-forward-pattern", "(?-i)^my-header")
HEADERS = {"My-Header-1": "one", "my-header-2": 'a "quoted" \\ text', "other": "not this one"}
FORWARDED = {"my-header-1": "one", "my-header-2": 'a "quoted" \\ text'}
FLOAT = [1.0]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("headers") / "models"
    write(folder, "tells", CONFIG, TELLS)
    write(folder, "streams", CONFIG + " model_transaction_policy { decoupled: true }", TELL_STREAM)
    steps = """platform: "ensemble" ensemble_scheduling { step [ { model_name: "tells" model_version: -1
        input_map { key: "x" value: "x" } output_map { key: "TOLD" value: "TOLD" } } ] }"""
    (folder / "steps" / "1").mkdir(parents=True)
    (folder / "steps" / "config.pbtxt").write_text(f"{CONFIG} {steps}")
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[Any]:
    with running(repository, "--allow-python-models", *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[Any]:
    with running_triton(repository, "--", *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def before_triton(repository: Path, triton: Any) -> Iterator[Any]:
    """A gateway whose models Triton runs."""
    where = ("--backend", "triton", "--triton-url", f"127.0.0.1:{triton.grpc}")
    with running(repository, *where, *OPTIONS) as server:
        yield server


@pytest.fixture(params=["gateway", "triton", "before_triton"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def lower(parameters: Any) -> dict[str, Any]:
    """Triton keeps the case of HTTP."""
    return {name.lower(): value for name, value in json.loads(parameters).items()}


@pytest.mark.parametrize("model", ["tells", "steps"])
@pytest.mark.parametrize("protocol", CLIENTS)
def test_matching_headers_are_parameters(server: Any, protocol: str, model: str) -> None:
    client = connect(server, protocol)
    x = [tensor(protocol, "x", np.ones(1, np.float32), "FP32")]
    headers = {name if protocol == "http" else name.lower(): value for name, value in HEADERS.items()}
    found = client.infer(model, x, headers=headers, parameters={"own": 3}).as_numpy("TOLD")[0]
    assert lower(found) == {**FORWARDED, "own": 3}
    token = {"has-token": "t"}
    assert lower(client.infer(model, x, headers=dict(token)).as_numpy("TOLD")[0]) == (
        token if protocol == "http" else {}
    )
    assert lower(client.infer(model, x).as_numpy("TOLD")[0]) == {}
    client.close()


def test_other_ways_of_http(server: Any) -> None:
    """A compressed body and an answer that is."""
    url = f"http://127.0.0.1:{server.http}/v2/models/tells"
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": FLOAT}]}).encode()
    for data, more in ((gzip.compress(body), {"Content-Encoding": "gzip"}), (body, {"Accept-Encoding": "gzip"})):
        request = urllib.request.Request(f"{url}/infer", data, {**HEADERS, **more})
        with urllib.request.urlopen(request, timeout=20) as answer:
            read = answer.read()
            told = json.loads(gzip.decompress(read) if read[:1] == b"\x1f" else read)["outputs"][0]["data"][0]
        assert lower(told) == FORWARDED


@pytest.mark.parametrize("server", ["gateway", "triton"], indirect=True)
def test_a_header_may_be_utf_8(server: Any) -> None:
    url = f"http://127.0.0.1:{server.http}/v2/models/tells/infer"
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": FLOAT}]}).encode()
    request = urllib.request.Request(url, body, {"My-Header-1": "Zoë".encode()})  # type: ignore[dict-item]
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert lower(json.load(answer)["outputs"][0]["data"][0]) == {"my-header-1": "Zoë"}


@pytest.mark.parametrize("server", ["gateway", "triton"], indirect=True)
def test_metadata_with_spaces_around_it(server: Any) -> None:
    client = connect(server, "grpc")
    x = [tensor("grpc", "x", np.ones(1, np.float32), "FP32")]
    found = client.infer("tells", x, headers={"my-header-1": "  padded "}).as_numpy("TOLD")[0]
    assert lower(found) == {"my-header-1": "  padded "}
    client.close()


def of_both(server: Any, protocol: str) -> Any:
    """Returns the parameters of a request with a parameter and a header of one name."""
    client = connect(server, protocol)
    x = [tensor(protocol, "x", np.ones(1, np.float32), "FP32")]
    found = client.infer("tells", x, headers={"my-header-1": "of the header"}, parameters={"my-header-1": "its own"})
    client.close()
    return lower(found.as_numpy("TOLD")[0])["my-header-1"]


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_parameter_goes_before_a_header(gateway: Any, triton: Any, protocol: str) -> None:
    """In Triton the header does."""
    assert of_both(gateway, protocol) == "its own" and of_both(triton, protocol) == "of the header"


def test_generate(gateway: Any, triton: Any) -> None:
    """Triton 2.51 forwards none there."""
    for server, expected in ((gateway, FORWARDED), (triton, {})):
        url = f"http://127.0.0.1:{server.http}/v2/models/tells/generate"
        request = urllib.request.Request(url, json.dumps({"x": 1.0}).encode(), HEADERS)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert lower(json.load(answer)["TOLD"]) == expected


def test_each_of_several_rows(gateway: Any) -> None:
    """They come in one form."""
    part = b'--f\r\nContent-Disposition: form-data; name="x"\r\n\r\n1.0\r\n'
    headers = {**HEADERS, "Content-Type": "multipart/form-data; boundary=f"}
    url = f"http://127.0.0.1:{gateway.http}/predict/tells"
    with urllib.request.urlopen(urllib.request.Request(url, 2 * part + b"--f--\r\n", headers), timeout=20) as answer:
        results = json.load(answer)["results"]
    assert [lower(result["outputs"]["TOLD"][0]) for result in results] == [FORWARDED] * 2


@pytest.mark.parametrize("server", ["gateway", "triton"], indirect=True)  # no decoupled model runs behind a gateway
def test_the_metadata_of_a_stream(server: Any) -> None:
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(
        lambda result, error: answers.put(error or result.as_numpy("TOLD")[0]),
        headers={name.lower(): value for name, value in HEADERS.items()},
    )
    for _ in range(2):
        client.async_stream_infer("streams", [tensor("grpc", "x", np.ones(1, np.float32), "FP32")])
        assert lower(answers.get(timeout=20)) == FORWARDED
    client.stop_stream()
    client.close()


def test_what_is_no_pattern() -> None:
    assert read_pattern("") is None
    with pytest.raises(ValueError, match=r"expected a regular expression, got '\(': missing"):
        read_pattern("(")
