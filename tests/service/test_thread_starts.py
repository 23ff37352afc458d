"""A thread that has no memory to begin raises an error where it is started."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from opgate.service import thread_starts

CODE = """
import resource, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from opgate.service import thread_starts
if sys.argv[1] == "bounded":
    thread_starts.bound()
pool = ThreadPoolExecutor(4)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
room = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))
hold = []
try:
    while True:
        hold.append(bytearray(1 << 16))
except MemoryError:
    pass
for _ in range(int(sys.argv[3])):
    hold.pop()
try:
    pool.submit(int).result(3)
except (RuntimeError, MemoryError) as error:
    print("refused")
else:
    print("began")
"""


def test_a_pool_never_waits_for_ever():
    """Wherever the memory ends, a start ends too."""
    said = set()
    for left in (0, 1, 2, 4, 100, 140, 200):
        command = [sys.executable, "-c", CODE, "bounded", str(40 << 20), str(left)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said.add(done.stdout.strip())
    assert "refused" in said


class TestOneThatNeverBegins:
    @pytest.fixture(autouse=True)
    def bounded(self, monkeypatch):
        monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
        monkeypatch.setattr(thread_starts, "_SECONDS", 0.2)
        if not getattr(threading.Thread.start, "bounded", False):
            thread_starts.bound()

    def test_is_given_up_and_does_nothing_later(self, monkeypatch):
        ran, go = [], threading.Event()
        thread = threading.Thread(target=lambda: ran.append(1), daemon=True)
        begin, ended = thread._bootstrap, threading.Event()

        def late():
            go.wait()
            with contextlib.suppress(KeyError):  # nobody knows it any more
                begin()
            ended.set()

        monkeypatch.setattr(thread, "_bootstrap", late)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="no memory"):
            thread.start()
        assert 0.1 < time.monotonic() - began < 3
        assert thread not in threading.enumerate()
        go.set()
        assert ended.wait(10)
        assert ran == []

    def test_one_that_begins_is_as_before(self):
        ran = []
        thread = threading.Thread(target=lambda: ran.append(1))
        thread.start()
        thread.join()
        assert ran == [1]
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
