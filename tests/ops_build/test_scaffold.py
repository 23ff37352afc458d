"""`opgate new`: the folders that it writes build, verify and are typed, and what it refuses."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildError, out_of_tree
from opgate.ops_build.op_folder import OpFolder
from opgate.ops_build.op_table import SignatureError, read_table, snake_case
from opgate.ops_build.ops_page import markdown_table
from opgate.ops_build.scaffold import ScaffoldError, new_op
from opgate.ops_build.verification.report import is_green, verify_and_print
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised

SIGNATURES = {
    "NearestRow": "<T: f32|f64> NearestRow(x: T[n,c], table: T[m,c], bias?: T[m]; k: int, mode: {near|far}=near)"
    " -> (row: i32[n,k], found: T[v<=n,c], of: i64[v])",
    "WideSum": '<T: f16|i8> WideSum(xs*: T[...,2*2]; pads: int[2], names: str[]=["a"]) -> (y: T[...], z?: f32[7,...])',
    "Tokens": "Tokens(text: str[n], size: const i64[]) -> (token: str[n,ceildiv(size,2)], known: bool[n])",
}


def command(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "opgate", "new", *arguments], cwd=folder, capture_output=True, text=True
    )


def for_onnxruntime(folder):
    return replace(out_of_tree(folder, domain="own"), engines=("onnxruntime",), cuda="")


@pytest.fixture(scope="module")
def folder(library, tmp_path_factory):
    """A folder with an elementwise op, a skeleton for each of SIGNATURES, and with OPGATE_TEST_ALL one for every op of
    the table."""
    folder = tmp_path_factory.mktemp("scaffold") / "my_ops"
    new_op(folder / "scale_it", None, library)
    new_op(folder / "scale_all", None, library, python=True)
    signatures = dict(SIGNATURES)
    if os.environ.get("OPGATE_TEST_ALL"):
        signatures |= {op.name: op.signature for op in read_table(library)}
    for name, signature in signatures.items():
        new_op(folder / snake_case(name), signature, library)
    return folder


def test_every_new_op_builds_without_a_warning_and_verifies(folder, capsys):
    options = for_onnxruntime(folder)
    build(options, lambda line: None)
    table = read_table(options.library())
    assert {"ScaleIt", "ScaleAll", "ScaleAllBackward", *SIGNATURES} <= {op.name for op in table}
    with supervised(adapters_of(options)) as engines:
        assert is_green(verify_and_print(table, folder, engines, [], []))
    assert " 0 failed" in capsys.readouterr().out
    page = markdown_table(table, folder)
    assert all(f"## {op.name}\n" in page for op in table)


def test_every_new_op_with_a_signature_in_python_verifies(library, tmp_path, capsys):
    """Nothing is compiled, so all ops of the table are tried. A gradient's name is that of an op in Python already."""
    table = [op for op in read_table(library) if not op.name.endswith("Backward")]
    for name, signature in {**SIGNATURES, **{op.name: op.signature for op in table}}.items():
        new_op(tmp_path / "all_ops" / snake_case(name), signature, library, python=True)
    options = for_onnxruntime(tmp_path / "all_ops")
    build(options, lambda line: None)
    names = {op.name for op in read_table(options.library())}
    assert names == {*SIGNATURES, *(op.name for op in table)}
    with supervised(adapters_of(options)) as engines:
        assert is_green(
            verify_and_print(read_table(options.library()), tmp_path / "all_ops", engines, [*SIGNATURES], [])
        )
    assert " 0 failed" in capsys.readouterr().out


def test_a_wrong_kernel_of_a_new_op_is_found(folder, library, tmp_path, capsys):
    new_op(tmp_path / "ops" / "scale_it", None, library)
    header = tmp_path / "ops" / "scale_it" / "scale_it.h"
    header.write_text(header.read_text().replace("V(factor) * x", "V(factor) + x"))
    options = for_onnxruntime(tmp_path / "ops")
    build(options, lambda line: None)
    with supervised(adapters_of(options)) as engines:
        assert not is_green(verify_and_print(read_table(options.library()), tmp_path / "ops", engines, [], []))
    assert "4 passed, 28 failed" in capsys.readouterr().out  # the empty tensor of each dtype has nothing wrong


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("V(factor) * x;", "V(factor) * z;", r"scale_it\.h:17:\d+: error: .z. was not declared"),
        ("operator()(V x)", "operator()(V* x)", r"scale_it\.h:21:\d+: +required from here"),
        ("ScaleItFormula)", "Formula)", r"scale_it\.h:21:\d+: error: .Formula. does not name a type"),
    ],
)
def test_the_compiler_names_the_line_of_the_header(library, tmp_path, right, wrong, message):
    new_op(tmp_path / "ops" / "scale_it", None, library)
    header = tmp_path / "ops" / "scale_it" / "scale_it.h"
    header.write_text(header.read_text().replace(right, wrong))
    with pytest.raises(BuildError, match=f"{tmp_path}/ops/scale_it/{message}"):
        build(for_onnxruntime(tmp_path / "ops"), lambda line: None)


