"""Keeps a lock and a task of its event loop between requests. The task counts while no request runs."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.lock = None
        self.ticks = 0

    async def tick(self):
        for _ in range(600):  # a Triton server doesn't stop while a task runs
            self.ticks += 1
            await asyncio.sleep(0.005)

    async def execute(self, requests):
        if self.lock is None:
            self.lock = asyncio.Lock()
            self.task = asyncio.create_task(self.tick())
        async with self.lock:
            await asyncio.sleep(0.001)
        ticks = np.array([self.ticks], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TICKS", ticks)]) for _ in requests]
