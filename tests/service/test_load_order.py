"""Loads of the same models take turns, others go on beside them, and one that never ends holds up nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import numpy as np
import pytest

from opgate.service.core.errors import Kind, ServingError
from opgate.service.gateway import Gateway
from opgate.service.repository import background_loads, load_order
from opgate.service.repository.load_order import LoadThreads, Turns
from opgate.service.repository.overrides import Override
from tests.service.onnx_models import batching, double
from tests.service.scheduling import until
from tests.service.test_execution import infer


class TestTurns:
    @staticmethod
    async def change(turns, names, order, label, go=None):
        turn = turns.take(names)
        async with turn:
            order.append(f"{label} begins")
            if go is not None:
                await go.wait()
            order.append(f"{label} ends")

    def test_changes_of_the_same_models_come_in_order_and_others_beside(self):
        async def main():
            turns, order, go = Turns(), [], asyncio.Event()
            tasks = [
                asyncio.create_task(self.change(turns, names, order, label, event))
                for names, label, event in (
                    (["a"], "1", go), (["a", "b"], "2", None), (["c"], "3", None), (["b"], "4", None),
                )
            ]  # fmt: skip
            await asyncio.sleep(0.01)
            assert order == ["1 begins", "3 begins", "3 ends"]
            go.set()
            await asyncio.gather(*tasks)
            return order

        assert asyncio.run(main())[3:] == ["1 ends", "2 begins", "2 ends", "4 begins", "4 ends"]

    def test_one_that_is_cancelled_while_it_waits_holds_up_nobody(self):
        async def main():
            turns, order, go = Turns(), [], asyncio.Event()
            first = asyncio.create_task(self.change(turns, ["a"], order, "1", go))
            second = asyncio.create_task(self.change(turns, ["a"], order, "2"))
            third = asyncio.create_task(self.change(turns, ["a"], order, "3"))
            await asyncio.sleep(0.01)
            second.cancel()
            await asyncio.sleep(0.01)
            assert order == ["1 begins"]
            go.set()
            await asyncio.gather(first, third)
            return order

        assert asyncio.run(main()) == ["1 begins", "1 ends", "3 begins", "3 ends"]

    def test_one_that_fails_lets_the_next_begin(self):
        async def main():
            turns = Turns()
            with pytest.raises(KeyError):
                async with turns.take(["a"]):
                    raise KeyError
            async with turns.take(["a"]):
                return True

        assert asyncio.run(main())


class TestLoadThreads:
    def test_no_more_at_once_than_a_number_unless_one_takes_too_long(self):
        async def main():
            threads, go = LoadThreads(1, patience=0.2), threading.Event()
            hanging = asyncio.create_task(threads.run("hangs", go.wait))
            began = time.monotonic()
            await asyncio.sleep(0)
            assert await threads.run("quick", lambda: 7) == 7
            assert 0.15 < time.monotonic() - began < 5
            assert threads.loading == {"hangs"}
            go.set()
            await hanging
            assert not threads.loading
            running, most, lock = [0], [0], threading.Lock()

            def work():
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                time.sleep(0.005)
                with lock:
                    running[0] -= 1

            await asyncio.gather(*(threads.run(str(i), work) for i in range(8)))
            assert most[0] == 1  # the place came back once

        asyncio.run(main())

    def test_an_error_is_that_of_the_work(self):
        async def main():
            threads = LoadThreads(1)
            with pytest.raises(ZeroDivisionError):
                await threads.run("m", lambda: 1 / 0)
            assert await threads.run("m", lambda: 1) == 1

        asyncio.run(main())

    def test_without_a_thread_it_says_so_and_keeps_no_place(self, monkeypatch):
        class NoThread:
            def __init__(self, **how): ...

            def start(self):
                raise RuntimeError("can't start new thread")

        async def main():
            threads = LoadThreads(1)
            with monkeypatch.context() as patch:
                patch.setattr(load_order.threading, "Thread", NoThread)
                for _ in range(3):
                    with pytest.raises(ServingError, match="no thread") as raised:
                        await threads.run("m", int)
                    assert raised.value.kind is Kind.UNAVAILABLE
            assert not threads.loading and await threads.run("m", lambda: 1) == 1

        asyncio.run(main())

    def test_work_goes_on_that_nobody_waits_for_any_more(self):
        async def main():
            threads, go, done = LoadThreads(1), threading.Event(), threading.Event()
            waiting = asyncio.create_task(threads.run("m", lambda: go.wait() and done.set()))
            await asyncio.sleep(0.05)
            waiting.cancel()
            go.set()
            assert await threads.run("n", lambda: 7) == 7
            assert done.wait(5) and not threads.loading

        asyncio.run(main())

    def test_a_thread_loads_the_next_model_keeps_none_and_ends_when_idle(self, monkeypatch):
        class Model: ...

        def work():
            thread = threading.current_thread()
            return thread, thread.name, Model()

        async def main():
            threads = LoadThreads(2)
            monkeypatch.setattr(load_order, "_IDLE", 0.3)
            first, name, model = await threads.run("first", work)
            kept = weakref.ref(model)
            del model
            assert name == "load-first"
            for i in range(5):
                thread, name, _ = await threads.run(f"m{i}", work)
                assert thread is first and name == f"load-m{i}"
            gc.collect()
            assert kept() is None
            both = await asyncio.gather(*(threads.run("slow", lambda: (time.sleep(0.1), work())) for _ in range(2)))
            found = {thread for _, (thread, *_) in both}
            assert len(found) == 2 and first in found
            for thread in found:
                thread.join(5)
                assert not thread.is_alive()
            assert (await threads.run("later", work))[1] == "load-later"

        asyncio.run(main())


@pytest.fixture
def hanging(repository, settings, monkeypatch):
    """A gateway in whose repository the model `hangs` takes as long to load as the event is not set."""
    for name in ("hangs", "a", "b", "c"):
        double(repository, name, config=batching())
    go = threading.Event()
    real = background_loads.load_model

    def load(source, config, *rest):
        if config.name == "hangs":
            go.wait(60)
        return real(source, config, *rest)

    monkeypatch.setattr(background_loads, "load_model", load)
    yield lambda **changes: (Gateway(settings.model_copy(update=changes)), go)
    go.set()


def test_a_start_waits_for_no_model_that_never_ends(hanging):
    gateway, go = hanging(model_load_thread_count=2)

    async def main():
        began = time.monotonic()
        await gateway.control.load_at_start(0.5)
        assert time.monotonic() - began < 5
        assert not gateway.is_ready() and gateway.catalog.unavailable() == ["hangs"]
        assert {row[0]: row[2] for row in gateway.catalog.index()} == {
            "a": "READY", "b": "READY", "c": "READY", "hangs": "UNAVAILABLE",
        }  # fmt: skip
        with pytest.raises(ServingError, match="still being loaded"):
            gateway.find("hangs")
        assert (await infer(gateway, "b", **inputs(gateway, "b")))["y"].size
        go.set()
        await until(lambda: gateway.catalog.complete)
        assert gateway.is_ready()
        assert (await infer(gateway, "hangs", **inputs(gateway, "hangs")))["y"].size
        await gateway.control.close()
        await gateway.catalog.close()

    asyncio.run(main())


def test_loads_by_clients_go_on_beside_one_that_never_ends(hanging):
    gateway, go = hanging(model_control_mode="explicit", model_load_thread_count=2)

    async def main():
        await gateway.control.load_at_start(5)
        first = asyncio.create_task(gateway.control.load("hangs", Override()))
        await asyncio.sleep(0.05)
        for name in "abc":
            assert await asyncio.wait_for(gateway.control.load(name, Override()), 10) == [name]
        await asyncio.wait_for(gateway.control.unload("a"), 10)
        assert gateway.control.loading == {"hangs"} and not first.done()
        second = asyncio.create_task(gateway.control.unload("hangs"))  # waits for its turn
        await asyncio.sleep(0.05)
        assert not second.done()
        go.set()
        await asyncio.gather(first, second)
        with pytest.raises(ServingError, match="unloaded"):
            gateway.find("hangs")
        await gateway.control.close()
        await gateway.catalog.close()

    asyncio.run(main())


def inputs(gateway, name):
    spec = gateway.find(name).model.spec
    return {"x": np.ones((1, *spec.inputs["x"].dims), np.float32)}
