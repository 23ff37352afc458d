"""The main job on real input: many clients at once send pictures and get labelled boxes."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from PIL import Image

from tests.system.running import ROOT, Server, running

DIGITS = ROOT / "docs" / "examples" / "digits.jpg"
OUTPUTS = ("boxes", "scores", "labels", "count", "status")


@pytest.fixture(scope="module")
def gateway(library: Path) -> Iterator[Server]:
    with running(ROOT / "model_repository") as server:
        yield server


def pictures(count: int) -> list[bytes]:
    """Returns JPEGs of different sizes and qualities: scaled crops of the example picture."""
    example = Image.open(DIGITS).convert("RGB")
    rng = np.random.default_rng(7)
    jpegs = []
    for _ in range(count):
        width, height = int(rng.integers(200, example.width)), int(rng.integers(200, example.height))
        left, top = int(rng.integers(0, example.width - width + 1)), int(rng.integers(0, example.height - height + 1))
        crop = example.crop((left, top, left + width, top + height))
        scale = float(rng.uniform(0.5, 1.5))
        crop = crop.resize((max(1, int(width * scale)), max(1, int(height * scale))))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=int(rng.integers(60, 96)))
        jpegs.append(buffer.getvalue())
    return jpegs


def infer(
    client: triton_grpc.InferenceServerClient, picture: bytes, model: str = "digit_detector"
) -> dict[str, np.ndarray]:
    data = triton_grpc.InferInput("data", [1, len(picture)], "UINT8")
    data.set_data_from_numpy(np.frombuffer(picture, np.uint8)[None])
    result = client.infer(model, [data])
    return {name: result.as_numpy(name) for name in OUTPUTS}


def assert_same(answer: dict[str, np.ndarray], alone: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(answer["count"], alone["count"])
    np.testing.assert_array_equal(answer["labels"], alone["labels"])
    np.testing.assert_allclose(answer["boxes"], alone["boxes"], atol=1e-2)
    np.testing.assert_allclose(answer["scores"], alone["scores"], atol=1e-5)


@pytest.fixture(scope="module")
def alone(gateway: Server) -> tuple[list[bytes], list[dict[str, np.ndarray]]]:
    """200 pictures, and the answer that each gets from a server without other requests."""
    jpegs = pictures(200)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        answers = [infer(client, picture) for picture in jpegs]
    assert len({answer["boxes"].tobytes() for answer in answers}) > 150  # most answers differ from each other
    return jpegs, answers


def test_concurrent_clients_each_get_their_own_answer(
    gateway: Server, alone: tuple[list[bytes], list[dict[str, np.ndarray]]]
) -> None:
    jpegs, expected = alone
    count, runs = (gateway.metric(f"nv_inference_{name}", "digit_detector") for name in ("count", "exec_count"))
    with ThreadPoolExecutor(200) as pool, triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        answers = list(pool.map(lambda picture: infer(client, picture), jpegs))
    for answer, wanted in zip(answers, expected, strict=True):
        assert_same(answer, wanted)
    rows = gateway.metric("nv_inference_count", "digit_detector") - count
    assert rows == 200
    assert gateway.metric("nv_inference_exec_count", "digit_detector") - runs < rows


@pytest.mark.parametrize(
    ("model", "counted", "share"),
    # The network of the pipeline batches by its measured cost, which depends on the machine.
    [("digit_detector", "digit_detector", 0.5), ("digit_detector_pipeline", "digit_network", 0.95)],
)
def test_sixteen_clients_share_runs(
    gateway: Server, alone: tuple[list[bytes], list[dict[str, np.ndarray]]], model: str, counted: str, share: float
) -> None:
    jpegs, expected = alone
    count, runs = (gateway.metric(f"nv_inference_{name}", counted) for name in ("count", "exec_count"))
    with ThreadPoolExecutor(16) as pool, triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        answers = list(pool.map(lambda picture: infer(client, picture, model), jpegs))
    for answer, wanted in zip(answers, expected, strict=True):
        assert_same(answer, wanted)
    rows = gateway.metric("nv_inference_count", counted) - count
    executions = gateway.metric("nv_inference_exec_count", counted) - runs
    assert rows == 200
    assert executions <= share * rows, f"{executions} runs for {rows} rows"


@pytest.mark.parametrize("model", ["digit_detector", "digit_detector_pipeline"])
def test_one_corrupt_picture_among_sixteen_fails_alone(
    gateway: Server, alone: tuple[list[bytes], list[dict[str, np.ndarray]]], model: str
) -> None:
    jpegs, expected = alone

    def answer(index: int) -> dict[str, np.ndarray] | str:
        picture = jpegs[index] if index != 5 else jpegs[index][: len(jpegs[index]) // 2]
        try:
            return infer(client, picture, model)
        except triton_grpc.InferenceServerException as error:
            return f"{error.status()} {error.message()}"

    with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        for _ in range(5):
            with ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(answer, range(16)))
            refused = [index for index, got in enumerate(answers) if isinstance(got, str)]
            assert refused == [5]
            assert "INVALID_ARGUMENT" in answers[5] and "input 'data'" in answers[5] and "truncated" in answers[5]
            for got, wanted in zip(answers, expected, strict=False):
                if not isinstance(got, str):
                    assert_same(got, wanted)


def test_http_and_json_and_binary_agree(gateway: Server) -> None:
    picture = DIGITS.read_bytes()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        wanted = infer(client, picture)
    client_http = triton_http.InferenceServerClient(f"127.0.0.1:{gateway.http}")
    for binary in (True, False):
        data = triton_http.InferInput("data", [1, len(picture)], "UINT8")
        data.set_data_from_numpy(np.frombuffer(picture, np.uint8)[None], binary_data=binary)
        outputs = [triton_http.InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS]
        result = client_http.infer("digit_detector", [data], outputs=outputs)
        assert_same({name: result.as_numpy(name) for name in OUTPUTS}, wanted)
    client_http.close()


def predict(gateway: Server, body: bytes, **headers: str) -> tuple[int, str, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{gateway.url}/predict/digit_detector", data=body, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def overlap(a: list[float], b: list[float]) -> float:
    """Returns the intersection over union of two boxes (x1, y1, x2, y2)."""
    width, height = (max(0.0, min(a[2 + i], b[2 + i]) - max(a[i], b[i])) for i in range(2))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def test_predict_finds_the_digits_where_they_are(gateway: Server) -> None:
    status, kind, body = predict(gateway, DIGITS.read_bytes(), Content_Type="image/jpeg")
    assert (status, kind) == (200, "application/json")
    predictions = json.loads(body)["predictions"]
    truth = json.loads(DIGITS.with_suffix(".json").read_text())
    hits = 0
    for digit in truth["objects"]:
        hits += any(p["label"] == str(digit["label"]) and overlap(p["box"], digit["box"]) > 0.5 for p in predictions)
    assert hits >= len(truth["objects"]) - 1
    assert all(0 <= p["score"] <= 1 for p in predictions)


def test_predict_draws_the_boxes(gateway: Server) -> None:
    original = Image.open(DIGITS)
    status, kind, body = predict(gateway, DIGITS.read_bytes(), Content_Type="image/jpeg", Accept="image/jpeg")
    assert (status, kind) == (200, "image/jpeg")
    drawn = Image.open(io.BytesIO(body))
    assert (drawn.format, drawn.size) == ("JPEG", original.size)
    changed = np.abs(np.asarray(drawn, int) - np.asarray(original, int)).max(2) > 60
    assert 0.005 < changed.mean() < 0.2


def test_predict_refuses_what_is_no_picture(gateway: Server) -> None:
    status, _, body = predict(gateway, b"no picture at all", Content_Type="image/jpeg")
    assert status == 400
    assert (
        "input 'data'" in json.loads(body)["error"] and "not a JPEG, PNG, WebP, BMP or GIF" in json.loads(body)["error"]
    )
    assert gateway.process.poll() is None
