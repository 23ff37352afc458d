"""Runs requests that a model in a worker process makes to other models."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from opgate.service.core.checks import Head, Limits, check_inputs, check_outputs
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Array, Options, Request, run
from opgate.service.core.spec import ModelSpec

# Seconds between two looks at whether the client of a stream still waits.
_LOOK = 0.2


class Callee(Protocol):
    """A model that can be called."""

    spec: ModelSpec

    @property
    def submit(self) -> Callable[[Request], None]: ...

    def held(self) -> contextlib.AbstractContextManager[None]: ...


class Calls:
    """What the sessions of models in Python use of the gateway. `loop` is its event loop, once it runs."""

    def __init__(self, find: Callable[[str, str], Callee], limits: Limits, write_timeout: float) -> None:
        """`write_timeout` are the seconds in which a client must take something of what it gets."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.most_tensors = limits.max_tensors
        self._find = find
        self._limits = limits
        self._write_timeout = write_timeout

    def call(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        id: str,
        options: Options,
        seconds: float,
    ) -> list[dict[str, Array]]:
        """Runs a request in a model, on any thread but that of the loop. Returns its responses.

        Raises ServingError, with DEADLINE if that takes longer than `seconds`.
        """
        exact = str(version) if version > 0 else ""
        running: Future[list[dict[str, Array]]] = self._on_loop(self._run(name, exact, inputs, outputs, id, options))
        try:
            return running.result(max(0.0, seconds))
        except TimeoutError:
            running.cancel()
            text = f"model '{name}' did not answer before the run that called it must have ended"
            raise ServingError(Kind.DEADLINE, text) from None

    def respond(self, request: Request, outputs: dict[str, Array], final: bool) -> None:
        """Gives a request one of its responses. Waits until there is room for it, unless nobody wants it any more.

        A client that takes nothing for too long has left, also if its protocol doesn't say so.
        """
        given = self._on_loop(request.respond(outputs, final))
        end = time.monotonic() + 2 * self._write_timeout
        while not request.ended:
            with contextlib.suppress(TimeoutError):
                given.result(_LOOK)
                return
            if time.monotonic() > end and self.loop is not None:
                self.loop.call_soon_threadsafe(request.cancel)
        given.cancel()

    def _on_loop(self, what: Any) -> Future[Any]:
        if self.loop is None:
            what.close()
            raise ServingError(Kind.UNAVAILABLE, "models can't be called before the gateway serves")
        return asyncio.run_coroutine_threadsafe(what, self.loop)

    async def _run(
        self,
        name: str,
        version: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        id: str,
        options: Options,
    ) -> list[dict[str, Array]]:
        model = self._find(name, version)
        spec = model.spec
        heads = [Head(key, _datatype(spec, key, array), array.shape) for key, array in inputs.items()]
        fit = check_inputs(spec, heads, self._limits)
        wanted = tuple(outputs) or tuple(spec.outputs)
        check_outputs(spec, wanted, self._limits)
        request = Request(dict(inputs), fit.rows, fit.key, wanted, id=id, options=options, weight=fit.weight)
        with model.held():
            if not spec.streams:
                return [await run(model.submit, request)]
            task = asyncio.ensure_future(run(model.submit, request))
            responses = [outputs async for outputs, _ in request.responses()]
            await task
            return responses


def _datatype(spec: ModelSpec, name: str, array: Array) -> str:
    """Returns the datatype of an array. Bits of 16 are those of BF16 where the model wants that."""
    if array.dtype.kind == "O":
        return "BYTES"
    declared = spec.inputs.get(name)
    if declared is not None and declared.datatype.dtype == array.dtype:
        return declared.datatype.name
    return next(kind for kind, datatype in DATATYPES.items() if datatype.dtype == array.dtype)
