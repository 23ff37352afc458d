"""Runs every case of every op as `opgate verify` does, and the references as operators of onnx.reference."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine
from opgate.ops_build.building.build import Build
from opgate.ops_build.building.manifest import built_table
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.onnx.reference_operator import reference_operator
from opgate.ops_build.op_folder import OpFolder, folder_of, op_folders, run_reference
from opgate.ops_build.op_table import Op, read_table
from opgate.ops_build.ops_page import markdown_table
from opgate.ops_build.verification.sources import engines_of
from opgate.ops_build.verification.verify import References, try_case, verify_cell
from tests import PROJECT
from tests.conftest import ALL
from tests.ops_build.choosing import chosen_cases

OPS = SOURCE / "ops"


def test_cases_of_every_op_on_every_engine(built: Build) -> None:
    """Runs cases of every op and choice of dtypes in every engine (in `make test-all` every case that this machine can
    run). A cell that it can't run must say why. Every case runs as a function of NumPy's arrays, in the tests of those. The
    tests of the adapters for TensorFlow and LiteRT choose for themselves."""
    options = BuildOptions()
    engines = tuple(name for name in options.engines if name not in ("tensorflow", "litert"))
    found = engines_of(replace(options, engines=engines))
    cells, count = [], 0
    for op, types, cases in chosen_cases(built_table(options), OPS, everything=ALL):
        references = References(op, folder_of(op, [OPS]))
        count += len(cases)
        cells += [verify_cell(op, types, references, cases, engine) for engine in found]
    failures = [f"{cell.op} {cell.types} on {cell.engine}: {failure}" for cell in cells for failure in cell.failures]
    assert not failures, "\n".join(failures)
    passed = {engine: sum(c.passed for c in cells if c.engine == engine) for engine in {c.engine for c in cells}}
    assert passed["onnxruntime cpu"] == count > 100
    if "torch" in built.libraries:
        assert passed["torch cpu"] > 100
    for cell in cells:
        assert cell.passed or cell.skipped, cell


def test_an_op_is_verified_with_one_dtype_only(library: Path) -> None:
    def verified(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "opgate", "verify", "--library", str(library), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    finished = verified("LeakyRelu", "--dtype", "f16")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert re.search(r"LeakyRelu\W+f16\b", finished.stdout) and "f32" not in finished.stdout
    finished = verified("LeakyRelu", "--dtype", "f17")
    assert finished.returncode == 1 and "no such dtype: f17; there are f16" in finished.stdout


def test_every_op_folder_is_in_the_table_and_documented(library: Path) -> None:
    folders = {folder.path.name for folder in op_folders(OPS)}
    assert {folder_of(op, [OPS]).path.name for op in read_table(library)} == folders
    for folder in folders:
        readme = (OPS / folder / "README.md").read_text()
        assert len(readme.splitlines()) > 8, folder


def test_the_page_of_all_ops_is_current(built: Build) -> None:
    page = markdown_table(built_table(BuildOptions()), OPS)
    assert (PROJECT / "docs" / "ops.md").read_text() == page, "run: opgate ops --markdown > docs/ops.md"


def test_references_run_in_onnx_reference(library: Path) -> None:
    tried = 0
    for op in read_table(library):
        folder = folder_of(op, [OPS])
        types = next(op.type_choices())
        case = next(case for case in folder.cases(numpy_types(types)) if case.error is None)
        one = one_node_model(op, case, types)
        evaluator = ReferenceEvaluator(one.model, new_ops=[reference_operator(op, folder.reference)])
        outputs = evaluator.run(None, one.feeds)
        expected = run_reference(op, folder.reference, case)
        for tensor, output in zip(op.outputs, outputs, strict=True):
            np.testing.assert_array_equal(output, expected[tensor.name])
        tried += 1
    assert tried >= 3


class Answers:
    """An engine that returns the outputs of the reference, each changed by `change`."""

    name = "answers"
    device = "cpu"

    def __init__(self, reference, change) -> None:
        self._reference, self._change = reference, change

    def refusal(self, op: Op, types) -> None:
        return None

    def run(self, op: Op, case: Case, types):
        return {name: self._change(array) for name, array in run_reference(op, self._reference, case).items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y, None),
        (lambda y: y + 1e-3, r"elements differ, first at \[0\]: expected .* got"),
        (lambda y: y[:-1], r"expected shape \[7\], got \[6\]"),
        (lambda y: y.astype(np.float64), "expected dtype float32, got float64"),
        (lambda y: np.where(np.arange(7) == 3, np.nan, y).astype(y.dtype), r"1 of 7 elements differ, first at \[3\]"),
    ],
)
def test_a_wrong_answer_turns_a_cell_red(library: Path, change, message: str | None) -> None:
    op = next(op for op in read_table(library) if op.name == "LeakyRelu")
    folder = OpFolder(OPS / "leaky_relu")
    case = Case("x", {"x": np.linspace(-1, 1, 7, dtype=np.float32)})
    failure = try_case(op, References(op, folder), case, {"T": "f32"}, Answers(folder.reference, change))
    assert failure is None if message is None else failure and re.search(message, failure)


def test_an_expected_error_must_come(library: Path) -> None:
    op = next(op for op in read_table(library) if op.name == "LeakyRelu")
    folder = OpFolder(OPS / "leaky_relu")
    case = Case("x", {"x": np.ones(3, np.float32)}, error="never said")
    failure = try_case(op, References(op, folder), case, {"T": "f32"}, OnnxRuntimeEngine(library))
    assert failure == "expected an error with /never said/, and the op took the inputs"


def test_strings_are_compared() -> None:
    a = np.array(["a", "b"], object)
    assert difference(a, a.copy(), (0, 0)) is None
    assert difference(a, np.array(["a", "c"], object), (0, 0)) == "1 strings differ, first at 1"


def test_integers_are_compared_exactly() -> None:
    a = np.array([2**53, 2**53 + 1], np.int64)
    assert difference(a, a.copy(), (0, 0)) is None
    assert difference(a, a - [0, 1], (0, 0))
