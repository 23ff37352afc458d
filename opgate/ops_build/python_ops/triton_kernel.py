"""A kernel in Triton's language: what its parameters are, how it is compiled ahead of time, and the C++ that
launches it.

Triton compiles without a GPU. The library has a cubin for each architecture, each choice of dtypes, and for tensors
that are aligned to 16 bytes and that are not. kernel_toolkit/triton.h chooses and launches one.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opgate.ops_build.op_table import Input, Op, Output
from opgate.ops_build.python_ops.expression_text import SizeError, in_cpp, names_in, parsed, value_of
from opgate.ops_build.python_ops.formula_source import Stated, check_lines, literal, op_line
from opgate.ops_build.python_ops.python_op import TritonKernel, place_of
from opgate.ops_build.python_ops.traced import FormulaError

#: The architectures that kernels are compiled for: a GPU runs those of its generation, up to its own.
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
_TYPES = {
    "f16": "fp16",
    "bf16": "bf16",
    "f32": "fp32",
    "f64": "fp64",
    "i8": "i8",
    "u8": "u8",
    "i32": "i32",
    "i64": "i64",
    "bool": "i1",
}
_SCALARS = {"integer": "i32", "number": "fp32", "boolean": "i1"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel. `kind` is tensor, integer, number, boolean or constant; `cpp` is its value in C++."""

    name: str
    kind: str
    cpp: str = ""
    type: str = ""  # of a tensor: a dtype or a type variable
    value: Any = None  # of a constant


def parameters_of(op: Op, kernel: TritonKernel) -> list[Parameter]:
    """Returns the parameters of a kernel by their names: tensors, attributes, sizes, <tensor>_size for the number of
    elements of a tensor, and constants. Raises FormulaError."""
    known = {parameter.name: parameter for parameter in _known(op, kernel)}
    found = []
    for name, parameter in inspect.signature(_plain(kernel)).parameters.items():
        if name in kernel.constants:
            found.append(Parameter(name, "constant", value=kernel.constants[name]))
        elif parameter.default is not inspect.Parameter.empty:
            found.append(Parameter(name, "constant", value=parameter.default))
        elif name in known:
            found.append(known[name])
        else:
            raise FormulaError(f"{_place(kernel)}: a kernel of {op.name} takes {', '.join(known)}, and no {name}")
    if not _plain(kernel).__name__.strip("_"):
        raise FormulaError(f"{_place(kernel)}: give the kernel a name: the profilers of GPUs show it")
    return found


def _known(op: Op, kernel: TritonKernel) -> Iterator[Parameter]:
    both: list[Input | Output] = [*op.inputs, *op.outputs]
    for tensor in both:
        if tensor.optional or getattr(tensor, "variadic", False):
            raise FormulaError(
                f"{_place(kernel)}: '{tensor.name}' may be absent or a list, which no kernel in Triton takes"
            )
        if tensor.type == "str" or any(dim["kind"] == "bounded" for dim in tensor.dims):
            raise FormulaError(
                f"{_place(kernel)}: '{tensor.name}' is of strings or of a size that it finds: write CUDA"
            )
    for tensor in op.inputs:
        at = f'in["{tensor.name}"]'
        if tensor.const and not tensor.dims and tensor.type in ("i32", "i64"):
            yield Parameter(tensor.name, "integer", f"integer_scalar({at}).value_or(0)")
        elif not tensor.const:
            yield Parameter(tensor.name, "tensor", f"{at}.raw()", tensor.type)
            yield Parameter(f"{tensor.name}_size", "integer", f"{at}.size()")
    for output in op.outputs:
        yield Parameter(output.name, "tensor", f'out["{output.name}"].raw()', output.type)
        yield Parameter(f"{output.name}_size", "integer", f'out["{output.name}"].size()')
    kinds = {"int": ("integer", "integer"), "float": ("number", "number"), "bool": ("boolean", "boolean")}
    for attribute in op.attributes:
        if attribute.kind in kinds and not attribute.list:
            kind, getter = kinds[attribute.kind]
            yield Parameter(attribute.name, kind, f'attributes.{getter}("{attribute.name}")')
    for name in dict.fromkeys(dim["name"] for t in op.inputs for dim in t.dims if dim["kind"] == "name"):
        yield Parameter(name, "integer", f'in.size("{name}")')


def grid_of(op: Op, kernel: TritonKernel) -> list[ast.expr]:
    """Returns the parsed grid. Raises FormulaError."""
    if not 1 <= len(kernel.grid) <= 3:
        raise FormulaError(f"{_place(kernel)}: expected a grid of one to three sizes, got {len(kernel.grid)}")
    names = {p.name for p in _known(op, kernel) if p.kind == "integer"} | _whole(kernel).keys()
    try:
        trees = [parsed(text) for text in kernel.grid]
    except SizeError as error:
        raise FormulaError(f"{_place(kernel)}: grid: {error}") from None
    for tree in trees:
        if unknown := names_in(tree) - names:
            raise FormulaError(f"{_place(kernel)}: grid: '{min(unknown)}' is none of {', '.join(sorted(names))}")
    return trees


