"""What a worker process may not do. It takes the rights away from itself before it has a second thread, and before it
loads anything of a model or a library: a right that goes later stays with the threads that exist by then.

- Landlock puts the worker into a domain of its own: it can't look into or signal processes outside, and makes the file
  system read-only, https://docs.kernel.org/userspace-api/landlock.html
- A seccomp filter refuses system calls, https://docs.kernel.org/userspace-api/seccomp_filter.html
- RLIMIT_DATA limits the memory, see getrlimit(2). What it doesn't count is refused, or counted by a cgroup.
- No new privileges: what it executes gets none by set-user-ID or file capabilities, see prctl(2).

This module needs only the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
# What root may do in a confined worker: read files of others. What no worker needs: to load modules (16), reach devices
# (17), trace (19), administrate (21), reboot (22), watch (38), load BPF (39), and restore processes (40).
_KEPT_CAPABILITIES = 1 << 2
_DROPPED_CAPABILITIES = (16, 17, 19, 21, 22, 38, 39, 40)

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION = 1
_PATH_BENEATH = 1
# Rights that write: the bits 1 (write to a file), 4 to 12 (remove and make entries) and, in later versions of the
# interface, 13 (link or rename between folders) and 14 (truncate).
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_WRITE_FILE = 1 << 1
_MAKE_DEVICE = 1 << 11  # a right that no model needs: a domain must take some right away
# The first version that keeps signals, and connections to abstract Unix sockets, inside the domain.
_WITH_SCOPES = 6
_SCOPE_SOCKETS, _SCOPE_SIGNALS = 1, 2
_DEVICES = ("null", "full", "nvidia*")
# Where the files of cgroups are, below /.
_CGROUPS = ("sys", "cgroup")

# The numbers of system calls: https://github.com/torvalds/linux/tree/master/arch. 0: the architecture doesn't have it.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000
# Calls that reach into other processes: their memory, their descriptors, their limits.
_INTO_OTHERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448),
}  # fmt: skip
# Calls that change the machine, or lead around the other rules.
_MACHINE = {
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97), "chroot": (161, 51),
    "open_by_handle_at": (304, 265), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
# Changes of files that Landlock doesn't know: rights, owners, times and attributes.
_FILES = {
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "mknod": (133, 0), "mknodat": (259, 33),
}  # fmt: skip
_OLD_FILES = {"truncate": (76, 45)}  # of kernels whose Landlock doesn't know it
# Memory that RLIMIT_DATA doesn't count.
_MEMORY = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "fork": (57, 0), "vfork": (58, 0)
}  # fmt: skip
_CLONE, _CLONE3, _MMAP, _SOCKET, _PRLIMIT = (56, 220), (435, 435), (9, 222), (41, 198), (302, 261)
_CLONE_THREAD = 0x00010000
_SHARED_AND_ANONYMOUS = 0x21


@dataclass(frozen=True)
class Confinement:
    """What to take away. `memory_bytes` is the most that the process may allocate, 0 for no limit. `counted` says that
    a cgroup counts the memory of the worker and of its children. In the folder `writable` it may make files all the
    same."""

    memory_bytes: int = 0
    no_network: bool = False
    read_only: bool = False
    counted: bool = False
    writable: str = ""

    @property
    def confines(self) -> bool:
        """Whether the operator has asked for any of it."""
        return bool(self.memory_bytes or self.no_network or self.read_only)

    def __str__(self) -> str:
        parts = ["no new privileges"]
        if self.memory_bytes:
            whose = "with its children" if self.counted else "and no children"
            parts.append(f"at most {self.memory_bytes} bytes, {whose}")
        return ", ".join(parts + ["no network"] * self.no_network + ["no files written"] * self.read_only)


class NotConfinedError(RuntimeError):
    """The kernel can't take a right away that should go."""


def confine(confinement: Confinement) -> list[str]:
    """Takes rights away from this process, and from those that it starts.

    Returns what is not in force of what every worker should have. Raises NotConfinedError for what was asked for.
    """
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise NotConfinedError("the process has threads already, which would keep their rights")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise NotConfinedError(f"no new privileges: {_error()}")
    version = max(0, libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))
    if confinement.read_only and not version:
        raise NotConfinedError(f"a read-only file system needs Landlock, which this kernel doesn't have: {_error()}")
    missing: list[str] = []
    if version:
        _enter_domain(libc, version, confinement)
    else:
        missing.append("processes of the same user can be looked into: the kernel has no Landlock")
    if version < _WITH_SCOPES:
        missing.append(f"processes of the same user can be signalled: that needs Landlock {_WITH_SCOPES} (Linux 6.12)")
    if confinement.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (confinement.memory_bytes, confinement.memory_bytes))
    everything = (1 << 64) - 1
    _keep_capabilities(
        libc, _KEPT_CAPABILITIES if confinement.confines else everything - sum(1 << n for n in _DROPPED_CAPABILITIES)
    )
    machine = platform.machine()
    if machine in _ARCHITECTURES:
        _filter_calls(libc, machine, confinement, version)
    elif confinement.confines:
        raise NotConfinedError(f"there is no filter of system calls for {machine}")
    else:
        missing.append(f"no system call is refused: there is no filter for {machine}")
    return missing


