from __future__ import annotations

import os
from pathlib import Path

import pytest

from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.options import BuildOptions


def silent(line: str) -> None:
    """Discards a line of a build's log."""


#: The build that all tests share. CI sets OPGATE_TEST_STRICT, so that it doesn't build everything twice.
OPTIONS = BuildOptions(strict=bool(os.environ.get("OPGATE_TEST_STRICT")))

#: Whether `make test-all` runs the tests. Other runs leave out what takes minutes and rarely finds more.
ALL = bool(os.environ.get("OPGATE_TEST_ALL"))


@pytest.fixture(scope="session")
def built() -> Build:
    """Builds opgate's ops for every engine whose toolchain this machine has. Rebuilds nothing that is up to date."""
    return build(OPTIONS, silent)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The library of opgate's ops for ONNX Runtime. OPGATE_OPS_LIBRARY can name another build of it."""
    if other := os.environ.get("OPGATE_OPS_LIBRARY"):
        return Path(other)
    return request.getfixturevalue("built").libraries["onnxruntime"]
