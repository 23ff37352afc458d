"""What a thread holds for the last words of the process goes with it: models come and go with their threads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

_PROGRAM = """
import ctypes, threading
from pathlib import Path
from opgate.service.native import process

process.watch_crashes(True)

def run(what, then=lambda: None):
    process.set_running(what)
    then()
    process.set_running(None)

def in_threads(count):
    for number in range(count):
        thread = threading.Thread(target=run, args=(f"model {number}",))
        thread.start()
        thread.join()

def kilobytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

in_threads(100)
before = kilobytes()
in_threads(2000)
print(kilobytes() - before, flush=True)
thread = threading.Thread(target=run, args=("model 'late'", lambda: ctypes.string_at(0)))
thread.start()
thread.join()
"""


def test_threads_that_ended_keep_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr
    assert int(ended.stdout) < 1000
    assert "in a run of model 'late'" in json.loads(ended.stderr.splitlines()[-1])["message"]
