from __future__ import annotations

from pathlib import Path

import pytest

from ops_build.build import BuildOptions, build


def silent(line: str) -> None:
    """A log for builds whose lines nobody reads."""


@pytest.fixture(scope="session")
def library() -> Path:
    """The op library, built if need be."""
    return build(BuildOptions(), silent)[0]
