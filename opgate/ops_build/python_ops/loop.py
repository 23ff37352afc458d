"""A kernel that is a loop in Python: how Numba and LLVM compile it ahead of time, and the C++ that calls it.

Numba types the function and makes LLVM's code of it. LLVM optimizes that for each level of x86-64 and writes assembly,
which stands in the generated C++. So the library needs neither Python nor Numba, and the kernel of each level is chosen
as those in C++ are. Only the native function is taken: what Numba adds for callers in Python goes.
"""

from __future__ import annotations

import contextlib
import inspect
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opgate.ops_build.op_table import Expr, Input, Op, Output
from opgate.ops_build.python_ops.expression_text import SizeError, in_cpp, names_in, parsed
from opgate.ops_build.python_ops.formula_source import Stated, check_lines, op_line
from opgate.ops_build.python_ops.python_op import LoopKernel, place_of
from opgate.ops_build.python_ops.traced import FormulaError

#: LLVM's names of the levels, with the macro that says that C++ is compiled for one.
_LEVELS = (("x86-64-v4", "__AVX512BW__"), ("x86-64-v3", "__AVX2__"), ("x86-64", ""))
_NUMBA = {
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "bool": "boolean",
}
#: What the code may call: functions of the C library, which every process has.
_LIBRARY = re.compile(
    r"llvm\..*|mem(cpy|set|move)|"
    r"(sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|acosh|atanh|exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|"
    r"hypot|floor|ceil|trunc|rint|round|fmod|fabs|copysign|erf|erfc|tgamma|lgamma|ldexp|frexp|nextafter|fmin|fmax|fma)f?"
)


@dataclass(frozen=True, slots=True)
class _Value:
    """A parameter of the loop. `cpp` are the arguments that it becomes, `build` makes it of them in the wrapper."""

    name: str
    types: Sequence[str]  # Numba's, of the arguments
    cpp: Sequence[str]
    build: str


def _values(op: Op, kernel: LoopKernel, dtypes: Mapping[str, str]) -> list[_Value]:
    """Returns the parameters behind begin and end, by their names. Raises FormulaError."""
    known = {value.name: value for value in _known(op, kernel, dtypes)}
    parameters = [*inspect.signature(kernel.function).parameters]
    if parameters[:2] != ["begin", "end"]:
        raise FormulaError(f"{_place(kernel)}: a loop takes begin and end first, the rows that it computes")
    unknown = [name for name in parameters[2:] if name not in known]
    if unknown:
        raise FormulaError(f"{_place(kernel)}: a loop of {op.name} takes {', '.join(known)}, and no {unknown[0]}")
    return [known[name] for name in parameters[2:]]


def _known(op: Op, kernel: LoopKernel, dtypes: Mapping[str, str]) -> Iterator[_Value]:
    sizes = kernel_sizes(op)
    both: list[Input | Output] = [*op.inputs, *op.outputs]
    for tensor in both:
        if getattr(tensor, "variadic", False):
            raise FormulaError(f"{_place(kernel)}: '{tensor.name}' is a list of tensors, which no loop takes")
        dtype = dtypes.get(tensor.type, tensor.type)
        if dtype not in _NUMBA:
            raise FormulaError(f"{_place(kernel)}: a loop has {', '.join(_NUMBA)}, and '{tensor.name}' may be {dtype}")
        if isinstance(tensor, Input) and tensor.const and not tensor.dims:
            yield _Value(tensor.name, ["int64"], [f'integer_scalar(in["{tensor.name}"]).value_or(0)'], tensor.name)
            continue
        rank = len(tensor.dims)  # dims of any number are one
        dims = [f"{tensor.name}_{axis}" for axis in range(rank)]
        shape = f"({', '.join(dims)}{',' * (rank == 1)})"
        array = f"carray({tensor.name}, {shape})" if rank else f"carray({tensor.name}, (1,))"
        arguments = [f"at_{tensor.name}.data", *(f"at_{tensor.name}.dims[{axis}]" for axis in range(rank))]
        yield _Value(tensor.name, [f"*{_NUMBA[dtype]}", *["int64"] * rank], arguments, array)
    kinds = {"int": ("int64", "integer"), "float": ("float64", "number"), "bool": ("int64", "boolean")}
    for attribute in op.attributes:
        if attribute.kind in kinds and not attribute.list:
            numba, getter = kinds[attribute.kind]
            text = f"{attribute.name} != 0" if attribute.kind == "bool" else attribute.name
            yield _Value(attribute.name, [numba], [f'attributes.{getter}("{attribute.name}")'], text)
    for name in sizes_of(op):
        yield _Value(name, ["int64"], [f'in.size("{name}")'], name)
    for name in sizes:
        yield _Value(name, ["*int64"], [f"&found_{name}"], f"carray({name}, (1,))")