def test_what_the_folder_has_is_not_generated(library, tmp_path):
    new_op(tmp_path / "ops" / "scale_it", None, library)
    folder = OpFolder(tmp_path / "ops" / "scale_it")
    assert sorted(folder.generated_sources()) == ["scale_it.cpp", "scale_it.cu"]
    (folder.path / "scale_it.cu").write_text('#include "scale_it.h"\n')
    assert sorted(folder.generated_sources()) == ["scale_it.cpp"]
    with pytest.raises(BuildError, match=r"has a \.cu file and no CUDA kernel of ScaleIt"):
        build(for_onnxruntime(tmp_path / "ops"), lambda line: None)


def test_the_reference_of_the_elementwise_op_is_its_formula(folder):
    reference = OpFolder(folder / "scale_it").reference
    assert reference(np.array([1.5, -4.0]), factor=-0.5).tolist() == [-0.75, 2.0]


def test_the_python_files_are_typed_and_formatted(folder):
    files = [str(file) for file in folder.glob("*/*.py")]
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(Path(__file__).parents[2] / "pyproject.toml")]
    # Those who write NumPy don't annotate arrays: the signature stands above them.
    for check in (["check", "--per-file-ignores", "op.py:ANN", *settings], ["format", "--check", *settings]):
        found = subprocess.run([*ruff, *check, *files], capture_output=True, text=True)
        assert not found.returncode, found.stdout


def test_an_op_of_the_table_is_in_its_package(library, tmp_path, monkeypatch):
    monkeypatch.setattr("opgate.ops_build.scaffold.OWN_OPS", tmp_path / "ops")
    assert tmp_path / "ops" / "scale_it" / "__init__.py" in new_op(tmp_path / "ops" / "scale_it", None, library)
    assert "__init__.py" not in [path.name for path in new_op(tmp_path / "my_ops" / "scale_it", None, library)]


def test_the_command_says_what_it_wrote_and_what_comes_next(library, tmp_path):
    done = command("my_ops/scale_it", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "my_ops" / "scale_it").iterdir())
    assert written == ["README.md", "cases.py", "reference.py", "scale_it.h"]
    assert done.stdout.splitlines()[-1] == "next: opgate build my_ops, then opgate verify --folder my_ops"


@pytest.mark.parametrize(
    ("name", "signature", "message"),
    [
        ("ScaleIt", None, "expected a folder named in snake_case, such as my_ops/scale_add, got 'ScaleIt'"),
        ("1st", None, "snake_case"),
        ("scale-it", None, "snake_case"),
        ("lambda", None, "snake_case"),
        ("conv_2d", None, "the op Conv2d lies in a folder named conv2d, got conv_2d"),
        ("a_b", None, "the op AB lies in a folder named ab, got a_b"),
        ("scale", "Scale(in: f32[n]) -> (y: f32[n])", "'in' has a meaning in the kernel or in the reference"),
        ("scale", "Scale(x: f32[n]; class: int=1) -> (y: f32[n])", "'class' has a meaning"),
        ("scale", "Scale(x: f32[double]) -> (y: f32[double])", "'double' has a meaning"),
        ("other", "Scale(x: f32[...]) -> (y: f32[...])", "the op Scale lies in a folder named scale, got other"),
        ("scale", "Scale(x: f32[...) -> (y: f32[...])", "column "),
        ("scale", "", "column 1"),
    ],
)
def test_what_is_no_op_is_refused_and_nothing_is_written(library, tmp_path, name, signature, message):
    with pytest.raises((ScaffoldError, SignatureError), match=message):
        new_op(tmp_path / name, signature, library)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_left_alone(library, tmp_path):
    (tmp_path / "scale_it").mkdir()
    (tmp_path / "scale_it" / "mine.txt").write_text("mine")
    done = command("scale_it", folder=tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert [path.name for path in (tmp_path / "scale_it").iterdir()] == ["mine.txt"]


def test_without_a_library_a_signature_can_not_be_read(tmp_path):
    with pytest.raises(ScaffoldError, match="run opgate build"):
        new_op(tmp_path / "scale", "Scale(x: f32[...]) -> (y: f32[...])", tmp_path / "none.so")
