"""`opgate adopt`: functions of TVM-FFI that somebody else has compiled, as ops."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import opgate.numpy
from opgate.cli import app
from opgate.ops_build.adopt import adopt
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildOptions, out_of_tree
from opgate.ops_build.op_table import read_table
from opgate.ops_build.scaffold import ScaffoldError
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent

libinfo = pytest.importorskip("tvm_ffi.libinfo")

SCALED_SUM = (
    "ScaledSum(a: f32[...], b: f32[...]; factor: float=1, minus: bool=false, mode: {usual|fails|quiet}=usual)"
    " -> (y: f32[...])"
)
ADDED = "Added(x: f32[n]; by: int=1, mode: {short|a_long_name}=short) -> (y: f32[n])"
OFFSET = "Offset(x: i64[n], by?: i64[]) -> (y: i64[n])"


def compiled(library: Path, *flags: str) -> Path:
    source = Path(__file__).parent / "foreign_tvm" / "functions.c"
    usual = ["-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-Wall", "-Werror"]
    subprocess.run(["gcc", str(source), *usual, *flags, "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of foreign_tvm, linked with TVM-FFI's, as its own compiler does it."""
    runtime = Path(libinfo.find_libtvm_ffi())
    return compiled(
        tmp_path_factory.mktemp("foreign") / "libforeign.so", f"-L{runtime.parent}", "-Wl,--no-as-needed", "-ltvm_ffi"
    )


def in_cpp(library: Path) -> Path:
    """Compiles a function that is written with TVM-FFI's headers."""
    source = Path(__file__).parent / "foreign_tvm" / "added.cpp"
    runtime = Path(libinfo.find_libtvm_ffi())
    headers = [f"-I{path}" for path in (libinfo.find_include_path(), libinfo.find_dlpack_include_path())]
    flags = ["-std=c++17", "-shared", "-fPIC", *headers, f"-L{runtime.parent}", "-ltvm_ffi"]
    subprocess.run(["g++", str(source), *flags, "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def options(foreign: Path, library: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildOptions:
    folder = tmp_path_factory.mktemp("adopted") / "adopted_ops"
    ran = CliRunner().invoke(
        app, ["adopt", str(foreign), "--signature", SCALED_SUM, "--to", str(folder / "scaled_sum")]
    )
    assert ran.exit_code == 0 and "next: write in" in ran.output, ran.output
    op_file = folder / "scaled_sum" / "op.py"
    text = op_file.read_text()
    zeros = "np.zeros((*a.shape[:],), np.float32)"
    assert zeros in text
    op_file.write_text(text.replace(zeros, "np.float32(factor) * (a - b if minus else a + b)"))
    plain = compiled(foreign.with_name("plain library.so"), "-DWITHOUT_ERRORS")
    names = [path.name for path in adopt(plain, OFFSET, folder / "offset")]
    assert names == ["op.py", "dependencies.cmake", "plain_library.so"]  # it needs nothing of TVM-FFI
    op_file = folder / "offset" / "op.py"
    text = op_file.read_text()
    assert "np.zeros((n,), np.int64)" in text
    op_file.write_text(text.replace("np.zeros((n,), np.int64)", "x if by is None else x + by"))
    adopt(in_cpp(foreign.with_name("libadded.so")), ADDED, folder / "added")
    op_file = folder / "added" / "op.py"
    text = op_file.read_text()
    assert "np.zeros((n,), np.float32)" in text
    op_file.write_text(text.replace("np.zeros((n,), np.float32)", "x + np.float32(by)"))
    options = replace(out_of_tree(folder), engines=("onnxruntime", "torch"), cuda="")
    build(options, silent)
    return options


def test_the_cases_in_every_engine(options: BuildOptions) -> None:
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), options.ops, engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert sum(cell.passed for cell in cells if cell.engine == "onnxruntime cpu") == 3


def test_what_the_function_gets(options: BuildOptions) -> None:
    ops = opgate.numpy.load(options.library())
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(ops.scaled_sum(a, b, factor=2.0, minus=True), 2 * (a - b))
    assert ops.scaled_sum(np.float32(1), np.float32(2)).shape == ()
    assert ops.offset(np.arange(3), np.array(4)).tolist() == [4, 5, 6]
    assert ops.offset(np.arange(3)).tolist() == [0, 1, 2]


def test_a_function_that_is_written_with_the_headers(options: BuildOptions) -> None:
    ops = opgate.numpy.load(options.library())
    x = np.arange(3, dtype=np.float32)
    assert ops.added(x, by=2).tolist() == [2, 3, 4]
    assert ops.added(x, mode="a_long_name").tolist() == [0, -1, -2]
    with pytest.raises(ValueError, match=r"^adopted_ops::Added: ValueError: by: expected a number .* got -1$"):
        ops.added(x, by=-1)


def test_errors_of_the_function(options: BuildOptions) -> None:
    ops = opgate.numpy.load(options.library())
    a = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"^adopted_ops::ScaledSum: ValueError: factor: expected a number that is not"):
        ops.scaled_sum(a, a, factor=-1.0)
    with pytest.raises(RuntimeError, match=r"^adopted_ops::ScaledSum: RuntimeError: the device is on fire$"):
        ops.scaled_sum(a, a, mode="fails")
    with pytest.raises(RuntimeError, match=r"__tvm_ffi_scaled_sum returned -1 and no error$"):
        ops.scaled_sum(a, a, mode="quiet")


