"""Who gets room for a load first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from opgate.service.core.errors import Kind, ServingError
from opgate.service.repository import residency
from opgate.service.repository.residency import Need, Residency

MIB = 1 << 20


class InUse:
    """One model that could leave and is in use, or never leaves."""

    is_closing = False

    def __init__(self, may_leave: bool = True, took: int = 90) -> None:
        statistics = SimpleNamespace(memory_bytes=took * MIB, load_seconds=0.0, workers=[])
        model = SimpleNamespace(executor=SimpleNamespace(at_rest=False), loaded_at=0.0, statistics=statistics, steps=())
        self._models = [(model, may_leave)]

    def resident(self):
        return iter(self._models)

    async def let_go(self, models):
        raise AssertionError("no model may leave")


async def nothing():
    pass


@pytest.fixture
def room(monkeypatch):
    """Makes the memory of a process: 100 MiB, of which 90 are taken."""

    async def measure(self, loaded=(), *, exact=False):
        self._measured = 90 * MIB
        return self._measured

    monkeypatch.setattr(Residency, "measure", measure)
    monkeypatch.setattr(residency, "_PASSED", 0.2)
    monkeypatch.setattr(residency, "_UNKNOWN", 0.3)
    return lambda models, patience=30.0: Residency(100 * MIB, models, nothing, patience)


def test_loads_that_wait_for_room_hold_up_no_other(room):
    """They came one after the other, so that one of the three would go before others at every time."""

    async def run():
        memory = room(InUse())
        waiting = []
        for name in "abd":
            waiting.append(asyncio.create_task(memory.reserve({name: Need(50 * MIB, 0, 0)})))
            await asyncio.sleep(0.13)
        async with asyncio.timeout(10):
            await memory.reserve({"c": Need(5 * MIB, 0, 0)})
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not memory._waiting

    asyncio.run(run())


def test_a_load_of_which_nobody_knows_what_it_takes_waits_for_its_turn_without_losing_time(room):
    async def run():
        memory = room(InUse(), patience=0.4)
        loads = [memory.reserve({f"m{i}": Need(1, 0, 0, unknown=True)}) for i in range(5)]
        assert len(await asyncio.gather(*loads)) == 5

    asyncio.run(run())


def test_nobody_leaves_for_a_model_that_has_no_room_beside_what_never_leaves(room):
    async def run():
        with pytest.raises(
            ServingError, match=r"at least 20.0 MiB are needed, what never leaves takes 90.0 MiB"
        ) as why:
            await room(InUse(may_leave=False)).reserve({"m": Need(20 * MIB, 0, 20 * MIB)})
        assert why.value.kind is Kind.UNAVAILABLE

    asyncio.run(run())


def test_what_a_model_that_never_leaves_was_expected_to_take_refuses_no_other(room):
    """It was loaded beside others, so that nobody could measure it. All that is in memory takes less."""

    async def run():
        await room(InUse(may_leave=False, took=200)).reserve({"m": Need(8 * MIB, 4 * MIB, 8 * MIB)})

    asyncio.run(run())
