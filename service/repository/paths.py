"""Finds the files of a model. Their real paths must lie inside the repository."""

from __future__ import annotations

from pathlib import Path

from opgate.service.repository.config import ConfigError

# The longest name that the file systems of Linux have.
_MOST_BYTES = 255


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
    """Returns the labels in a file with one label a line. The index of a label is its class. Raises ConfigError."""
    path = confined(repository, model / file_name(name, "label_filename"))
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"label_filename '{name}' can't be read: {error}") from error
