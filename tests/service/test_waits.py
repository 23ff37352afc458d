"""docs/waits.md has every place where the gateway waits: in service/, and in what starts its child processes."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.system.running import ROOT

#: Functions that wait, whatever their arguments.
WAITING = {
    "accept",
    "acquire",
    "communicate",
    "gather",
    "poll",
    "receive",
    "run_in_executor",
    "select",
    "sleep",
    "to_thread",
    "wait",
    "wait_for",
    "waitpid",
}


def waits(tree: ast.AST, place: str = "") -> Iterator[str]:
    """Yields the name of the class and function around each call that waits."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from waits(node, f"{place}.{node.name}" if place else node.name)
            continue
        if isinstance(node, ast.Call) and is_wait(node):
            yield place
        if isinstance(node, ast.Await) and not isinstance(node.value, ast.Call):  # a future or a task
            yield place
        yield from waits(node, place)


def is_wait(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    plain = not call.args and not call.keywords
    return name in WAITING or (name in ("get", "join") and plain) or (name == "result" and not plain)


def found() -> set[str]:
    places = set()
    service = ROOT / "opgate" / "service"
    for file in (*service.rglob("*.py"), ROOT / "opgate" / "child_process.py"):
        for place in waits(ast.parse(file.read_text())):
            places.add(f"{os.path.relpath(file, service)}: {place}")
    return places


def listed() -> dict[str, list[str]]:
    """Returns the cells of the row of each place."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", (ROOT / "docs" / "waits.md").read_text(), re.MULTILINE)
    return {place: [cell.strip() for cell in cells.split("|")] for place, cells in rows}


def test_the_table_has_every_place_and_no_other():
    assert found() - set(listed()) == set(), "these places wait, and docs/waits.md doesn't say what ends it"
    assert set(listed()) - found() == set(), "nothing waits at these places of docs/waits.md"


def test_every_row_says_for_whom_and_what_ends_it():
    for place, cells in listed().items():
        assert len(cells) == 2 and all(cells), place


def test_a_new_wait_is_found(tmp_path: Path):
    source = "class A:\n  async def b(self):\n    await self.done.wait()\n    ', '.join(x)\n    self.thread.join()\ndef c(f): f.result(5)\nasync def d(f): await f\n"
    assert list(waits(ast.parse(source))) == ["A.b", "A.b", "c", "d"]
