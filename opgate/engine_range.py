"""The versions of its engine that an op library works in, which its manifest states, such as ">=1.17" or "==2.21.*"."""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: The packages that may have an engine.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "litert": ("ai-edge-litert",),
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def refusal(entry: Mapping[str, Any]) -> str:
    """Returns why the engine of this process can't have a library with this entry in a manifest, "" if it can, or if
    the entry states no range or there is no such engine."""
    engine, stated = str(entry.get("engine")), str(entry.get("engine_versions", ""))
    found = _running(engine) if stated else ""
    try:
        if not re.search(r"\d", found) or within(found, stated):  # a build of one's own may have no number
            return ""
    except ValueError as error:
        return f"{entry.get('file')}: {error}"
    return (
        f"{entry.get('file')} works with {engine} {stated}, and this is {engine} {found}: opgate build builds it again"
    )


def check_library(library: Path) -> None:
    """Raises RuntimeError if the manifest beside a library says that the engine of this process can't have it."""
    manifest = library.with_name("manifest.json")
    for entry in json.loads(manifest.read_text())["libraries"] if manifest.is_file() else []:
        if entry.get("file") == library.name and (reason := refusal(entry)):
            raise RuntimeError(reason)


def within(found: str, stated: str) -> bool:
    """Returns whether a version is in a range: comparisons with a comma between them, all of which must hold. A version
    is compared by as many numbers as the range has: 1.17.3 is 1.17. Raises ValueError for another range."""
    for part in stated.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*(\d+(?:\.\d+)*)(?:\.\*)?\s*", part)
        if match is None:
            raise ValueError(f"expected a range such as >=1.17 or >=1.1,<=2.3, got '{stated}'")
        bound = tuple(map(int, match[2].split(".")))
        numbers = tuple(map(int, re.findall(r"\d+", found.partition("+")[0])))[: len(bound)]
        numbers += (0,) * (len(bound) - len(numbers))
        if not _COMPARISONS[match[1]](numbers, bound):
            return False
    return True


def _running(engine: str) -> str:
    """Returns the version of an engine in this process, or of its installed package, "" if there is none."""
    if loaded := getattr(sys.modules.get(engine), "__version__", ""):
        return str(loaded)
    for package in PACKAGES.get(engine, ()):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