def sizes_of(op: Op) -> list[str]:
    """Returns the names of the sizes that inputs state."""
    return list(dict.fromkeys(dim["name"] for t in op.inputs for dim in t.dims if dim["kind"] == "name"))


def kernel_sizes(op: Op) -> dict[str, Expr]:
    """Returns the sizes that only the kernel knows, with their bounds."""
    return {dim["name"]: dim["bound"] for t in op.outputs for dim in t.dims if dim["kind"] == "bounded"}


def source(op: Op, stated: Stated, kernel: LoopKernel) -> str:
    """Returns the C++ of an op whose kernel is a loop. Raises FormulaError."""
    try:
        rows = parsed(kernel.rows)
        unknown = names_in(rows) - {*sizes_of(op), *(a.name for a in op.attributes if a.kind == "int" and not a.list)}
        unknown -= {f"{name}_size" for name in [*(t.name for t in op.inputs), *(t.name for t in op.outputs)]}
        if unknown:
            raise SizeError(f"'{min(unknown)}' is no size of {op.name}")
        text = in_cpp(rows, {})
    except SizeError as error:
        raise FormulaError(f"{_place(kernel)}: rows: {error}") from None
    choices = [dict(choice) for choice in op.type_choices()]
    space = f"opgate::ops::of_{op.name}"
    lines = [
        '#include "kernel_toolkit/formula.h"',
        '#include "kernel_toolkit/loop.h"',
        '#include "kernel_toolkit/op.h"',
        "",
        op_line(stated),
        "",
        *_assembly(op, kernel, choices),
    ]
    for choice in choices:
        values = _values(op, kernel, choice)
        types_in_cpp = ["void**", "void**", "std::int64_t", "std::int64_t"]
        types_in_cpp += [_cpp_type(each) for value in values for each in value.types]
        lines.append(f'extern "C" int {_symbol(op, choice)}({", ".join(types_in_cpp)});')
    lines += [
        "",
        f"namespace {space} {{",
        "struct Kernel {",
        *check_lines(stated),
        *_operator(op, kernel, choices, text),
    ]
    lines += ["};", f"}}  // namespace {space}", "", f"OPGATE_CPU_KERNEL({op.name}, {space}::Kernel)"]
    return "\n".join(lines) + "\n"


def _operator(op: Op, kernel: LoopKernel, choices: Sequence[Mapping[str, str]], rows: str) -> Iterator[str]:
    """Yields the function of the kernel, which calls the loop of the call's dtypes for the rows of each thread."""
    yield "  template <typename...>"
    yield "  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {"
    yield from _size_lines(op)
    yield from _tensor_lines(op)
    yield "    std::atomic<int> failed = 0;"
    yield f"    context.parallel_for({rows}, {kernel.grain}, [&](std::int64_t begin, std::int64_t end) {{"
    yield "      void *result = nullptr, *raised = nullptr;"
    yield "      int status = 0;"
    for choice in choices:
        tests = [f"in.type({i}) == DType::{_enum(dtype)}" for i, dtype in enumerate(choice.values())]
        arguments = [each for value in _values(op, kernel, choice) for each in _cast(value)]
        call = f"{_symbol(op, choice)}({', '.join(['&result', '&raised', 'begin', 'end', *arguments])})"
        yield f"      if ({' && '.join(tests) or 'true'}) status = {call};"
    yield "      if (status) failed = status;"
    yield "    });"
    yield '    if (failed) return Status::internal("the loop has raised an exception");'
    for name in kernel_sizes(op):
        yield f'    OPGATE_RETURN_IF_ERROR(out.bind("{name}", found_{name}));'
    for output in op.outputs:
        if _found_size(op, output):
            yield f'    loop::copy(at_{output.name}, out, "{output.name}");'
    yield "    return {};"
    yield "  }"


