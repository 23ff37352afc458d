"""Mistakes that a test writes into the sources, one at a time, to see that each is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A mistake: `wrong` in the place of `right` in `file`. `op` must show it, by a message that holds `says`."""

    name: str
    op: str
    file: str
    right: str
    wrong: str
    says: str = ""

    @contextmanager
    def written_into(self, sources: Path) -> Iterator[None]:
        """Writes the mistake into the sources, and takes it back afterwards."""
        file = sources / self.file
        good = file.read_text()
        assert good.count(self.right) == 1, f"{self.file} has {good.count(self.right)} times {self.right!r}"
        file.write_text(good.replace(self.right, self.wrong))
        try:
            yield
        finally:
            file.write_text(good)
