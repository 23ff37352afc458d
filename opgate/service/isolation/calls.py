"""Runs requests that a model in a worker process makes to other models, and hands on the responses that it sends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from opgate.service.core.checks import Limits, TensorInfo, check_inputs, check_outputs
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, NotLoadedError, ServingError, internal
from opgate.service.core.own_metrics import OwnMetrics
from opgate.service.core.request import Array, Options, Request, Response, give, run
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.isolation.loop_reader import runs_on
from opgate.service.isolation.mail import WINDOW
from opgate.service.isolation.tensors import BF16

#: Takes a response of a called model: its outputs, whether it is the last one, its error, its parameters.
Answer = Callable[[Mapping[str, Array], bool, ServingError | None, Mapping[str, Any]], None]


class Callee(Protocol):
    """A model that can be called."""

    spec: ModelSpec

    @property
    def submit(self) -> Callable[[Request], None]: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Call(NamedTuple):
    """A request to another model. `streams` says that the caller takes several responses."""

    model: str
    version: int
    inputs: dict[str, Array]
    outputs: Sequence[str]
    id: str
    options: Options
    streams: bool


class Control(Protocol):
    """Loads and unloads models, in all gateway processes."""

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Loads a model with the parameters of a load request. Raises ServingError."""

    async def unload(self, name: str, dependents: bool) -> None:
        """Unloads a model, with `dependents` those of its steps too. Raises ServingError."""

    async def is_ready(self, name: str, version: str) -> bool:
        """Returns whether a model can serve."""


class Running:
    """Something that runs on the event loop. All threads may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[Running], Callable[[], object]]) -> None:
        """`work` begins it on the loop, and returns what ends it."""
        self.room: asyncio.BoundedSemaphore | None = None  # for responses that nobody has taken
        self._loop = loop
        self._work = work
        self._end: Callable[[], object] | None = None

    def begin(self) -> None:
        """Begins it. Raises ServingError (UNAVAILABLE) if the loop is closed."""
        self._do(self._begin)

    def cancel(self) -> None:
        """Ends it, if it still runs."""
        with contextlib.suppress(ServingError):
            self._do(self._cancel)

    def goes_on(self, end: Callable[[], object]) -> None:
        """Has begun something else on the loop, which `end` ends."""
        self._end = end

    def more(self) -> None:
        """Lets it give one more response."""
        with contextlib.suppress(ServingError):
            self._do(self._release)

    def _do(self, what: Callable[[], None]) -> None:
        """Does something on the loop: at once, if this is it."""
        if runs_on(self._loop):
            what()
            return
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            raise ServingError(Kind.UNAVAILABLE, "the gateway has stopped") from None

    def _begin(self) -> None:
        self._end = self._work(self)

    def _cancel(self) -> None:
        if self._end is not None:
            self._end()

    def _release(self) -> None:
        if self.room is not None:
            with contextlib.suppress(ValueError):  # more than there were
                self.room.release()


class Calls:
    """What the sessions of models in Python use of the gateway. `loop` is its event loop, `control` loads models, and
    `bring` one that is loaded on demand, once it serves."""

    def __init__(self, find: Callable[[str, str], Callee], limits: Limits, write_timeout: float) -> None:
        """`write_timeout` are the seconds in which a client must take something of what it gets."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.control: Control | None = None
        self.bring: Callable[[str, int], Awaitable[None]] | None = None
        self.metrics = OwnMetrics()
        self._find = find
        self._limits = limits
        self._write_timeout = write_timeout

    def start(self, call: Call, answer: Answer) -> Running:
        """Returns a call that is yet to begin. `answer` is called on the loop with each response, maybe before `begin`
        returns, and not more than WINDOW times before `more`. Raises ServingError."""
        if self.loop is None:
            raise ServingError(Kind.UNAVAILABLE, "models can't be called before the gateway serves")
        return Running(self.loop, lambda running: self._called(call, answer, running))

    def ask(self, what: str, arguments: Sequence[Any], answer: Answer) -> Running:
        """Returns what loads or unloads a model, or finds out whether it is ready, and is yet to begin. `answer` gets
        what came of it, on the loop. Raises ServingError."""
        control = self.control
        if self.loop is None or control is None:
            raise ServingError(Kind.UNAVAILABLE, "models can't be loaded before the gateway serves")
        loop = self.loop
        return Running(loop, lambda _: loop.create_task(self._asked(control, what, arguments, answer)).cancel)

    async def _asked(self, control: Control, what: str, arguments: Sequence[Any], answer: Answer) -> None:
        told: dict[str, Any] = {}
        try:
            if what == "load":
                name, parameters = arguments
                await control.load(str(name), parameters)
            elif what == "metric":
                name, labels = arguments
                told["value"] = repr(self.metrics.value(str(name), labels))  # it may be infinite
            elif what == "unload":
                name, dependents = arguments
                await control.unload(str(name), bool(dependents))
            else:
                name, version = arguments
                told["ready"] = await control.is_ready(str(name), str(version))
            answer({}, True, None, told)
        except Exception as error:
            answer({}, True, _told(error), {})

    async def give(self, request: Request, response: Response) -> None:
        """Gives a client one of the responses to its request, when there is room for it."""
        await give(request, response, 2 * self._write_timeout)

    def _called(self, call: Call, answer: Answer, running: Running) -> Callable[[], object]:
        """Begins a call on the loop. Returns what ends it."""
        try:
            model, request = self._request_of(call)
            if model.spec.streams:
                room = running.room = asyncio.BoundedSemaphore(WINDOW)
                assert self.loop is not None  # `start` has looked
                return self.loop.create_task(_streamed(model, request, answer, room)).cancel
        except NotLoadedError as absent:
            assert self.loop is not None
            return self.loop.create_task(self._called_later(absent, call, answer, running)).cancel
        except Exception as error:
            answer({}, True, _told(error), {})
            return _nothing

        def done(request: Request) -> None:
            model.release()
            error = request.error
            if error is None and request.result is None:
                error = internal("the request ended without a result")
            if error is not None:
                answer({}, True, error, {})
            else:
                answer(_marked(model.spec, request.result or {}), True, None, request.parameters)

        request.done = done
        model.hold()
        try:
            model.submit(request)
        except Exception as error:
            if not request.ended:
                request.fail(_told(error))
        return request.cancel

    async def _called_later(self, absent: NotLoadedError, call: Call, answer: Answer, running: Running) -> None:
        """Begins a call when its model has been loaded."""
        try:
            if self.bring is None:
                raise absent
            await self.bring(absent.name, absent.version)
        except Exception as error:
            answer({}, True, _told(error), {})
        else:
            running.goes_on(self._called(call, answer, running))

    def _request_of(self, call: Call) -> tuple[Callee, Request]:
        """Returns the model that is called and the request to it. Raises ServingError."""
        model = self._find(call.model, str(call.version) if call.version > 0 else "")
        spec = model.spec
        if spec.streams and not call.streams:
            text = f"model '{call.model}' is decoupled: use exec(decoupled=True) or async_exec(decoupled=True)"
            raise ServingError(Kind.UNSUPPORTED, text)
        infos = [TensorInfo(key, _datatype(spec, key, array), array.shape) for key, array in call.inputs.items()]
        fit = check_inputs(spec, infos, self._limits)
        wanted = check_outputs(spec, call.outputs, self._limits)
        request = Request(call.inputs, fit.rows, fit.key, wanted, id=call.id, options=call.options, weight=fit.weight)
        return model, request