def _size_lines(op: Op) -> Iterator[str]:
    integers = {name: f'in.size("{name}")' for name in sizes_of(op)}
    integers |= {a.name: f'attributes.integer("{a.name}")' for a in op.attributes if a.kind == "int" and not a.list}
    for name, text in integers.items():
        yield f"    [[maybe_unused]] const std::int64_t {name} = {text};"
    for name, bound in kernel_sizes(op).items():
        yield f"    std::int64_t found_{name} = 0;"
        yield f"    const std::int64_t most_{name} = {_bound(bound)};"


def _tensor_lines(op: Op) -> Iterator[str]:
    both: list[Input | Output] = [*op.inputs, *op.outputs]
    for tensor in both:
        name, rank = tensor.name, len(tensor.dims)
        if isinstance(tensor, Input) and tensor.const and not tensor.dims:
            continue
        if isinstance(tensor, Output) and (held := _found_size(op, tensor)):
            dims = [f"most_{held}", *(_bound(dim["expr"]) for dim in tensor.dims[1:])]
            made = f"loop::temporary<{rank}>(context, {{{', '.join(dims)}}})"
        else:
            side = ("input", "in") if isinstance(tensor, Input) else ("output", "out")
            made = f'loop::{side[0]}<{rank}>({side[1]}, "{name}", {_loose(tensor)})'
        yield f"    const auto at_{name} = {made};"
        yield f"    [[maybe_unused]] const std::int64_t {name}_size = at_{name}.size();"


def _found_size(op: Op, output: Output) -> str:
    """Returns the size of an output's first dim if only the kernel knows it, else ""."""
    first = output.dims[0] if output.dims else {"kind": "ellipsis"}
    name = first["name"] if first["kind"] == "bounded" else first.get("expr")
    return name if isinstance(name, str) and name in kernel_sizes(op) else ""


def _cast(value: _Value) -> Iterator[str]:
    for numba, cpp in zip(value.types, value.cpp, strict=True):
        yield f"const_cast<void*>(static_cast<const void*>({cpp}))" if numba.startswith("*") else cpp


def _cpp_type(numba: str) -> str:
    return "void*" if numba.startswith("*") else {"int64": "std::int64_t", "float64": "double"}[numba]


def _loose(tensor: Input | Output) -> int:
    """Returns the place of the dims of any number, -1 if there are none."""
    return next((i for i, dim in enumerate(tensor.dims) if dim["kind"] in ("ellipsis", "any")), -1)


def _bound(expr: Expr) -> str:
    if isinstance(expr, int):
        return f"std::int64_t{{{expr}}}"
    if isinstance(expr, str):
        return expr
    a, b = _bound(expr[1]), _bound(expr[2])
    if expr[0] in ("min", "max"):
        return f"std::{expr[0]}({a}, {b})"
    return f"(({a} + {b} - 1) / {b})" if expr[0] == "ceildiv" else f"({a} {expr[0]} {b})"


def _enum(dtype: str) -> str:
    return "boolean" if dtype == "bool" else dtype


def _symbol(op: Op, choice: Mapping[str, str]) -> str:
    return "_".join(["opgate_loop", op.name, *choice.values()])


