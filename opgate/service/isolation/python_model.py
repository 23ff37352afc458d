"""Runs a `model.py` with a class TritonPythonModel in a worker process, as Triton's python backend does:
https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import logging
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opgate.service.isolation import triton_python_backend_utils as utils
from opgate.service.isolation.channel import NOTE_SIZE
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.memory import Array
from opgate.service.isolation.worker_log import begin_log

if TYPE_CHECKING:
    from opgate.service.isolation.worker_end import Link

_UTILS = "triton_python_backend_utils"
_MISSING_MODULE = (
    "\nInstall it into the Python that runs the model: that of the gateway, or that of EXECUTION_ENV_PATH."
)
logger = logging.getLogger("opgate.python")


class PythonModelError(Exception):
    """The `model.py` can't be used, or breaks the rules of the interface."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class PythonOpening:
    """A `model.py`. `arguments` are those of its `initialize`.

    With `completes` the worker only lets `auto_complete_config` complete the config.
    """

    path: Path
    arguments: dict[str, str]
    confinement: Confinement
    completes: bool = False
    tells_lines: bool = True
    log_level: str = "info"
    json_log: bool = True
    files: tuple[int, ...] = ()

    def open(self, link: Link) -> PythonRunner:
        """Loads the file, and lets its model initialize itself. Raises PythonModelError with whatever that raises."""
        try:
            return self._open(link)
        except ModuleNotFoundError as error:
            raise PythonModelError(_failure(error) + _MISSING_MODULE) from error
        except BaseException as error:
            raise PythonModelError(_failure(error)) from error

    def _open(self, link: Link) -> PythonRunner:
        _watch_crashes(link.note, f"model '{self.arguments['model_name']}'", self.json_log)
        begin_log(self.log_level, self.json_log, self.arguments["model_name"])
        # The second is where Triton has the same in C++.
        sys.modules[_UTILS] = sys.modules["c_python_backend_utils"] = utils
        utils.model_file, utils.tells_lines = self.path, self.tells_lines
        sys.argv = [""]  # as in Triton, for models that parse arguments
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
        self._talk = link.conversation()
        self._decoupled = utils.using_decoupled_model_transaction_policy(config)
        self._background: set[Any] = set()  # runs of coroutines that nobody waits for

    def description(self) -> dict[str, Any]:
        """Returns the config, completed if that was asked for, and whether the model says when it is ready."""
        return {"config": self._config, "asks_ready": hasattr(self._model, "is_ready")}

    def converse(self) -> None:
        """Does what the gateway asks for, until it ends. Raises EOFError then."""
        talk = utils.conversation = self._talk
        while utils.unsaid:  # from initialize
            talk.say(utils.unsaid.pop(0))
        if hasattr(self._model, "is_ready"):
            threading.Thread(target=self._say_ready, name="is_ready", daemon=True).start()
        try:
            while True:
                message, tensors = talk.task()
                if message[0] == "execute":
                    self._execute(message[1], tensors)
                    del message, tensors  # the next batch may come much later
                else:
                    self._finalize()
        finally:
            utils.conversation = None

    def _say_ready(self) -> None:
        """Answers whether the model is ready, whatever else it does."""
        with contextlib.suppress(EOFError):
            while True:
                number = self._talk.asked_ready()
                ready, text = False, "is_ready() must return a boolean"
                try:
                    found = self._model.is_ready()
                    if inspect.isawaitable(found):
                        found = utils.event_loop.run(found)
                    if isinstance(found, bool):
                        ready, text = found, "is_ready() says that the model is not ready"
                except BaseException as error:
                    text = f"is_ready failed: {_failure(error)}"
                self._talk.say(["ready", number, ready, text])

    def _finalize(self) -> None:
        utils.event_loop.stop()
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException as error:
                _log_failure("finalize", error)
        self._talk.say(["finalized"])

    def _execute(self, envelopes: Sequence[Any], tensors: list[tuple[str, Array]]) -> None:
        """Runs the requests of a batch, and tells the gateway what came of them."""
        answer: list[Any]
        outputs: list[tuple[str, Array]] = []
        requests = self._requests(envelopes, tensors)
        del tensors
        try:
            responses = self._model.execute(requests)
            if responses is not None and type(responses) is not list and inspect.isawaitable(responses):
                if self._decoupled:
                    self._run_in_background(responses, requests)
                    responses = None
                else:
                    responses = utils.event_loop.run(responses)
            found, outputs = self._results(responses, requests)
            answer = ["executed", found]
        except BaseException as error:
            answer = self._failed(error, requests)
        try:
            self._talk.say(answer, outputs)
        except (ValueError, TypeError) as error:
            self._talk.say(self._failed(error, requests))

    def _failed(self, error: BaseException, requests: Sequence[utils.InferenceRequest]) -> list[Any]:
        """Closes the senders of a batch that failed. Returns what the gateway must know."""
        for request in requests:
            request.get_response_sender().close()
        _log_failure("execute", error)
        return ["failed", _failure(error)]

    def _requests(self, envelopes: Sequence[Any], tensors: list[tuple[str, Array]]) -> list[utils.InferenceRequest]:
        requests = []
        for number, count, request_id, correlation_id, flags, timeout, parameters, outputs in envelopes:
            own, tensors = tensors[:count], tensors[count:]
            request = utils.InferenceRequest(
                request_id=request_id,
                correlation_id=correlation_id,
                inputs=[utils.Tensor(name, utils.as_bytes(array)) for name, array in own],
                requested_output_names=outputs,
                model_name=self._config.get("name", ""),
                flags=flags,
                timeout=timeout,
            )
            request._parameters = json.loads(parameters)  # a client's floats may be infinite
            request._sender = utils.InferenceResponseSender(self._talk, number, self._decoupled)
            requests.append(request)
        return requests

    def _results(
        self, responses: Any, requests: Sequence[utils.InferenceRequest]
    ) -> tuple[list[Any], list[tuple[str, Array]]]:
        """Returns what the gateway must know of each response that `execute` has returned, and their tensors."""
        if responses is None:
            responses = [None] * len(requests)
        elif self._decoupled:
            raise PythonModelError("execute of a decoupled model: expected None, it sends its responses")
        if not isinstance(responses, (list, tuple)) or len(responses) != len(requests):
            got = f"{len(responses)}" if isinstance(responses, (list, tuple)) else type(responses).__name__
            raise PythonModelError(f"execute: expected a list of {len(requests)} responses, got {got}")
        for response in responses:
            if response is not None and not isinstance(response, utils.InferenceResponse):
                raise PythonModelError(f"execute: expected pb_utils.InferenceResponse, got {type(response).__name__}")
        envelopes: list[Any] = []
        tensors: list[tuple[str, Array]] = []
        for response, request in zip(responses, requests, strict=True):
            again = request._release_flags == utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
            if again and response is not None:
                raise PythonModelError("execute: expected None for a request that is to come again, got a response")
            if response is None:
                envelopes.append("again" if again else None)
                if again:
                    self._talk.forget(request.get_response_sender().number)
                continue
            own, error, parameters = request.get_response_sender().returned(response)
            envelopes.append([len(own), error, parameters])
            tensors += own
        return envelopes, tensors

    def _run_in_background(self, responses: Any, requests: Sequence[utils.InferenceRequest]) -> None:
        """Runs the coroutine of a decoupled model. If it fails, so do the requests that it has not answered."""

        def done(finished: Any) -> None:
            self._background.discard(finished)
            error = asyncio.CancelledError("it was cancelled") if finished.cancelled() else finished.exception()
            if error is None:
                return
            _log_failure("execute", error)
            for request in requests:
                request.get_response_sender().fail(f"model '{self._config['name']}': {_failure(error)}")

        running = utils.event_loop.start(responses)
        self._background.add(running)
        running.add_done_callback(done)


