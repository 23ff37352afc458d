"""The statistics of models, as both protocols have them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from opgate.service.core.errors import NotLoadedError
from opgate.service.gateway import Gateway
from opgate.service.telemetry.merging import merge_statistics


async def read_statistics(gateway: Gateway, name: str, version: str) -> Any:
    """Returns Triton's ModelStatisticsResponse of a version of a model, of all its versions if `version` is empty, or
    of all models. Raises ServingError as `Gateway.find` does."""
    if name:
        with contextlib.suppress(NotLoadedError):  # it has none yet
            gateway.catalog.known(name, version)
    messages = await gateway.all_processes.run("statistics", name, version)
    return await asyncio.to_thread(merge_statistics, messages)
