"""Runs ops in PyTorch, for verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from opgate.ops_build.adapters.torch.fake import TORCH_DTYPES
from opgate.ops_build.adapters.torch.names import overload
from opgate.ops_build.adapters.torch.registration import load
from opgate.ops_build.building.manifest import why_not_built
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.building.toolchain import NO_GPU
from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.comparison import difference, tolerance
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields torch with the library of a build, on the CPU and on CUDA.

    For a device that can't be used it yields Absent, with the reason.
    """
    library = options.library("torch")
    yield TorchEngine(library)
    if not any("cuda" in op.devices for op in load(library).ops):
        yield Absent("torch", "cuda", why_not_built(options, "cuda"))
    elif torch.version.cuda is None:
        yield Absent("torch", "cuda", "this torch is built without CUDA")
    elif not torch.cuda.is_available():
        yield Absent("torch", "cuda", NO_GPU)
    else:
        yield TorchEngine(library, "cuda")


class TorchEngine:
    """Runs the ops of a library in torch in this process, in eager mode, on one device."""

    name = "torch"

    def __init__(self, library: Path, device: str = "cpu") -> None:
        self.device = device
        self._library = load(library)

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        reason = self._library.left_out.get(op.name)
        return reason if reason is None else f"torch can't have the op: {reason}"

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name, as NumPy arrays; bf16 comes as f32.

        Raises AssertionError if an output doesn't have the shape, dtype and device that the fake kernel gives, or if
        the function that returns the required outputs gives something else. If the
        op refuses the case, it raises an exception of torch.
        """
        call = self._library.overload(op)
        arguments = case_arguments(op, case, types, self.device)
        outputs = _as_tuple(call(**arguments))
        # With static sizes the fake kernel gives numbers, except for sizes that only the kernel knows.
        with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
            fakes = _as_tuple(call(**torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)))
        for tensor, output, fake in zip(op.outputs, outputs, fakes, strict=True):
            sizes = [size if isinstance(size, int) else None for size in fake.shape]
            fits = len(sizes) == output.ndim and all(
                size in (None, actual) for size, actual in zip(sizes, output.shape, strict=True)
            )
            assert fits and fake.dtype == output.dtype and fake.device == output.device, (
                f"output '{tensor.name}': the fake kernel tells {fake.dtype} {list(fake.shape)} on {fake.device}, "
                f"the run gave {output.dtype} {list(output.shape)} on {output.device}"
            )
        for name, function in functions_of(op):
            if function is not op:
                again = _as_tuple(overload(op, name)(**arguments))
                self._compare(name, function, case, types, again, outputs)
        return {tensor.name: to_numpy(output) for tensor, output in zip(op.outputs, outputs, strict=True)}

    @staticmethod
    def _compare(name: str, function: Op, case: Case, types: Mapping[str, str], again: Any, outputs: Any) -> None:
        """Raises AssertionError if another function of the op gave something else."""
        for tensor, output, first in zip(function.outputs, again, outputs[: len(function.outputs)], strict=True):
            allowed = tolerance(case, tensor.name, types.get(tensor.type, tensor.type))
            failure = difference(to_numpy(output), to_numpy(first), allowed)
            assert failure is None, f"output '{tensor.name}' of {name}: {failure}"


class CompiledTorchEngine(TorchEngine):
    """Runs the ops in compiled calls that torch replays from CUDA graphs: `torch.compile(mode="reduce-overhead")`."""

    name = "torch-compile"

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs of the third call. Torch runs the first one, captures the second one and replays the
        third one. Raises as TorchEngine.run does."""
        from torch._dynamo.utils import counters  # importing it takes seconds

        torch.compiler.reset()
        overload = self._library.overload(op)

        def call_op(**keywords: Any) -> Any:
            return overload(**keywords)

        call = torch.compile(call_op, mode="reduce-overhead", fullgraph=True)
        counters["inductor"].clear()
        arguments = case_arguments(op, case, types, self.device)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            outputs = [to_numpy(output) for output in _as_tuple(call(**arguments))]
        # Torch leaves out the graph without a word for an input on the CPU, and where a kernel finds a size.
        captures = not any(tensor.const for tensor in op.inputs) and not any(out.data_dependent for out in op.outputs)
        if self.device == "cuda" and captures:
            assert not counters["inductor"]["cudagraph_skips"], "torch.compile made no CUDA graph of the call"
        return {tensor.name: output for tensor, output in zip(op.outputs, outputs, strict=True)}


def case_arguments(op: Op, case: Case, types: Mapping[str, str], device: str = "cpu") -> dict[str, Any]:
    """Returns the arguments for calling the op with a case. `const` inputs stay on the CPU."""
    arguments: dict[str, Any] = dict(case.attributes)
    for tensor in op.inputs:
        case_input = case.inputs.get(tensor.name)
        if case_input is None:
            continue
        dtype = TORCH_DTYPES[types.get(tensor.type, tensor.type)]
        input_device = "cpu" if tensor.const else device
        if tensor.variadic:
            arguments[tensor.name] = [from_numpy(np.asarray(one), dtype).to(input_device) for one in case_input]
        else:
            arguments[tensor.name] = from_numpy(np.asarray(case_input), dtype).to(input_device)
    return arguments


def from_numpy(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor with a copy of the array. An array of bf16 needs a detour: torch doesn't know NumPy's bf16."""
    packed = np.array(array, order="C")
    if dtype == torch.bfloat16 and packed.dtype.itemsize == 2:
        return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(packed)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Returns the values of a tensor as an array; bf16 becomes f32."""
    host = tensor.detach().cpu()
    array: Array = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    return array


def _as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
