"""Memory of a GPU that another process has allocated, and copies from and to it.

The functions are those of the driver (libcuda.so.1), which every machine with an NVIDIA GPU has.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import numpy as np

from opgate.service.core.errors import Kind, ServingError, invalid

#: Bytes of a handle of CUDA, cudaIpcMemHandle_t.
HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


@cache
def driver() -> ctypes.CDLL | None:
    """Returns the driver's library, None if it is not on this machine."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def gpu(device_id: int) -> Gpu:
    """Returns a GPU. The first call for it takes up to seconds.

    Raises ServingError: UNSUPPORTED without a driver, INVALID if there is no such GPU, UNAVAILABLE if it can't be used.
    """
    library = driver()
    if library is None:
        text = "CUDA shared memory is not supported by this server: there is no libcuda.so.1 of an NVIDIA driver"
        raise ServingError(Kind.UNSUPPORTED, text)
    if device_id not in _GPUS:
        with _STARTING:
            if device_id not in _GPUS:
                _GPUS[device_id] = Gpu(library, device_id)
    return _GPUS[device_id]


_GPUS: dict[int, Gpu] = {}
_STARTING = threading.Lock()


class Gpu:
    """A GPU, and the driver's functions for shared memory. Any thread may use it.

    It keeps the primary context, which all libraries of the process use.
    """

    def __init__(self, library: ctypes.CDLL, device_id: int) -> None:
        """`device_id` is its number among those that CUDA_VISIBLE_DEVICES lets the process see. See `gpu`."""
        self._library = library
        count, device, self._context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._check(library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)))
        if not 0 <= device_id < count.value:
            raise invalid(f"device_id: expected the number of one of {count.value} GPUs, from 0 on, got {device_id}")
        self._check(
            library.cuDeviceGet(ctypes.byref(device), device_id)
            or library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
        )

    def open(self, name: str, handle: bytes) -> int:
        """Returns the address of another process's memory. Raises ServingError (INVALID)."""
        address = ctypes.c_uint64()
        code = self._enter() or self._library.cuIpcOpenMemHandle_v2(
            ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS)
        )
        if code:
            raise invalid(
                f"CUDA shared memory region '{name}' can't be opened: its raw_handle must be of memory that another "
                f"process of this machine has allocated on that GPU ({self._text(code)})"
            )
        return address.value

    def size(self, address: int) -> int:
        """Returns how many bytes there are from an address of opened memory on."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        code = self._enter() or self._library.cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
        )
        self._check(code)
        return base.value + size.value - address

    def close(self, address: int) -> None:
        """Closes opened memory."""
        _ = self._enter() or self._library.cuIpcCloseMemHandle(ctypes.c_uint64(address))

    def read(self, address: int, into: memoryview) -> str:
        """Copies from the GPU, and waits for it. Returns what went wrong, or ""."""
        return self._text(
            self._enter()
            or self._library.cuMemcpyDtoH_v2(_pointer(into), ctypes.c_uint64(address), ctypes.c_size_t(into.nbytes))
        )

    def write(self, address: int, data: bytes | memoryview) -> str:
        """Copies to the GPU, and waits for it. Returns what went wrong, or ""."""
        size = memoryview(data).nbytes
        return self._text(
            self._enter()
            or self._library.cuMemcpyHtoD_v2(ctypes.c_uint64(address), _pointer(data), ctypes.c_size_t(size))
            or self._library.cuStreamSynchronize(None)  # a copy to a GPU may go on after its call
        )

    def _enter(self) -> int:
        code: int = self._library.cuCtxSetCurrent(self._context)  # of this thread
        return code

    def _check(self, code: int) -> None:
        if code:
            raise ServingError(Kind.UNAVAILABLE, f"the NVIDIA driver can't use the GPU: {self._text(code)}")

    def _text(self, code: int) -> str:
        if not code:
            return ""
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        return f"error {code}" if name.value is None else name.value.decode()


def _pointer(data: bytes | memoryview) -> Any:
    return ctypes.c_void_p(np.frombuffer(data, np.uint8).ctypes.data if len(data) else None)
