"""Builds the library of an op that is defined in a notebook's cell, in a script or in an op.py."""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import linecache
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType

from opgate import folders
from opgate.folders import locked
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import ENGINES, BuildError, out_of_tree
from opgate.ops_build.building.toolchain import gpus
from opgate.ops_build.op_table import snake_case
from opgate.ops_build.python_ops.execution import OpFileError, executed, tag_of
from opgate.ops_build.python_ops.op_file import FILE
from opgate.ops_build.python_ops.python_op import PythonOp

_ASKING = ("library", "save")


def library(op: PythonOp, engine: str, domain: str | None) -> Path:
    """Returns the file of a library, see PythonOp.library."""
    of = engine.removesuffix("_cuda")
    if of not in ENGINES:
        raise ValueError(f"expected one of {', '.join(ENGINES)} or onnxruntime_cuda, got {engine!r}")
    name, text = _name(op), source(op)
    domain = domain or name
    if not domain.isidentifier():
        raise ValueError(f"expected a domain of letters, digits and _, got {domain!r}")
    place = folders.builds() / "notebooks" / domain
    with locked(place / name):  # the folder of the ops is called like the domain, as in messages of `opgate build`
        own = place / name / domain
        file = _written(own / name / FILE, text)
        try:
            options = replace(out_of_tree(own, domain=domain), engines=(of,), arch="native")
            cuda = "auto" if engine.endswith("_cuda") or (engine == "torch" and gpus()) else ""
            built = build(replace(options, cuda=cuda), lambda line: None)
        except BuildError as error:
            raise BuildError(str(error).replace(str(file), _file(op))) from None
        if engine not in built.libraries:
            raise BuildError(f"the build left out {engine}: {'; '.join(built.left_out.values())}")
        content = built.libraries[engine].read_bytes()
        # A process that has loaded a file gets the same library for this path again, whatever the file has become.
        target = place / hashlib.sha256(content).hexdigest()[:16] / built.libraries[engine].name
        if not target.is_file():
            _written(target, content)
        return target


def save(op: PythonOp, folder: Path) -> Path:
    """Writes FOLDER/<op>/op.py and returns it."""
    return _written(folder / _name(op) / FILE, source(op)).resolve()


def source(op: PythonOp) -> bytes:
    """Returns the text that defines an op, down to the first statement that asks for its library. Raises OpFileError if
    it doesn't stand alone."""
    file = _file(op)
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    if not text:
        raise OpFileError(f"{op.place}: the source of {op.__name__} is not known: it is a file's or a notebook cell's")
    for function in op.parts:
        if (other := function.__code__.co_filename) != file:
            place = f"{other}:{function.__code__.co_firstlineno}"
            raise OpFileError(f"{place}: another cell or file defines {op.__name__}: put all of an op into one")
    if op.c_function:
        raise OpFileError(f"{op.place}: a kernel in C has a source of its own: write op.py beside it in a folder")
    kept = _above_library(text, op.__name__)
    _check_alone(kept, file, _name(op))
    return kept.encode()


def _above_library(text: str, name: str) -> str:
    """Returns the statements above the first one that asks for the library of the op."""
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKING:
                of = node.func.value
                if isinstance(of, ast.Name) and of.id == name:
                    return "".join(text.splitlines(keepends=True)[: statement.lineno - 1])
    return text


def _check_alone(text: str, file: str, name: str) -> None:
    """Raises OpFileError if the text can't be executed by itself, or if a function in it uses a name that it lacks."""
    place = Path(file).parent / name / FILE
    try:
        op = executed(place, text.encode())
    except OpFileError as error:
        hint = ": it stands alone: import and define in it what the op uses" * ("NameError" in str(error))
        raise OpFileError(str(error).replace(str(place), file) + hint) from None
    known = op.function.__globals__.keys() | vars(builtins).keys()
    for used, line in _globals_of(compile(text, file, "exec")):
        if used not in known:
            raise OpFileError(
                f"{file}:{line}: there is no name '{used}' here: the cell or file of an op stands alone, so import or "
                "define it there"
            )


def _globals_of(code: CodeType) -> Iterator[tuple[str, int]]:
    """Yields the global names that the functions in a code load, each with its line."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = (instruction.positions.lineno if instruction.positions else None) or line
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval, line
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _name(op: PythonOp) -> str:
    return snake_case(tag_of(op))


def _file(op: PythonOp) -> str:
    return str(op.function.__code__.co_filename)


def _written(file: Path, content: bytes) -> Path:
    """Writes a file in one step, unless it has this content."""
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.new")
        temporary.write_bytes(content)
        temporary.replace(file)
    return file