def _failure(error: BaseException) -> str:
    """Returns the text of an error. One that the model raised says which lines of the model's files it comes from,
    unless the operator hides them."""
    if isinstance(error, PythonModelError):
        return error.message[:4096]
    text = f"{type(error).__name__}: {error}"[:4096]
    return text + (_lines_of(error) if utils.tells_lines else "")


def _lines_of(error: BaseException) -> str:
    """Returns the lines of the model's files that an error went through, in the form in which Triton tells them."""
    folder = utils.model_file.parent.parent
    found = [
        f"  {Path(frame.filename).relative_to(folder)}({frame.lineno}): {frame.name}\n"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if Path(frame.filename).is_relative_to(folder)
    ]
    return "\n\nAt:\n" + "".join(found) if found else ""


def _log_failure(what: str, error: BaseException) -> None:
    """Writes where something failed. The text of the error may have data of a client, who gets it."""
    logger.error("%s failed: %s%s", what, type(error).__name__, _lines_of(error))


def _load(path: Path) -> ModuleType:
    """Imports a model's file as the module model of a package named as its version, so that it can import what lies
    beside it: `from .helper import x`. Its folder, and that of the model, come last in the path for others."""
    version = path.parent
    # A checkout has folders beside the package, such as models and tests.
    ours = Path(__file__).parents[3]
    beside = [str(ours)] if (ours / "pyproject.toml").is_file() and str(ours) in sys.path else []
    sys.path[:] = [folder for folder in sys.path if folder not in beside]
    sys.path += [str(version), str(version.parent), *beside]
    name = f"{version.name}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PythonModelError(f"{path.name} is no Python file")
    package = ModuleType(version.name)
    package.__path__ = [str(version)]
    sys.modules[version.name] = package
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _completed(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    if not hasattr(model, "auto_complete_config"):
        return config
    found = model.auto_complete_config(utils.ModelConfig(json.dumps(config)))
    if not isinstance(found, utils.ModelConfig):
        raise PythonModelError(f"auto_complete_config: expected the config that it got, got {type(found).__name__}")
    return found.as_dict()


def _watch_crashes(note: int, name: str, json_log: bool) -> None:
    try:
        from opgate.service.native import process
    except ImportError:  # an environment of another version of Python
        return
    process.watch_crashes(json_log)
    process.note_crashes(note, NOTE_SIZE)
    process.set_running(name)
