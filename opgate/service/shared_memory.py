"""Shared memory: the regions that clients have registered, and copies from and to them.

A region of system shared memory is part of a file in /dev/shm, which its client created and may change at any time. The
gateway never maps the file, because a mapping of a file that shrinks ends the process with SIGBUS. It copies with reads
and writes, which then come to less. A region of CUDA shared memory is memory of a GPU, see `cuda_memory`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import weakref
from abc import ABC, abstractmethod
from typing import TypeVar

import numpy as np

from opgate.service import cuda_memory
from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.core.request import Array
from opgate.service.core.tensors import SMALL
from opgate.service.rpc.connection import Budget

_FOLDER = "/dev/shm"
# What a name may begin with that isn't a client's: semaphores, and the regions of Triton's backend in Python.
_NOT_OF_CLIENTS = ("sem.", "triton_python_backend_shm_region_", "opgate_triton_")
# Without O_NONBLOCK a pipe, or a lease that a client has on its file, would hold the event loop.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# Characters of a region's name.
_MOST_CHARACTERS = 256

AnyRegion = TypeVar("AnyRegion", bound="Region")


class Region(ABC):
    """`byte_size` bytes of memory that a client shares, under the name that it gave them.

    Nobody has checked the places of reads and writes against the size: the caller does.
    """

    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self.byte_size = byte_size

    @abstractmethod
    def read(self, offset: int, into: memoryview) -> None:
        """Fills memory with the bytes from `offset` on. Raises ServingError."""

    @abstractmethod
    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes from `offset` on. Raises ServingError."""


class SystemRegion(Region):
    """A part of a file in /dev/shm. `offset` and `byte_size` are in bytes.

    The file stays open as long as the region or a request that uses it is there.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int, descriptor: int) -> None:
        super().__init__(name, byte_size)
        self.key = key
        self.offset = offset
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, offset: int, into: memoryview) -> None:
        """Fills memory with the bytes from `offset` on. Other threads run meanwhile.

        Raises ServingError: INVALID if the file has become smaller, UNAVAILABLE if it can't be read.
        """
        filled = 0
        while filled < len(into):
            try:
                count = os.preadv(self._descriptor, [into[filled:]], self.offset + offset + filled)
            except OSError as error:
                raise self._failed("read", error) from None
            if not count:
                raise self._shrunk()
            filled += count

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes from `offset` on. Other threads run meanwhile.

        Raises ServingError: INVALID if the file has become smaller, UNAVAILABLE if it can't be written, as when there
        is no memory left for it.
        """
        written = 0
        while written < len(data):
            at = self.offset + offset + written
            # A write behind the end would make the client's file larger.
            if os.fstat(self._descriptor).st_size < at + len(data) - written:
                raise self._shrunk()
            try:
                written += os.pwritev(self._descriptor, [memoryview(data)[written:]], at)
            except OSError as error:
                raise self._failed("written", error) from None

    def _failed(self, what: str, error: OSError) -> ServingError:
        text = f"shared memory region '{self.name}' can't be {what}: {error.strerror}"
        return ServingError(Kind.UNAVAILABLE, text)

    def _shrunk(self) -> ServingError:
        return invalid(f"shared memory region '{self.name}' has become smaller since it was registered")


