"""Mistakes that a test writes into the sources, one at a time, to see that each is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ALL


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


#: How many faults `make test` tries of a list. Each takes a compilation.
FEW = 3


def chosen(faults: list[Fault]) -> list[Fault]:
    """Returns a few faults that are spread over the list, or in `make test-all` every fault.

    Many kernels include a header that ops share and are compiled again with it, so faults there are not among the few.
    """
    if ALL:
        return faults
    few = [fault for fault in faults if fault.file.startswith("ops/")]
    return few[:: -(-len(few) // FEW)]