def _assembly(op: Op, kernel: LoopKernel, choices: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields the assembly of the loops for each level, as C++ has it."""
    codes = [(_symbol(op, choice), _llvm(op, kernel, choice)) for choice in choices]
    levels = _LEVELS if platform.machine() == "x86_64" else (("", ""),)
    for number, (level, macro) in enumerate(levels):
        if macro:
            yield f"#{'el' * (number > 0)}if defined {macro}"
        elif number:
            yield "#else"
        for symbol, code in codes:
            yield f'asm(R"assembly({_compiled(code, symbol, level, kernel)})assembly");'
    if len(levels) > 1:
        yield "#endif"


def _llvm(op: Op, kernel: LoopKernel, choice: Mapping[str, str]) -> str:
    """Returns LLVM's code of a loop for a choice of dtypes, not yet vectorized. Raises FormulaError."""
    try:
        import numba
    except ImportError:
        raise FormulaError(f"{_place(kernel)}: loops are compiled by Numba: pip install numba") from None
    values = _values(op, kernel, choice)
    names = [name for value in values for name in _argument_names(value)]
    given = ", ".join(["begin", "end", *(value.build for value in values)])
    text = f"def wrapper(begin, end, {', '.join(names)}):\n    body({given})\n"
    fast = kernel.fastmath if isinstance(kernel.fastmath, bool) else {*kernel.fastmath}
    body = numba.njit(error_model="numpy", fastmath=fast, boundscheck=False)(kernel.function)
    scope: dict[str, Any] = {"body": body, "carray": numba.carray}
    exec(text, scope)
    arguments = [_numba_type(numba, each) for value in values for each in value.types]
    signature = numba.types.void(numba.types.int64, numba.types.int64, *arguments)
    try:
        with _plain_loops(numba.core.codegen):
            made = numba.cfunc(signature, nopython=True, error_model="numpy")(scope["wrapper"])
    except (numba.core.errors.NumbaError, ValueError) as error:
        raise FormulaError(f"{_place(kernel)}: Numba can't compile the loop: {_first_lines(error)}") from None
    code: str = made.inspect_llvm()
    return code


@contextlib.contextmanager
def _plain_loops(codegen: Any) -> Iterator[None]:
    """Keeps Numba from unrolling and vectorizing loops: that is for each level to decide."""
    import llvmlite.binding as llvm

    before = codegen.create_pass_builder

    def create(machine: Any, opt: int = 2, **_: Any) -> Any:
        options = llvm.create_pipeline_tuning_options(speed_level=opt)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        return llvm.create_pass_builder(machine, options)

    codegen.create_pass_builder = create
    try:
        yield
    finally:
        codegen.create_pass_builder = before


def _argument_names(value: _Value) -> list[str]:
    return [value.name, *(f"{value.name}_{axis}" for axis in range(len(value.types) - 1))]


def _numba_type(numba: Any, name: str) -> Any:
    return numba.types.CPointer(getattr(numba.types, name[1:])) if name.startswith("*") else getattr(numba.types, name)


def _first_lines(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[:6])


def _compiled(code: str, symbol: str, level: str, kernel: LoopKernel) -> str:
    """Returns the assembly of the native function in LLVM's code. Raises FormulaError."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(code)
    for function in module.functions:
        if function.is_declaration:
            continue
        if re.match(r"_ZN\w*7wrapper", function.name):
            function.name = symbol
        else:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=level, opt=3, reloc="pic", codemodel="small")
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    foreign = [f.name for f in module.functions if f.is_declaration and not _LIBRARY.fullmatch(f.name)]
    if foreign:
        raise FormulaError(
            f"{_place(kernel)}: the loop needs Numba's runtime ({foreign[0]}): make no array in it, raise nothing, and "
            "call no function of Python"
        )
    text = re.sub(r"\.L(?=\w)", f".L{symbol}_", machine.emit_assembly(module))
    return re.sub(r"^\s*\.(file|ident|section\s+\"\.note).*\n", "", text, flags=re.MULTILINE) + "\n.text\n"


def _place(kernel: LoopKernel) -> str:
    return place_of(kernel.function)
