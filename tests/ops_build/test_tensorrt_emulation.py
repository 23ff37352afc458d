"""Creates, attaches, queries and enqueues the plugins as TensorRT does, with the kernels emulated on the CPU: every
case of every op under the sanitizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.adapters.tensorrt.engine import PluginEngine
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.runner.cases_file import CaseFailed
from tests.ops_build.emulation import build, build_fixtures
from tests.ops_build.test_onnxruntime_adapter import BY_INPUTS


@pytest.fixture(scope="module")
def program(tensorrt_headers: Path) -> Path:
    return build()


def test_attributes_that_no_run_can_use_make_no_plugin(program: Path) -> None:
    engine, tried = PluginEngine(program, None), set()
    for op in engine.ops():
        types = next(op.type_choices())
        if engine.refusal(op, types) is not None:
            continue
        for case in folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types)):
            named = re.search("attribute '(\\w+)", case.error or "")
            # The program itself refuses a word that is no choice.
            if re.search(BY_INPUTS, case.error or ""):
                continue
            if named and not next(a for a in op.attributes if a.name == named[1]).choices:
                with pytest.raises(CaseFailed, match=f"createPlugin failed.*opgate::{op.name}: .*{case.error}"):
                    engine.run(op, case, types)
                tried.add(op.name)
    engine.close()
    assert {"LayerNorm", "MultiClassNMS", "Voxelize"} <= tried


@pytest.fixture(scope="module")
def fixture_engine(tensorrt_headers: Path) -> Iterator[PluginEngine]:
    engine = PluginEngine(build_fixtures(), None)
    yield engine
    engine.close()


def test_a_kernel_prepares_once_and_before_it_is_enqueued(fixture_engine: PluginEngine) -> None:
    op = next(op for op in fixture_engine.ops() if op.name == "ScaledColumns")
    for call in (1, 2):  # each call creates a plugin, attaches it, tells it the shapes and enqueues it
        x, weight = np.ones((2, call + 2), np.float32), np.arange(call + 2, dtype=np.float32)
        outputs = fixture_engine.run(op, Case("", {"x": x, "weight": weight}, {"scale": 2.0}), {})
        assert outputs["prepared"] == call
        np.testing.assert_array_equal(outputs["y"], x * weight * 2)
    with pytest.raises(CaseFailed, match=r"onShapeChange failed.*ScaledColumns: attribute 'scale': expected a number"):
        fixture_engine.run(op, Case("", {"x": x, "weight": weight}, {"scale": float("nan")}), {})


def test_a_kernel_that_states_no_workspace_allocates_while_it_is_enqueued(fixture_engine: PluginEngine) -> None:
    """The program refuses every allocation of a plugin. So the cases above show that opgate's kernels make none."""
    op = next(op for op in fixture_engine.ops() if op.name == "KeepPositive")
    with pytest.raises(CaseFailed, match=r"enqueue failed.*KeepPositive: out of memory"):
        fixture_engine.run(op, Case("", {"x": np.ones(3, np.float32)}), {"T": "f32"})
