"""Sends a request to every model of model_repository with every flavour of the unmodified tritonclient."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import triton_to_np_dtype

from tests.system.running import ROOT, Server, running

REPOSITORY = ROOT / "model_repository"
MODELS = sorted(folder.name for folder in REPOSITORY.iterdir())
EXAMPLES = ROOT / "docs" / "examples"
# The files that a model takes, by the name of its input. Other inputs `data` take a picture.
FILES = {
    "keyword_spotter": {"data": "keywords/yes.wav"},
    "pointcloud_segmenter": {"data": "room.ply"},
    "bev_segmenter": {camera: f"street/{camera}.jpg" for camera in ("front", "left", "back", "right")},
}

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with running(REPOSITORY) as started:
        yield started


def inputs_of(metadata: dict[str, Any]) -> Arrays:
    """Returns an input for every tensor of the metadata.

    FILES names the files, and any other `data` is a picture. The other inputs are random numbers of the declared shape,
    with 1 for each unknown size.
    """
    files = FILES.get(metadata["name"], {"data": "digits.jpg"})
    rng = np.random.default_rng(3)
    arrays = {}
    for tensor in metadata["inputs"]:
        sizes = [int(size) for size in tensor["shape"]]
        if tensor["name"] in files:
            file = np.frombuffer((EXAMPLES / files[tensor["name"]]).read_bytes(), np.uint8)
            arrays[tensor["name"]] = file[None] if len(sizes) == 2 else file
            continue
        shape = [1 if size == -1 else size for size in sizes]
        dtype = np.dtype(triton_to_np_dtype(tensor["datatype"]))
        values = rng.uniform(0, 100, shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays[tensor["name"]] = values.astype(dtype)
    return arrays


def infer_inputs(module: Any, arrays: Arrays, **options: bool) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        datatype = {"f4": "FP32", "i4": "INT32", "u1": "UINT8"}[array.dtype.str[1:]]
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **options)
        tensors.append(tensor)
    return tensors


def http(server: Server, model: str, arrays: Arrays, names: list[str], binary: bool) -> Arrays:
    client = triton_http.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=60)
    outputs = [triton_http.InferRequestedOutput(name, binary_data=binary) for name in names]
    result = client.infer(model, infer_inputs(triton_http, arrays, binary_data=binary), outputs=outputs)
    client.close()
    return {name: result.as_numpy(name) for name in names}


def http_aio(server: Server, model: str, arrays: Arrays, names: list[str]) -> Arrays:
    async def ask() -> Arrays:
        async with triton_http_aio.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            result = await client.infer(model, infer_inputs(triton_http_aio, arrays))
            return {name: result.as_numpy(name) for name in names}

    return asyncio.run(ask())


def grpc(server: Server, model: str, arrays: Arrays, names: list[str]) -> Arrays:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        result = client.infer(model, infer_inputs(triton_grpc, arrays))
        return {name: result.as_numpy(name) for name in names}


def grpc_aio(server: Server, model: str, arrays: Arrays, names: list[str]) -> Arrays:
    async def ask() -> Arrays:
        async with triton_grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            result = await client.infer(model, infer_inputs(triton_grpc_aio, arrays))
            return {name: result.as_numpy(name) for name in names}

    return asyncio.run(ask())


FLAVOURS: dict[str, Callable[[Server, str, Arrays, list[str]], Arrays]] = {
    "http json": lambda *arguments: http(*arguments, binary=False),
    "http.aio": http_aio,
    "grpc": grpc,
    "grpc.aio": grpc_aio,
}


@pytest.mark.parametrize("model", MODELS)
def test_all_clients_get_the_same(server: Server, model: str) -> None:
    client = triton_http.InferenceServerClient(f"127.0.0.1:{server.http}")
    assert client.is_model_ready(model)
    metadata = client.get_model_metadata(model)
    client.close()
    names = [tensor["name"] for tensor in metadata["outputs"]]
    arrays = inputs_of(metadata)
    wanted = http(server, model, arrays, names, binary=True)
    for name, tensor in zip(names, metadata["outputs"], strict=True):
        sizes = [int(size) for size in tensor["shape"]]
        assert wanted[name].dtype == np.dtype(triton_to_np_dtype(tensor["datatype"]))
        assert len(wanted[name].shape) == len(sizes)
        assert all(size in (-1, actual) for size, actual in zip(sizes, wanted[name].shape, strict=True))
    for flavour, ask in FLAVOURS.items():
        answer = ask(server, model, arrays, names)
        for name in names:
            np.testing.assert_allclose(answer[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=f"{flavour} {name}")
