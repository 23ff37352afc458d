"""Loads a written model as the gateway does, and sends it requests."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opgate.attach.model.report import AttachError

#: What a request has: a file, or values by the names of inputs.
Sample = bytes | Mapping[str, Any]


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

    def feed(self, sample: Sample) -> dict[str, np.ndarray]:
        """Returns what the graph gets of a file, or of values by the names of inputs. Raises ServingError."""
        if isinstance(sample, bytes):
            return {"data": np.frombuffer(sample, np.uint8), "ends": np.array([len(sample)], np.int32)}
        return dict(self._request(sample).inputs)

    def _request(self, sample: Sample) -> Any:
        from opgate.service.wire.friendly import file_request, values_request
        from opgate.service.wire.json_tensors import members

        spec, limits = self._model.spec, self._gateway.limits
        if isinstance(sample, bytes):
            return file_request(spec, sample, limits)
        return values_request(spec, members(json.dumps(sample).encode(), limits), limits)

    def predict(self, sample: Sample) -> dict[str, Any]:
        """Returns what /predict answers to a file, or to values by the names of inputs. Raises ServingError."""
        return self.predict_all([sample])[0]

    def predict_all(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Returns what /predict answers to files, or values, that come at the same time. Raises ServingError."""
        from opgate.service.wire.friendly import labelled

        model, gateway = self._model, self._gateway

        requests = [self._request(sample) for sample in samples]

        async def run() -> list[Any]:
            return await asyncio.gather(*(gateway.infer(model, request) for request in requests))

        results = asyncio.run(run())
        return [
            json.loads(labelled(model.spec, model.presentation, result, request.inputs))
            for request, result in zip(requests, results, strict=True)
        ]


def grey_picture(width: int = 320, height: int = 240) -> bytes:
    """Returns a JPEG of one grey."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(file, "JPEG")
    return file.getvalue()
