"""This machine's processor: how many cores a process may use, and which of the levels of x86-64 it has."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})
#: What each level needs, as Linux names it, the lowest level first: System V ABI for AMD64, table 3.1.
LEVELS = {"v3": _V3, "v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}


def missing(level: str) -> frozenset[str]:
    """Returns what the processor lacks of a level. It is empty where the system doesn't say what the processor has."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    has = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)
    return LEVELS[level] - set(has[1].split()) if has else frozenset()


def native_flags(machine: str) -> str:
    """Returns the compiler's flags for this machine's processor: for its level on x86-64, else -mcpu=native."""
    if machine != "x86_64":
        return "-mcpu=native"
    return f"-march=x86-64-{next((level for level in reversed(LEVELS) if not missing(level)), 'v2')}"


def usable_cores() -> int:
    """Returns the number of cores that this process may use: its CPU affinity, capped by the CPU quota of its control
    group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        if quota != "max":
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # without a version 2 control group only the affinity is known
    return max(1, cores)
