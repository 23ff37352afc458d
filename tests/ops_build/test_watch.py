"""`opgate watch`: a saved file is built and verified, and nothing that it doesn't touch is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest

from opgate.ops_build.verification.watch import changes, said
from tests import PROJECT

OP = """import numpy as np
import opgate
@opgate.op("<T: f32> {name}(x: T[...]) -> (y: T[...])", "x and a number.")
def {stem}(x):
    return x + {number}
"""


def write(folder: Path, stem: str, text: str) -> None:
    (folder / stem).mkdir(exist_ok=True)
    (folder / stem / "op.py").write_text(text.format(name=stem.title(), stem=stem, number=1))


class Watched:
    """A process of `opgate watch`, and its lines."""

    def __init__(self, folder: Path) -> None:
        options = ["--engine", "onnxruntime", "--cuda", "", "--arch", "native"]
        # A shell starts what runs in its background with Ctrl-C ignored.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "opgate", "watch", str(folder), *options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=PROJECT, env=environment
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())

    def until(self, part: str) -> list[str]:
        """Returns the lines up to the first one that has `part`."""
        lines: list[str] = []
        try:
            while not lines or part not in lines[-1]:
                lines.append(self._lines.get(timeout=120))
        except Empty:
            raise AssertionError((part, lines)) from None
        return lines

    def interrupted(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "watched_ops"
    folder.mkdir()
    write(folder, "first", OP)
    write(folder, "second", OP)
    return folder


@pytest.fixture
def watched(folder: Path) -> Iterator[Watched]:
    watched = Watched(folder)
    yield watched
    watched.process.kill()
    watched.process.wait()


def test_what_is_saved_is_verified(folder: Path, watched: Watched) -> None:
    lines = watched.until("none failed")
    assert [line.split(":")[0] for line in lines if " passed, 0 failed" in line] == ["First", "Second"]
    passed = lines[-1]
    assert passed.startswith("2 ops: ")

    write(folder, "second", OP.replace("+ {number}", "* x"))
    lines = watched.until("none failed")
    assert lines[0] == "read second/op.py" and not any(line.startswith("First") for line in lines)
    assert lines[-1] == passed  # the results of the other op stay

    write(folder, "second", OP.replace("x + {number}", "x[") + "\n")
    assert f"{folder / 'second' / 'op.py'}:5: SyntaxError" in watched.until("SyntaxError")[-1]

    cases = "@second.cases\ndef _(types):\n    yield opgate.Case('one', {{'x': np.float32(undefined)}})\n"
    write(folder, "second", OP + cases)
    lines = watched.until("failures in Second")
    assert any("op.py:8: NameError: name 'undefined'" in line for line in lines), lines

    write(folder, "third", OP)
    (folder / "second" / "op.py").unlink()
    lines = watched.until("none failed")
    assert lines[-1] == passed
    assert watched.interrupted() == 130


def test_a_folder_may_begin_without_an_op(tmp_path: Path) -> None:
    folder = tmp_path / "my_ops"
    folder.mkdir()
    watched = Watched(folder)
    try:
        assert "holds no op" in watched.until("holds no op")[-1]
        write(folder, "first", OP)
        assert watched.until("none failed")[-1].startswith("1 op: ")
    finally:
        watched.process.kill()
        watched.process.wait()


def test_a_file_that_is_still_written_is_waited_for(folder: Path) -> None:
    file = folder / "first" / "op.py"
    writes = iter(["a", "ab", "abc"])

    def pause(seconds: float) -> None:
        if (text := next(writes, None)) is not None:
            file.write_text(text)

    seen = changes(folder, pause)
    assert next(seen) >= {file}
    assert file.read_text() == "abc"
    (folder / "first" / "__pycache__").mkdir()
    (folder / "first" / "__pycache__" / "op.pyc").write_text("")
    (folder / "first" / ".op.py.swp").write_text("")
    (folder / "common.h").write_text("")
    assert next(seen) == {folder / "common.h"}


def test_an_error_of_the_author_has_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.py"
    file.write_text("import numpy\nnumpy.nothing\n")
    with pytest.raises(AttributeError) as raised:
        exec(compile(file.read_text(), str(file), "exec"), {})
    assert said(raised.value, tmp_path).startswith(f"{file}:2: AttributeError: ")
    assert said(ValueError("as it is"), tmp_path) == "as it is"
