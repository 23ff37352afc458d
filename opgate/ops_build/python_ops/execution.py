"""Executes an op.py and finds the op in it."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from opgate.ops_build.op_table import snake_case
from opgate.ops_build.python_ops.python_op import EXECUTED, Enough, PythonOp

_HELPER = ": a helper is a part of op.py, or of an installed package"


class OpFileError(ValueError):
    """An op.py can't be an op. The message begins with its file and line."""


def executed(file: Path, source: bytes) -> PythonOp:
    """Executes the source of an op.py and returns its op, which is called like the file's folder. `file` need not be
    there: messages name it. Raises OpFileError."""
    module = _module(file, source)
    found = {id(value): value for value in vars(module).values() if isinstance(value, PythonOp)}
    named = [op for op in found.values() if snake_case(tag_of(op)) == file.parent.name]
    if len(named) != 1 or len(found) != 1:
        names = ", ".join(tag_of(op) for op in found.values()) or "none"
        raise OpFileError(
            f"{file}:1: expected one op that is called like its folder, {file.parent.name} in snake_case, got {names}"
        )
    return named[0]


def line_of(error: BaseException, file: str) -> int | None:
    """Returns the line of a file at which an exception was raised or passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else getattr(error, "lineno", None)


def _module(file: Path, source: bytes) -> ModuleType:
    module = ModuleType(f"opgate_op_{abs(hash(str(file)))}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    linecache.checkcache(str(file))
    if not file.is_file():  # tracebacks show its lines all the same
        text = source.decode(errors="replace")
        linecache.cache[str(file)] = (len(text), None, text.splitlines(keepends=True), str(file))
    before, EXECUTED.now = EXECUTED.now, True
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except Enough:
        pass
    except (Exception, SystemExit) as error:  # whatever the author's code raises
        hint = _HELPER * isinstance(error, ImportError)
        line = line_of(error, str(file)) or 1
        raise OpFileError(f"{file}:{line}: {type(error).__name__}: {error}{hint}") from error
    finally:
        EXECUTED.now = before
    for name, value in vars(module).items():
        of = value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", None)))
        origin = getattr(of, "__file__", None)
        if of is not module and origin and Path(origin).parent == file.parent:
            raise OpFileError(f"{file}:1: {name} comes from {origin}{_HELPER}")
    return module


def tag_of(python: PythonOp) -> str:
    """Returns the name in the signature of an op."""
    return name_in(python.signature)


def name_in(signature: str) -> str:
    """Returns the name of the op in a signature."""
    found = re.match(r"(?:<[^>]*>)?\s*(\w+)", signature)
    return found[1] if found else signature
