"""What somebody states of a module's inputs, such as x:f32[N,3,H,W], and tensors that fit it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from opgate.onnx_tools.model_inputs import OPEN_SIZE, InputError, random_array
from opgate.ops_build.dtypes import DTYPES

#: The size of the first axis in the trace if it is open. Exporters take a size of 1 for a constant.
FIRST_SIZE = 2
_NAMES = {getattr(torch, dtype.torch): name for name, dtype in DTYPES.items() if dtype.torch}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input: its name, dtype, and a number or the name of an open dim for each axis."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]

    def shape(self, sizes: Mapping[str, int]) -> list[int]:
        """Returns the shape with the sizes of open dims."""
        return [sizes[dim] if isinstance(dim, str) else dim for dim in self.dims]

    def open_axes(self) -> dict[int, str]:
        """Returns the names of the open dims by axis."""
        return {axis: dim for axis, dim in enumerate(self.dims) if isinstance(dim, str)}


def parse_inputs(texts: Iterable[str], dynamic: Sequence[str]) -> list[InputSpec]:
    """Reads texts of the form NAME:f32[1,3,H,W]. `dynamic` are the names of dims that stay open. Raises InputError."""
    specs = []
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_][\w.]*):(\w+)\[([^\]]*)\]", text)
        if found is None or found[2] not in DTYPES or DTYPES[found[2]].torch is None:
            dtypes = ", ".join(name for name, dtype in DTYPES.items() if dtype.torch)
            raise InputError(
                f"expected NAME:DTYPE[SIZES], such as x:f32[1,3,H,W], with a dtype of {dtypes}; got '{text}'"
            )
        dims: list[int | str] = []
        for part in found[3].split(",") if found[3].strip() else []:
            dim = part.strip()
            if dim.isdecimal():
                dims.append(int(dim))
            elif dim in dynamic:
                dims.append(dim)
            elif dim.isidentifier():
                raise InputError(
                    f"input '{found[1]}': dim '{dim}' is not in --dynamic: add it there, or write a number"
                )
            else:
                raise InputError(f"input '{found[1]}': expected a number or a name for a dim, got '{dim}'")
        specs.append(InputSpec(found[1], found[2], tuple(dims)))
    if len({spec.name for spec in specs}) < len(specs):
        raise InputError("two inputs have the same name")
    used = {dim for spec in specs for dim in spec.dims}
    for dim in dynamic:
        if dim not in used:
            raise InputError(f"--dynamic: no input has a dim '{dim}'")
    return specs


def specs_of_examples(examples: Sequence[torch.Tensor], names: Sequence[str]) -> list[InputSpec]:
    """Returns what examples state: their dtypes and shapes, without open dims. Raises InputError."""
    return [
        InputSpec(name, _dtype(name, tensor), tuple(tensor.shape)) for name, tensor in zip(names, examples, strict=True)
    ]


def _dtype(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _NAMES:
        raise InputError(f"input '{name}' has dtype {tensor.dtype}: expected {', '.join(sorted(_NAMES.values()))}")
    return _NAMES[tensor.dtype]


def bind(specs: Sequence[InputSpec], examples: Sequence[torch.Tensor], sizes: dict[str, int]) -> None:
    """Checks that examples fit their specs, and puts the sizes of open dims into `sizes`. Raises InputError."""
    if len(specs) != len(examples):
        raise InputError(f"the factory gives {len(examples)} example inputs, --input states {len(specs)}")
    for spec, tensor in zip(specs, examples, strict=True):
        if _dtype(spec.name, tensor) != spec.dtype:
            raise InputError(f"input '{spec.name}': expected {spec.dtype}, the example has {_dtype(spec.name, tensor)}")
        fits = tensor.dim() == len(spec.dims) and all(
            size == (sizes.setdefault(dim, size) if isinstance(dim, str) else dim)
            for dim, size in zip(spec.dims, tensor.shape, strict=True)
        )
        if not fits:
            stated = ", ".join(f"{dim}={sizes[dim]}" if dim in sizes else str(dim) for dim in spec.dims)
            raise InputError(
                f"input '{spec.name}': expected the shape [{stated}], the example has {list(tensor.shape)}"
            )


def sizes_for(specs: Sequence[InputSpec], stated: Mapping[str, int]) -> dict[str, int]:
    """Returns a size for each open dim: the stated one, or a small one."""
    sizes = dict(stated)
    for spec in specs:
        for axis, dim in spec.open_axes().items():
            sizes.setdefault(dim, OPEN_SIZE if axis else FIRST_SIZE)
    return sizes


def random_tensors(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> tuple[torch.Tensor, ...]:
    """Returns random tensors: normally distributed floats, integers that are 0 or 1."""
    rng = np.random.default_rng(seed)
    tensors = []
    for spec in specs:
        wide = "f32" if spec.dtype == "bf16" else spec.dtype
        tensor = torch.from_numpy(np.array(random_array(spec.shape(sizes), wide, rng)))
        tensors.append(tensor.to(getattr(torch, DTYPES[spec.dtype].torch or "float32")))
    return tuple(tensors)
