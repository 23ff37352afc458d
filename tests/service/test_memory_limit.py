"""The limit on the process's memory, from control groups as the kernel shows them."""

from __future__ import annotations

import os

import pytest

from opgate.service.telemetry.memory import memory_limit

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),  # a container
        ("0::/system.slice/opgate.service\n", {"system.slice/opgate.service/memory.max": "2000000\n"}, 2_000_000),
        ("0::/a/b\n", {"a/memory.max": "3000000\n", "a/b/memory.max": "max\n"}, 3_000_000),
        ("0::/docker/x\n", {"memory.max": "4000000\n"}, 4_000_000),  # the host's path, the container's files
        ("9:cpu:/\n8:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "5000000\n"}, 5_000_000),
        ("8:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {}, MACHINE),
        (None, {}, MACHINE),
    ],
)
def test_the_limit(tmp_path, group, files, expected):
    if group is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_limit(tmp_path) == expected


def test_the_limit_of_this_process():
    assert 0 < memory_limit() <= MACHINE
