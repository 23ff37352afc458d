"""Keeps the results of requests, and answers a request that came before without the model."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from time import perf_counter_ns

import numpy as np

from opgate.service.errors import internal
from opgate.service.execution.pipeline import Executor
from opgate.service.execution.request import Array, Request
from opgate.service.telemetry.statistics import ModelStatistics

logger = logging.getLogger("opgate.cache")

# Inputs of so many bytes are read on a thread: that takes about a millisecond.
_LARGE = 1 << 20
# What an entry costs beside its arrays, and a string beside its characters.
_ENTRY_BYTES, _STRING_BYTES = 512, 64


class ResponseCache:
    """The results of all models, at most so many bytes of them. Those that were not used for longest make room.

    Its methods run on the event loop's thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.evictions = 0
        self._entries: OrderedDict[tuple[object, bytes], tuple[dict[str, Array], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: object, key: bytes) -> dict[str, Array] | None:
        """Returns the result of a request, None if it is not there. `owner` stands for the model."""
        found = self._entries.get((owner, key))
        if found is None:
            return None
        self._entries.move_to_end((owner, key))
        return found[0]

    def put(self, owner: object, key: bytes, result: Mapping[str, Array]) -> None:
        """Keeps a copy of a result, unless it is larger than the whole cache."""
        size = _ENTRY_BYTES + sum(map(_bytes_of, result.values()))
        if size > self.max_bytes or (owner, key) in self._entries:
            return
        kept = {name: array.copy() for name, array in result.items()}
        for array in kept.values():
            array.flags.writeable = False
        self._entries[owner, key] = (kept, size)
        self.bytes += size
        while self.bytes > self.max_bytes:
            self.bytes -= self._entries.popitem(last=False)[1][1]
            self.evictions += 1

    def forget(self, owner: object) -> None:
        """Drops the results of a model."""
        for entry in [entry for entry in self._entries if entry[0] is owner]:
            self.bytes -= self._entries.pop(entry)[1]


class CachedExecutor:
    """Answers from the cache, else has another executor run the request and keeps its result."""

    def __init__(self, executor: Executor, cache: ResponseCache, statistics: ModelStatistics) -> None:
        self._executor = executor
        self._cache = cache
        self._statistics = statistics
        self._loading: set[asyncio.Task[None]] = set()

    def submit(self, request: Request) -> None:
        """Accepts a checked request. `request.done` is called on this thread, maybe before this method returns."""
        if sum([array.nbytes for array in request.inputs.values()]) < _LARGE:
            self._look_up(request, digest(request))
            return
        task = asyncio.get_running_loop().create_task(self._submit_large(request))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _submit_large(self, request: Request) -> None:
        try:
            self._look_up(request, await asyncio.to_thread(digest, request))
        except Exception as error:
            logger.exception("a request of a model with a response cache failed")
            if not request.ended:
                request.fail(internal(f"{type(error).__name__}: {error}"))

    def _look_up(self, request: Request, key: bytes) -> None:
        began = perf_counter_ns()
        result = self._cache.get(self, key)
        now = perf_counter_ns()
        if result is not None:
            request.result = result
            self._statistics.hit(now - request.received_ns, now - began)
            request.end()
            return
        answer = request.done

        def keep(finished: Request) -> None:
            finished.done = answer
            if finished.error is None and finished.result is not None:
                begun = perf_counter_ns()
                self._cache.put(self, key, finished.result)
                self._statistics.missed(now - began + perf_counter_ns() - begun)
            answer(finished)

        request.done = keep
        try:
            self._executor.submit(request)
        except Exception:
            if request.done is keep:  # nobody has answered it
                request.done = answer
            raise

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the cache. Raises ServingError."""
        self._executor.try_out(request)

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if a run takes too long."""
        return self._executor.overdue

    async def close(self) -> None:
        """Closes the executor and drops the model's results."""
        if self._loading:
            await asyncio.wait(self._loading)
        await self._executor.close()
        self._cache.forget(self)


def digest(request: Request) -> bytes:
    """Returns a value that two requests share only if they ask for the same outputs of the same inputs."""
    found = hashlib.sha256(repr(request.outputs).encode())
    for name in sorted(request.inputs):
        array = request.inputs[name]
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        if array.dtype == object:
            for text in array.reshape(-1).tolist():
                data = text.encode() if isinstance(text, str) else text
                found.update(len(data).to_bytes(8, "little"))
                found.update(data)
        elif array.size:
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.digest()


def _bytes_of(array: Array) -> int:
    if array.dtype != object:
        return array.nbytes
    return sum(_STRING_BYTES + len(text) for text in array.reshape(-1).tolist())
