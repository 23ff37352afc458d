"""The CUDA adapter of ONNX Runtime without a GPU: a host plays ONNX Runtime with its CUDA provider, and the kernels are
emulated. onnxruntime_host/host.cpp says what it checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.case import Case
from opgate.ops_build.runner.cases_file import CaseFailed
from opgate.ops_build.runner.engine import KernelsEngine
from tests.ops_build.emulation import build_fixtures, onnxruntime_include

#: The CUDA provider of ONNX Runtime itself, and that of a library which a program registers.
PROVIDERS = ("CUDAExecutionProvider", "CudaPluginExecutionProvider")


def host(program: Path, provider: str) -> Iterator[KernelsEngine]:
    if not onnxruntime_include():
        pytest.skip("ONNX Runtime's header is not here")
    engine = KernelsEngine(program, ["--onnxruntime", provider], os.environ, name="onnxruntime")
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=PROVIDERS)
def fixture_engine(request: pytest.FixtureRequest) -> Iterator[KernelsEngine]:
    yield from host(build_fixtures(), request.param)


def test_a_size_that_only_the_kernel_knows(fixture_engine: KernelsEngine) -> None:
    op = next(op for op in fixture_engine.ops() if op.name == "KeepPositive")
    outputs = fixture_engine.run(op, Case("", {"x": np.array([3, -1, 0, 5], np.int32)}), {"T": "i32"})
    assert outputs["values"].tolist() == [3, 5] and outputs["indices"].tolist() == [0, 3]


def test_an_input_in_host_memory(fixture_engine: KernelsEngine) -> None:
    op = next(op for op in fixture_engine.ops() if op.name == "Tiles")
    inputs = {"x": np.ones((2, 5), np.float32), "row": np.ones(10, np.float32), "times": np.array(3, np.int64)}
    outputs = fixture_engine.run(op, Case("", inputs, {"size": 4}), {})
    assert outputs["grid"].tolist() == [[8, 2]]
    np.testing.assert_array_equal(outputs["tiled"], np.ones((3, 5), np.float32))


def test_a_kernel_is_prepared_for_its_node(fixture_engine: KernelsEngine) -> None:
    op = next(op for op in fixture_engine.ops() if op.name == "ScaledColumns")
    x, weight = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    for call in (1, 2):  # each call is a node of its own
        outputs = fixture_engine.run(op, Case("", {"x": x, "weight": weight}, {"scale": 2.0}), {})
        assert outputs["prepared"] == call
        np.testing.assert_array_equal(outputs["y"], x * weight * 2)
    with pytest.raises(CaseFailed, match="ScaledColumns: attribute 'scale': expected a number"):
        fixture_engine.run(op, Case("", {"x": x, "weight": weight}, {"scale": float("nan")}), {})
