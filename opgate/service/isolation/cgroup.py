"""A cgroup of a worker's own, which counts the memory of the worker and of all that it starts. It needs a kernel that
lets this process make one: https://docs.kernel.org/admin-guide/cgroup-v2.html, and version 1 as well.

This module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

# Seconds in which the processes of a group end after a SIGKILL.
_LONGEST = 5.0


class Cgroup:
    """A group without processes, until one joins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def limited(cls, memory_bytes: int) -> Cgroup | None:
        """Returns a new group that may use so much memory, None if this process can't make one."""
        for parent, limit, swap in _places():
            folder = parent / f"opgate-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder)
            try:
                (folder / limit).write_text(str(memory_bytes))
                with contextlib.suppress(OSError):  # a kernel without swap has no such file
                    (folder / swap).write_text("0" if swap.endswith(".swap.max") else str(memory_bytes))
                return group
            except OSError:
                group.remove()
        return None

    def join(self) -> bool:
        """Puts this process into the group. Returns whether it is there."""
        try:
            (self._folder / "cgroup.procs").write_text("0")
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Ends the processes of the group, and removes it."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                for number in (self._folder / "cgroup.procs").read_text().split():
                    os.kill(int(number), signal.SIGKILL)
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)


def _places() -> list[tuple[Path, str, str]]:
    """Returns the folders in which a group with a limit of memory may be made, each with the files that set it."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder = _mounted("cgroup2", "", path)
            if folder is not None and "memory" in _words(folder / "cgroup.subtree_control"):
                found.append((folder, "memory.max", "memory.swap.max"))
        elif "memory" in controllers.split(","):
            folder = _mounted("cgroup", "memory", path)
            if folder is not None:
                found.append((folder, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"))
    return found


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _mounted(kind: str, option: str, path: str) -> Path | None:
    """Returns the folder of a group, whose path /proc/self/cgroup says. The mount may show a part of the tree."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        fstype, _, options = after.split(" ", 2)
        if fstype == kind and (not option or option in options.split(",")):
            below = path[len(root) :] if root != "/" and path.startswith(root) else path if root == "/" else ""
            folder = Path(point + below)
            return folder if folder.is_dir() else None
    return None
