"""The folder of an op and the files in it.

<op>/<op>.cpp, <op>.cu     the kernels, beside their headers. The build generates those of an elementwise op.
<op>/reference.py          `reference(...)`: the op in NumPy
<op>/cases.py              `cases(types)`: the cases; `large(types)`: one large case, for measuring time
<op>/decomposition.py      `decomposition(present)`: the op in standard ONNX operators, if they can express it
<op>/gradient.py           `gradient(ops, ...)`: the gradient in terms of other ops of the table (stated_gradient.py)
<op>/dependencies.cmake    the libraries that the op needs
<op>/README.md
<op>/op.py                 an op in Python, in place of kernels, reference and cases. The build generates its kernels.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.python_ops.embedded import EmbeddedOp
from opgate.ops_build.python_ops.execution import OpFileError
from opgate.ops_build.python_ops.op_file import FILE, OpFile, read_op_file
from opgate.ops_build.stated_gradient import GradientError, check_text

SOURCE_SUFFIXES = (".h", ".cuh", ".inc", ".cpp", ".cu")

_LITERAL = r'"((?:[^"\\\n]|\\.)*)"'
#: The signature of an op, and what names a part of it: in["x"], in.size("n"), attributes.integer("k").
_SIGNATURE = re.compile(rf"OPGATE_OP\(\s*\w+\s*,((?:\s*{_LITERAL})+)")
_NAMED = re.compile(
    r"\b(?:in|out|attributes)(?:\[|\.(?:has|size|all|bind|device_size|integers?|numbers?|texts?|boolean|get|refuse)\()"
    r'"(\w+)"(?=\s*[\]),])'
)

#: How a header states that its op is elementwise or over rows, and what is in the sources that are generated then: a
#: header, a macro and a template.
_FORMULA = re.compile(r"\bOPGATE_(FAST_)?(ELEMENTWISE|ROWS)\(\s*(\w+)")
_GENERATED = {
    "ELEMENTWISE": {
        ".cpp": ("kernel_toolkit/elementwise.h", "OPGATE_CPU_KERNEL", "CpuElementwise"),
        ".cu": ("kernel_toolkit/elementwise.cuh", "OPGATE_CUDA_KERNEL", "CudaElementwise"),
    },
    "ROWS": {
        ".cpp": ("kernel_toolkit/row_formula.h", "OPGATE_CPU_KERNEL", "CpuRows"),
        ".cu": ("kernel_toolkit/row_formula.cuh", "OPGATE_CUDA_KERNEL", "CudaRows"),
    },
}

#: The file that states a gradient in Python.
GRADIENT = "gradient.py"

_BACKWARD = "_backward"
_Types = Mapping[str, "np.dtype[Any]"]


@dataclass(frozen=True)
class OpFolder:
    """The folder of one op. Its Python files are imported on first use. `backward` says that the op is the gradient of
    that in op.py."""

    path: Path
    backward: bool = False

    @cached_property
    def op_file(self) -> OpFile | None:
        """The op.py, if the folder has one. Raises OpFileError."""
        file = self.path / FILE
        if not file.is_file():
            return None
        if self.sources:
            raise OpFileError(f"{file}:1: an op has an op.py or C++ sources, and {self.path} has both")
        return read_op_file(file)

    @property
    def sources(self) -> list[Path]:
        """The C++ and CUDA source files, sorted."""
        return sorted(file for file in self.path.iterdir() if file.suffix in SOURCE_SUFFIXES)

    def generated_sources(self, headers: Path | None = None) -> dict[str, str]:
        """Returns the texts of the sources that the build generates, by name: <op>.cpp and <op>.cu of an elementwise
        op, without one that the folder has, and the headers of an op in Python.

        They include the op's header from the folder `headers`, by default the op's. The compiler's messages place the
        kernel at the line of the header that has OPGATE_ELEMENTWISE or OPGATE_ROWS. Raises OpFileError.
        """
        generated: dict[str, str] = {}
        if self.op_file:
            generated |= self.op_file.sources()
        texts = {file.name: file.read_text(errors="replace") for file in self.sources if file.suffix == ".h"}
        for name, header in (generated | texts).items():
            path = Path(name) if name in generated else (headers or self.path.absolute()) / name
            stem = Path(name).stem if name in generated else self.path.name
            text = _without_comments(header)
            for match in _FORMULA.finditer(text):
                for suffix, (template, macro, kernel) in _GENERATED[match[2]].items():
                    if (self.path / f"{stem}{suffix}").is_file() or f"{stem}{suffix}" in generated:
                        continue
                    fast = "Fast" if match[1] and suffix == ".cu" else ""
                    generated[f"{stem}{suffix}"] = (
                        f'#include "{path}"\n'
                        f'#include "{template}"\n'
                        f'#line {text.count(chr(10), 0, match.start()) + 1} "{path}"\n'
                        f"{macro}({match[3]}, opgate::{fast}{kernel}<opgate_formula_of_{match[3]}>)\n"
                    )
        if (self.path / GRADIENT).is_file() and not self.backward:
            generated[f"{self.path.name}_gradient.cpp"] = self._gradient_source()
        return generated

    def embedded(self) -> list[EmbeddedOp]:
        """Returns what a library needs to run the functions of an op.py that has no formula. Raises OpFileError."""
        return self.op_file.embedded() if self.op_file else []

    def _gradient_source(self) -> str:
        """Returns the source that puts the text of gradient.py into the table. Raises OpFileError."""
        file = self.path / GRADIENT
        texts = [source.read_text(errors="replace") for source in self.sources]
        names = [name for text in texts for name in re.findall(r"OPGATE_OP\(\s*(\w+)", text)]
        op = next((name for name in names if snake_case(name) == self.path.name), None)
        text = file.read_text()
        if op is None:
            raise OpFileError(f"{file}:1: no source in {self.path} states the op, OPGATE_OP({self.path.name}, ...)")
        try:
            check_text(text, file)
        except GradientError as error:
            raise OpFileError(str(error)) from None
        lines = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in text.splitlines(keepends=True))
        return (
            '#include "op_call/table.h"\n\n'
            f'static const opgate::StatedGradient stated __attribute__((init_priority(1000)))("{op}",\n{lines});\n'
        )

    @property
    def source_names(self) -> set[str]:
        """The names of the C++ and CUDA source files, and of the generated ones."""
        return {file.name for file in self.sources} | self.generated_sources().keys()

    @property
    def has_cuda_kernel(self) -> bool:
        """Whether the op has a CUDA source. A build may have left it out."""
        return any(name.endswith(".cu") for name in self.source_names)

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """The function `reference` of reference.py, or that of op.py. Raises FileNotFoundError if there is neither."""
        if self.op_file:
            return self.op_file.backward_reference() if self.backward else self.op_file.reference()
        reference: Callable[..., Any] = self._module("reference").reference
        return reference

    def cases(self, types: _Types) -> list[Case]:
        """Returns the op's cases. `types` maps the type variables to dtypes. Raises FileNotFoundError if there is no
        cases.py."""
        if not self.op_file:
            return list(self._cases.cases(types))
        stated = self._cases.cases(types) if (self.path / "cases.py").is_file() else self.op_file.cases(types)
        return self.op_file.backward_cases(stated) if self.backward else list(stated)

    def large(self, types: _Types) -> Case | None:
        """Returns the large case for measuring time, or None if there is none."""
        if self.op_file and not (self.path / "cases.py").is_file():
            return None if self.backward else self.op_file.large(types)
        large: Callable[[_Types], Case] | None = getattr(self._cases, "large", None)
        return None if large is None else large(types)

    @property
    def has_decomposition(self) -> bool:
        """Whether the folder has a decomposition into standard ONNX operators."""
        return (self.path / "decomposition.py").is_file()

    @cached_property
    def decomposition(self) -> Callable[[frozenset[str]], str] | None:
        """The function `decomposition` of decomposition.py, or None if there is no such file. It gets the names of the
        optional inputs that are present and returns the text of an ONNX function."""
        if not self.has_decomposition:
            return None
        decomposition: Callable[[frozenset[str]], str] = self._module("decomposition").decomposition
        return decomposition

    def unregistered_tags(self) -> list[str]:
        """Returns the tags of ops that the sources state without registering a kernel."""
        return self._tags_without("CPU|CUDA")

    def tags_without_cuda_kernel(self) -> list[str]:
        """Returns the tags of ops that the sources state without registering a CUDA kernel; none if there is no CUDA
        source."""
        return self._tags_without("CUDA") if self.has_cuda_kernel else []

    def unknown_names(self) -> list[str]:
        """Returns where the sources name an input, an output, a size or an attribute that their signatures don't have:
        the file, the line and the name."""
        texts = {file: _without_comments(file.read_text(errors="replace")) for file in self.sources}
        signatures = [match[1] for text in texts.values() for match in _SIGNATURE.finditer(text)]
        known = set(re.findall(r"\w+", " ".join(signatures)))
        return [
            f"{file}:{text.count(chr(10), 0, match.start()) + 1}: '{match[1]}'"
            for file, text in texts.items()
            for match in _NAMED.finditer(text)
            if signatures and match[1] not in known
        ]

    def _tags_without(self, devices: str) -> list[str]:
        texts = [_without_comments(file.read_text(errors="replace")) for file in self.sources]
        text = "\n".join([*texts, *self.generated_sources().values()])
        registered = set(re.findall(rf"OPGATE_(?:{devices})_KERNEL\(\s*(\w+)", text))
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


def _without_comments(source: str) -> str:
    """Replaces comments by as many ends of lines."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL)


