"""The library in older versions of engines. `make versions` tries many more, with every case of every op."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.op_table import read_table
from opgate.ops_build.verification.sources import OneLibrary
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests import versions
from tests.conftest import thorough

pytestmark = thorough("older engines are installed")


@pytest.mark.parametrize("minor", [17, 23])
def test_nodes_without_an_input_in_the_middle(library: Path, minor: int) -> None:
    """ONNX Runtime before 1.24 crashed when it loaded them."""
    (environment,) = [each for each in versions.environments() if each.packages[0] == f"onnxruntime==1.{minor}.*"]
    python = versions.interpreter(environment)
    if isinstance(python, str):
        pytest.skip(f"onnxruntime 1.{minor} is not installed: {python}")
    ops = [op for op in read_table(library) if op.name in ("LayerNorm", "BallQuery")]
    with supervised([OneLibrary(library)], python=python) as engines:
        cells = verify(ops, [SOURCE / "ops"], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert sum(cell.passed for cell in cells) > 200
