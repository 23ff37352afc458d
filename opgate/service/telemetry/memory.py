"""How much memory the process may have, from its control group."""

from __future__ import annotations

import os
from pathlib import Path

# Control groups of version 1 write a number near 2**63 where there is no limit.
_NO_LIMIT = 1 << 60


def memory_limit(root: Path = Path("/")) -> int:
    """Returns the bytes that the process may have: the least limit of its control groups, or the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_limits(root)])


def _limits(root: Path) -> list[int]:
    """Returns the limits of the process's control group and of those above it, as far as they are visible."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A container sees its own group as the root of all, whatever its path is.
        folder = base / path.strip("/")
        for group in (folder, *folder.parents):
            limits += _read(group / name)
            if group == base:
                break
    return limits


def _read(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() and int(text) < _NO_LIMIT else []
