from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops_build.build import BuildOptions, build


def silent(line: str) -> None:
    """A log for builds whose lines nobody reads."""


@pytest.fixture(scope="session")
def library() -> Path:
    """The op library, built if need be; OPGATE_OPS_LIBRARY names another build."""
    if said := os.environ.get("OPGATE_OPS_LIBRARY"):
        return Path(said)
    return build(BuildOptions(), silent)[0]
