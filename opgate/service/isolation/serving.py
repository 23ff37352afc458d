"""How a worker serves the gateway: it opens a model, and answers questions until the gateway ends."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

from opgate.service.isolation.channel import encoded
from opgate.service.isolation.opening import Conversing, Opening
from opgate.service.isolation.worker_end import Link

_KEPT = 4096  # characters of an error's text


def serve(link: Link, refusal: str, missing: Sequence[str], counted: bool) -> None:
    """Serves the gateway until that ends. `refusal` says why the process must not open anything.

    `missing` is what is not in force of what a worker may not do, and `counted` whether a cgroup counts its memory.
    """
    try:
        data, _ = link.next()
        if refusal:
            link.answer(encoded(["error", "", refusal]))
            return
        opening: Opening = pickle.loads(data)
        try:
            runner = opening.open(link)
        except Exception as error:
            link.answer(encoded(failure(error)))
            return
        link.answer(encoded(["done", {**runner.description(), "missing": list(missing), "counted": counted}]))
        if isinstance(runner, Conversing):
            runner.converse()
            return
        while True:
            data, _ = link.next()
            try:
                answer = runner.again(data)
                if answer is None:
                    question = json.loads(data)
                    answer = encoded(runner.answer(question, data))
                    del question
            except Exception as error:
                answer = encoded(failure(error))
            link.answer(answer)
    except (EOFError, OSError):  # the gateway has gone
        return


def failure(error: Exception) -> list[Any]:
    """Returns the answer that says what failed."""
    kind = getattr(error, "kind", "")
    text = getattr(error, "message", None)
    if not isinstance(text, str):
        text = f"{type(error).__name__}: {error}"
    return ["error", getattr(kind, "value", kind), text[:_KEPT]]
