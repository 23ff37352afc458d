"""Runs one request in a session that ONNX Runtime's profiler watches, beside those that serve."""

from __future__ import annotations

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
