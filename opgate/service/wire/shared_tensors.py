"""The tensors of a request that lie in shared memory. Inputs are read before the request runs, outputs are written when
its answer is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DataType
from opgate.service.core.errors import Kind, ServingError, detached, invalid
from opgate.service.core.request import Request
from opgate.service.core.tensors import from_raw, wrong_size
from opgate.service.shared_memory import CudaRegion, Region, Regions
from opgate.service.wire.content_types import Content

# Copying so many bytes costs as much as reading a byte of JSON. Reading a byte of strings costs as much as so many.
_BYTES_COST, _STRINGS_COST = 16, 16
#: What reading or writing tensors costs if one lies on a GPU: as much as what is done on a thread, for it waits.
GPU_COST = 1 << 40


class Place(NamedTuple):
    """Where a tensor lies, as a client says it: a region, and an offset and a size in bytes."""

    region: str
    offset: int
    size: int


class SharedInput(NamedTuple):
    """An input that lies in shared memory."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    content: Content | None
    place: Place


class Sharing:
    """The tensors in shared memory of all requests with one envelope. The regions are looked up for each request,
    because clients register and unregister them meanwhile."""

    __slots__ = ("cost", "inputs", "outputs")

    def __init__(self, inputs: Sequence[SharedInput], outputs: Mapping[str, Place]) -> None:
        """Raises ServingError (INVALID) if an input has another size than its type and shape."""
        self.inputs = inputs
        self.outputs = outputs
        self.cost = 0  # of reading the inputs, in bytes of JSON that cost the same
        for name, datatype, shape, _, place in inputs:
            if datatype.itemsize and place.size != math.prod(shape) * datatype.itemsize:
                raise wrong_size(place.size, datatype, shape, name)
            self.cost += place.size // _BYTES_COST if datatype.itemsize else place.size * _STRINGS_COST


class SharedTensors:
    """The tensors in shared memory of one request. It holds their regions, so that unregistering one changes nothing
    for the request."""

    __slots__ = ("_inputs", "_limits", "_outputs", "_regions", "cost", "on_gpu", "unread")

    def __init__(self, sharing: Sharing, regions: Regions | None, limits: Limits) -> None:
        """Raises ServingError: UNSUPPORTED if there are no regions, NOT_FOUND for an unknown one, INVALID for a place
        outside of it."""
        if regions is None:
            raise ServingError(Kind.UNSUPPORTED, "shared memory is turned off on this server, send the data itself")
        self._regions = regions
        self._limits = limits
        self._inputs = [(tensor, _region(regions, tensor.place, "input", tensor.name)) for tensor in sharing.inputs]
        self._outputs = {
            name: (place, _region(regions, place, "output", name)) for name, place in sharing.outputs.items()
        }
        used = [region for _, region in (*self._inputs, *self._outputs.values())]
        self.on_gpu = any(isinstance(region, CudaRegion) for region in used)
        self.cost = GPU_COST if self.on_gpu else sharing.cost
        self.unread = bool(self._inputs)

    def read(self, request: Request) -> Request:
        """Adds the inputs to the request and returns it. A thread may call it.

        Raises ServingError: INVALID if a region has become smaller, or as `from_raw` does, OVERLOADED if the inputs of
        all requests are over the limit.
        """
        try:
            self._read(request)
        except ServingError as error:
            request.inputs.clear()
            raise detached(error) from None
        self.unread = False
        return request

    def _read(self, request: Request) -> None:
        for (name, datatype, shape, content, place), region in self._inputs:
            data = self._regions.copy(region, place.offset, place.size)
            array = from_raw(data, 0, place.size, datatype, shape, name, self._limits)
            request.inputs[name] = array if content is None else content.read(array, name)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Writes the data of an output. A thread may call it.

        Raises ServingError (INVALID) if the client's place for it is too small, or its region has become smaller.
        """
        place, region = self._outputs[name]
        if len(data) > place.size:
            raise invalid(f"output '{name}' has {len(data)} bytes, its shared_memory_byte_size is {place.size}")
        region.write(place.offset, data)


def writing_cost(size: int) -> int:
    """Returns what writing so many bytes costs, in bytes of JSON that cost the same."""
    return size // _BYTES_COST


def _region(regions: Regions, place: Place, kind: str, name: str) -> Region:
    region = regions.find(place.region)
    if place.offset + place.size > region.byte_size:
        raise invalid(
            f"{kind} '{name}': expected a place within the {region.byte_size} bytes of shared memory region "
            f"'{region.name}', got shared_memory_offset {place.offset} and shared_memory_byte_size {place.size}"
        )
    return region
