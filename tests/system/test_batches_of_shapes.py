"""Padding, groups by value and scattered outputs, as tritonclient sees them over both protocols."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.service.padded_models import config, pictures, scattered, sized, tokens
from tests.system.running import running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    tokens(folder)
    tokens(folder, "buckets", config(pad_inputs="tokens", pad_masks="mask=tokens", pad_buckets="4,8"))
    pictures(folder)
    sized(folder, text=config(batch_by="t,word"))
    scattered(folder)
    with running(folder) as started:
        yield started


@pytest.fixture(params=["http", "grpc"])
def together(request, server):
    """A function that sends requests at once. It returns the outputs or the error of each, and how often the model
    ran."""
    over_http = request.param == "http"
    tensors, module = (http_client, http_aio) if over_http else (grpc_client, grpc_aio)

    def tensor(name, array):
        made = tensors.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array)
        return made

    async def infer(client, model, arrays):
        try:
            result = await client.infer(model, [tensor(name, array) for name, array in arrays.items()])
        except InferenceServerException as error:
            return error
        listed = result.get_response()
        names = [o["name"] for o in listed["outputs"]] if over_http else [o.name for o in listed.outputs]
        return {name: result.as_numpy(name) for name in names}

    async def main(model, requests):
        async with module.InferenceServerClient(f"127.0.0.1:{server.http if over_http else server.grpc}") as client:
            return await asyncio.gather(*(infer(client, model, arrays) for arrays in requests))

    def send(model, requests):
        before = server.metric("nv_inference_exec_count", model)
        answers = asyncio.run(main(model, requests))
        return answers, server.metric("nv_inference_exec_count", model) - before

    return send


def test_padding(server, together):
    before = [server.metric(f"opgate_{name}_elements_total", "tokens") for name in ("padded", "padding")]
    lengths = (1, 5, 3, 5, 2, 8, 4, 7)
    answers, runs = together("tokens", [{"tokens": np.arange(n)[None]} for n in lengths])
    for n, answer in zip(lengths, answers, strict=True):
        assert answer["double"].tolist() == [list(range(0, 2 * n, 2))]
        assert answer["total"].tolist() == [[n * (n - 1) // 2]]
    assert runs < len(lengths)
    after = [server.metric(f"opgate_{name}_elements_total", "tokens") for name in ("padded", "padding")]
    assert after[0] - before[0] == sum(lengths)
    assert after[1] > before[1]


def test_buckets(together):
    answers, runs = together("buckets", [{"tokens": np.arange(n)[None]} for n in (1, 4, 5, 8, 3, 7, 2, 6)])
    assert [answer["longest"].item() for answer in answers] == [4, 4, 8, 8, 4, 8, 4, 8]
    assert [answer["double"].shape for answer in answers] == [(1, n) for n in (1, 4, 5, 8, 3, 7, 2, 6)]
    assert 2 <= runs < 8


def test_pictures(together):
    shapes = [(1, 2, 3), (2, 5, 1), (1, 1, 6), (4, 2, 2)]
    asked = [np.random.default_rng(i).random((n, 2, h, w), np.float32) for i, (n, h, w) in enumerate(shapes)]
    answers, runs = together("pictures", [{"picture": picture} for picture in asked])
    for picture, answer in zip(asked, answers, strict=True):
        np.testing.assert_array_equal(answer["negated"], -picture)
        np.testing.assert_allclose(answer["mean"], picture.mean(axis=(2, 3)), rtol=1e-5)
    assert runs < len(shapes)


def test_groups(together):
    def asked(i):
        word = np.array([["en", "de"][i % 2]], object)[None].reshape(1, 1)
        return {"x": np.ones((1, 2), np.float32), "t": np.array([[i // 2 % 2]], np.float32), "word": word}

    answers, runs = together("sized", [asked(i) for i in range(16)])
    assert all(answer["rows"].item() <= 4 for answer in answers)
    assert [answer["same"].item() for answer in answers] == [b"en", b"de"] * 8
    assert 4 <= runs < 16


def test_a_value_that_is_too_large_to_group_by(together):
    word = np.array([["x" * 5000]], object)
    arrays = {"x": np.ones((1, 2), np.float32), "t": np.ones((1, 1), np.float32), "word": word}
    (error,), runs = together("sized", [arrays])
    assert "has 5004 bytes or more, the limit is 4096" in error.message()
    assert error.status() in ("413", "StatusCode.RESOURCE_EXHAUSTED")
    assert runs == 0


def test_scattered_outputs(together):
    asked = [np.random.default_rng(n).random((r, n, 2), np.float32) for r, n in ((1, 3), (2, 1), (1, 4), (4, 2))]
    answers, runs = together("scattered", [{"x": x} for x in asked])
    for x, answer in zip(asked, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * x)
        assert answer["sizes"].tolist() == [[x.shape[1], 2]] * len(x)
    assert runs < len(asked)


def test_clients_see_neither_masks_nor_batch_inputs(server):
    client = http_client.InferenceServerClient(f"127.0.0.1:{server.http}")
    assert [tensor["name"] for tensor in client.get_model_metadata("pictures")["inputs"]] == ["picture"]
    assert [tensor["name"] for tensor in client.get_model_metadata("scattered")["inputs"]] == ["x"]
    client.close()
