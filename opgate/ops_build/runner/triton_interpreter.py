"""Runs kernels in Triton's language on the CPU, in Triton's interpreter, for verification."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op
from opgate.ops_build.python_ops.op_file import OpFile
from opgate.ops_build.python_ops.triton_kernel import Parameter, grid_of, grid_sizes, parameters_of

NAME = "triton interpreter"


@dataclass(frozen=True, slots=True)
class TritonInterpreter:
    """The engine for the kernels of ops in some folders."""

    folders: tuple[Path, ...]
    name: str = NAME

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine. The interpreter is chosen by the environment, before Triton is imported."""
        os.environ["TRITON_INTERPRET"] = "1"
        try:
            import torch
            import triton  # noqa: F401
        except ImportError as error:
            yield Absent(self.name, "cuda", f"the Python package {error.name} is not installed")
            return
        yield _Interpreter(self.folders, torch)


class _Interpreter:
    name, device = NAME, "cuda"

    def __init__(self, folders: tuple[Path, ...], torch: Any) -> None:
        self._folders, self._torch = folders, torch

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        return None if self._op_file(op) else "the op has no kernel in Triton"

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        file = self._op_file(op)
        assert file is not None and file.python.triton_kernel is not None
        kernel = file.python.triton_kernel
        expected = run_reference(op, folder_of(op, self._folders).reference, case)  # says the shapes
        arrays = {tensor.name: np.ascontiguousarray(case.inputs[tensor.name]) for tensor in op.inputs}
        dtypes = {tensor.type: arrays[tensor.name].dtype for tensor in op.inputs}
        outputs = {
            output.name: np.full(expected[output.name].shape, 77).astype(dtypes.get(output.type, output.type))
            for output in op.outputs
        }
        tensors = {name: self._tensor(array) for name, array in {**arrays, **outputs}.items()}
        attributes = {a.name: case.attributes.get(a.name, a.default) for a in op.attributes}
        sizes = _sizes(op, {**arrays, **outputs})
        values = {**attributes, **sizes}
        grid = grid_sizes(grid_of(op, kernel), kernel, {n: v for n, v in values.items() if type(v) is int})
        if min(grid) > 0:
            kernel.function[grid](
                **{p.name: self._argument(p, tensors, values) for p in parameters_of(op, kernel)},
                num_warps=kernel.warps,
            )
        return {output.name: self._array(tensors[output.name], outputs[output.name].dtype) for output in op.outputs}

    def _op_file(self, op: Op) -> OpFile | None:
        folder = folder_of(op, self._folders)
        return (
            folder.op_file if folder.op_file and folder.op_file.python.triton_kernel and not folder.backward else None
        )

    def _argument(self, parameter: Parameter, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        if parameter.kind == "constant":
            return parameter.value
        return tensors[parameter.name] if parameter.kind == "tensor" else values[parameter.name]

    def _tensor(self, array: Array) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return self._torch.from_numpy(array.view(np.uint16).copy()).view(self._torch.bfloat16)
        return self._torch.from_numpy(array.copy())

    def _array(self, tensor: Any, dtype: np.dtype[Any]) -> Array:
        if dtype == ml_dtypes.bfloat16:
            words: Array = tensor.view(self._torch.uint16).numpy()
            return words.view(ml_dtypes.bfloat16)
        array: Array = tensor.numpy()
        return array


def _sizes(op: Op, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Returns the sizes that a kernel may take, by their names."""
    sizes = {f"{name}_size": array.size for name, array in arrays.items()}
    for tensor in op.inputs:
        array = arrays[tensor.name]
        if tensor.const and not tensor.dims:
            sizes[tensor.name] = int(array)
        loose = next((i for i, dim in enumerate(tensor.dims) if dim["kind"] in ("ellipsis", "any")), len(tensor.dims))
        for place, dim in enumerate(tensor.dims):
            if dim["kind"] == "name":
                sizes[dim["name"]] = array.shape[place if place < loose else place - len(tensor.dims)]
    return sizes
