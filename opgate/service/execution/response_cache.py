"""Keeps the results of requests, and answers a request that came before without the model."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from sys import getsizeof
from time import perf_counter_ns

import numpy as np

from opgate.service.core.errors import ServingError, internal
from opgate.service.core.request import Array, Request
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.pipeline import Executor

logger = logging.getLogger("opgate.cache")

# Inputs of so many bytes are read on a thread: that takes about a millisecond.
_LARGE = 1 << 20
# What an entry costs beside its arrays, and a string beside its characters.
_ENTRY_BYTES, _STRING_BYTES = 512, 64
_MANY = 4096  # strings


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

    def put(self, owner: object, key: bytes, result: dict[str, Array]) -> None:
        """Keeps a result that nobody changes any more, unless it is larger than the whole cache."""
        size = _ENTRY_BYTES + sum(map(_bytes_of, result.values()))
        if size > self.max_bytes or (owner, key) in self._entries:
            return
        self._entries[owner, key] = (result, size)
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

    def __init__(
        self, executor: Executor, cache: ResponseCache, statistics: ModelStatistics, *, reads_requests: bool
    ) -> None:
        """`reads_requests` says that the model, or a step of it, sees more of a request than its inputs, such as its
        parameters and its id."""
        self._executor = executor
        self._reads_requests = reads_requests
        self._cache = cache
        self._statistics = statistics
        self._loading: set[asyncio.Task[None]] = set()

    def submit(self, request: Request) -> None:
        """Accepts a checked request. `request.done` is called on this thread, maybe before this method returns."""
        if sum([_bytes_of(array) for array in request.inputs.values()]) < _LARGE:
            self._look_up(request, digest(request, self._reads_requests))
            return
        request.leave = self._let_go
        task = asyncio.get_running_loop().create_task(self._submit_large(request))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _submit_large(self, request: Request) -> None:
        try:
            key = await asyncio.to_thread(digest, request, self._reads_requests)
            if not request.ended:  # its client may have left
                request.leave = None
                self._look_up(request, key)
        except Exception as error:
            logger.exception("a request of a model with a response cache failed")
            if not request.ended:
                self._let_go(request, internal(f"{type(error).__name__}: {error}"))

    def _let_go(self, request: Request, error: ServingError) -> None:
        self._statistics.failed(error.kind.value, perf_counter_ns() - request.received_ns)
        request.fail(error)

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
            if finished.error is None and finished.result is not None and not finished.parameters:
                self._statistics.missed(now - began)
                if sum(map(_bytes_of, finished.result.values())) < _LARGE:
                    self._cache.put(self, key, _copied(finished.result))
                else:
                    self._keep_large(key, finished.result)
            answer(finished)

        request.done = keep
        try:
            self._executor.submit(request)
        except Exception:
            if request.done is keep:  # nobody has answered it
                request.done = answer
            raise

    def _keep_large(self, key: bytes, result: Mapping[str, Array]) -> None:
        async def keep() -> None:
            self._cache.put(self, key, await asyncio.to_thread(_copied, result))

        task = asyncio.get_running_loop().create_task(keep())
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the cache. Raises ServingError."""
        self._executor.try_out(request)

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if a run takes too long."""
        return self._executor.overdue

    @property
    def at_rest(self) -> bool:
        """Whether every accepted request is answered."""
        return not self._loading and self._executor.at_rest

    async def close(self) -> None:
        """Closes the executor and drops the model's results."""
        while self._loading:
            await asyncio.wait(self._loading)
        await self._executor.close()
        while self._loading:
            await asyncio.wait(self._loading)
        self._cache.forget(self)


def digest(request: Request, whole: bool = False) -> bytes:
    """Returns a value that two requests share only if they ask for the same outputs of the same inputs. If `whole` is
    set, they also have the same id, parameters and place in a sequence."""
    found = hashlib.sha256(repr(request.outputs).encode())
    if whole:
        options = request.options
        said = (request.id, options.sequence, options.timeout_us, options.priority, sorted(options.parameters.items()))
        found.update(repr(said).encode("utf-8", "surrogatepass"))
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


def _copied(result: Mapping[str, Array]) -> dict[str, Array]:
    """Returns copies that nobody can change: results are views on those of a batch, and on buffers of the engine."""
    kept = {name: array.copy() for name, array in result.items()}
    for array in kept.values():
        array.flags.writeable = False
    return kept


def _bytes_of(array: Array) -> int:
    """Returns the bytes of an array. Many strings are taken to be large without a look at each."""
    if array.dtype != object:
        return array.nbytes
    if array.size > _MANY:
        return max(_LARGE, array.size * _STRING_BYTES)
    return array.size * 8 + sum(map(getsizeof, array.reshape(-1).tolist()))