async def _streamed(model: Callee, request: Request, answer: Answer, room: asyncio.BoundedSemaphore) -> None:
    """Runs a request to a decoupled model, and hands on its responses."""
    try:
        await _hand_on(model, request, answer, room)
        answer({}, True, None, {})
    except Exception as error:
        answer({}, True, _told(error), {})


async def _hand_on(model: Callee, request: Request, answer: Answer, room: asyncio.BoundedSemaphore) -> None:
    model.hold()
    task = asyncio.ensure_future(run(model.submit, request))
    try:
        async for response in request.responses():
            await room.acquire()
            answer(_marked(model.spec, response.outputs), response.final, response.error, response.parameters)
        await task
    finally:
        task.cancel()
        model.release()


def _nothing() -> None:
    """Ends what has ended."""


def _told(error: Exception) -> ServingError:
    """Returns what a caller is told of an error."""
    return error if isinstance(error, ServingError) else internal(f"{type(error).__name__}: {error}")


def marked(tensor: TensorSpec | None, array: Array) -> Array:
    """Returns an array as it goes to a model in Python: bits of BF16 have a dtype that says so."""
    return array if tensor is None or tensor.datatype.name != "BF16" else array.view(BF16)


def _marked(spec: ModelSpec, outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: marked(spec.outputs.get(name), array) for name, array in outputs.items()}


def _datatype(spec: ModelSpec, name: str, array: Array) -> str:
    """Returns the datatype of an array. Bits of 16 are those of BF16 where the model wants that."""
    if array.dtype.kind == "O":
        return "BYTES"
    declared = spec.inputs.get(name)
    if declared is not None and declared.datatype.dtype == array.dtype:
        return declared.datatype.name
    return next(kind for kind, datatype in DATATYPES.items() if datatype.dtype == array.dtype)
