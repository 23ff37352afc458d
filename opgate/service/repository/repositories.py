"""Finds the models of one or several repositories, and tells whether their files have changed."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.config import ConfigError, states_max_batch_size
from opgate.service.repository.object_stores import StoredRepository, is_address
from opgate.service.repository.paths import model_names

logger = logging.getLogger("opgate.repository")

# A model has fewer files. A folder with more is not looked at further, so a change among the others is not noticed.
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: the repository that has its folder, and a config that replaces the written one, with
    whether it says what max_batch_size is."""

    name: str
    repository: Path
    config: ModelConfig | None = None
    config_states_batch: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return self.repository / self.name

    @property
    def states_batch(self) -> bool:
        """Whether the model's config says what max_batch_size is."""
        return states_max_batch_size(self.folder) if self.config is None else self.config_states_batch


class Repositories:
    """The repositories of a gateway: folders, and copies of those in object stores."""

    def __init__(self, locations: Sequence[str]) -> None:
        self._stored = {location: StoredRepository(location) for location in locations if is_address(location)}
        self._folders = [self._stored[one].folder if one in self._stored else Path(one) for one in locations]

    @property
    def folders(self) -> list[Path]:
        """The real paths of the repositories. A link may lead elsewhere from time to time."""
        return [folder.resolve() for folder in self._folders]

    def check(self) -> None:
        """Copies those in object stores. Raises ConfigError if one doesn't exist or is the folder of a model."""
        self.refresh()
        for folder in self.folders:
            check_repository(folder)

    def refresh(self) -> None:
        """Copies what has changed in object stores. Raises ConfigError if one can't be read."""
        for stored in self._stored.values():
            stored.refresh()

    def find(self) -> dict[str, list[Source]]:
        """Returns the models of all repositories, as `find_models` does."""
        return find_models(self.folders)

    def close(self) -> None:
        """Removes the copies."""
        for stored in self._stored.values():
            shutil.rmtree(stored.folder, ignore_errors=True)


def check_repository(repository: Path) -> None:
    """Raises ConfigError if there is no such folder, or if it is the folder of a model. Warns if it has no model."""
    if not repository.is_dir():
        raise ConfigError(
            f"model repository '{repository.absolute()}' is not a directory: name one with --model-repository"
        )
    names = model_names(repository)
    is_model = (repository / "config.pbtxt").is_file() or any(
        name.isdecimal() and any((repository / name).glob("*.onnx")) for name in names
    )
    if is_model:
        raise ConfigError(
            f"model repository '{repository}' is the folder of a model: expected a folder with "
            f"<model>/<version>/model.onnx; '{repository.parent}' may be the one"
        )
    if not names:
        logger.warning("model repository '%s' is empty: expected <model>/<version>/model.onnx", repository)


def find_models(repositories: Sequence[Path]) -> dict[str, list[Source]]:
    """Returns the models of all repositories by name, sorted. A model of which several repositories have a folder has
    several sources."""
    found: dict[str, list[Source]] = {}
    for repository in repositories:
        for name in model_names(repository):
            found.setdefault(name, []).append(Source(name, repository))
    return dict(sorted(found.items()))


def only_source(name: str, sources: Sequence[Source]) -> Source:
    """Returns the source of a model. Raises ConfigError if several repositories have a folder of that name."""
    if len(sources) > 1:
        folders = ", ".join(str(source.repository) for source in sources)
        raise ConfigError(f"several repositories have a model '{name}': {folders}")
    return sources[0]


def stamp_of_parts(folder: Path) -> Hashable:
    """Returns a value that differs when something below a folder has changed. Its parts may be links to folders."""
    return tuple((path.name, stamp_of(path.resolve())) for path in sorted(folder.iterdir()))


def stamp_of(path: Path) -> Hashable:
    """Returns a value that differs when a file has changed, or when a file below a folder has come, gone or changed."""
    return tuple(sorted(_stamps(path, path)))


def _stamps(path: Path, top: Path) -> Iterable[tuple[str, int, int, int]]:
    files: Iterable[str] = [str(path)] if not path.is_dir() else _files(path)
    for name in files:
        try:
            state = os.stat(name)  # noqa: PTH116  (a Path for each file would cost more than the call)
        except OSError:
            continue
        yield os.path.relpath(name, top), state.st_ino, state.st_size, state.st_mtime_ns


def _files(folder: Path) -> Iterable[str]:
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > _MOST_FILES:
                return
            yield os.path.join(place, name)  # noqa: PTH118
