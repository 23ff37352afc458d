"""A gateway that serves models from object stores. Servers on this machine speak the protocols of S3 (moto) and Google."""

from __future__ import annotations

import base64
import json
import urllib.request

import boto3
import fsspec
import numpy as np
import pytest
import tritonclient.grpc as grpc
from gcp_storage_emulator.server import create_server
from moto.server import ThreadedMotoServer

from opgate.service.repository.config import ConfigError
from opgate.service.repository.object_stores import StoredRepository, is_address
from tests.service.onnx_models import batching, double
from tests.system.conftest import wait_until
from tests.system.running import free_port, running

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


class Bucket:
    def __init__(self, url, client):
        self.address = f"s3://{url}/models/deep/repository"
        self.client = client

    def put(self, folder):
        for path in folder.rglob("*"):
            if path.is_file():
                name = f"deep/repository/{path.relative_to(folder)}"
                self.client.upload_file(str(path), "models", name)

    def remove(self, prefix):
        listed = self.client.list_objects_v2(Bucket="models", Prefix=f"deep/repository/{prefix}")
        for found in listed.get("Contents", ()):
            self.client.delete_object(Bucket="models", Key=found["Key"])


@pytest.fixture
def bucket(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(f"{url}/moto-api/reset", b"")  # the process keeps what an earlier server had
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="models")
    yield Bucket(url, client)
    server.stop()


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    double(folder, "double", config=batching())
    double(folder, "other", config=batching())
    return folder


def test_models_from_s3_and_their_changes(bucket, models):
    bucket.put(models)
    with running(bucket.address, "--model-control-mode=poll", "--repository-poll-secs=0.2") as server:
        given = grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        assert client.infer("double", [given]).as_numpy("y")[0, 0] == 2
        double(models, "double", config="max_batch_size: 7 dynamic_batching { }")
        double(models, "new", config=batching())
        bucket.put(models)
        wait_until(lambda: client.is_model_ready("new"))
        wait_until(lambda: json.loads(server.get("/v2/models/double/config"))["max_batch_size"] == 7)
        bucket.remove("other/")
        wait_until(lambda: not client.is_model_ready("other"))
        # What can't be read changes nothing.
        bucket.client.put_object(Bucket="models", Key="deep/repository/double/1/model.onnx", Body=b"broken")
        wait_until(lambda: any("what served before still does" in line for line in server.log))
        assert client.infer("double", [given]).as_numpy("y")[0, 0] == 2


def test_an_ensemble_from_s3_has_no_version_folder(bucket, models):
    """A store has no empty folders. The ensemble changes with its config and its step."""
    step = 'step [ { model_name: "double" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ]'
    tensors = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    (models / "both").mkdir()
    config = f'platform: "ensemble" max_batch_size: SIZE {tensors} ensemble_scheduling {{ {step} }}'
    (models / "both" / "config.pbtxt").write_text(config.replace("SIZE", "8"))
    bucket.put(models)
    with running(bucket.address, "--model-control-mode=poll", "--repository-poll-secs=0.2") as server:
        given = grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        assert client.infer("both", [given], model_version="1").as_numpy("y")[0, 0] == 2
        (models / "both" / "config.pbtxt").write_text(config.replace("SIZE", "7"))
        bucket.put(models)
        wait_until(lambda: json.loads(server.get("/v2/models/both/config"))["max_batch_size"] == 7)
        assert client.infer("both", [given]).as_numpy("y")[0, 0] == 2


def test_only_what_has_changed_is_copied(bucket, models, caplog):
    bucket.put(models)
    stored = StoredRepository(bucket.address)
    with caplog.at_level("INFO"):
        stored.refresh()
        stored.refresh()
        double(models, "double", config="max_batch_size: 9")
        bucket.put(models / ".")
        stored.refresh()
    copied = [record.message for record in caplog.records if record.message.startswith("copied")]
    assert copied[0].startswith("copied 4 files")
    assert (stored.folder / "double" / "config.pbtxt").read_text() == "max_batch_size: 9"
    bucket.remove("double/")
    stored.refresh()
    assert sorted(path.name for path in stored.folder.iterdir()) == ["other"]


def test_a_store_that_cannot_be_read(bucket):
    with pytest.raises(ConfigError, match=r"does not exist|can't be read"):
        StoredRepository(bucket.address.replace("/models/", "/nothing/")).refresh()
    with pytest.raises(ConfigError, match="s3://"):
        StoredRepository("s3://http://127.0.0.1:9/models/x").refresh()
    with pytest.raises(ConfigError, match="nostore"):
        StoredRepository("nostore://x/y").refresh()


