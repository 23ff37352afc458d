"""Who gets through: TLS on both protocols, certificates of clients, and tokens for groups of endpoints."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import grpc as grpc_channel
import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http_client
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.utils import InferenceServerException

from opgate.service.tokens import GROUPS, read_tokens
from tests.service.onnx_models import batching, double
from tests.system.clients import connect
from tests.system.conftest import wait_until
from tests.system.running import ROOT, running


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config=batching(max_batch_size=16))
    double(folder, "plain", shape=("n",))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder of an authority and of the certificates of a server and a client."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("localhost", "client"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
    return folder


def request(server, files, path, body=None, headers=None, certificate=None):
    """Returns status and body of an answer over TLS."""
    context = ssl.create_default_context(cafile=files / "ca.pem")
    if certificate is not None:
        context.load_cert_chain(files / f"{certificate}.pem", files / f"{certificate}.key")
    client = http.client.HTTPSConnection("localhost", server.http, context=context, timeout=20)
    try:
        client.request("GET" if body is None else "POST", path, body, headers or {})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


class TestTls:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, repository, files):
        # uvicorn's options for HTTP, Triton's for gRPC.
        options = ["--ssl-certfile", files / "localhost.pem", "--ssl-keyfile", files / "localhost.key"]
        options += ["--grpc-use-ssl", "--grpc-server-cert", files / "localhost.pem"]
        options += ["--grpc-server-key", files / "localhost.key"]
        with running(repository, *map(str, options)) as started:
            yield started

    def test_tritonclient_over_http(self, server, files):
        client = http_client.InferenceServerClient(
            f"localhost:{server.http}", ssl=True, ssl_options={"ca_certs": str(files / "ca.pem")}
        )
        for rows in (1, 16):
            given = http_client.InferInput("x", [rows, 4], "FP32")
            given.set_data_from_numpy(np.ones((rows, 4), np.float32))
            assert client.infer("double", [given]).as_numpy("y").sum() == 8 * rows

    def test_large_bodies_and_errors(self, server, files):
        array = np.arange(1 << 20, dtype=np.float32)
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "datatype": "FP32",
                        "shape": [array.size],
                        "parameters": {"binary_data_size": array.nbytes},
                    }
                ]
            }
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, body = request(server, files, "/v2/models/plain/infer", head + array.tobytes(), headers)
        assert status == 200 and len(body) > 4 << 20
        assert request(server, files, "/v2/models/none/infer", b"{}")[0] == 404
        assert request(server, files, "/v2/health/ready")[0] == 200

    def test_a_client_without_tls(self, server):
        client = http.client.HTTPConnection("localhost", server.http, timeout=10)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            client.request("GET", "/v2")
            client.getresponse()

    def test_grpc(self, server, files):
        url = f"localhost:{server.grpc}"
        with grpc.InferenceServerClient(url, ssl=True, root_certificates=str(files / "ca.pem")) as client:
            assert client.is_server_ready()


def test_clients_need_a_certificate(repository, files):
    options = ["--ssl-certfile", files / "localhost.pem", "--ssl-keyfile", files / "localhost.key"]
    options += ["--ssl-ca-certs", files / "ca.pem", "--grpc-use-ssl-mutual", "--grpc-root-cert", files / "ca.pem"]
    options += ["--grpc-server-cert", files / "localhost.pem", "--grpc-server-key", files / "localhost.key"]
    with running(repository, *map(str, options)) as server:
        assert request(server, files, "/v2", certificate="client")[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            request(server, files, "/v2")
        url, root = f"localhost:{server.grpc}", str(files / "ca.pem")
        own = {"private_key": str(files / "client.key"), "certificate_chain": str(files / "client.pem")}
        with grpc.InferenceServerClient(url, ssl=True, root_certificates=root, **own) as client:
            assert client.is_server_live()
        without = grpc.InferenceServerClient(url, ssl=True, root_certificates=root)
        with without as client, pytest.raises(InferenceServerException):
            client.is_server_live(client_timeout=3)


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--ssl-certfile", "FILE"], 1, "HTTP with TLS needs both --ssl-certfile and --ssl-keyfile"),
        (["--ssl-ca-certs", "FILE"], 1, "HTTP with TLS needs both --ssl-certfile and --ssl-keyfile"),
        (["--ssl-certfile", "FILE", "--ssl-keyfile", "FILE"], 1, "the TLS files of HTTP can't be used"),
        (["--grpc-use-ssl"], 2, "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        (["--grpc-use-ssl-mutual", "--grpc-server-cert", "a", "--grpc-server-key", "b"], 2, "needs --grpc-root-cert"),
        (["--http-restricted-api", "everything:a=b"], 2, "'everything' is no group of endpoints"),
        (["--http-restricted-api", "health"], 2, "expected <group>[,<group>...]:<key>=<value>"),
        (
            ["--grpc-restricted-protocol", "health:a=b", "--grpc-restricted-protocol", "health:c=d"],
            2,
            "restricted twice",
        ),
    ],
)
def test_options_that_cannot_work(repository, tmp_path, options, status, text):
    (tmp_path / "file").write_text("no certificate")
    options = [str(tmp_path / "file") if option == "FILE" else option for option in options]
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository), "--http-port", "0"]
    ended = subprocess.run(
        [*command, "--grpc-port", "0", *options], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == status and text in ended.stderr


def test_no_secret_is_printed(repository):
    command = [sys.executable, "-m", "opgate", "serve", "--http-restricted-api", "nothing:key=verysecret"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "verysecret" not in ended.stderr + ended.stdout


class TestTokens:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, repository):
        options = [
            "--http-restricted-api",
            "inference:x-infer=one",
            "--http-restricted-api",
            "model-repository,model-config:x-admin=two",
        ]
        options += ["--grpc-restricted-protocol", "inference:infer=one"]
        options += ["--grpc-restricted-protocol", "model-repository,model-config:admin=two"]
        with running(repository, *options, "--model-control-mode=explicit", "--load-model=*") as started:
            yield started

    @pytest.fixture(params=["http", "grpc"])
    def client(self, request, server):
        module, port = (http_client, server.http) if request.param == "http" else (grpc, server.grpc)
        made = module.InferenceServerClient(f"127.0.0.1:{port}")
        made.module = module
        made.name = lambda kind: f"x-{kind}" if module is http_client else f"triton-grpc-protocol-{kind}"
        return made

    def infer(self, client, headers=None):
        given = client.module.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        return client.infer("double", [given], headers=headers).as_numpy("y")[0, 0]

    def test_inference(self, client):
        for headers in (None, {client.name("infer"): "two"}, {client.name("infer"): ""}, {client.name("admin"): "one"}):
            with pytest.raises(InferenceServerException, match="restricted, expecting header"):
                self.infer(client, headers)
        for _ in range(3):
            assert self.infer(client, {client.name("infer"): "one"}) == 2

    def test_other_groups(self, client):
        assert client.is_server_ready() and client.is_model_ready("double")
        token = {client.name("admin"): "two"}
        for call in (client.get_model_config, client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="restricted"):
                call("plain")
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_model_repository_index()
        client.get_model_config("plain", headers=token)
        client.load_model("plain", headers=token)
        assert client.get_model_repository_index(headers=token)

    def test_a_stream(self, server):
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        got = []
        client.start_stream(lambda result, error: got.append(error))
        given = grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        with contextlib.suppress(InferenceServerException):  # the stream may have ended before
            client.async_stream_infer("double", [given])
        wait_until(lambda: got)
        client.stop_stream()
        assert "restricted" in str(got[0])

    def test_every_way_to_a_restricted_route(self, server):
        """Paths that are written otherwise, other methods, packed and chunked bodies."""
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
        for method, path, headers in (
            ("POST", "/v2/models/double/infer", {}),
            ("POST", "/v2/models/double/infer?x=1", {}),
            ("GET", "/v2/models/double/config%0A", {}),
            ("POST", "/v2/models/double/infer%0A", {}),
            ("POST", "/v2/repository/models/plain/unload%0A", {}),
            ("POST", "/v2/repository/models/a%0Ab/load", {}),
            ("POST", "/v2/models/dou%62le/infer", {}),
            ("POST", "/v2/models/double/%69nfer", {}),
            ("POST", "/v2/models/double/versions/1/infer", {}),
            ("POST", "/v2/models/double/generate", {}),
            ("POST", "/predict/double", {"content-type": "application/json"}),
            ("POST", "/v2/models/double/infer", {"accept-encoding": "gzip"}),
            ("POST", "/v2/models/double/infer", {"x-infer": "wrong"}),
            ("GET", "/v2/models/double/config", {}),
            ("POST", "/v2/repository/index", {"x-infer": "one"}),
        ):
            client = http.client.HTTPConnection("127.0.0.1", server.http, timeout=10)
            client.request(method, path, body if method == "POST" else None, headers)
            answer = client.getresponse()
            text = answer.read()
            assert answer.status == 403 and (b"restricted" in text or b"can't be printed" in text), (method, path)
            client.close()


@pytest.mark.parametrize("headers", [{}, {"x-scrape": "wrong"}, {"x-scrape": "three"}])
def test_metrics_and_paths_of_no_group(repository, headers):
    """The group of the metrics may need a token like others. A path of no group needs one of the tokens."""
    known = headers == {"x-scrape": "three"}
    with running(repository, "--http-restricted-api", "metrics:x-scrape=three") as server:
        for path, status in (("/metrics", 200), ("/nothing", 404), ("/v2/nothing", 404), ("/metrics/", 404)):
            client = http.client.HTTPConnection("127.0.0.1", server.http, timeout=10)
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            text = answer.read()
            assert answer.status == (status if known else 403), path
            assert known or b"restricted" in text
            client.close()
        assert server.get("/v2/health/ready") == ""  # of a group without a token


def test_reflection_and_health_over_grpc_need_the_token_of_their_group(repository):
    option = "--grpc-restricted-protocol"
    with (
        running(repository, option, "metadata:a=one", option, "health:b=two") as server,
        grpc_channel.insecure_channel(f"127.0.0.1:{server.grpc}") as channel,
    ):
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc_channel.RpcError, match="restricted"):
            list(stub.ServerReflectionInfo(iter([ask])))
        token = [("triton-grpc-protocol-a", "one")]
        assert next(iter(stub.ServerReflectionInfo(iter([ask]), metadata=token))).list_services_response.service
        health = health_pb2_grpc.HealthStub(channel)
        token = [("triton-grpc-protocol-b", "two")]
        with pytest.raises(grpc_channel.RpcError, match="restricted"):
            health.Check(health_pb2.HealthCheckRequest())
        with pytest.raises(grpc_channel.RpcError, match="restricted"):
            next(health.Watch(health_pb2.HealthCheckRequest()))
        assert health.Check(health_pb2.HealthCheckRequest(), metadata=token).status == 1
        watch = health.Watch(health_pb2.HealthCheckRequest(), metadata=token)
        assert next(watch).status == 1
        watch.cancel()


def test_each_group_has_its_paths_and_others_are_closed(repository):
    """With a token for each group a path needs that of its group, whatever the path or its method is."""
    tokens = {group: f"{group}:{group}-key={group}" for group in GROUPS}
    expected = {
        "health": (
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/double/ready",
            "/v2/models/double/versions/1/ready",
        ),
        "metadata": (
            "/v2",
            "/v2/models/double",
            "/console/ops",
            "/docs",
            "/openapi.json",
            "/static-offline-docs/swagger-ui.css",
        ),
        "inference": ("/v2/models/double/infer", "/v2/models/a/generate", "/v2/models/a/generate_stream", "/predict/a"),
        "shared-memory": ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/a/register"),
        "model-config": ("/v2/models/double/config", "/v2/models/double/versions/1/config"),
        "model-repository": ("/v2/repository/index", "/v2/repository/a/index", "/v2/repository/models/a/load"),
        "statistics": ("/v2/models/stats", "/v2/models/double/stats"),
        "trace": ("/v2/trace/setting", "/v2/models/double/trace/setting"),
        "logging": ("/v2/logging",),
        "metrics": ("/metrics", "/metrics%0A"),
        "": (
            "/nothing",
            "/v2/",
            "/v2/models",
            "/v2/health/live/",
            "/v2/models/double/infer/",
            "/docs/more",
        ),
    }
    assert expected.keys() - {""} == tokens.keys()
    with running(repository, *(f"--http-restricted-api={token}" for token in tokens.values())) as server:

        def status(path, group=""):
            headers = {f"{group}-key": group} if group else {}
            request = urllib.request.Request(server.url + path, headers=headers)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        for group, paths in expected.items():
            for path in paths:
                assert status(path) == 403, path
                for other in tokens:
                    assert (status(path, other) == 403) == (bool(group) and other != group), (path, other)


@pytest.mark.parametrize(
    "text", ["health", "health:", "health:a", ":a=b", "health:=b", "health:a=", "a b:c=d", "health:a=ö"]
)
def test_tokens_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"expected|no group|ASCII"):
        read_tokens(text)


class TestClientLimits:
    @pytest.fixture(scope="class")
    @classmethod
    def limited(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("limited")
        double(folder, "double", batching())
        options = ("--client-limit", "alice:x-api-key=s3cret:1000", "--client-limit", "*:0.5")
        with running(folder, *options) as server:
            yield server

    def test_each_protocol_says_when_to_try_again(self, limited):
        body = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'

        def ask(path="/v2/models/double/infer", body=body, **headers):
            request = urllib.request.Request(f"{limited.url}{path}", body, headers)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, answer.headers
            except urllib.error.HTTPError as error:
                return error.code, error.headers

        with connect(limited, "grpc") as client:
            given = grpc.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.infer("double", [given])
            with pytest.raises(InferenceServerException, match="this address may send") as raised:
                client.infer("double", [given])
            assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
            for _ in range(20):
                client.infer("double", [given], headers={"x-api-key": "s3cret"})
        status, headers = ask()
        assert status == 429 and 1 <= int(headers["Retry-After"]) <= 2
        content = {"Content-Type": "application/json"}
        assert ask("/predict/double", b'{"x": [1, 2, 3, 4]}', **content)[0] == 429
        assert ask("/v2/models/double/generate", b'{"x": [1, 2, 3, 4]}', **content)[0] == 429
        assert ask("/predict/double", b'{"x": [1, 2, 3, 4]}', **content, **{"X-Api-Key": "s3cret"})[0] == 200
        assert all(ask(**{"X-Api-Key": "s3cret"})[0] == 200 for _ in range(20))
        with urllib.request.urlopen(f"{limited.url}/v2/models/double") as answer:
            assert answer.status == 200  # only inference is limited
        with urllib.request.urlopen(f"{limited.url}/metrics") as answer:
            assert b'opgate_limited_requests_total{client="*"} 4.0' in answer.read()
