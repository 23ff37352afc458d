"""An environment that has what the extras `cpu` and `test` name themselves, and no optional package of opgate."""

from __future__ import annotations

import re
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.system.running import ROOT


def make(folder: Path) -> Path:
    """Makes the environment from links to the packages that are installed. Returns its interpreter."""
    venv.create(folder, symlinks=True)
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    here = Path(sysconfig.get_path("purelib"))
    wanted = bare_packages()
    installed = list(_files())
    left_out = {file.parts[0] for name, files in installed if name not in wanted for file in files}
    for name, files in installed:
        if name not in wanted:
            continue
        # A folder that packages share is made, and has a link for each file.
        for part in {file if file.parts[0] in left_out else Path(file.parts[0]) for file in files}:
            link, target = there / part, here / part
            if not link.exists() and target.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target)
    (there / "opgate.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def bare_packages() -> set[str]:
    """Returns the names of the packages that opgate needs without its optional ones, and pytest's."""
    found: dict[str, set[str]] = {}

    def add(requirement: Requirement) -> None:
        name, extras = canonical(requirement.name), {"", *requirement.extras}
        if extras <= found.get(name, set()):
            return
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return  # a marker leaves it out here
        extras |= found.setdefault(name, set())
        found[name] = extras
        for text in requirements:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                add(needed)

    for text in metadata.requires("opgate") or []:
        needed = Requirement(text)
        named = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", "cpu", "test"))
        if named and canonical(needed.name) != "opgate":
            add(needed)
    return set(found)


def canonical(name: str) -> str:
    """Returns a package's name as packages compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _files() -> Iterator[tuple[str, list[Path]]]:
    for package in metadata.distributions():
        name = canonical(package.metadata["Name"])
        files = [Path(str(file)) for file in package.files or []]
        if name != "opgate":
            yield name, [file for file in files if file.parts[0] not in ("..", "/", "__pycache__")]