def grid_sizes(trees: Sequence[ast.expr], kernel: TritonKernel, values: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the sizes of a grid, from those of a call."""
    return tuple(value_of(tree, {**values, **_whole(kernel)}) for tree in trees)


def _whole(kernel: TritonKernel) -> dict[str, int]:
    parameters = inspect.signature(_plain(kernel)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return {name: value for name, value in (defaults | dict(kernel.constants)).items() if type(value) is int}


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel: `types` are the dtypes of the type variables."""

    architecture: int
    types: Mapping[str, str]
    aligned: bool
    name: str
    shared: int
    warps: int
    image: bytes


def compiled(op: Op, kernel: TritonKernel) -> list[Cubin]:
    """Compiles a kernel for each architecture, each choice of dtypes, and both alignments. Raises FormulaError."""
    parameters = parameters_of(op, kernel)
    constants = {(i,): p.value for i, p in enumerate(parameters) if p.kind == "constant"}
    divisible = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(parameters) if p.kind == "tensor"}
    cubins = []
    with _quiet_triton() as triton:
        for types in op.type_choices():
            signature = {p.name: _type(p, types) for p in parameters}
            for aligned in (True, False):
                source = triton.compiler.ASTSource(kernel.function, signature, constants, divisible if aligned else {})
                for architecture in ARCHITECTURES:
                    try:
                        done = _compile(triton, source, architecture, kernel)
                    except Exception as error:  # whatever Triton's compiler raises
                        text = f"{type(error).__name__}: {error}"
                        raise FormulaError(f"{_place(kernel)}: Triton can't compile it for {types}: {text}") from error
                    facts, image = done.metadata, done.asm["cubin"]
                    if facts.global_scratch_size or facts.num_ctas != 1:
                        raise FormulaError(f"{_place(kernel)}: expected a kernel without clusters and global scratch")
                    cubins.append(Cubin(architecture, types, aligned, facts.name, facts.shared, facts.num_warps, image))
    return cubins


def _compile(triton: Any, source: Any, architecture: int, kernel: TritonKernel) -> Any:
    target = triton.backends.compiler.GPUTarget("cuda", architecture, 32)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": True}
    return triton.compile(source, target=target, options=options)


def _type(parameter: Parameter, types: Mapping[str, str]) -> str:
    if parameter.kind == "tensor":
        return "*" + _TYPES[types.get(parameter.type, parameter.type)]
    return _SCALARS.get(parameter.kind, "constexpr")


@contextlib.contextmanager
def _quiet_triton() -> Iterator[Any]:
    """Gives the module triton, which compiles without the lines and the paths of sources: a library is the same
    wherever it is built."""
    names = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler

        yield triton
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def source(op: Op, stated: Stated, kernel: TritonKernel, header: str | None) -> str:
    """Returns the CUDA source that launches a kernel. `header` is the header that states the op, if there is one.
    Raises FormulaError."""
    parameters = [parameter for parameter in parameters_of(op, kernel) if parameter.kind != "constant"]
    trees = grid_of(op, kernel)
    grid = [*(in_cpp(tree, _whole(kernel)) for tree in trees), "1", "1"][:3]
    named = {name for tree in trees for name in names_in(tree)}
    sizes = [p for p in _known(op, kernel) if p.kind == "integer" and p.name in named]
    types = [f"in.type({variable})" for variable in range(len(op.type_variables))]
    space = f"opgate::ops::of_{op.name}_on_cuda"
    lines = [
        '#include "kernel_toolkit/formula.h"',
        '#include "kernel_toolkit/op.h"',
        '#include "kernel_toolkit/triton.h"',
        f'#include "{header}"' if header else op_line(stated),
        "",
        f"namespace {space} {{",
        "namespace {",
        *_cubin_lines(compiled(op, kernel)),
        "triton::Launcher& launcher() {",
        "  static auto& launcher = *new triton::Launcher(kCubins);  // never freed: the device has its kernels",
        "  return launcher;",
        "}",
        "}  // namespace",
        "",
        "struct Kernel {",
        *check_lines(stated),
        "  template <typename...>",
        "  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {",
        *(f"    const std::int64_t {size.name} = {size.cpp};" for size in sizes),
        "    triton::Arguments arguments;",
        *(f"    {_argument(parameter)}" for parameter in parameters),
        f"    const std::array<DType, {len(types)}> dtypes{{{', '.join(types)}}};",
        f"    return launcher().launch(context, dtypes, {{{', '.join(grid)}}}, arguments);",
        "  }",
        "};",
        f"}}  // namespace {space}",
        "",
        f"OPGATE_CUDA_KERNEL({op.name}, {space}::Kernel)",
    ]
    return "\n".join(lines) + "\n"


def _cubin_lines(cubins: Sequence[Cubin]) -> Iterator[str]:
    """Yields the table of the cubins. Those that are equal share an image."""
    images = list(dict.fromkeys(cubin.image for cubin in cubins))
    for number, image in enumerate(images):
        yield f"alignas(16) const unsigned char kImage{number}[] = {{{','.join(map(str, image))}}};"
    yield "const triton::Cubin kCubins[] = {"
    for cubin in cubins:
        dtypes = ", ".join(f"DType::{'boolean' if dtype == 'bool' else dtype}" for dtype in cubin.types.values())
        facts = f"{cubin.architecture}, {{{dtypes}}}, {str(cubin.aligned).lower()}, {literal(cubin.name)}"
        yield f"    {{{facts}, {cubin.shared}, {cubin.warps}, kImage{images.index(cubin.image)}}},"
    yield "};"


def _argument(parameter: Parameter) -> str:
    if parameter.kind == "integer":
        return f'OPGATE_RETURN_IF_ERROR(arguments.integer("{parameter.name}", {parameter.cpp}));'
    return f"arguments.{parameter.kind}({parameter.cpp});"


def _plain(kernel: TritonKernel) -> Callable[..., Any]:
    """Returns the function below @triton.jit."""
    function: Callable[..., Any] = kernel.function.fn
    return function


def _place(kernel: TritonKernel) -> str:
    return place_of(_plain(kernel))
