"""Kernels that are loops in Python, which Numba compiles ahead of time."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import opgate.numpy
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import DEFAULT_OUTPUT, BuildError, out_of_tree
from opgate.ops_build.op_folder import OpFolder
from opgate.ops_build.op_table import read_table
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent

pytest.importorskip("numba")
OPS = Path(__file__).parent / "loop_ops"
HEAD = """import numpy as np
import opgate
@opgate.op("<T: f32|f64> OpX(x: T[n]; k: int=1, mode: {a|b}=a) -> (y: T[n])")
def op_x(x, *, k, mode):
    return x
"""


@pytest.fixture(scope="module")
def options(library):
    options = replace(out_of_tree(OPS, DEFAULT_OUTPUT.parent / "loop_ops"), engines=("onnxruntime", "torch"), cuda="")
    build(options, silent)
    return options


def test_every_case_in_every_engine(options):
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), [OPS], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert all(sum(cell.passed for cell in cells if cell.engine == f"{name} cpu") >= 35 for name in options.engines)


def test_the_library_needs_no_numba(options):
    code = (
        "import sys, numpy as np, opgate.numpy\n"
        f"ops = opgate.numpy.load({str(options.library())!r})\n"
        "print(ops.nearest(np.eye(3, dtype='f4'), np.eye(3, dtype='f4'))[0].tolist(), 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[0, 1, 2] False\n", done.stderr


def test_there_is_a_loop_for_each_level():
    """Each in the instructions of its level; what a function of NumPy needs is a function of the C library."""
    text = OpFolder(OPS / "nearest").generated_sources()["nearest.cpp"]
    levels = re.split(r"^#(?:if|elif|else).*$", text, flags=re.MULTILINE)[1:]
    assert len(levels) == 3 and "zmm" not in levels[1] + levels[2] and "ymm" in levels[1] and "ymm" not in levels[2]
    assert re.search(r"vfmadd\d+ps\s+.*%ymm", levels[1])  # a sum whose order may change is vectorized


def test_rows_are_shared_by_threads(options):
    ops = opgate.numpy.load(options.library())
    rng = np.random.default_rng(0)
    x, table = (rng.standard_normal((5000, 3)).astype(np.float32) for _ in range(2))
    before = opgate.numpy.get_num_threads()
    try:
        opgate.numpy.set_num_threads(1)
        one = ops.nearest(x, table)
        opgate.numpy.set_num_threads(4)
        four = ops.nearest(x, table)
    finally:
        opgate.numpy.set_num_threads(before)
    assert all((a == b).all() for a, b in zip(one, four, strict=True))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("rows='n')\ndef _(x, y)", r"op\.py:6: a loop takes begin and end first"),
        ("rows='n')\ndef _(begin, end, x, z)", r"op\.py:6: a loop of OpX takes x, y, k, n, and no z"),
        ("rows='m')\ndef _(begin, end, x, y)", r"op\.py:6: rows: 'm' is no size of OpX"),
        ("rows='n n')\ndef _(begin, end, x, y)", r"op\.py:6: rows: 'n n' is no expression"),
        ("rows='n.a')\ndef _(begin, end, x, y)", r"op\.py:6: rows: expected \+ - \* / % min max ceildiv of sizes"),
        (
            "rows='n')\ndef _(begin, end, x, y):\n    y[begin] = np.sort(x)[0]\n#",
            r"op\.py:6: the loop needs Numba's runtime \(\w+\): make no array in it, raise nothing",
        ),
        (
            "rows='n')\ndef _(begin, end, x, y):\n    y[begin] = open('a')\n#",
            r"op\.py:6: Numba can't compile the loop: .*open",
        ),
        ("rows='n', fastmath={'quick'})\ndef _(begin, end, x, y)", r"op\.py:6: Numba can't compile the loop: .*quick"),
    ],
)
def test_what_no_loop_can_be_is_refused_with_its_line(library, tmp_path, loop, message):
    (tmp_path / "bad_ops" / "op_x").mkdir(parents=True)
    (tmp_path / "bad_ops" / "op_x" / "op.py").write_text(f"{HEAD}@op_x.loop({loop}:\n    y[begin] = x[begin]\n")
    with pytest.raises(BuildError, match=message):
        build(replace(out_of_tree(tmp_path / "bad_ops"), engines=("onnxruntime",), cuda=""), silent)


def test_floats_of_16_bits_have_no_loop(library, tmp_path):
    (tmp_path / "bad_ops" / "op_x").mkdir(parents=True)
    text = HEAD.replace("f32|f64", "f32|f16") + "@op_x.loop(rows='n')\ndef _(begin, end, x, y):\n    pass\n"
    (tmp_path / "bad_ops" / "op_x" / "op.py").write_text(text)
    with pytest.raises(BuildError, match=r"op\.py:6: a loop has f32, f64, .* and 'x' may be f16"):
        build(replace(out_of_tree(tmp_path / "bad_ops"), engines=("onnxruntime",), cuda=""), silent)
