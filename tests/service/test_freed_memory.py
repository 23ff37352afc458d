"""Python's collector of cycles while a gateway serves."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref

from opgate.service.freed_memory import give_back

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


def test_what_is_given_back_has_cycles():
    gc.disable()
    try:
        node = weakref.ref(Node())
        assert node() is not None
        asyncio.run(give_back())
        assert node() is None
    finally:
        gc.enable()
