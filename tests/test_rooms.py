"""How the code is divided: no file and no room depends on itself, a long class says why it is one, and docs/rooms.md has
every room."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import PROJECT

Graph = Mapping[str, set[str]]


def modules() -> dict[str, Path]:
    """Returns the files of the project by the names that imports use."""
    found = {}
    for folder in ("opgate", "models", "benchmarks"):
        for file in (PROJECT / folder).rglob("*.py"):
            name = ".".join(file.relative_to(PROJECT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def imported(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yields the modules that a file imports anywhere, also inside of functions and for its types only."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else str(node.module) for name in inside]
        else:
            continue
        yield from (name for name in names if name in known)


@pytest.fixture(scope="module")
def files() -> Graph:
    """What each file imports."""
    known = modules()
    return {name: set(imported(file, known)) - {name} for name, file in known.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Returns the strongly connected components with more than one node (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def rooms(files: Graph, package: str) -> Graph:
    """Returns the imports between the rooms of a package: its folders, and its files that lie in none."""

    def room(name: str) -> str:
        return name.removeprefix(f"{package}.").split(".")[0]

    inside = {name: others for name, others in files.items() if name.startswith(f"{package}.")}
    found: dict[str, set[str]] = {}
    for name, others in inside.items():
        found.setdefault(room(name), set()).update(room(other) for other in others if other in inside)
    return {name: others - {name} for name, others in found.items()}


def told(components: Iterable[list[str]]) -> str:
    return "\n".join(" <-> ".join(component) for component in components)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert circles(graph) == [["b", "c"]]


def test_no_file_depends_on_itself(files: Graph) -> None:
    assert len(files) > 400
    assert not (found := circles(files)), told(found)


@pytest.mark.parametrize("package", ["opgate", "opgate.service", "opgate.ops_build", "models"])
def test_no_room_depends_on_itself(files: Graph, package: str) -> None:
    between = rooms(files, package)
    assert len(between) > 5 and any(between.values())
    assert not (found := circles(between)), told(found)


def test_a_long_class_says_why() -> None:
    """A class of more than 250 lines says in its docstring: It is long, because ..."""
    classes = {
        f"{name}.{node.name}": node
        for name, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None and node.end_lineno - node.lineno >= 250
    }
    assert classes
    reasons = {name: " ".join((ast.get_docstring(node) or "").split()) for name, node in classes.items()}
    assert not [name for name, text in reasons.items() if "It is long, because " not in text]


def tracked_folders() -> set[str]:
    """Returns the folders of the page docs/rooms.md: those with files that Git tracks, down to its second level. Each
    op, each op of the tests and each model has a folder too, and no row."""
    told = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    folders = {folder for file in told.stdout.splitlines() for folder in Path(file).parents if folder.parts}
    most = {"opgate": 3, "tests": 3, "benchmarks": 2, "console": 2, "deploy": 3}
    found = {folder for folder in folders if len(folder.parts) <= most.get(folder.parts[0], 1)}
    for package in ("opgate/service", "opgate/ops_build"):
        found |= {folder for folder in folders if folder.is_relative_to(package) and len(folder.parts) <= 4}
    return {f"{folder}/" for folder in found if folder.parent != Path("opgate/ops_build/ops")}


def test_the_page_of_rooms_has_every_folder() -> None:
    page = (PROJECT / "docs" / "rooms.md").read_text()
    rows = re.findall(r"^\| `([^`]+/)` \| .+ \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted(tracked_folders())
