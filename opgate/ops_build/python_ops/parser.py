"""The library whose parser reads the signatures of ops in Python."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from opgate import folders

_SOURCE = Path(__file__).resolve().parents[1]
_PARTS = ("sources", "configured", "table", "exports")


class ParserError(RuntimeError):
    """There is no library with a parser. The message says why, and what to do."""


@functools.cache
def parser_library() -> Path:
    """Returns an op library: opgate's if it is built, else one without ops, which is compiled once in about ten
    seconds. Raises ParserError."""
    for folder in (folders.builds() / "ops", folders.SHIPPED_OPS):
        if (library := folder / "libopgate_onnxruntime.so").is_file():
            return library
    return _without_ops()


def _without_ops() -> Path:
    target = folders.builds() / "parser" / "libopgate_parser.so"
    sources = [_SOURCE / "op_call" / f"{part}.cpp" for part in _PARTS]
    newest = max(file.stat().st_mtime for room in ("signature", "op_call") for file in (_SOURCE / room).iterdir())
    if target.is_file() and target.stat().st_mtime >= newest:
        return target
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if not shutil.which(compiler[0]):
        raise ParserError(f"{compiler[0]} is not installed. On Debian or Ubuntu: apt-get install g++")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", f"-I{_SOURCE}", '-DOPGATE_DOMAIN="none"', "-pthread"]
    done = subprocess.run([*compiler, *flags, "-o", str(temporary), *map(str, sources)], capture_output=True, text=True)
    if done.returncode:
        raise ParserError(f"the compiler could not build the parser of signatures:\n{done.stderr[-2000:]}")
    temporary.replace(target)
    return target
