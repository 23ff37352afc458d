"""A model that tries what a worker may not do: when it is imported, in initialize and in execute, in threads that it
makes, in threads of libraries, and in children. It answers with what happened, as JSON."""

import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

LIBC = ctypes.CDLL(None, use_errno=True)
HERE = pathlib.Path(__file__).parent
#: The processes above: the keeper, and the gateway.
KEEPER = os.getppid()


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


GATEWAY = parent_of(KEEPER)


def system_call(number, *arguments):
    if LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read_memory(process):
    """Reads eight bytes of the process' first mapping."""
    begin = int(pathlib.Path(f"/proc/{process}/maps").read_text().split("-", 1)[0], 16)
    with open(f"/proc/{process}/mem", "rb") as memory:
        memory.seek(begin)
        memory.read(8)


def open_memory(process):
    os.close(os.open(f"/proc/{process}/mem", os.O_RDWR))


def copy_memory(process):
    own, other = ctypes.create_string_buffer(8), ctypes.c_void_p(0x10000)

    class Piece(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    here, there = Piece(ctypes.addressof(own), 8), Piece(other, 8)
    if LIBC.process_vm_readv(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0:
        code = ctypes.get_errno()
        if code != 14:  # the address may be none: then the call was allowed
            raise OSError(code, os.strerror(code))


def take_descriptor(process):
    taken = os.pidfd_open(process)
    try:
        system_call(438, taken, 1, 0)
    finally:
        os.close(taken)


def look_at_descriptors(process):
    for name in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(FileNotFoundError):
            os.readlink(f"/proc/{process}/fd/{name}")


def shared_anonymous(size):
    memory = mmap.mmap(-1, size)
    for at in range(0, size, 4096):
        memory[at] = 1


def in_memfd(size):
    file = os.memfd_create("more")
    try:
        for _ in range(size >> 20):
            os.write(file, bytes(1 << 20))
    finally:
        os.close(file)


def in_children(size):
    """Three children, each with a third of it, at the same time."""
    children, (full, has_it), (go_on, done) = [], os.pipe(), os.pipe()
    for _ in range(3):
        pid = os.fork()
        if not pid:
            try:
                memory = bytearray(size // 3)
                memory[::4096] = b"x" * len(memory[::4096])
            except MemoryError:
                os._exit(1)
            os.write(has_it, b"x")
            os.close(done)
            os.read(go_on, 1)  # until the parent closes its end
            os._exit(0)
        children.append(pid)
    for _ in children:
        if select.select([full], [], [], 10)[0]:
            os.read(full, 1)
    for end in (full, has_it, go_on, done):
        os.close(end)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise MemoryError(codes)


def change_open_file(path):
    with open(path) as file:
        os.fchmod(file.fileno(), 0o777)


def attribute(path):
    os.setxattr(path, "user.mine", b"1")


def written_and_removed(path):
    pathlib.Path(path).write_text("x")
    os.unlink(path)


SIZE = 600 << 20
WRITES = {
    "make a file": lambda: (HERE / "made").write_text("x"),
    "write a file": lambda: (HERE / "victim").write_text("x"),
    "append": lambda: (HERE / "victim").open("a").write("x"),
    "truncate": lambda: os.truncate(HERE / "victim", 0),
    "remove": lambda: os.unlink(HERE / "victim2"),
    "rename": lambda: os.rename(HERE / "victim", HERE / "renamed"),
    "rename beyond": lambda: os.rename(HERE / "victim", HERE.parent / "renamed"),
    "link": lambda: os.link(HERE / "victim", HERE / "linked"),
    "symlink": lambda: os.symlink("x", HERE / "symbolic"),
    "mkdir": lambda: os.mkdir(HERE / "folder"),
    "rmdir": lambda: os.rmdir(HERE / "empty"),
    "pipe": lambda: os.mkfifo(HERE / "fifo"),
    "socket file": lambda: socket.socket(socket.AF_UNIX).bind(str(HERE / "socket")),
    "device": lambda: os.mknod(HERE / "device", 0o600 | 0o020000, os.makedev(1, 3)),
    "chmod": lambda: os.chmod(HERE / "victim", 0o777),
    "fchmod": lambda: change_open_file(HERE / "victim"),
    "chown": lambda: os.chown(HERE / "victim", os.getuid(), os.getgid()),
    "utime": lambda: os.utime(HERE / "victim", (1, 1)),
    "attribute": lambda: attribute(HERE / "victim"),
    "shared memory": lambda: written_and_removed("/dev/shm/opgate-hostile"),
    "temporary": lambda: written_and_removed("/tmp/opgate-hostile"),
}
NETWORK = {
    "internet": socket.socket,
    "internet 6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "io_uring": lambda: system_call(425, 4, 0),
    "abstract": lambda: socket.socket(socket.AF_UNIX).connect("\0opgate-test-abstract"),
}
INTO_THE_GATEWAY = {
    f"{name} of the {whose}": (lambda do=do, process=process: do(process))
    for whose, process in (("gateway", GATEWAY), ("keeper", KEEPER))
    for name, do in {
        "open the memory": open_memory,
        "read the memory": read_memory,
        "copy the memory": copy_memory,
        "take a descriptor": take_descriptor,
        "look at the descriptors": look_at_descriptors,
        "read the environment": lambda process: pathlib.Path(f"/proc/{process}/environ").read_bytes(),
        "attach": lambda process: system_call(101, 16, process, 0, 0),
        "signal": lambda process: os.kill(process, 0),
        "stop": lambda process: os.kill(process, signal.SIGURG),
        "limit": lambda process: resource.prlimit(process, resource.RLIMIT_NOFILE),
    }.items()
}
MEMORY = {
    "allocate": lambda: bytearray(SIZE),
    "allocate in steps": lambda: [bytearray(1 << 24) for _ in range(SIZE >> 24)],
    "numpy": lambda: np.ones(SIZE >> 3),
    "shared anonymous": lambda: shared_anonymous(SIZE),
    "memfd": lambda: in_memfd(SIZE),
    "children": lambda: in_children(SIZE),
}
MACHINE = {
    "mount": lambda: system_call(165, 0, 0, 0, 0, 0),
    "unshare": lambda: os.unshare(0x10000000) if hasattr(os, "unshare") else system_call(272, 0x10000000),
    "chroot": lambda: os.chroot("/"),
    "bpf": lambda: system_call(321, 0, 0, 0),
    "set user": lambda: os.setuid(12345),
    "set the time": lambda: system_call(164, 0, 0),
    "trace itself": lambda: system_call(101, 0, 0, 0, 0),
}
GROUPS = {"writes": WRITES, "network": NETWORK, "gateway": INTO_THE_GATEWAY, "memory": MEMORY, "machine": MACHINE}


def attempts(groups, only=()):
    found = {}
    for group in groups:
        for name, action in GROUPS[group].items():
            if only and name not in only:
                continue
            try:
                action()
                found[name] = "done"
            except (OSError, MemoryError, AttributeError) as error:
                found[name] = type(error).__name__
    return found


def in_thread(work):
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0]


def in_child(work):
    """Runs it in a child by fork, which has one thread."""
    read, write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        return type(error).__name__
    if not pid:
        with contextlib.suppress(BaseException):
            os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)


# The thread that listens to the gateway runs this when it is woken: it was there before the model.
ELSEWHERE = {}
AT_IMPORT = attempts(["writes", "network", "gateway"])


def threads():
    """What the kernel says of each thread."""
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found.append([fields["Name"], fields["NoNewPrivs"], fields["Seccomp"], fields["CapEff"]])
    return found


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(found)


class TritonPythonModel:
    def initialize(self, args):
        self.initialized = attempts(["writes", "network", "gateway"])

    def is_ready(self):
        """Is called on a thread of the worker's own."""
        ELSEWHERE.update(attempts(["writes", "network", "gateway"]))
        return True

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
        if what == "import":
            found = AT_IMPORT
        elif what == "initialize":
            found = self.initialized
        elif what == "elsewhere":
            found = ELSEWHERE
        elif what == "sleep":
            time.sleep(1)
            found = []
        elif what == "threads":
            found = threads()
        elif what == "environment":
            found = dict(os.environ)
        elif what == "descriptors":
            found = descriptors()
        elif what == "spawn":
            # Processes that leave the group and the session of the worker.
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            found = [child.pid]
            read, write = os.pipe()
            if not os.fork():
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.write(write, struct.pack("i", os.getpid()))
                os.execv("/bin/sleep", ["sleep", "300"])
            found.append(struct.unpack("i", os.read(read, 4))[0])
        elif what == "crash":
            os.abort()
        else:
            where, groups, *only = what.split(":")
            work = {"here": lambda work: work(), "thread": in_thread, "child": in_child}[where]
            found = work(lambda: attempts(groups.split(","), only))
        answer = np.array([json.dumps(found).encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", answer)])
