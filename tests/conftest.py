from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops_build.building.build import Build, build
from ops_build.building.options import BuildOptions


def silent(line: str) -> None:
    """Drops the lines of a build that nobody reads."""


@pytest.fixture(scope="session")
def built() -> Build:
    """Builds every library for which this machine has the toolchain, if it is not built yet."""
    return build(BuildOptions(), silent)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The op library for ONNX Runtime. OPGATE_OPS_LIBRARY can name another build of it."""
    if other := os.environ.get("OPGATE_OPS_LIBRARY"):
        return Path(other)
    return request.getfixturevalue("built").libraries["onnxruntime"]
