"""Finds the files of a model. Their real paths must lie inside the repository."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opgate.service.repository.config import ConfigError, read_text

# The longest name that the file systems of Linux have.
_MOST_BYTES = 255
_MOST_LABEL_BYTES = 64 << 20


def confined(repository: Path, path: Path) -> Path:
    """Returns the real path. Raises ConfigError if it lies outside the repository."""
    real = path.resolve()
    if not real.is_relative_to(repository.resolve()):
        raise ConfigError(f"'{path.name}' is a symbolic link out of the model repository")
    return real


def file_name(text: str, field: str) -> str:
    """Returns a file name that a config states. Raises ConfigError that names the field if it is not a bare name."""
    if not text or text != Path(text).name or text in (".", ".."):
        raise ConfigError(f"{field} '{text}': expected a bare file name, got a path")
    if "\0" in text or len(text.encode()) > _MOST_BYTES:
        raise ConfigError(f"{field} {text[:80]!r}: no file can have this name")
    return text


def model_names(repository: Path) -> list[str]:
    """Returns the names of the model folders in the repository, sorted."""
    return sorted(p.name for p in repository.iterdir() if p.is_dir() and not p.name.startswith("."))


def version_numbers(model: Path) -> list[int]:
    """Returns the versions for which a model has a folder, in ascending order."""
    return sorted(int(p.name) for p in model.iterdir() if p.is_dir() and p.name.isdecimal() and p.name[0] != "0")


def read_labels(repository: Path, model: Path, name: str) -> tuple[str, ...]:
    """Returns the labels in a file with one label a line. The index of a label is its class. Raises ConfigError.

    Lines end with a newline, also behind a carriage return. Other characters that Unicode calls ends of lines belong to
    a label: a reader of text may know them.
    """
    path = confined(repository, model / file_name(name, "label_filename"))
    try:
        lines = read_text(path, _MOST_LABEL_BYTES).removesuffix("\n").split("\n")
    except ConfigError as error:
        raise ConfigError(f"label_filename: {error.message}") from error
    return tuple(line.removesuffix("\r") for line in lines) if lines != [""] else ()


def refuse_special_files(folder: Path) -> None:
    """Raises ConfigError if something below a folder is neither a file nor a folder: whoever opens it may wait for
    ever."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                mode = path.stat().st_mode
            except OSError:
                continue  # a link that leads nowhere
            if not stat.S_ISREG(mode):
                raise ConfigError(f"'{path.relative_to(folder)}' is no regular file")
