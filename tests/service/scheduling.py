"""Schedulers of a real model whose runs take as long as their requests say."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from opgate.service.core.checks import Limits, TensorInfo, check_inputs
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Options, Request, run
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.session import Session, SessionOptions
from tests.service.onnx_models import slow

ENDLESS = 1 << 40
INPUTS = {"x": TensorSpec("x", DATATYPES["FP32"], (-1,)), "turns": TensorSpec("turns", DATATYPES["INT64"], (1,))}
OUTPUTS = {"y": TensorSpec("y", DATATYPES["FP32"], (-1,))}


def spec_of(batching, max_batch_size=1, name="m"):
    return ModelSpec(name, "1", INPUTS, OUTPUTS, max_batch_size, batching)


def request(value=0.0, *, turns=1, rows=1, width=1, priority=0, timeout_us=0):
    """Returns a request whose answer is `value`, as the decoders make it."""
    inputs = {"x": np.full((rows, width), value, np.float32), "turns": np.full((rows, 1), turns, np.int64)}
    infos = [TensorInfo(name, INPUTS[name].datatype.name, array.shape) for name, array in inputs.items()]
    fit = check_inputs(spec_of(None, 1024), infos, Limits())
    return Request(inputs, fit.rows, fit.key, ("y",), options=Options(timeout_us, priority))


async def until(condition, seconds=20):
    for _ in range(seconds * 200):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


class Clients:
    """Sends requests to a scheduler, and notes the values of the answers and the kinds of the errors as they come."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.ended = []
        self.tasks = []

    def send(self, *requests):
        """Submits requests in this order, once the caller waits. Returns their tasks."""
        for asked in requests:
            self.tasks.append(asyncio.ensure_future(self._ask(asked)))
        return self.tasks[-len(requests) :]

    async def _ask(self, asked):
        try:
            answer = await run(self.scheduler.submit, asked)
            self.ended.append(float(answer["y"][0, 0]))
        except ServingError as error:
            self.ended.append(error.kind.name)
            return error
        return None

    async def all(self):
        await asyncio.wait_for(asyncio.gather(*self.tasks), 30)
        return self.ended


@asynccontextmanager
async def started(folder, batching, max_batch_size=1, *, instances=1, name="m", **more):
    """Yields clients of a new scheduler, whose runs never happen on the event loop unless `more` says so."""
    path = slow(folder, name, None) / "1" / "model.onnx"
    session = Session(path, SessionOptions())
    more.setdefault("inline_limit_us", 0)
    statistics = ModelStatistics()
    scheduler = Scheduler(spec_of(batching, max_batch_size, name), [session] * instances, statistics, **more)
    clients = Clients(scheduler)
    yield clients
    await asyncio.wait_for(scheduler.close(), 30)


@asynccontextmanager
async def blocked(clients, count=1):
    """Keeps instances busy until the block ends."""
    blockers = [request(turns=ENDLESS, width=1000 + i) for i in range(count)]
    ended = []
    for blocker in blockers:
        blocker.done = ended.append
        clients.scheduler.submit(blocker)
    await until(lambda: clients.scheduler.statistics.pending == 0)
    try:
        yield
    finally:
        for blocker in blockers:
            blocker.cancel()
