from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ops_build.build import DEFAULT_OUTPUT, build, out_of_tree
from ops_build.table import Op, read_table
from tests.conftest import silent

FIXTURE_OPS = Path(__file__).parent / "fixture_ops"


@pytest.fixture(scope="session")
def fixture_library() -> Path:
    """The fixture ops, built out of tree in a domain of their own; OPGATE_TEST_FIXTURE_LIBRARY names another build."""
    if said := os.environ.get("OPGATE_TEST_FIXTURE_LIBRARY"):
        return Path(said)
    return build(out_of_tree(FIXTURE_OPS, DEFAULT_OUTPUT.parent / "fixture_ops"), silent)[0]


@pytest.fixture(scope="session")
def op_named(library: Path, fixture_library: Path) -> Callable[[str], Op]:
    ops = {op.name: op for op in (*read_table(library), *read_table(fixture_library))}
    return lambda name: ops[name]
