"""Runs one request in a session that ONNX Runtime's profiler watches, beside those that serve."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Request
from opgate.service.execution.engine_profile import Operator
from opgate.service.repository.loader import LoadedModel


def check_profiled(model: LoadedModel) -> None:
    """Raises ServingError (UNSUPPORTED) if ONNX Runtime doesn't run the model in this gateway."""
    if model.try_on is None:
        text = f"model '{model.spec.name}' can't be profiled: expected an ONNX file that this gateway runs itself"
        raise ServingError(Kind.UNSUPPORTED, f"{text}, and no ensemble and no model in Python")


def profile(model: LoadedModel, request: Request) -> list[Operator]:
    """Opens the file of a model once more, runs a request twice and returns the operators of the second run.

    The first one makes what ONNX Runtime makes once. A model with processes of its own gets another one. Raises
    ServingError.
    """
    check_profiled(model)
    assert model.session is not None and model.try_on is not None
    with tempfile.TemporaryDirectory(prefix="opgate-profile-") as folder:
        session = model.session.profiled(Path(folder))
        try:
            for _ in range(2):
                model.try_on(session, request)
            return session.profile()
        finally:
            session.close()


class Profiler:
    """Profiles one request at a time. Only the event loop's thread uses it."""

    def __init__(self, run_timeout: float) -> None:
        """A profile may take `run_timeout` seconds."""
        self._run_timeout = run_timeout
        self._busy = False

    async def profile(self, model: LoadedModel, request: Request) -> list[Operator]:
        """Does what `profile` does, on a thread.

        Raises ServingError: UNSUPPORTED for a model that ONNX Runtime doesn't run here, OVERLOADED while another
        request is profiled, DEADLINE if it takes too long. Then the thread goes on until the engine has returned.
        """
        check_profiled(model)
        if self._busy:
            raise ServingError(Kind.OVERLOADED, "another request is profiled now, and it is one at a time")
        self._busy = True
        model.hold()
        work = asyncio.ensure_future(asyncio.to_thread(profile, model, request))

        def ended(work: asyncio.Future[list[Operator]]) -> None:
            self._busy = False
            model.release()
            if not work.cancelled():
                work.exception()  # nobody may wait for it any more

        work.add_done_callback(ended)
        seconds = min(filter(None, (self._run_timeout, request.options.timeout_us / 1e6)))
        try:
            return await asyncio.wait_for(asyncio.shield(work), seconds)
        except TimeoutError:
            text = f"the profile of model '{model.spec.name}' took longer than {seconds:g} s"
            raise ServingError(Kind.DEADLINE, f"{text} (OPGATE_RUN_TIMEOUT, or the request's timeout)") from None
        finally:
            request.cancel()
