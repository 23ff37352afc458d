"""Kernels that are functions of C, in C and in Rust."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import opgate.numpy
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import DEFAULT_OUTPUT, BuildError, out_of_tree
from opgate.ops_build.op_table import read_table
from opgate.ops_build.runner.checks import sanitized
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent, thorough

OPS = Path(__file__).parent / "c_ops"


def built(folder: Path, *engines: str):
    options = replace(out_of_tree(folder, DEFAULT_OUTPUT.parent / folder.name), engines=engines, cuda="")
    build(options, silent)
    return options


@pytest.fixture(scope="module")
def options(library):
    return built(OPS, "onnxruntime", "torch")


def verified(options, sources, engine: str) -> int:
    with supervised(sources) as engines:
        cells = verify(read_table(options.library()), options.ops, engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    return sum(cell.passed for cell in cells if cell.engine == engine)


def test_every_case_in_every_engine(options):
    assert verified(options, adapters_of(options), "onnxruntime cpu") >= 40


@thorough("the core and the kernels compile once more for each sanitizer")
def test_every_case_under_sanitizers(options):
    assert verified(options, sanitized(options, silent), "asan+ubsan cpu") >= 20


def test_a_kernel_in_rust(library):
    try:
        subprocess.run(["rustc", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("rustc is not installed")
    options = built(OPS.with_name("rust_ops"), "onnxruntime")
    assert verified(options, adapters_of(options), "onnxruntime cpu") == 3


def test_what_a_kernel_says_of_a_failure(options):
    ops = opgate.numpy.load(options.library())
    with pytest.raises(ValueError, match=r"^c_ops::RunLengths: expected numbers that are not negative, got -7$"):
        ops.run_lengths(np.array([3, -7], np.int32))
    with pytest.raises(ValueError, match=r"attribute 'by': expected a number that is not negative, got -1"):
        ops.scaled_rows(np.ones((2, 2), np.float32), by=-1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op_x.formula()\nop_x.c_kernel('f')", r"op\.py:2: OpX has a formula, a loop or a function of C"),
        ("op_x.c_kernel('a b')", r"op\.py:5: ValueError: expected the name of a function of C, got 'a b'"),
        ("op_x.c_kernel('missing')", r"undefined .*missing|cannot open shared|undefined symbol: missing"),
    ],
)
def test_what_no_kernel_can_be_is_refused(library, tmp_path, text, message):
    (tmp_path / "bad_ops" / "op_x").mkdir(parents=True)
    (tmp_path / "bad_ops" / "op_x" / "op.py").write_text(
        f'import opgate\n@opgate.op("<T: f32> OpX(x: T[...]) -> (y: T[...])")\ndef op_x(x):\n    return x\n{text}\n'
    )
    with pytest.raises(BuildError, match=message):
        build(replace(out_of_tree(tmp_path / "bad_ops"), engines=("onnxruntime",), cuda=""), silent)
