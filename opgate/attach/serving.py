"""Loads a written model as the gateway does, and runs pictures through it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opgate.attach.report import AttachError


class Served:
    """A model of a repository in this process, as `opgate serve` would serve it. `library` is the op library."""

    def __init__(self, folder: Path, library: Path) -> None:
        """Loads the model. Raises AttachError with the gateway's reason."""
        from opgate.service.core.errors import ServingError
        from opgate.service.gateway import Gateway
        from opgate.service.settings import Settings
        from opgate.service.telemetry import logs

        logs.configure("critical", "text")
        self.name = folder.resolve().name
        self._gateway = Gateway(Settings(model_repository=folder.resolve().parent, build_ops=library.resolve().parent))
        self._gateway.catalog.load_all(only=self.name)
        try:
            self._model = self._gateway.find(self.name).model
        except ServingError as error:
            raise AttachError(f"the gateway doesn't load what was written: {error}") from None

    def predict(self, picture: bytes) -> dict[str, Any]:
        """Returns what /predict answers to a picture. Raises ServingError."""
        return self.predict_all([picture])[0]

    def predict_all(self, pictures: Sequence[bytes]) -> list[dict[str, Any]]:
        """Returns what /predict answers to pictures that come at the same time. Raises ServingError."""
        from opgate.service.wire.friendly import file_request, labelled

        model, gateway = self._model, self._gateway

        async def run() -> list[Any]:
            requests = [file_request(model.spec, picture, gateway.limits) for picture in pictures]
            return await asyncio.gather(*(gateway.infer(model, request) for request in requests))

        results = asyncio.run(run())
        return [json.loads(labelled(model.spec, model.presentation, result)) for result in results]


def grey_picture(width: int = 320, height: int = 240) -> bytes:
    """Returns a JPEG of one grey."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(file, "JPEG")
    return file.getvalue()
