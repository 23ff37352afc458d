"""Python's collector of cycles while a gateway serves."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref

import pytest

from opgate.service import freed_memory
from opgate.service.freed_memory import give_back_when_idle

#: Keeps as many objects as a gateway that has started. Then cycles come and go, ten thousand at a time.
_PROGRAM = """
import gc
from collections import deque
from opgate.service.freed_memory import keep_all

started = [[] for _ in range(400_000)]
keep_all()
before = gc.get_stats()[2]["collections"]
last = deque(maxlen=10_000)
for _ in range(120_000):
    cycle = []
    cycle.append(cycle)
    last.append(cycle)
assert gc.get_stats()[2]["collections"] > before, gc.get_stats()
"""


def test_the_collector_visits_old_cycles_however_many_objects_the_start_made():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Node:
    """Refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("closed", [0, 1])
def test_the_collector_comes_only_after_a_model_has_closed(monkeypatch, closed):
    """It walks all that came after the start, open connections too."""
    monkeypatch.setattr(freed_memory, "_INTERVAL", 0.01)

    async def main():
        counts = [0, 0]
        idle = asyncio.create_task(give_back_when_idle(lambda: counts[0], lambda: counts[1], lambda: 0))
        await asyncio.sleep(0.05)
        node = weakref.ref(Node())
        counts[:] = [1, closed]
        await asyncio.sleep(0.3)
        idle.cancel()
        return node() is None

    gc.disable()
    try:
        assert asyncio.run(main()) == bool(closed)
    finally:
        gc.enable()
