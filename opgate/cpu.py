"""This machine's processor: how many cores a process may use, and for which levels of its architecture CPU kernels are
compiled."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})


class Level(NamedTuple):
    """A level above the baseline of an architecture: the compiler's flag for it, and what Linux calls the features that
    it needs."""

    flag: str
    features: frozenset[str]


#: The levels of each architecture, as `platform.machine` names it, the lowest first. Those of x86-64 are in table 3.1
#: of the System V ABI for AMD64. Of ARM's features, -march=armv8.2-a has the first two.
LEVELS: Mapping[str, Mapping[str, Level]] = {
    "x86_64": {
        "v3": Level("-march=x86-64-v3", _V3),
        "v4": Level("-march=x86-64-v4", _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    },
    "aarch64": {
        "v8_2": Level(
            "-march=armv8.2-a+fp16+dotprod", frozenset({"atomics", "asimdrdm", "fphp", "asimdhp", "asimddp"})
        ),
    },
}
_BASELINE = {"x86_64": "-march=x86-64-v2", "aarch64": "-march=armv8-a"}


def levels() -> Mapping[str, Level]:
    """Returns the levels of this machine's architecture, the lowest first."""
    return LEVELS.get(platform.machine(), {})


def missing(level: Level) -> frozenset[str]:
    """Returns what the processor lacks of a level. It is empty where the system doesn't say what the processor has."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    has = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    return level.features - set(has[1].split()) if has else frozenset()


def native_flags() -> str:
    """Returns the compiler's flags for this machine's processor: for the highest level that it has."""
    found = [level.flag for level in levels().values() if not missing(level)]
    return found[-1] if found else _BASELINE.get(platform.machine(), "-mcpu=native")


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
