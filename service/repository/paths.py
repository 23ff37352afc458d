"""Files of a model, confined to the repository by their real path."""

from __future__ import annotations

from pathlib import Path

from service.repository.config import ConfigError


def confined(repository: Path, path: Path) -> Path:
    """The real path, which must lie inside the repository. Raises ConfigError."""
    real = path.resolve()
    if not real.is_relative_to(repository.resolve()):
        raise ConfigError(f"'{path.name}' points out of the model repository")
    return real


def file_name(text: str, field: str) -> str:
    """A bare file name out of a config. Raises ConfigError that names the field."""
    if not text or text != Path(text).name or text in (".", ".."):
        raise ConfigError(f"{field} '{text}': expected a bare file name, got a path")
    return text


def model_names(repository: Path) -> list[str]:
    """The names of the repository's model folders, sorted."""
    return sorted(p.name for p in repository.iterdir() if p.is_dir() and not p.name.startswith("."))


def version_numbers(model: Path) -> list[int]:
    """The version folders of a model, ascending."""
    return sorted(int(p.name) for p in model.iterdir() if p.is_dir() and p.name.isdecimal() and p.name[0] != "0")


def read_labels(repository: Path, model: Path, name: str) -> tuple[str, ...]:
    """One label a line; the line's number, from 0, is the class."""
    path = confined(repository, model / file_name(name, "label_filename"))
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"label_filename '{name}' can't be read: {error}") from error
