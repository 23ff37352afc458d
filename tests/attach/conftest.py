from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
from PIL import Image

from opgate.attach.attach import attach
from opgate.attach.model.attached import Attached, write
from opgate.attach.model.wish import Wish
from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings


class Model:
    """A model that `opgate attach` wrote: behind the gateway's routes, and in a session of its file."""

    def __init__(self, attached: Attached, folder: Path, library: Path) -> None:
        self.attached, self.folder, self.name = attached, folder, folder.name
        gateway = Gateway(Settings(model_repository=folder.parent, build_ops=library.resolve().parent, ops_path=""))
        gateway.catalog.load_all(only=self.name)
        self._app = create_app(gateway)
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(library.resolve()))
        file = folder / "1" / "model.onnx"
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    @property
    def report(self) -> str:
        return "\n".join(self.attached.report.lines())

    def send(self, requests: Sequence[dict[str, Any]]) -> list[httpx.Response]:
        """Sends POST requests to /predict at the same time."""

        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await asyncio.gather(*(client.post(f"/predict/{self.name}", **each) for each in requests))

        return asyncio.run(all_of_them())

    def get(self, path: str) -> Any:
        """Returns the answer to a GET request, in JSON."""

        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get(path)

        return asyncio.run(once()).json()

    def predict(self, *pictures: bytes) -> list[Any]:
        """Returns the answers to pictures that come together, in JSON."""
        headers = {"Content-Type": "image/png"}
        answers = self.send([{"content": picture, "headers": headers} for picture in pictures])
        assert [answer.status_code for answer in answers] == [200] * len(pictures), [each.text for each in answers]
        return [answer.json() for answer in answers]

    def run(self, *pictures: bytes, **more: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the file on a batch of pictures."""
        ends = np.cumsum([len(picture) for picture in pictures]).astype(np.int32)
        feed = {"data": np.frombuffer(b"".join(pictures), np.uint8), "ends": ends, **more}
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feed), strict=True))


Make = Callable[..., Model]


@pytest.fixture
def made(library: Path, tmp_path: Path) -> Make:
    """A function that attaches what its keywords say, and returns the served model."""

    def make(file: Path, name: str = "model", **said: Any) -> Model:
        attached = attach(Wish(file, **{"libraries": (library,), **said}), name)
        folder = tmp_path / "models" / name
        write(attached, folder, library, "opgate attach", overwrite=True)
        return Model(attached, folder, library)

    return make


def png(pixels: np.ndarray) -> bytes:
    """Returns a PNG of u8 pixels [h, w, 3] or [h, w]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def squares(size: tuple[int, int] = (96, 128), at: tuple[int, int] = (32, 32), channel: int = 0) -> np.ndarray:
    """Returns a dark picture [h, w, 3] with a square of 32 pixels of one colour."""
    pixels = np.full((*size, 3), 20, np.uint8)
    pixels[at[0] : at[0] + 32, at[1] : at[1] + 32, channel] = 255
    return pixels
