"""The driver of a request: whatever fails, and whenever the client leaves, there is one end, and nothing stays held."""

from __future__ import annotations

import asyncio
import threading

import pytest

from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.exchange import Exchange
from opgate.service.gateway import LONG_COST
from tests.service.onnx_models import batching, double

BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}'
SECRET = FileNotFoundError(2, "No such file or directory", "/home/somebody/secret")


class Told(Exchange):
    """An exchange that keeps what the client got. `failing` is where it fails, with `error`."""

    protocol = "test"
    route = peer = "test"
    ended = False

    def __init__(self, gateway, failing="", error=None, cost=0, room=True):
        super().__init__(gateway, "m")
        self.failing, self.error, self.cost, self.room = failing, error, cost, room
        self.got = []
        self.done = asyncio.Event()

    def reach(self, stage):
        if self.failing == stage:
            raise self.error

    def run(self):
        served = self.find(self.run)
        if served is None:
            return

        def decode():
            self.reach("decode")
            return served.decoder.decode(BODY, None)

        self.start(served, self.cost, decode)

    def decoded(self, served, request):
        self.reach("decoded")
        super().decoded(served, request)

    def encoding_cost(self, request):
        self.reach("encoding_cost")
        return self.cost

    def encode(self, request):
        self.reach("encode")
        return request.result["y"].tolist(), 16

    def hold(self, size):
        return self.room

    def send(self, answer, size):
        self.end(answer)

    def refuse(self, error):
        self.end(error)

    def leave(self):
        self.end("left")

    def end(self, what):
        self.got.append(what)
        self.done.set()


def run(gateway, exchange_of, then=lambda exchange: None):
    """Runs an exchange, and returns it when the model could be closed, which nothing holds then."""

    async def main():
        exchange = exchange_of()
        exchange.run()
        then(exchange)
        await asyncio.wait_for(exchange.done.wait(), 10)
        await asyncio.wait_for(gateway.catalog.close(), 10)
        return exchange

    return asyncio.run(main())


@pytest.fixture
def gateway(repository, load):
    double(repository, "m", config=batching())
    return load()


COSTS = pytest.mark.parametrize("cost", [0, LONG_COST], ids=["here", "on a thread"])


@COSTS
def test_an_answer(gateway, cost):
    assert run(gateway, lambda: Told(gateway, cost=cost)).got == [[[2.0] * 4]]
    assert gateway.running == 0


@COSTS
@pytest.mark.parametrize("stage", ["decode", "decoded", "encoding_cost", "encode"])
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (invalid("not this"), Kind.INVALID, "not this"),
        (ValueError("unexpected"), Kind.INTERNAL, "ValueError: unexpected"),
        (SECRET, Kind.INTERNAL, "No such file or directory"),
    ],
    ids=["the client's", "ours", "the system's"],
)
def test_what_fails_is_told_once(gateway, cost, stage, error, kind, text):
    (got,) = run(gateway, lambda: Told(gateway, stage, error, cost)).got
    assert isinstance(got, ServingError) and got.kind is kind
    assert text in got.message and "secret" not in got.message
    assert gateway.running == 0


def test_no_room_for_the_answer(gateway):
    (got,) = run(gateway, lambda: Told(gateway, room=False)).got
    assert got.kind in (Kind.OVERLOADED, Kind.TOO_LARGE)


def test_no_such_model(gateway):
    def exchange():
        told = Told(gateway)
        told.model = "n"
        return told

    (got,) = run(gateway, exchange).got
    assert got.kind is Kind.NOT_FOUND


def test_no_thread_begins(gateway, monkeypatch):
    def none(work):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(gateway, "work_on_thread", none)
    (got,) = run(gateway, lambda: Told(gateway, cost=LONG_COST)).got
    assert got.kind is Kind.INTERNAL and "can't start new thread" in got.message


def test_a_client_that_leaves_while_its_body_is_read(gateway):
    """Nothing is submitted, and the model is let go."""
    going = threading.Event()

    class Slow(Told):
        def reach(self, stage):
            if stage == "decode":
                going.wait(5)

    def leaves(exchange):
        exchange.ended = True
        going.set()

    exchange = run(gateway, lambda: Slow(gateway, cost=LONG_COST), leaves)
    assert exchange.got == ["left"] and exchange.request is None
    assert gateway.accepted == 0
