"""What a server's processes have: descriptors, shared memory, threads, children."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path


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
            counts["threads"] += len(os.listdir(folder / "task"))
            for name in os.listdir(folder / "fd"):
                target = os.readlink(folder / "fd" / name)
                counts["shared memory" if target.startswith("/memfd:") else "descriptors"] += 1
        except OSError:
            continue
        counts["processes"] += 1
    return counts


def more_than(pid: int, before: Counter[str]) -> dict[str, tuple[int, int]]:
    """Returns what there is more of than before: how many before and now."""
    return {name: (before[name], count) for name, count in resources(pid).items() if count > before[name]}
