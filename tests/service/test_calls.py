"""Calls of other models, which a model in Python makes: whatever fails, the caller gets an answer."""

from __future__ import annotations

import asyncio
from typing import Any

from opgate.service.core.checks import Limits
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Options, Request
from opgate.service.isolation.calls import Call, Calls
from tests.service.scheduling import request, spec_of

CALL = Call("called", -1, dict(request().inputs), [], "", Options(), False)


class Callee:
    """A model that does not take a request. `holders` are those that hold it."""

    def __init__(self) -> None:
        self.spec = spec_of(None)
        self.holders = 0

    def hold(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def submit(self, request: Request) -> None:
        raise RuntimeError("no room for it")


def told(find: Any) -> ServingError:
    """Returns the error that a caller gets at once."""
    answers: list[Any] = []

    async def call() -> None:
        calls = Calls(find, Limits(), 1.0)
        calls.loop = asyncio.get_running_loop()
        calls.start(CALL, lambda *answer: answers.append(answer)).begin()

    asyncio.run(call())
    ((outputs, last, error, _),) = answers
    assert not outputs and last
    return error


def test_a_model_that_can_not_be_found_is_an_error_of_the_call() -> None:
    def find(name: str, version: str) -> Any:
        raise RuntimeError("the catalog is broken")

    error = told(find)
    assert (error.kind, error.message) == (Kind.INTERNAL, "RuntimeError: the catalog is broken")


def test_a_model_that_takes_no_request_is_an_error_of_the_call_and_is_let_go() -> None:
    callee = Callee()
    error = told(lambda name, version: callee)
    assert (error.kind, error.message) == (Kind.INTERNAL, "RuntimeError: no room for it")
    assert callee.holders == 0
