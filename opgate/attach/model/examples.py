"""What a user gives to compare answers on: files of a folder, lines of text, rows of a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate.attach.model.report import AttachError

#: The endings of files that are pictures.
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")


@dataclass(frozen=True, slots=True)
class Example:
    """One request: its name, and its `content`, the bytes of a file or values by the names of inputs. A file has a
    `path`, and `row` says whether the values are a row of a table."""

    name: str
    content: bytes | Mapping[str, Any]
    path: Path | None = None
    row: bool = False


def files(place: Path, endings: Sequence[str] = ()) -> list[Example]:
    """Returns the files of a folder that have one of some endings, all without any, in the order of their names. A file
    stands for itself. Raises AttachError if there is none."""
    found = [place] if place.is_file() else sorted(path for path in place.iterdir() if path.is_file())
    fit = [path for path in found if not endings or path.suffix.lower() in endings]
    if not fit:
        raise AttachError(f"--examples: {place} has no file that fits: expected {', '.join(endings) or 'any file'}")
    return [Example(path.name, path.read_bytes(), path) for path in fit]


def lines(place: Path, names: Sequence[str]) -> list[Example]:
    """Returns the lines of a file of text, or of each file of a folder. Between the values of several inputs, whose
    `names` are given, stand tabs. Raises AttachError."""
    found: list[Example] = []
    for path in [place] if place.is_file() else sorted(path for path in place.iterdir() if path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise AttachError(f"--examples: {path} is no text in UTF-8: expected a text in each line") from None
        for number, line in enumerate(text.splitlines(), 1):
            values = line.split("\t") if len(names) > 1 else [line]
            if not line:
                continue
            if len(values) != len(names):
                expected = " and ".join(names)
                raise AttachError(f"--examples: {path}, line {number}: expected {expected} with a tab between them")
            found.append(Example(f"{path.name}:{number}", dict(zip(names, values, strict=True))))
    if not found:
        raise AttachError(f"--examples: {place} has no text: expected one in each line")
    return found


def rows(place: Path, names: Sequence[str], texts: Sequence[str] = ()) -> list[Example]:
    """Returns the rows of a CSV file with the columns `names`, of which `texts` have texts. An empty cell of another is
    NaN. Raises AttachError."""
    if not place.is_file():
        raise AttachError(f"--examples: {place} is a folder: expected a CSV file with the columns {', '.join(names)}")
    with place.open(encoding="utf-8-sig", newline="") as file:
        read = csv.DictReader(file)
        if missing := set(names) - set(read.fieldnames or ()):
            raise AttachError(f"--examples: {place} has no column '{min(missing)}': expected {', '.join(names)}")
        found = []
        for number, row in enumerate(read, 2):
            values = {name: (row[name] or "") if name in texts else _number(row[name]) for name in names}
            found.append(Example(f"{place.name}:{number}", values, row=True))
    if not found:
        raise AttachError(f"--examples: {place} has no rows")
    return found


def _number(text: str | None) -> float | int | str:
    """Returns a cell as a number if it is one, NaN if it is empty."""
    if not text:
        return math.nan
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
