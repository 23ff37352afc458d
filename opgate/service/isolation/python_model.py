"""Runs a `model.py` with a class TritonPythonModel in a worker process, as Triton's python backend does:
https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from opgate.service.isolation import triton_python_backend_utils as utils
from opgate.service.isolation.channel import NOTE_SIZE
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.link import Refusal
from opgate.service.isolation.memory import Array

if TYPE_CHECKING:
    from opgate.service.isolation.link import Link

_UTILS = "triton_python_backend_utils"
# The kinds of opgate.service.core.errors that stand for Triton's codes.
_KINDS = {
    utils.TritonError.NOT_FOUND: "NOT_FOUND",
    utils.TritonError.INVALID_ARG: "INVALID",
    utils.TritonError.UNAVAILABLE: "UNAVAILABLE",
    utils.TritonError.UNSUPPORTED: "UNSUPPORTED",
    utils.TritonError.ALREADY_EXISTS: "ALREADY_EXISTS",
    utils.TritonError.CANCELLED: "CANCELED",
}
_CODES = {kind: code for code, kind in _KINDS.items()}


class PythonModelError(Exception):
    """The `model.py` can't be used, or breaks the rules of the interface."""


@dataclass(frozen=True)
class PythonOpening:
    """A `model.py`. `arguments` are those of its `initialize`.

    With `completes` the worker only lets `auto_complete_config` complete the config.
    """

    path: Path
    arguments: dict[str, str]
    confinement: Confinement
    completes: bool = False
    log_level: str = "info"
    json_log: bool = True
    files: tuple[int, ...] = ()

    def open(self, link: Link) -> PythonRunner:
        """Loads the file, and lets its model initialize itself. Raises whatever that raises."""
        _watch_crashes(link.note, f"model '{self.arguments['model_name']}'", self.json_log)
        _log(self.log_level, self.json_log, self.arguments["model_name"])
        sys.modules[_UTILS] = utils
        utils.InferenceRequest.call = staticmethod(lambda request: _call(link, request))
        module = _load(self.path)
        model = getattr(module, "TritonPythonModel", None)
        if not inspect.isclass(model):
            raise PythonModelError(f"{self.path.name} has no class TritonPythonModel")
        config = json.loads(self.arguments["model_config"])
        if self.completes:
            return PythonRunner(None, _completed(model, config), link)
        if not callable(getattr(model, "execute", None)):
            raise PythonModelError(f"TritonPythonModel of {self.path.name} has no method execute")
        instance = model()
        if hasattr(instance, "initialize"):
            instance.initialize(self.arguments)
        return PythonRunner(instance, config, link)


class PythonRunner:
    """An initialized TritonPythonModel."""

    def __init__(self, model: Any, config: dict[str, Any], link: Link) -> None:
        self._model = model
        self._config = config
        self._link = link
        self._decoupled = utils.using_decoupled_model_transaction_policy(config)
        self._senders: list[_Sender] = []

    def description(self) -> dict[str, Any]:
        """Returns the config, completed if that was asked for."""
        return {"config": self._config}

    def again(self, data: bytes) -> bytes | None:
        """Returns None: requests differ in their ids and parameters."""
        return None

    def answer(self, question: Any, data: bytes) -> list[Any]:
        """Runs the requests of a batch, or lets the model end."""
        if question[0] == "finalize":
            if hasattr(self._model, "finalize"):
                self._model.finalize()
            return ["done"]
        _, heads, entries, free = question
        link = self._link
        stop = _Stop()
        link.let_stop(stop)
        try:
            # The model gets arrays of its own: it may keep them, and the next run changes the shared memory.
            requests = self._requests(heads, link.copy(entries), stop)
            link.begin(free)
            responses = self._model.execute(requests)
            if inspect.isawaitable(responses):
                responses = asyncio.run(_waited(responses))
            if self._decoupled:
                return self._when_all_are_sent(responses)
            link.finish()
            return self._results(responses, len(requests), free)
        finally:
            link.options = None
            link.finish()

    def _requests(
        self, heads: Sequence[Any], tensors: list[tuple[str, Array]], stop: _Stop
    ) -> list[utils.InferenceRequest]:
        requests = []
        self._senders = []
        for count, request_id, correlation_id, flags, timeout, parameters, outputs in heads:
            own, tensors = tensors[:count], tensors[count:]
            request = utils.InferenceRequest(
                request_id=request_id,
                correlation_id=correlation_id,
                inputs=[utils.Tensor(name, _as_bytes(array)) for name, array in own],
                requested_output_names=outputs,
                model_name=self._config.get("name", ""),
                flags=flags,
                timeout=timeout,
                parameters=parameters,
            )
            request._cancelled = lambda: stop.terminate
            if self._decoupled:
                sender = _Sender(self._link, len(self._senders))
                self._senders.append(sender)
                request._sender = utils.InferenceResponseSender(sender.send, lambda: stop.terminate)
            requests.append(request)
        return requests

    def _results(self, responses: Any, expected: int, free: int) -> list[Any]:
        if not isinstance(responses, (list, tuple)) or len(responses) != expected:
            got = f"{len(responses)}" if isinstance(responses, (list, tuple)) else type(responses).__name__
            raise PythonModelError(f"execute: expected a list of {expected} responses, got {got}")
        heads: list[Any] = []
        tensors: list[utils.Tensor] = []
        for response in responses:
            if not isinstance(response, utils.InferenceResponse):
                raise PythonModelError(f"execute: expected pb_utils.InferenceResponse, got {type(response).__name__}")
            error = response.error()
            own = [] if error is not None else response.output_tensors()
            heads.append([len(own), *([] if error is None else _error(error))])
            tensors += own
        return ["done", heads, self._link.write(*_parts(tensors), free)]

    def _when_all_are_sent(self, responses: Any) -> list[Any]:
        if responses is not None:
            raise PythonModelError("execute of a decoupled model: expected None, it sends its responses")
        for sender in self._senders:
            sender.ended.wait()
        return ["done", [], []]


