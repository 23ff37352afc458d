"""The ops as functions of TVM-FFI, which take the tensors of any library that has DLPack.

    import numpy, opgate.tvm_ffi

    ops = opgate.tvm_ffi.load("my_ops/build/libmy_ops_onnxruntime.so")
    ops.clamp_add(numpy.ones(3, numpy.float32), numpy.ones(3, numpy.float32), high=1)

Tensors go by position or by name, attributes by name. A function returns new tensors: PyTorch's if it got one of
PyTorch's, otherwise a tvm_ffi.Tensor, which numpy.from_dlpack and others read. Outputs that follow the inputs are
written to. `ops.clamp_add.function` is the tvm_ffi.Function, for those who register functions: it takes the inputs, the
outputs if they are given, and the attributes, all by position. docs/tvm-ffi.md tells the rest.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

try:
    import tvm_ffi as _tvm_ffi
except ImportError as error:
    raise ImportError("opgate.tvm_ffi needs TVM-FFI: pip install apache-tvm-ffi") from error

from opgate.ops_build.adapters.numpy.library import THREADS as _THREADS
from opgate.ops_build.adapters.numpy.library import load as _load
from opgate.ops_build.op_functions import documentation, functions_of, signature_of
from opgate.ops_build.op_table import Op

__all__ = ["load"]

_NOTES = (
    "Raises TypeError for a wrong dtype or argument, ValueError for a wrong shape, or a value that the op can't work",
    "with, and RuntimeError if the kernel fails.",
)


class _OpFunction:
    """One function of an op."""

    def __init__(self, module: Any, op: Op, name: str, returned: Op) -> None:
        wanted = {output.name for output in returned.outputs}
        bits = sum(1 << index for index, output in enumerate(op.outputs) if output.name in wanted)
        self.function = module.opgate_function(op.name, bits)
        self._label = f"{op.domain}::{op.name}"
        self._inputs = [tensor.name for tensor in op.inputs]
        self._attributes = [attribute.name for attribute in op.attributes]
        self._outputs = len(op.outputs)
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__
        self.__doc__ = documentation(returned, _NOTES)
        self.__signature__ = signature_of(returned, _tvm_ffi.Tensor)

    def __call__(self, *tensors: Any, **arguments: Any) -> Any:
        most = len(self._inputs) + self._outputs
        if len(tensors) > most:
            raise TypeError(
                f"{self._label}: expected at most {most} tensors, got {len(tensors)}; attributes go by name"
            )
        named = [arguments.pop(name, None) for name in self._inputs[len(tensors) :]]
        attributes = [arguments.pop(name, None) for name in self._attributes]
        if arguments:
            name, known = next(iter(arguments)), ", ".join([*self._inputs, *self._attributes])
            if name in self._inputs:
                raise TypeError(f"{self._label}: input '{name}' is given twice")
            raise TypeError(f"{self._label} has no argument '{name}': expected {known}")
        returned = self.function(*tensors, *named, *attributes)
        return tuple(returned) if isinstance(returned, _tvm_ffi.Array) else returned

    def __repr__(self) -> str:
        return f"<function {self.__name__} of {self._label}>"


def load(path: Path | str) -> SimpleNamespace:
    """Returns the functions of an op library, a file lib<domain>_<engine>.so that `opgate build` wrote.

    The library of any engine that has kernels for the CPU will do. One with CUDA kernels takes tensors on GPUs too, on
    the stream that TVM-FFI has for them. Ops with tensors of strings are left out, because
    DLPack has none. Raises ImportError if it can't be loaded.
    """
    library = _load(path)
    module = _tvm_ffi.load_module(str(library.path))
    module.opgate_set_num_threads(_THREADS.count)
    return SimpleNamespace(
        **{
            name: _OpFunction(module, op, name, returned)
            for op in library.ops
            if "str" not in op.tensor_types
            for name, returned in functions_of(op)
        }
    )
