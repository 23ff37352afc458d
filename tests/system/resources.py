"""What a server's processes have: descriptors, shared memory, threads, children."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

# Threads that the pools of a gateway process begin when they are first needed.
_POOLS = 6


def descendants(pid: int) -> list[int]:
    """Returns a process and all that it has begun, which are not zombies."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def resources(pid: int) -> Counter[str]:
    """Returns how many of each a process and its descendants have together."""
    counts: Counter[str] = Counter()
    for one in descendants(pid):
        folder = Path(f"/proc/{one}")
        try:
            threads, files = os.listdir(folder / "task"), os.listdir(folder / "fd")
        except OSError:  # it has ended
            continue
        counts["processes"] += 1
        counts["threads"] += len(threads)
        for name in files:
            with contextlib.suppress(OSError):  # it has been closed
                target = os.readlink(folder / "fd" / name)
                counts["shared memory" if target.startswith("/memfd:") else "descriptors"] += 1
    return counts


def settles(pid: int, before: Counter[str], seconds: float = 15.0) -> None:
    """Waits until a process and its descendants have no more than before. Raises AssertionError with what is left."""
    end = time.monotonic() + seconds
    while more := more_than(pid, before):
        assert time.monotonic() < end, f"there is more than before, (before, now): {more}"
        time.sleep(0.05)


def more_than(pid: int, before: Counter[str]) -> dict[str, tuple[int, int]]:
    """Returns what there is more of than before: how many before and now. Pools may begin a few threads at any time."""
    now = resources(pid)
    now["threads"] -= min(now["threads"], _POOLS)
    return {name: (before[name], count) for name, count in now.items() if count > before[name]}
