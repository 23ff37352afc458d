"""Kernels in Triton's language: Triton's interpreter proves them on the CPU, and a stand-in for the driver checks what is
launched on a GPU."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildError, out_of_tree
from opgate.ops_build.cuda_emulation.build import build as build_emulated
from opgate.ops_build.op_folder import OpFolder
from opgate.ops_build.op_table import read_table
from opgate.ops_build.python_ops.triton_kernel import ARCHITECTURES, compiled
from opgate.ops_build.runner.checks import Program, interpreted, with_cuda_kernels
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent
from tests.ops_build.emulation import HOST, onnxruntime_include, tensorrt_include

pytest.importorskip("triton")
OPS = Path(__file__).parent / "triton_ops"
HEAD = """import triton
import triton.language as tl
import opgate
@opgate.op("OpX(x: f32[n], bias?: f32[n]; k: int=1, mode: {a|b}=a) -> (y: f32[n])")
def op_x(x, bias, *, k, mode):
    return x
"""


@pytest.fixture(scope="module")
def options(library, tmp_path_factory):
    options = replace(out_of_tree(OPS, tmp_path_factory.mktemp("triton")), engines=("onnxruntime",), cuda="")
    build(options, silent)
    return options


def test_every_case_in_the_interpreter(options):
    table = with_cuda_kernels(read_table(options.library()), options)
    with supervised(interpreted(options)) as engines:
        cells = verify(table, [OPS], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert sum(cell.passed for cell in cells) == 32


def test_the_library_has_a_cubin_for_each_architecture():
    file = OpFolder(OPS / "row_softmax").op_file
    cubins = compiled(file.op, file.python.triton_kernel)
    assert {cubin.architecture for cubin in cubins} == set(ARCHITECTURES)
    assert len(cubins) == len(ARCHITECTURES) * 3 * 2  # dtypes, alignments
    for cubin in cubins:
        assert cubin.image.startswith(b"\x7fELF") and cubin.shared == 8 and cubin.warps == 2
        assert str(OPS).encode() not in cubin.image  # no path of the machine that has compiled it


def test_what_is_launched(options, tmp_path, monkeypatch):
    """The stand-in ends the program if a launch isn't what the kernel needs."""
    ops = tmp_path / "triton_ops"
    for name in ("clamp_add", "row_softmax"):
        (ops / name).mkdir(parents=True)
        text = (OPS / name / "op.py").read_text()
        (ops / name / "op.py").write_text(text.replace("f16|bf16|f32", "f32").replace("f16|f32|i32", "f32"))
    driver = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*driver, str(Path(__file__).with_name("fake_driver.c")), "-lm"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    own = replace(out_of_tree(ops), engines=("onnxruntime",), cuda="")
    build(own, silent)
    include, plugins = onnxruntime_include(), tensorrt_include()
    host = (include, HOST) if include else None
    program = build_emulated(
        tmp_path / "emulated", ops=ops, domain="triton_ops", tensorrt=plugins or "", onnxruntime=host
    )
    ways = {"kernels": (), "unaligned": ("--unaligned", "--padded"), "twice": ("--written",)}
    ways |= {"onnxruntime": ("--onnxruntime", "")} if host else {}
    ways |= {"tensorrt": ("--plugins", "")} if plugins else {}
    with supervised([Program(name, "cuda", program, arguments) for name, arguments in ways.items()]) as engines:
        cells = verify(with_cuda_kernels(read_table(own.library()), own), [ops], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    for way in ways:
        assert sum(cell.passed for cell in cells if cell.engine.startswith(way)) >= 9, way


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(x, y, n, z)", r"op\.py:7: .*'bias' may be absent or a list, which no kernel"),
        ("(x, y, n)", "'bias' may be absent"),
    ],
)
def test_what_has_no_kernel_in_triton(library, tmp_path, text, message):
    refused(tmp_path, HEAD, f'@op_x.triton(grid="n")\n@triton.jit\ndef op_x_kernel{text}:\n    pass\n', message)


@pytest.mark.parametrize(
    ("decorator", "kernel", "message"),
    [
        ('grid="n"', "k1(x, y, z)", r"op\.py:7: a kernel of OpX takes x, x_size, y, y_size, k, n, and no z"),
        ('grid="m"', "k1(x, y)", r"op\.py:7: grid: 'm' is none of k, n, x_size, y_size"),
        ('grid="n +"', "k1(x, y)", r"op\.py:7: grid: 'n \+' is no expression"),
        ('grid="n ** 2"', "k1(x, y)", r"op\.py:7: grid: expected \+ - \* / % min max ceildiv of sizes, got 'n \*\* 2'"),
        ('grid=("n", "n", "n", "n")', "k1(x, y)", r"op\.py:7: expected a grid of one to three sizes, got 4"),
        ('grid="n"', "_(x, y)", r"op\.py:7: give the kernel a name"),
        (
            'grid="n"',
            "k1(x, y):\n    tl.store(y, unknown)\n#",
            r"(?s)op\.py:7: Triton can't compile it for \{\}: .*unknown",
        ),
    ],
)
def test_what_no_kernel_can_be_is_refused_with_its_line(library, tmp_path, decorator, kernel, message):
    head = (
        HEAD.replace(", bias?: f32[n]", "").replace("x, bias", "x").replace("; k: int=1, mode: {a|b}=a", "; k: int=1")
    )
    head = head.replace(", mode", "")
    refused(tmp_path, head, f"@op_x.triton({decorator})\n@triton.jit\ndef {kernel}:\n    pass\n", message)


def test_a_kernel_needs_triton_jit(library, tmp_path):
    text = '@op_x.triton(grid="n")\ndef op_x_kernel(x):\n    pass\n'
    refused(tmp_path, HEAD, text, r"op\.py:7: TypeError: .* write @triton\.jit below it")


def refused(tmp_path: Path, head: str, text: str, message: str) -> None:
    (tmp_path / "bad_ops" / "op_x").mkdir(parents=True)
    (tmp_path / "bad_ops" / "op_x" / "op.py").write_text(head + text)
    with pytest.raises(BuildError, match=message):
        build(replace(out_of_tree(tmp_path / "bad_ops"), engines=("onnxruntime",), cuda=""), silent)
