from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops_build.building.build import Build, build
from ops_build.building.options import BuildOptions


def silent(line: str) -> None:
    """A log for builds whose lines nobody reads."""


@pytest.fixture(scope="session")
def built() -> Build:
    """Every library that this machine's toolchains allow, built if need be."""
    return build(BuildOptions(), silent)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The op library for ONNX Runtime; OPGATE_OPS_LIBRARY names another build."""
    if said := os.environ.get("OPGATE_OPS_LIBRARY"):
        return Path(said)
    return request.getfixturevalue("built").libraries["onnxruntime"]
