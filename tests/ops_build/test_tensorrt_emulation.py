"""TensorRT's plugins, made, attached, asked and enqueued as TensorRT does, with the kernels emulated on the CPU: every
case of every op under the sanitizers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops_build.adapters.tensorrt.engine import PluginEngine
from ops_build.building.options import PROJECT, SOURCE
from ops_build.verification.verify import verify
from tests.ops_build.cuda_emulation.build import build


@pytest.fixture(scope="module")
def program(tensorrt_headers: Path) -> Path:
    return build(PROJECT / "build" / "tensorrt_emulation", tensorrt=str(tensorrt_headers))


def test_every_case_of_every_op(program: Path) -> None:
    engine = PluginEngine(program, None, os.environ | {"EMULATION_SEED": "3"})
    cells = verify(engine.ops(), [SOURCE / "ops"], [engine])
    engine.close()
    failures = [f"{cell.op} {cell.types}: {failure}" for cell in cells for failure in cell.failures]
    assert not failures, "\n".join(failures[:20])
    assert sum(cell.passed for cell in cells) > 100
    skipped = {(cell.types, cell.skipped) for cell in cells if cell.skipped}
    assert ("f64", "TensorRT's plugins take no tensors of f64") in skipped
