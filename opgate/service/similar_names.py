"""Finds which of many names somebody probably meant, in a time that grows neither with their number nor length."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

# Longer names are not compared: that takes as long as both are.
_LONGEST = 64
# Names that are compared on each side of the place where the name would be.
_NEIGHBOURS = 4


class Names:
    """Names in the order of their beginnings, and in that of their ends: who misspells a name has one of them right."""

    def __init__(self, names: Iterable[str]) -> None:
        short = [name for name in names if len(name) <= _LONGEST]
        self._forward = sorted(short)
        self._backward = sorted(name[::-1] for name in short)

    def nearest(self, name: str, likeness: float = 0.6) -> str:
        """Returns the name that is most like this one, "" if none is. `likeness` is that of difflib, 0 to 1."""
        if len(name) > _LONGEST:
            return ""
        near = {
            *_around(self._forward, name),
            *(other[::-1] for other in _around(self._backward, name[::-1])),
        }
        found = difflib.get_close_matches(name, sorted(near), 1, likeness)
        return found[0] if found else ""


def _around(ordered: Sequence[str], name: str) -> Sequence[str]:
    place = bisect_left(ordered, name)
    return ordered[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]
