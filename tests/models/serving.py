"""One model of the repository behind the gateway's routes, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime

from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests import PROJECT

REPOSITORY = PROJECT / "model_repository"


class Served:
    """A gateway that serves one model of the repository, and a session of the model's file."""

    def __init__(self, model: str, library: Path) -> None:
        self.model = model
        self._app = create_app(self._gateway(library))
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(library.resolve()))
        file = REPOSITORY / model / "1" / "model.onnx"
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def _gateway(self, library: Path) -> Gateway:
        gateway = Gateway(Settings(model_repository=REPOSITORY, build_ops=library.resolve().parent, ops_path=""))
        gateway.catalog.load_all(only=self.model)
        return gateway

    def post(self, path: str, **request: Any) -> httpx.Response:
        return self.send([{"url": path, **request}])[0]

    def predict(self, **request: Any) -> httpx.Response:
        return self.post(f"/predict/{self.model}", **request)

    def send(self, requests: Sequence[dict[str, Any]]) -> list[httpx.Response]:
        """Sends POST requests at the same time."""

        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await asyncio.gather(*(client.post(**request) for request in requests))

        return asyncio.run(all_of_them())

    def document(self) -> dict[str, Any]:
        """Returns what OpenAPI says of /predict."""

        async def get() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get("/openapi.json")

        described: dict[str, Any] = asyncio.run(get()).json()["paths"][f"/predict/{self.model}"]["post"]
        return described

    def run(self, files: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Runs the model's file on a ragged batch of its inputs `data` and `ends`."""
        ends = np.cumsum([len(file) for file in files]).astype(np.int32)
        feed = {"data": np.frombuffer(b"".join(files), np.uint8), "ends": ends}
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feed), strict=True))
