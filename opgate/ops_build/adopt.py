"""Writes the folder of an op whose kernel is a function of TVM-FFI in a library that somebody else has compiled.

op_call/foreign_function.cpp is the other half: it calls the function.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from opgate.ops_build.op_table import Input, Op, Output, snake_case
from opgate.ops_build.python_ops.parser import parser_library
from opgate.ops_build.scaffold import ScaffoldError, empty_folder, numpy_function, op_in, written

_PREFIX = "__tvm_ffi_"
_FUNCTION = re.compile(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)")
_RUNTIME = re.compile(rb"\0(TVMFFI\w+|libtvm_ffi\.so)(?=\0)")


def adopt(library: Path, signature: str, folder: Path, symbol: str | None = None) -> list[Path]:
    """Writes an op.py, a dependencies.cmake and a copy of `library` into `folder`, whose name is the op's in
    snake_case, and returns their paths. If the library needs that of TVM-FFI, the folder gets a copy of it too.

    `symbol` is the name of the function without its prefix; by default the op's name, as the signature writes it or in
    snake_case, or that of the only function. Raises ScaffoldError, SignatureError, ParserError, and OSError if a file
    can't be written.
    """
    content = library.read_bytes()
    if not content.startswith(b"\x7fELF"):
        raise ScaffoldError(f"{library} is no shared library: expected an ELF file such as lib{folder.name}.so")
    folder = empty_folder(folder)
    op = op_in(folder, signature, parser_library())
    _check(op)
    function = _chosen(op, symbol, sorted({name.decode() for name in _FUNCTION.findall(content)}), library)
    copies = {re.sub(r"[^\w.+-]", "_", library.name): library}
    if _RUNTIME.search(content):
        runtime = _runtime(library)
        copies[runtime.name] = runtime
    places = " ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{name}" for name in copies)
    texts = numpy_function(op, "python/adopted.py") | {
        "dependencies.cmake": f"opgate_adopt(adopted_{folder.name} {_PREFIX}{function} {places})\n"
    }
    paths = written(folder, texts)
    return paths + [Path(shutil.copy(source, folder / name)) for name, source in copies.items()]


def _check(op: Op) -> None:
    """Raises ScaffoldError for what a function of TVM-FFI can't get."""
    tensors: tuple[Input | Output, ...] = (*op.inputs, *op.outputs)
    for tensor in tensors:
        if tensor.type == "str":
            raise ScaffoldError(f"'{tensor.name}' is a tensor of strings, which DLPack doesn't have")
        if isinstance(tensor, Input) and tensor.variadic:
            raise ScaffoldError(f"input '{tensor.name}' is a list of tensors: name each")
    for output in op.outputs:
        if output.optional:
            raise ScaffoldError(f"output '{output.name}' is optional: the function writes every output")
        if any(dim["kind"] == "bounded" for dim in output.dims):
            raise ScaffoldError(
                f"output '{output.name}' has a size that only the kernel knows: the function gets outputs of known dims"
            )
    for attribute in op.attributes:
        if attribute.list:
            raise ScaffoldError(f"attribute '{attribute.name}' is a list: expected int, float, bool, str or a choice")


def _chosen(op: Op, symbol: str | None, functions: list[str], library: Path) -> str:
    """Returns the name of the function. Raises ScaffoldError if the library doesn't have it, or if it isn't clear."""
    if not functions:
        raise ScaffoldError(f"{library} has no function of TVM-FFI: expected a symbol such as {_PREFIX}{op.name}")
    listed = ", ".join(functions)
    if symbol is not None:
        symbol = symbol.removeprefix(_PREFIX)
        if symbol not in functions:
            raise ScaffoldError(f"{library} has no function {_PREFIX}{symbol}: it has {listed}")
        return symbol
    for name in (op.name, snake_case(op.name)):
        if name in functions:
            return name
    if len(functions) > 1:
        raise ScaffoldError(f"{library} has several functions: name one of them with --symbol: {listed}")
    return functions[0]


def _runtime(library: Path) -> Path:
    """Returns the library of TVM-FFI. Raises ScaffoldError if it isn't installed."""
    try:
        from tvm_ffi.libinfo import find_libtvm_ffi
    except ImportError:
        raise ScaffoldError(f"{library} needs the library of TVM-FFI: pip install apache-tvm-ffi") from None
    return Path(find_libtvm_ffi())
