"""What a worker process may not do. It takes the rights away from itself before it loads anything of a model.

- Landlock makes the file system read-only, https://docs.kernel.org/userspace-api/landlock.html
- A seccomp filter refuses sockets of every kind but those between processes of one machine,
  https://docs.kernel.org/userspace-api/seccomp_filter.html
- RLIMIT_DATA limits the memory, see getrlimit(2). Memory that is shared with the gateway doesn't count.
- No new privileges: what it executes gets none by set-user-ID or file capabilities, see prctl(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION = 1
_PATH_BENEATH = 1
# Rights that write: the bits 1 (write to a file), 4 to 12 (remove and make entries) and, in later versions of the
# interface, 13 (link or rename between folders) and 14 (truncate).
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_WRITE_FILE = 1 << 1

# The numbers of system calls: https://github.com/torvalds/linux/tree/master/arch
_CALLS = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}  # architecture, socket, io_uring_setup
_X32 = 0x40000000
_DEVICES = ("null", "zero", "full", "nvidia*")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What to take away. `memory_bytes` is the most that the process may allocate, 0 for no limit."""

    memory_bytes: int = 0
    no_network: bool = False
    read_only: bool = False

    def __str__(self) -> str:
        parts = ["no new privileges"]
        if self.memory_bytes:
            parts.append(f"at most {self.memory_bytes} bytes")
        return ", ".join(parts + ["no network"] * self.no_network + ["no files written"] * self.read_only)


class NotConfinedError(RuntimeError):
    """The kernel can't take a right away that should go."""


def confine(confinement: Confinement) -> None:
    """Takes rights away from this process, and from those that it starts. Raises NotConfinedError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise NotConfinedError(f"no new privileges: {_error()}")
    if confinement.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (confinement.memory_bytes, confinement.memory_bytes))
    if confinement.read_only:
        _make_read_only(libc)
    if confinement.no_network:
        _refuse_sockets(libc)


def _error() -> str:
    return os.strerror(ctypes.get_errno())


def _make_read_only(libc: ctypes.CDLL) -> None:
    """Lets nothing be written but devices that hold no data, and GPUs."""
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        raise NotConfinedError(f"a read-only file system needs Landlock, which this kernel doesn't have: {_error()}")
    handled = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attribute = struct.pack("<Q", handled)
    rules = libc.syscall(_LANDLOCK_CREATE_RULESET, attribute, len(attribute), 0)
    if rules < 0:
        raise NotConfinedError(f"Landlock: {_error()}")
    try:
        for device in (path for pattern in _DEVICES for path in Path("/dev").glob(pattern)):
            file = os.open(device, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("<Qi", _WRITE_FILE | (handled & _TRUNCATE), file)
                if libc.syscall(_LANDLOCK_ADD_RULE, rules, _PATH_BENEATH, rule, 0):
                    raise NotConfinedError(f"Landlock: {device}: {_error()}")
            finally:
                os.close(file)
        if libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0):
            raise NotConfinedError(f"Landlock: {_error()}")
    finally:
        os.close(rules)


def _refuse_sockets(libc: ctypes.CDLL) -> None:
    machine = platform.machine()
    if machine not in _CALLS:
        raise NotConfinedError(f"there is no filter of system calls for {machine}")
    architecture, socket_call, io_uring_setup = _CALLS[machine]
    load, equal, at_least, back = 0x20, 0x15, 0x35, 0x06  # opcodes of BPF
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EACCES
    # Each line: opcode, how many lines to skip if it is true and if it is false, operand.
    program = [
        (load, 0, 0, 4),  # the architecture of the call
        (equal, 0, 6, architecture),
        (load, 0, 0, 0),  # its number
        (at_least, 4, 0, _X32),
        (equal, 3, 0, io_uring_setup),  # it could make sockets too
        (equal, 0, 3, socket_call),
        (load, 0, 0, 16),  # the family of the socket
        (equal, 1, 0, int(socket.AF_UNIX)),
        (back, 0, 0, refuse),
        (back, 0, 0, allow),
    ]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    filter_ = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(filter_))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0):
        raise NotConfinedError(f"a filter of system calls: {_error()}")