@pytest.mark.parametrize(("hidden", "limit"), [(True, 0), (False, 0), (True, 2**36)])
def test_the_library_is_one_file(options: BuildOptions, tmp_path: Path, hidden: bool, limit: int) -> None:
    """The op runs where TVM-FFI and the foreign library aren't, beside TVM-FFI that a program imports later, and in a
    worker of the gateway that has a limit of memory and so may not make files in memory."""
    moved = tmp_path / "moved.so"
    moved.write_bytes(options.library().read_bytes())
    program = f"""
import sys
if {limit}:
    from opgate.service.isolation.confinement import Confinement, confine
    confine(Confinement(memory_bytes={limit}))
import numpy as np, opgate.numpy
if {hidden}:
    sys.modules["tvm_ffi"] = None
ops = opgate.numpy.load({str(moved)!r})
assert ops.offset(np.arange(3), np.array(4)).tolist() == [4, 5, 6]
try:
    ops.scaled_sum(np.ones(3, np.float32), np.ones(3, np.float32), factor=-1.0)
except ValueError as error:
    assert "expected a number that is not negative" in str(error)
mapped = open("/proc/self/maps").read()
assert "libtvm_ffi.so" not in mapped if {hidden} else mapped.count("libtvm_ffi.so")
if not {hidden}:
    import tvm_ffi
    assert tvm_ffi.from_dlpack(np.arange(3)).shape == (3,)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("signature", "name", "symbol", "message"),
    [
        (
            "Other(x: f32[n]) -> (y: f32[n])",
            "other",
            None,
            "several functions: name one .* --symbol: Offset, scaled_sum",
        ),
        ("Other(x: f32[n]) -> (y: f32[n])", "other", "gone", "no function __tvm_ffi_gone: it has Offset, scaled_sum"),
        ("Other(x: f32[n]) -> (y: f32[n])", "another", None, "the op Other lies in a folder named other, got another"),
        ("Other(x: str[n]) -> (y: f32[n])", "other", None, "'x' is a tensor of strings"),
        ("Other(x*: f32[n]) -> (y: f32[n])", "other", None, "input 'x' is a list of tensors"),
        ("Other(x: f32[n]) -> (y: f32[v<=n])", "other", None, "output 'y' has a size that only the kernel knows"),
        ("Other(x: f32[n]) -> (y: f32[n], z?: f32[n])", "other", None, "output 'z' is optional"),
        ("Other(x: f32[n]; by: int[2]) -> (y: f32[n])", "other", None, "attribute 'by' is a list"),
    ],
)
def test_what_is_refused(
    foreign: Path, library: Path, tmp_path: Path, signature: str, name: str, symbol: str | None, message: str
) -> None:
    with pytest.raises(ScaffoldError, match=message):
        adopt(foreign, signature, tmp_path / name, symbol)
    assert not (tmp_path / name).exists()


def test_libraries_that_are_none(library: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text")
    (tmp_path / "empty.so").write_bytes(b"\x7fELF\0")
    for file, message in (("text.so", "is no shared library"), ("empty.so", "has no function of TVM-FFI")):
        with pytest.raises(ScaffoldError, match=message):
            adopt(tmp_path / file, OFFSET, tmp_path / "offset")
    ran = CliRunner().invoke(
        app, ["adopt", str(tmp_path / "text.so"), "--signature", OFFSET, "--to", str(tmp_path / "offset")]
    )
    assert ran.exit_code == 1 and "opgate: " in ran.output