def op_folders(folder: Path) -> list[OpFolder]:
    """Returns the op folders in `folder`: the subfolders that have a source or an op.py."""
    subfolders = [OpFolder(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return [subfolder for subfolder in subfolders if subfolder.sources or (subfolder.path / FILE).is_file()]


def folder_of(op: Op, folders: Iterable[Path]) -> OpFolder:
    """Returns the folder of an op, which has the op's name in snake_case; that of an op in Python has the gradient too.
    Raises FileNotFoundError if none of `folders` has it."""
    name = snake_case(op.name)
    tried = [folder / name for folder in folders]
    for path in tried:
        if path.is_dir():
            return OpFolder(path)
        of = path.with_name(name.removesuffix(_BACKWARD))
        if name.endswith(_BACKWARD) and (of / FILE).is_file():
            return OpFolder(of, backward=True)
    raise FileNotFoundError(f"op {op.name} has no folder: expected {' or '.join(map(str, tried))}")


def run_reference(op: Op, reference: Callable[..., Any], case: Case) -> dict[str, Array]:
    """Runs the reference on a case and returns its outputs by name.

    An absent input is passed as None. An attribute that the case doesn't set has its default.
    """
    inputs = {tensor.name: case.inputs.get(tensor.name) for tensor in op.inputs}
    attributes = {attribute.name: attribute.default for attribute in op.attributes} | dict(case.attributes)
    outputs = reference(**inputs, **attributes)
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(arrays) != len(op.outputs):
        raise ValueError(f"expected a tuple of {len(op.outputs)} arrays, one for each output, got {len(arrays)}")
    return {tensor.name: np.asanyarray(array) for tensor, array in zip(op.outputs, arrays, strict=True)}