class CudaRegion(Region):
    """Memory of a GPU, under the name that a client gave it.

    It stays open as long as the region or a request that uses it is there. `device_id` is the number of the GPU.
    """

    def __init__(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Opens the memory that a handle of cudaIpcGetMemHandle stands for.

        Raises ServingError: INVALID if it stands for no memory of another process or for less, UNSUPPORTED without a
        driver. No error has the handle.
        """
        super().__init__(name, byte_size)
        if len(handle) != cuda_memory.HANDLE_BYTES:
            expected = f"expected a raw_handle of {cuda_memory.HANDLE_BYTES} bytes"
            raise invalid(f"CUDA shared memory region '{name}': {expected}, got {len(handle)}")
        self.device_id = device_id
        self._gpu = cuda_memory.gpu(device_id)
        self._address = self._gpu.open(name, handle)
        weakref.finalize(self, self._gpu.close, self._address)
        there = self._gpu.size(self._address)
        if byte_size > there:
            raise invalid(
                f"CUDA shared memory region '{name}': expected a byte_size within the {there} bytes of the memory, "
                f"got {byte_size}"
            )

    def read(self, offset: int, into: memoryview) -> None:
        """Fills memory with the bytes from `offset` on. Other threads run meanwhile. Raises ServingError
        (UNAVAILABLE) if the driver can't."""
        self._copied("read", self._gpu.read(self._address + offset, into))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes from `offset` on. Other threads run meanwhile. Raises ServingError (UNAVAILABLE) if the driver
        can't."""
        self._copied("written", self._gpu.write(self._address + offset, data))

    def _copied(self, what: str, error: str) -> None:
        if error:
            raise ServingError(Kind.UNAVAILABLE, f"CUDA shared memory region '{self.name}' can't be {what}: {error}")


class Regions:
    """The regions by name. The event loop's thread registers and unregisters, any thread may find and copy."""

    def __init__(self, most: int, budget: Budget) -> None:
        """`most` bounds the regions, with those that are unregistered but in use. `budget` counts the bytes that are
        copied out of regions and not freed yet."""
        self.order = asyncio.Lock()  # regions come and go in the order in which clients ask
        self._most = most
        self._budget = budget
        self._regions: dict[str, Region] = {}
        self._open: weakref.WeakSet[Region] = weakref.WeakSet()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Opens a region for requests: `byte_size` bytes at `offset` of the file that `key` names, as shm_open does.

        Raises ServingError: INVALID for a bad name or size, or a file that can't be opened, ALREADY_EXISTS, and
        OVERLOADED over a limit. No error has the key, and all files that can't be opened get the same one.
        """
        self._check(name, offset, byte_size)
        descriptor = _open(name, key)
        size = os.fstat(descriptor).st_size
        if offset + byte_size > size:
            os.close(descriptor)
            raise invalid(
                f"shared memory region '{name}': expected offset and byte_size within the {size} bytes of the shared "
                f"memory, got offset {offset} and byte_size {byte_size}"
            )
        self._add(SystemRegion(name, key, offset, byte_size, descriptor))

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Opens a region for requests: the first `byte_size` bytes of the memory that a handle of cudaIpcGetMemHandle
        stands for, on the GPU of that number. The first one on a GPU takes up to seconds, see `cuda_memory.gpu`.

        Raises ServingError: INVALID for a bad name, size, GPU or handle, ALREADY_EXISTS, UNSUPPORTED without a driver,
        UNAVAILABLE if it can't use the GPU, and OVERLOADED over a limit. No error has the handle.
        """
        self._check(name, 0, byte_size)
        self._add(CudaRegion(name, handle, device_id, byte_size))

    def _check(self, name: str, offset: int, byte_size: int) -> None:
        if not name or len(name) > _MOST_CHARACTERS:
            got = f"{len(name)} characters" if name else "none"
            raise invalid(
                f"expected the name of a shared memory region of 1 to {_MOST_CHARACTERS} characters, got {got}"
            )
        if name in self._regions:
            raise ServingError(Kind.ALREADY_EXISTS, f"shared memory region '{name}' is registered already")
        if byte_size < 1 or offset < 0:
            raise invalid(
                f"shared memory region '{name}': expected an offset of 0 or more and a byte_size of 1 or more, got "
                f"offset {offset} and byte_size {byte_size}"
            )
        if len(self._open) >= self._most:
            raise ServingError(
                Kind.OVERLOADED,
                f"{len(self._open)} shared memory regions are registered or in use, which is the limit "
                "(OPGATE_MAX_SHARED_MEMORY_REGIONS)",
            )

    def _add(self, region: Region) -> None:
        self._regions[region.name] = region
        self._open.add(region)

    def unregister(self, name: str, kind: type[Region]) -> None:
        """Forgets a region of a kind, or all of them if the name is empty. Requests that use it go on. Does nothing if
        there is no such region."""
        for region in list(self._regions.values()):
            if isinstance(region, kind) and name in ("", region.name):
                del self._regions[region.name]

    def status(self, name: str, kind: type[AnyRegion]) -> list[AnyRegion]:
        """Returns a region of a kind, or all of them if the name is empty. Raises ServingError (NOT_FOUND)."""
        found = [region for region in self._regions.values() if isinstance(region, kind) and name in ("", region.name)]
        if name and not found:
            raise self._unknown(name)
        return found

    def find(self, name: str) -> Region:
        """Returns a region. Raises ServingError (NOT_FOUND)."""
        region = self._regions.get(name)
        if region is None:
            raise self._unknown(name)
        return region

    def _unknown(self, name: str) -> ServingError:
        return ServingError(Kind.NOT_FOUND, f"there is no shared memory region '{name[:_MOST_CHARACTERS]}'")

    def copy(self, region: Region, offset: int, size: int) -> Array:
        """Returns a copy of `size` bytes of a region as UINT8.

        Raises ServingError: TOO_LARGE if there is never room for it, OVERLOADED if there is none now, and as
        `Region.read` does.
        """
        budget = self._budget
        if size > budget.most:
            text = f"an input in shared memory has {size} bytes, the limit is {budget.most}"
            raise ServingError(Kind.TOO_LARGE, f"{text} (OPGATE_MAX_HELD_BYTES)")
        has_room = budget.hold(size, size <= SMALL)
        try:
            if not has_room:
                text = f"requests and answers hold {budget.used - size} bytes, an input in shared memory has {size}"
                raise ServingError(Kind.OVERLOADED, f"{text}, the limit is {budget.limit} (OPGATE_MAX_HELD_BYTES)")
            memory: Array = np.empty(size, np.uint8)
            weakref.finalize(memory, budget.let_go, size)
        except BaseException:
            budget.let_go(size)
            raise
        region.read(offset, memoryview(memory))  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers
        return memory


def _refusal(name: str) -> ServingError:
    """Returns the same error whatever is wrong, so that a client learns nothing of files."""
    return invalid(
        f"shared memory region '{name}' can't be opened: its key must name shared memory of this machine which the "
        "server may read and write"
    )


def _open(name: str, key: str) -> int:
    """Returns the descriptor of the file that a key names. Raises ServingError (INVALID, UNAVAILABLE)."""
    file = key.removeprefix("/")
    if file in ("", ".", "..") or "/" in file or file.startswith(_NOT_OF_CLIENTS):
        raise _refusal(name)
    try:
        descriptor = os.open(f"{_FOLDER}/{file}", _FLAGS)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise ServingError(Kind.UNAVAILABLE, "the server can't open more files") from None
        raise _refusal(name) from None
    except ValueError:  # no file has such a name
        raise _refusal(name) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refusal(name)
    return descriptor