def _error() -> str:
    return os.strerror(ctypes.get_errno())


def _enter_domain(libc: ctypes.CDLL, version: int, confinement: Confinement) -> None:
    """Puts the process into a Landlock domain. In a read-only one nothing can be written but devices that hold no data,
    and GPUs. A process that a cgroup counts must not write itself into another one."""
    handled, writable = _MAKE_DEVICE, list[Path]()
    if confinement.read_only:
        handled = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
        writable = [path for pattern in _DEVICES for path in Path("/dev").glob(pattern)]
    elif confinement.counted:
        handled |= _WRITE_FILE
        writable = [path for path in Path("/").iterdir() if path.name not in _CGROUPS]
    scopes = 0
    if version >= _WITH_SCOPES:
        scopes = _SCOPE_SIGNALS | (_SCOPE_SOCKETS if confinement.no_network else 0)
    attribute = struct.pack("<QQQ", handled, 0, scopes) if version >= _WITH_SCOPES else struct.pack("<Q", handled)
    rules = libc.syscall(_LANDLOCK_CREATE_RULESET, attribute, len(attribute), 0)
    if rules < 0:
        raise NotConfinedError(f"Landlock: {_error()}")
    try:
        for path in writable:
            _allow(libc, rules, path, handled & (_WRITE_FILE | _TRUNCATE))
        if confinement.writable and handled & ~_MAKE_DEVICE:  # otherwise it is writable already
            _allow(libc, rules, Path(confinement.writable), handled & ~_MAKE_DEVICE)
        if libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0):
            raise NotConfinedError(f"Landlock: {_error()}")
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    """Adds a rule that allows rights on a file, or on all files below a folder."""
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # a link that leads nowhere
        return
    try:
        if libc.syscall(_LANDLOCK_ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", rights, file), 0):
            raise NotConfinedError(f"Landlock: {path}: {_error()}")
    finally:
        os.close(file)


def _keep_capabilities(libc: ctypes.CDLL, kept: int) -> None:
    """Drops what root may do and others may not, but for the capabilities of these bits."""
    for capability in range(64):
        if not kept >> capability & 1:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who has none
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data):
        raise NotConfinedError(f"capabilities: {_error()}")
    # Effective, permitted and inheritable ones, the lower halves first.
    masks = (kept & 0xFFFFFFFF,) * 3 + (kept >> 32,) * 3
    fewer = struct.pack("<6I", *(had & mask for had, mask in zip(struct.unpack("<6I", data.raw), masks, strict=True)))
    if fewer != data.raw and libc.capset(header, fewer):
        raise NotConfinedError(f"capabilities: {_error()}")


# Opcodes of BPF: load a word, AND, jump if equal, jump if at least, return.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Where a system call's number, its architecture and its arguments are.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# A line of a program: opcode, how many lines to skip if it is true and if it is false, operand.
_Line = tuple[int, int, int, int]


def _filter_calls(libc: ctypes.CDLL, machine: str, confinement: Confinement, landlock: int) -> None:
    """Refuses system calls."""
    architecture, column = _ARCHITECTURES[machine]
    program: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    for number in _refused(confinement, landlock, column):
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    # prlimit on another process: the first argument is not 0.
    program += _if(_PRLIMIT[column], 0, 0xFFFFFFFF, 0, other=errno.EPERM)
    if confinement.no_network:
        program += _if(_SOCKET[column], 0, 0xFFFFFFFF, int(socket.AF_UNIX), other=errno.EACCES)
    if confinement.memory_bytes and not confinement.counted:
        program += _if(_CLONE[column], 0, _CLONE_THREAD, _CLONE_THREAD, other=errno.EPERM)
        # Its flags are out of reach of a filter. The C library takes clone instead.
        program += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
        program += _if(_MMAP[column], 3, _SHARED_AND_ANONYMOUS, _SHARED_AND_ANONYMOUS, same=errno.EPERM)
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    filter_ = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(filter_))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0):
        raise NotConfinedError(f"a filter of system calls: {_error()}")


def _refused(confinement: Confinement, landlock: int, column: int) -> Iterator[int]:
    """Yields the numbers of the calls that are refused whatever their arguments are."""
    groups = [_INTO_OTHERS]
    if confinement.confines:
        groups.append(_MACHINE)
    if confinement.read_only:
        groups += [_FILES] if landlock >= 3 else [_FILES, _OLD_FILES]
    if confinement.memory_bytes and not confinement.counted:
        groups.append(_MEMORY)
    return (numbers[column] for group in groups for numbers in group.values() if numbers[column])


def _if(number: int, argument: int, mask: int, value: int, *, same: int = 0, other: int = 0) -> list[_Line]:
    """Returns lines that end a call with an error if the bits of an argument are `value` (`same`) or not (`other`), 0
    for none. They leave the number of the call loaded."""
    low = _ARGUMENTS + 8 * argument
    ends = [_ERRNO | error if error else _ALLOW for error in (same, other)]
    return [
        (_EQUAL, 0, 5, number),
        (_LOAD, 0, 0, low),
        (_AND, 0, 0, mask),
        (_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, ends[0]),
        (_RETURN, 0, 0, ends[1]),
    ]
