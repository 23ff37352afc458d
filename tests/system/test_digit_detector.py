"""The detector under load: every client gets the answer that its picture gets alone."""

from __future__ import annotations

import asyncio
import io
import urllib.request

import numpy as np
import pytest
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from tests.system.conftest import ROOT, running

LIBRARY = ROOT / "build" / "ops" / "libopgate_onnxruntime.so"
PHOTO = ROOT / "docs" / "examples" / "digits.jpg"
pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="the op library isn't built: run `opgate build`")
MODELS = ["digit_detector", "digit_detector_pipeline"]


@pytest.fixture(scope="module")
def detector():
    with running(ROOT / "model_repository") as server:
        yield server


@pytest.fixture(scope="module")
def pictures():
    """JPEGs of one photo in sizes that all differ."""
    from PIL import Image

    photo = Image.open(PHOTO).convert("RGB")
    made = []
    for i in range(20):
        target = io.BytesIO()
        width = 160 + 41 * i
        photo.resize((width, width * 2 // 3 + i)).save(target, "JPEG", quality=80)
        made.append(np.frombuffer(target.getvalue(), np.uint8)[None])
    return made


async def ask(client, model, picture):
    given = http_aio.InferInput("data", list(picture.shape), "UINT8")
    given.set_data_from_numpy(picture)
    result = await client.infer(model, [given])
    return {name: result.as_numpy(name) for name in ("boxes", "scores", "labels", "count")}


def with_client(detector, main):
    async def run():
        async with http_aio.InferenceServerClient(f"127.0.0.1:{detector.http}", conn_limit=256) as client:
            return await main(client)

    return asyncio.run(run())


@pytest.mark.parametrize("model", MODELS)
def test_two_hundred_at_once_get_what_they_get_alone(detector, pictures, model):
    async def main(client):
        alone = [await ask(client, model, picture) for picture in pictures]
        together = await asyncio.gather(*(ask(client, model, pictures[i % 20]) for i in range(200)))
        return alone, together

    alone, together = with_client(detector, main)
    for i, answer in enumerate(together):
        wanted = alone[i % 20]
        assert (answer["count"] == wanted["count"]).all()
        assert (answer["labels"] == wanted["labels"]).all()
        np.testing.assert_allclose(answer["scores"], wanted["scores"], atol=1e-5)
        np.testing.assert_allclose(answer["boxes"], wanted["boxes"], atol=1e-2)


def test_sixteen_at_a_time_share_runs(detector, pictures):
    async def main(client):
        async def counts():
            made = (await client.get_inference_statistics("digit_detector"))["model_stats"][0]
            return made["inference_count"], made["execution_count"]

        before = await counts()
        turns = asyncio.Semaphore(16)

        async def one(i):
            async with turns:
                await ask(client, "digit_detector", pictures[i % 20])

        await asyncio.gather(*(one(i) for i in range(128)))
        after = await counts()
        return after[0] - before[0], after[1] - before[1]

    inferences, executions = with_client(detector, main)
    assert inferences == 128
    assert executions <= inferences / 2


@pytest.mark.parametrize("model", MODELS)
def test_one_corrupt_picture_fails_alone(detector, pictures, model):
    async def main(client):
        sent = [pictures[i] if i != 11 else pictures[i][:, :400] for i in range(16)]
        return await asyncio.gather(*(ask(client, model, picture) for picture in sent), return_exceptions=True)

    answers = with_client(detector, main)
    assert [i for i, answer in enumerate(answers) if isinstance(answer, Exception)] == [11]
    assert isinstance(answers[11], InferenceServerException)
    assert answers[11].status() == "400"
    assert "corrupt or truncated" in answers[11].message()


def test_the_picture_with_its_boxes(detector):
    request = urllib.request.Request(
        f"{detector.url}/predict/digit_detector",
        PHOTO.read_bytes(),
        {"Content-Type": "image/jpeg", "Accept": "image/jpeg"},
    )
    with urllib.request.urlopen(request) as response:
        assert response.headers["content-type"] == "image/jpeg"
        assert response.read(3) == b"\xff\xd8\xff"
