"""Measures what it costs to have a run on a thread of the gateway instead of its event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from opgate.load.target_model import Input
from opgate.service.core.request import run
from opgate.service.settings import Settings
from opgate.tune.configs import unbatched
from opgate.tune.cost import opened, request_of, scheduler_of

_RUNS = 300
_SECONDS = 3.0


def hand_over(repository: Path, config: Any, version: int, settings: Settings, inputs: Sequence[Input]) -> float:
    """Returns the seconds of the way to a thread and back, as the gateway learns them. Raises ServingError."""
    on_threads = settings.model_copy(update={"inline_limit_us": 0.0})
    alone = unbatched(config)  # a delay of batches is no part of the way
    with opened(repository, alone, version, on_threads, 1) as model:
        scheduler = scheduler_of(model)

        async def several() -> None:
            end = time.perf_counter() + _SECONDS
            for _ in range(_RUNS):
                if time.perf_counter() < end:
                    await run(scheduler.submit, request_of(model, inputs, settings))

        uvloop.run(several())
        return scheduler.hand_over_ns / 1e9