def test_a_copy_that_differs_is_refused(bucket, models, monkeypatch):
    bucket.put(models)
    stored = StoredRepository(bucket.address)
    stored.refresh()
    before = (stored.folder / "double" / "1" / "model.onnx").read_bytes()
    from opgate.service.repository import object_stores

    objects = object_stores._objects
    wrong = {"ETag": '"' + "0" * 32 + '"'}
    monkeypatch.setattr(
        object_stores, "_objects", lambda *a: {name: {**info, **wrong} for name, info in objects(*a).items()}
    )
    with pytest.raises(ConfigError, match="expected MD5 000"):
        stored.refresh()
    monkeypatch.setattr(object_stores, "_objects", lambda *a: {n: {**i, "size": 3} for n, i in objects(*a).items()})
    with pytest.raises(ConfigError, match="expected 3 bytes"):
        stored.refresh()
    assert (stored.folder / "double" / "1" / "model.onnx").read_bytes() == before
    assert not list(stored.folder.rglob("*.part"))


def test_the_hash_of_an_encrypted_object_is_not_of_its_content(bucket, models, monkeypatch):
    """S3 gives such an object an ETag that looks like an MD5."""
    bucket.put(models)
    stored = StoredRepository(bucket.address)
    from opgate.service.repository import object_stores

    objects = object_stores._objects
    other = {"ETag": '"' + "0" * 32 + '"'}
    monkeypatch.setattr(object_stores, "_objects", lambda *a: {n: {**i, **other} for n, i in objects(*a).items()})
    for path in models.rglob("*"):
        if path.is_file():
            key = f"deep/repository/{path.relative_to(models)}"
            options = {"ServerSideEncryption": "aws:kms"} if path.suffix == ".onnx" else {}
            bucket.client.put_object(Bucket="models", Key=key, Body=path.read_bytes(), **options)
    with pytest.raises(ConfigError, match=r"config.pbtxt': expected MD5 000"):
        stored.refresh()
    bucket.remove("double/config.pbtxt")
    bucket.remove("other/config.pbtxt")
    stored.refresh()
    assert sorted(path.name for path in stored.folder.rglob("*.onnx")) == ["model.onnx", "model.onnx"]


class TestGoogle:
    """The store is an emulator of Google Cloud Storage on this machine."""

    @pytest.fixture
    def store(self, monkeypatch):
        port = free_port()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket="models")
        emulator.start()
        yield fsspec.filesystem("gcs", skip_instance_cache=True)
        emulator.stop()

    def put(self, store, folder):
        for path in folder.rglob("*"):
            if path.is_file():
                store.pipe_file(f"models/deep/repository/{path.relative_to(folder)}", path.read_bytes())

    def test_models_and_their_changes(self, store, models):
        self.put(store, models)
        options = ("--model-control-mode=poll", "--repository-poll-secs=0.2")
        with running("gs://models/deep/repository", *options) as server:
            assert json.loads(server.get("/v2/models/double/config"))["max_batch_size"] == 8
            double(models, "double", config="max_batch_size: 7 dynamic_batching { }")
            self.put(store, models)
            wait_until(lambda: json.loads(server.get("/v2/models/double/config"))["max_batch_size"] == 7)

    def test_a_copy_that_differs_is_refused(self, store, models, monkeypatch):
        self.put(store, models)
        from opgate.service.repository import object_stores

        objects = object_stores._objects
        wrong = {"md5Hash": base64.b64encode(bytes(16)).decode()}
        monkeypatch.setattr(object_stores, "_objects", lambda *a: {n: {**i, **wrong} for n, i in objects(*a).items()})
        with pytest.raises(ConfigError, match="expected MD5 000"):
            StoredRepository("gs://models/deep/repository").refresh()


def test_an_object_may_not_leave_the_folder(tmp_path):
    stored = StoredRepository("s3://b/r", folder=tmp_path / "copy")
    (tmp_path / "copy").mkdir()
    with pytest.raises(ConfigError, match="has no name of a file"):
        stored._copy(None, "../evil", {"name": "b/r/../evil", "size": 1})


@pytest.mark.parametrize(
    ("location", "expected"),
    [("s3://b/p", True), ("gs://b", True), ("as://account/container", True), ("/srv/models", False), ("models", False)],
)
def test_what_is_an_address(location, expected):
    assert is_address(location) is expected
