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
_OPERATORS: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "/",
    ast.Mod: "%",
}


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
    trees = []
    for text in kernel.grid:
        try:
            trees.append(ast.parse(text, mode="eval").body)
        except SyntaxError:
            raise FormulaError(f"{_place(kernel)}: grid: '{text}' is no expression") from None
    names = {p.name for p in _known(op, kernel) if p.kind == "integer"} | _whole(kernel).keys()
    for text, tree in zip(kernel.grid, trees, strict=True):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in {*names, "min", "max", "ceildiv"}:
                raise FormulaError(f"{_place(kernel)}: grid: '{node.id}' is none of {', '.join(sorted(names))}")
        _in_cpp(tree, kernel, text)
    return trees


def grid_sizes(trees: Sequence[ast.expr], kernel: TritonKernel, values: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the sizes of a grid, from those of a call."""
    names = {**_whole(kernel), **values, "ceildiv": lambda a, b: -(-a // b)}
    whole = ast.fix_missing_locations(_WholeDivision().visit(ast.Expression(ast.Tuple([*trees], ast.Load()))))
    sizes: tuple[int, ...] = eval(compile(whole, "grid", "eval"), names)
    return sizes


class _WholeDivision(ast.NodeTransformer):
    """A division of sizes rounds down, as in a signature."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return ast.BinOp(node.left, ast.FloorDiv(), node.right) if isinstance(node.op, ast.Div) else node


def _whole(kernel: TritonKernel) -> dict[str, int]:
    parameters = inspect.signature(_plain(kernel)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return {name: value for name, value in (defaults | dict(kernel.constants)).items() if type(value) is int}


def _in_cpp(tree: ast.expr, kernel: TritonKernel, text: str) -> str:
    """Returns an expression of sizes in C++."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return f"std::int64_t{{{tree.value}}}"
    if isinstance(tree, ast.Name):
        constants = _whole(kernel)
        return f"std::int64_t{{{constants[tree.id]}}}" if tree.id in constants else tree.id
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _in_cpp(tree.left, kernel, text), _in_cpp(tree.right, kernel, text)
        return f"({left} {_OPERATORS[type(tree.op)]} {right})"
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and len(tree.args) == 2 and not tree.keywords:
        a, b = (_in_cpp(argument, kernel, text) for argument in tree.args)
        if tree.func.id in ("min", "max"):
            return f"std::{tree.func.id}({a}, {b})"
        if tree.func.id == "ceildiv":
            return f"(({a} + {b} - 1) / {b})"
    raise FormulaError(f"{_place(kernel)}: grid: expected + - * / % min max ceildiv of sizes, got '{text}'")


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
    grid = [*(_in_cpp(tree, kernel, "") for tree in trees), "1", "1"][:3]
    named = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
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
