"""What the processes of the gateway and the machine use, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_process(pid: int, role: str, model: str = "") -> dict[str, Any] | None:
    """Returns the memory and the CPU time of a process, None if there is none. proc(5) says where the fields are."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return {
        "pid": pid,
        "role": role,
        "model": model,
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / _TICKS,
        "threads": int(fields[17]),
        "rss_bytes": int(fields[21]) * _PAGE,
    }


def read_machine() -> dict[str, Any]:
    """Returns the cores, the load and the memory of the machine."""
    memory: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()[:5]:
            name, _, rest = line.partition(":")
            memory[name] = int(rest.split()[0]) * 1024
        load = os.getloadavg()[0]
    except (OSError, ValueError, IndexError):
        load = 0.0
    return {
        "cpus": os.cpu_count() or 1,
        "load1": round(load, 2),
        "memory_bytes": memory.get("MemTotal", 0),
        "available_bytes": memory.get("MemAvailable", 0),
    }
