"""The folder of an op: all that is looked for in it.

<op>/<op>.cpp, <op>.cu     the kernels, and headers
<op>/reference.py          `reference(...)`: the op in NumPy
<op>/cases.py              `cases(types)`: what it is tried on; `large(types)`: one case that time is taken at
<op>/decomposition.py      `decomposition(present)`: the op in standard ONNX operators, where they can say it
<op>/dependencies.cmake    the libraries that it needs
<op>/README.md
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ops_build.case import Array, Case
from ops_build.table import Op, snake_case

SOURCE_SUFFIXES = (".h", ".cuh", ".inc", ".cpp", ".cu")

_Types = Mapping[str, "np.dtype[Any]"]


@dataclass(frozen=True)
class OpFolder:
    """One op's folder. What it says in Python is loaded when it is asked for."""

    path: Path

    @property
    def sources(self) -> list[Path]:
        """The C++ and CUDA sources."""
        return sorted(file for file in self.path.iterdir() if file.suffix in SOURCE_SUFFIXES)

    @property
    def has_cuda_kernel(self) -> bool:
        """Whether there is a source for CUDA, whatever was built of it."""
        return any(file.suffix == ".cu" for file in self.sources)

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """The op in NumPy. Raises FileNotFoundError."""
        reference: Callable[..., Any] = self._module("reference").reference
        return reference

    def cases(self, types: _Types) -> list[Case]:
        """What the op is tried on, for a choice of dtypes by type variable. Raises FileNotFoundError."""
        return list(self._cases.cases(types))

    def large(self, types: _Types) -> Case | None:
        """One case of a size that time is taken at; None where the folder has none."""
        large: Callable[[_Types], Case] | None = getattr(self._cases, "large", None)
        return None if large is None else large(types)

    @property
    def has_decomposition(self) -> bool:
        """Whether standard ONNX operators express the op."""
        return (self.path / "decomposition.py").is_file()

    @cached_property
    def decomposition(self) -> Callable[[frozenset[str]], str] | None:
        """The text of the function that stands in for the op, by the optional inputs that are present."""
        if not self.has_decomposition:
            return None
        decomposition: Callable[[frozenset[str]], str] = self._module("decomposition").decomposition
        return decomposition

    def unregistered_tags(self) -> list[str]:
        """The ops that the sources state and register no kernel of."""
        text = "\n".join(file.read_text(errors="replace") for file in self.sources)
        registered = set(re.findall(r"OPGATE_(?:CPU|CUDA)_KERNEL\(\s*(\w+)", text))
        return [tag for tag in re.findall(r"OPGATE_OP\(\s*(\w+)", text) if tag not in registered]

    @cached_property
    def _cases(self) -> ModuleType:
        return self._module("cases")

    def _module(self, stem: str) -> ModuleType:
        file = self.path / f"{stem}.py"
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: an op's folder has its kernel, reference.py and cases.py")
        name = f"opgate_op_{abs(hash(str(file.resolve())))}_{stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def op_folders(folder: Path) -> list[OpFolder]:
    """The ops of a folder: its subfolders that have a source."""
    found = [OpFolder(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return [each for each in found if each.sources]


def folder_of(op: Op, folders: Iterable[Path]) -> OpFolder:
    """The folder of an op, which is called like the op in snake_case. Raises FileNotFoundError."""
    tried = [folder / snake_case(op.name) for folder in folders]
    for path in tried:
        if path.is_dir():
            return OpFolder(path)
    raise FileNotFoundError(f"op {op.name} has no folder: expected {' or '.join(map(str, tried))}")


def run_reference(op: Op, reference: Callable[..., Any], case: Case) -> dict[str, Array]:
    """The reference's outputs by name: absent inputs are None, attributes have their defaults."""
    inputs = {tensor.name: case.inputs.get(tensor.name) for tensor in op.inputs}
    attributes = {attribute.name: attribute.default for attribute in op.attributes} | dict(case.attributes)
    outputs = reference(**inputs, **attributes)
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(arrays) != len(op.outputs):
        raise ValueError(f"expected a tuple of {len(op.outputs)} arrays, one for each output, got {len(arrays)}")
    return {tensor.name: np.asarray(array) for tensor, array in zip(op.outputs, arrays, strict=True)}