class _Stop:
    """The options of a run: whether nobody needs it any more."""

    terminate = False


class _Sender:
    """Sends the responses to one request. Any thread may send."""

    def __init__(self, link: Link, index: int) -> None:
        self.ended = threading.Event()
        self._link = link
        self._number = link.number
        self._index = index

    def send(self, response: utils.InferenceResponse | None, final: bool) -> None:
        error = [] if response is None or not response.has_error() else _error(response.error())
        tensors = [] if response is None or error else response.output_tensors()
        message = ["response", self._index, response is not None, final, error]
        try:
            self._link.ask(message, self._number, *_parts(tensors))
        finally:
            if final:
                self.ended.set()


async def _waited(responses: Any) -> Any:
    return await responses


def _load(path: Path) -> ModuleType:
    # Modules beside the file can be imported, as Triton allows.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("model", path)
    if spec is None or spec.loader is None:
        raise PythonModelError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


def _completed(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    if not hasattr(model, "auto_complete_config"):
        return config
    found = model.auto_complete_config(utils.ModelConfig(config))
    if not isinstance(found, utils.ModelConfig):
        raise PythonModelError(f"auto_complete_config: expected the config that it got, got {type(found).__name__}")
    return found.as_dict()


def _call(link: Link, request: utils.InferenceRequest) -> list[utils.InferenceResponse]:
    """Lets the gateway run a request in another model."""
    head = [request.model_name, request.model_version, request.request_id(), request.requested_output_names()]
    message = ["call", *head, request.timeout(), json.loads(request.parameters())]
    try:
        results = link.ask(message, link.number, *_parts(request.inputs()))
    except Refusal as refusal:
        error = utils.TritonError(refusal.message, _CODES.get(refusal.kind, utils.TritonError.INTERNAL))
        return [utils.InferenceResponse(error=error)]
    return [
        utils.InferenceResponse([utils.Tensor(name, _as_bytes(array)) for name, array in result]) for result in results
    ]


def _parts(tensors: Sequence[utils.Tensor]) -> tuple[list[str], list[Array]]:
    return [tensor.name() for tensor in tensors], [tensor.as_numpy() for tensor in tensors]


def _as_bytes(array: Array) -> Array:
    """Returns strings as bytes, which is what Triton gives to a model."""
    if array.dtype.kind != "O":
        return array
    found = np.empty(array.size, np.object_)
    found[:] = [element.encode() if isinstance(element, str) else element for element in array.reshape(-1)]
    return found.reshape(array.shape)


def _error(error: utils.TritonError | None) -> list[str]:
    assert error is not None
    return [_KINDS.get(error.code(), "BACKEND"), error.message()[:4096]]


def _watch_crashes(note: int, name: str, json_log: bool) -> None:
    try:
        from opgate.service.native import process
    except ImportError:  # an environment of another version of Python
        return
    process.watch_crashes(json_log)
    process.note_crashes(note, NOTE_SIZE)
    process.set_running(name)


def _log(level: str, as_json: bool, model: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json(model) if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Json(logging.Formatter):
    """Lines as the gateway writes them."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def format(self, record: logging.LogRecord) -> str:
        from datetime import UTC, datetime

        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text,
            "model": self._model,
        }
        return json.dumps(fields, ensure_ascii=False)
