"""Builds a folder of ops again when a file of them is saved, and verifies the ops that changed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from opgate.ops_build.building.build import build
from opgate.ops_build.building.manifest import built_table
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.building.toolchain import Log
from opgate.ops_build.op_folder import folder_of, op_folders
from opgate.ops_build.op_table import Op
from opgate.ops_build.runner.checks import interpreted, with_cuda_kernels
from opgate.ops_build.verification.report import SHOWN
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import Cell, verify

#: Seconds between two looks at the files. A file counts as saved when it is the same at two of them.
PAUSE = 0.3

#: In place of the name of an op's folder.
_ALL = "*"

#: For each file the time at which it was saved, in nanoseconds, and its size.
Files = Mapping[Path, tuple[int, int]]


def files_of(folder: Path) -> Files:
    """Returns the files that the ops of a folder are made of: those in the folder itself, and in the folders of ops."""
    found: dict[Path, tuple[int, int]] = {}
    for place in (folder.glob("*"), *(op.path.rglob("*") for op in op_folders(folder))):
        for file in place:
            hidden = any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(folder).parts)
            if hidden or file.name.endswith("~") or not file.is_file():
                continue
            try:
                state = file.stat()
            except FileNotFoundError:  # an editor has just renamed it
                continue
            found[file] = (state.st_mtime_ns, state.st_size)
    return found


def changes(folder: Path, pause: Callable[[float], None] = time.sleep) -> Iterator[set[Path]]:
    """Yields all files, and then those that were saved, added or deleted since the last time, without end."""
    seen: Files | None = None
    while True:
        before, now = None, files_of(folder)
        while now == seen or now != before:
            pause(PAUSE)
            before, now = now, files_of(folder)
        old = seen or {}
        changed = {file for file in old.keys() | now.keys() if old.get(file) != now.get(file)}
        seen = now
        yield changed


class Watch:
    """Builds and verifies the ops of a folder. It keeps the results of ops that didn't change."""

    def __init__(self, options: Callable[[], BuildOptions], folder: Path, log: Log, say: Log) -> None:
        """`options` gives the options of a build, and raises ValueError or BuildError while there can be none. `log`
        gets the lines of a build, `say` those for the author."""
        self._options, self._folder, self._log, self._say = options, folder.resolve(), log, say
        self._pending: set[str] = set()
        self._cells: dict[str, list[Cell]] = {}

    def run(self, changed: set[Path]) -> None:
        """Builds, and verifies the ops of the files. A file beside the folders of ops is every op's."""
        paths = sorted(file.relative_to(self._folder) for file in changed)
        if paths:
            more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
            self._say("read " + ", ".join(map(str, paths[:SHOWN])) + more)
        self._pending |= {path.parts[0] if len(path.parts) > 1 else _ALL for path in paths}
        try:
            options = self._options()
            began = time.monotonic()
            build(options, self._log)
            self._say(f"built in {time.monotonic() - began:.1f} s")
            self._verify(options)
        except (Exception, SystemExit) as error:  # whatever the author's code raises
            self._say(said(error, self._folder))

    def _verify(self, options: BuildOptions) -> None:
        table = with_cuda_kernels(built_table(options), options)
        of = {op.name: folder_of(op, options.ops).path.name for op in table}
        chosen = [op for op in table if of[op.name] in self._pending or _ALL in self._pending]
        self._cells = {op.name: self._cells[op.name] for op in table if op.name in self._cells}
        with supervised([*adapters_of(options), *interpreted(options)]) as engines:
            for op in chosen:
                try:
                    self._cells[op.name] = verify([op], options.ops, engines, table=table)
                except (Exception, SystemExit) as error:  # whatever the author's cases and references raise
                    self._cells[op.name] = [Cell(op.name, "", "", failures=[said(error, self._folder)])]
                self._say_results(op)
        self._pending.clear()
        red = [name for name, cells in self._cells.items() if any(cell.failures for cell in cells)]
        passed = sum(cell.passed for cells in self._cells.values() for cell in cells)
        count = f"{len(self._cells)} op{'s' * (len(self._cells) != 1)}"
        self._say(f"{count}: {passed} passed" + (f", failures in {', '.join(red)}" if red else ", none failed"))

    def _say_results(self, op: Op) -> None:
        cells = self._cells[op.name]
        failures = [(cell, failure) for cell in cells for failure in cell.failures]
        self._say(f"{op.name}: {sum(cell.passed for cell in cells)} passed, {len(failures)} failed")
        for cell, failure in failures[:SHOWN]:
            self._say(f"  {f'{cell.types} on {cell.engine}: ' if cell.engine else ''}{failure}")
        if len(failures) > SHOWN:
            self._say(f"  and {len(failures) - SHOWN} more")


def said(error: BaseException, folder: Path) -> str:
    """Returns the message of an error. One of the author's code begins with the file and the line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
    if not frames:
        return str(error) or type(error).__name__
    return f"{frames[-1].filename}:{frames[-1].lineno}: {type(error).__name__}: {error}"
