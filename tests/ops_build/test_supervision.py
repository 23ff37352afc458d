"""What `opgate verify` says of kernels that leave their tensors, crash, loop or race: an op with a way to do each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildError, BuildOptions, out_of_tree
from opgate.ops_build.case import Case
from opgate.ops_build.engines.engine import Absent, Engine, EngineEnded
from opgate.ops_build.op_table import Op, read_table
from opgate.ops_build.runner.checks import emulated, sanitized, with_cuda_kernels
from opgate.ops_build.verification.sources import Adapter, OneLibrary
from opgate.ops_build.verification.supervision import EngineProcess, SupervisedEngine, supervised
from opgate.ops_build.verification.verify import verify
from tests import PROJECT
from tests.conftest import ALL, silent, thorough
from tests.system.test_confinement import gone

WAYS = {
    "good": "",
    "far": "if (n == 3) y[100000] = 1;",
    "before": "if (n == 3) y[-1] = 1;",
    "far_before": "if (n == 3) y[-100000] = 1;",
    "reads": "y[0] += n == 3 ? x[n] : 0;",
    "input": "if (n == 3) const_cast<float*>(x)[1] = 0;",
    "gap": "if (n == 3) { y[2] = left; }",
    "scratch": "{ auto s = context.scratch<float>(n); s.data()[n == 3 ? n : 0] = 1; }",
    "aborts": "if (n == 3) std::abort();",
    "exits": "if (n == 3) std::_Exit(7);",
    "overflows_the_stack": "if (n == 3) y[0] += deeper(x[0]);",
    "loops": "while (n == 3 && y[0] != left) { asm volatile(\"\"); }",
    "throws": "if (n == 3) throw std::runtime_error(\"thrown\");",
    "wraps": "{ volatile int most = 2147483647; const int sum = most + static_cast<int>(n); y[0] += 0.0f * (float)sum; }",
    "races": "{ float sum = 0; context.parallel_for(n, 1, [&](auto a, auto b) { for (; a < b; ++a) sum += x[a]; });"
             " y[0] += 0 * sum; }",
    "frees": "{ volatile float* p = new float[4]; delete[] p; y[0] += 0 * p[1]; }",
}  # fmt: skip

SOURCE = """
#pragma GCC diagnostic ignored "-Wuse-after-free"  // the errors are meant
#pragma GCC diagnostic ignored "-Wvolatile"
#include <cstdlib>

#include "kernel_toolkit/op.h"

OPGATE_OP(Strays, "Strays(x: f32[n]; how: {%s}=good) -> (y: f32[n])", "2 x, and an error of its author.")

namespace {
__attribute__((noinline)) float deeper(volatile float x) { return x < -1 ? x : x + deeper(x); }

struct StraysCpu {
  opgate::Status operator()(opgate::Context& context, const opgate::Inputs& in, const opgate::Attributes& attributes,
                            opgate::Outputs& out) const {
    const float* x = in["x"].data<float>();
    float* y = out["y"].data<float>();
    const std::int64_t n = in.size("n");
    const float left = y[n - 1];  // what the output held before
    for (std::int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
    const std::string how = attributes.text("how");
    %s
    return {};
  }
};
}  // namespace

OPGATE_CPU_KERNEL(Strays, StraysCpu)
"""

PYTHON = """
import numpy as np
from opgate.ops_build.case import Case

def reference(x, *, how):
    return 2 * x

def cases(types):
    for n in (3, 1000):
        yield Case(f"{n} values", {"x": np.arange(n, dtype=np.float32)}, {"how": "%s"})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the op Strays, without reference and cases."""
    folder = tmp_path_factory.mktemp("own", numbered=False)  # the domain of other small builds, too
    (folder / "strays").mkdir()
    ways = "\n    ".join(f'if (how == "{way}") {code}' for way, code in WAYS.items() if code)
    (folder / "strays" / "strays.cpp").write_text(SOURCE % ("|".join(WAYS), ways))
    return folder


#: `make test` tries one engine: the adapter of the other takes half a minute to compile.
ENGINES = ("onnxruntime", "torch") if ALL else ("onnxruntime",)


@pytest.fixture(scope="module")
def options(folder: Path) -> BuildOptions:
    options = replace(out_of_tree(folder), cuda="")
    build(replace(options, engines=ENGINES), silent)
    return options


@pytest.fixture(scope="module")
def op(options: BuildOptions) -> Op:
    return read_table(options.library())[0]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, options: BuildOptions) -> Iterator[Engine]:
    process = EngineProcess(Adapter(request.param, options), time_limit=20)
    engine = process.engines()[0]
    if isinstance(engine, Absent):
        pytest.skip(engine.reason)
    yield engine
    process.close()


def case(way: str, count: int = 3) -> Case:
    return Case(way, {"x": np.arange(count, dtype=np.float32)}, {"how": way})


ERRORS = [
        ("far", r"SIGSEGV: own::Strays: the kernel wrote 399988 bytes past the end of output 'y' \(f32\[3\], 12 bytes"),
        ("before", r"the kernel wrote 4 bytes before the beginning of output 'y' \(f32\[3\], 12 bytes\)"),
        ("far_before", r"SIGSEGV: .*the kernel wrote 400000 bytes before the beginning of output 'y'"),
        ("reads", r"SIGSEGV: .*the kernel read 0 bytes past the end of input 'x' \(f32\[3\]"),
        ("input", r"SIGSEGV: .*the kernel wrote to input 'x'"),
        ("scratch", r"the kernel wrote 0 bytes past the end of scratch memory of 12 bytes"),
        ("aborts", r"the process died of SIGABRT"),
        ("exits", r"the process ended with exit status 7"),
        ("overflows_the_stack", r"the process died of SIGSEGV"),
        ("throws", r"Strays: thrown"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "message"), ERRORS)
def test_an_error_is_named_and_the_next_case_runs(engine: Engine, op: Op, way: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        engine.run(op, case(way), {})
    np.testing.assert_array_equal(engine.run(op, case("good"), {})["y"], [0, 2, 4])


def test_an_element_that_the_kernel_leaves_out_is_wrong(engine: Engine, op: Op) -> None:
    assert engine.run(op, case("gap"), {})["y"][2] < -1e36


def test_a_loop_ends_at_the_time_limit(options: BuildOptions, op: Op) -> None:
    with supervised([OneLibrary(options.library())], time_limit=3) as (engine,):
        assert isinstance(engine, SupervisedEngine)
        engine.run(op, case("good"), {})
        began = time.monotonic()
        with pytest.raises(EngineEnded, match="longer than 3 seconds"):
            engine.run(op, case("loops"), {})
        assert time.monotonic() - began < 20
        engine.run(op, case("good"), {})


def test_without_the_guard_nothing_is_copied(options: BuildOptions, op: Op) -> None:
    """An op library that serves requests doesn't pay for the guard: here the stray write stays unseen."""
    assert os.environ.get("OPGATE_GUARD") != "1"
    assert OnnxRuntimeEngine(options.library()).run(op, case("before", 1000), {})["y"][1] == 2


def write_cases(folder: Path, way: str) -> None:
    for name in ("reference", "cases"):
        (folder / "strays" / f"{name}.py").write_text(PYTHON % way)


# That kernels without an error are green, the test of a folder out of tree says, too.
@pytest.mark.parametrize(("way", "status"), [*[("good", 0)] * ALL, ("far", 1)])
def test_the_command(folder: Path, options: BuildOptions, way: str, status: int) -> None:
    write_cases(folder, way)
    one = [] if ALL else ["--library", str(options.library())]
    command = [sys.executable, "-m", "opgate", "verify", "--folder", str(folder), *one]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=300)
    assert finished.returncode == status, finished.stdout + finished.stderr
    text = " ".join(finished.stdout.split())
    if way == "far":
        assert "3 values: the process died of SIGSEGV" in text and "1/2" in text
    else:
        assert "2/2" in text and " 0 failed" in text


def test_many_endings_end_a_cell(options: BuildOptions, op: Op, tmp_path: Path) -> None:
    (tmp_path / "strays").mkdir()
    several = "\n    for i in range(9): yield Case(f'{i}', {'x': np.ones(3, np.float32)}, {'how': 'aborts'})\n"
    (tmp_path / "strays" / "cases.py").write_text(PYTHON % "good" + several)
    (tmp_path / "strays" / "reference.py").write_text(PYTHON % "good")
    with supervised([OneLibrary(options.library())]) as engines:
        (cell,) = verify([op], [tmp_path], engines)
    assert cell.passed == 2 and len(cell.failures) == 4
    assert cell.failures[-1] == "6 more cases were not run, because 3 cases ended the process"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_when_it_ends_no_kernel_goes_on(folder: Path, options: BuildOptions, number: signal.Signals) -> None:
    """After Ctrl-C it says where it was."""
    write_cases(folder, "loops")
    # A shell starts what runs in its background with Ctrl-C ignored.
    # With one library the only engine is ONNX Runtime, which has no long start that looks like a loop.
    verify_one = ["-m", "opgate", "verify", "--folder", str(folder), "--library", str(options.library())]
    command = ["env", "--default-signal=INT", sys.executable, *verify_one]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 300
        while not (engines := looping(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(process.pid, number)
        text = process.stdout.read()
        assert process.wait(20) == (130 if number == signal.SIGINT else -number)
    assert number != signal.SIGINT or "interrupted at Strays f32 on onnxruntime cpu: 3 values" in text
    assert engines and gone(engines)


def looping(parent: int) -> list[int]:
    """Returns the children of a process that have used more than 4 seconds of processor time."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent and int(fields[11]) > 4 * os.sysconf("SC_CLK_TCK"):
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def programs(options: BuildOptions) -> Iterator[dict[str, Engine]]:
    with supervised(sanitized(options, silent), time_limit=20) as engines:
        yield {engine.name: engine for engine in engines if not isinstance(engine, Absent)}


@pytest.mark.parametrize(
    ("sanitizer", "way", "message"),
    [
        ("asan+ubsan", "reads", "READ of size 4.*AddressSanitizer: heap-buffer-overflow .*strays.cpp"),
        ("asan+ubsan", "frees", "AddressSanitizer: heap-use-after-free"),
        ("asan+ubsan", "wraps", "strays.cpp:.*: runtime error: signed integer overflow"),
        ("asan+ubsan", "input", "the kernel wrote to input 'x'"),
        ("tsan", "races", "ThreadSanitizer: data race .*strays.cpp"),
    ],
)
@thorough("it compiles two programs of its own")
def test_sanitizers(programs: dict[str, Engine], op: Op, sanitizer: str, way: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        programs[sanitizer].run(op, case(way), {})
    np.testing.assert_array_equal(programs[sanitizer].run(op, case("good"), {})["y"], [0, 2, 4])


CUDA = """
#include "{name}.h"
#include "kernel_toolkit/elementwise.cuh"

namespace {{
__global__ void twice(std::int64_t n, const float* x, float* y) {{
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i{offset}];
}}

struct Cuda {{
  opgate::Status operator()(opgate::Context& context, const opgate::Inputs& in, const opgate::Attributes&,
                            opgate::Outputs& out) const {{
    const std::int64_t n = in.size("n");
    twice<<<opgate::blocks_for(n, 128), 128, 0, opgate::stream_of(context)>>>(n, in["x"].data<float>(),
                                                                              out["y"].data<float>());
    return opgate::launched();
  }}
}};
}}  // namespace

{registration}
"""


def cuda_op(folder: Path, name: str, offset: str = "", registration: str = "OPGATE_CUDA_KERNEL({tag}, Cuda)") -> None:
    tag = name.title()
    (folder / name).mkdir()
    (folder / name / f"{name}.h").write_text(
        f'#pragma once\n#include "kernel_toolkit/op.h"\nOPGATE_OP({tag}, "{tag}(x: f32[n]) -> (y: f32[n])", "2 x.")\n'
    )
    (folder / name / f"{name}.cpp").write_text(
        f'#include "{name}.h"\nstruct Cpu {{ opgate::Status operator()(opgate::Context&, const opgate::Inputs& in, '
        'const opgate::Attributes&, opgate::Outputs& out) const { for (std::int64_t i = 0; i < in.size("n"); ++i) '
        'out["y"].data<float>()[i] = 2 * in["x"].data<float>()[i]; return {}; } };\n'
        f"OPGATE_CPU_KERNEL({tag}, Cpu)\n"
    )
    (folder / name / f"{name}.cu").write_text(
        CUDA.format(name=name, offset=offset, registration=registration.format(tag=tag))
    )


@thorough("tests/ops_build/test_cuda_emulation.py runs emulated kernels too")
def test_emulated_cuda_kernels(tmp_path: Path) -> None:
    cuda_op(tmp_path, "right")
    cuda_op(tmp_path, "wrong", " + 1")
    # Both ops have a struct of the same name, so they can't be compiled together.
    options = replace(out_of_tree(tmp_path, domain="own"), engines=("onnxruntime",), cuda="", batch=1)
    table = read_table(build(options, silent).libraries["onnxruntime"])
    assert [op.devices for op in table] == [("cpu",), ("cpu",)]
    right, wrong = with_cuda_kernels(table, options)
    assert right.devices == ("cpu", "cuda")
    one = Case("", {"x": np.arange(300, dtype=np.float32)})
    with supervised(emulated(options, silent)) as engines:
        assert [engine.name for engine in engines] == ["emulated", "emulated, shuffled"]
        for engine in engines:
            assert isinstance(engine, SupervisedEngine)
            np.testing.assert_array_equal(engine.run(right, one, {})["y"], np.arange(300) * 2)
            with pytest.raises(EngineEnded, match=r"READ of size 4.*heap-buffer-overflow .*wrong/wrong.cu:8"):
                engine.run(wrong, one, {})


def test_kernels_of_chosen_ops_on_emulated_threads(tmp_path: Path) -> None:
    """Nothing else is compiled, and the log says how far it is."""
    cuda_op(tmp_path, "right")
    cuda_op(tmp_path, "broken", " + }")
    options = replace(out_of_tree(tmp_path, domain="own"), engines=("onnxruntime",), cuda="", batch=1)
    broken, right = with_cuda_kernels(read_table(build(options, silent).libraries["onnxruntime"]), options)
    lines: list[str] = []
    with supervised(emulated(options, lines.append, [right])) as engines:
        result = next(iter(engines)).run(right, Case("", {"x": np.arange(300, dtype=np.float32)}), {})
    np.testing.assert_array_equal(result["y"], np.arange(300) * 2)
    assert any(line.startswith("[") for line in lines)
    with pytest.raises(BuildError, match=r"broken\.cu"):
        emulated(options, silent, [broken])
    (tmp_path / "right" / "right.cu").unlink()
    with pytest.raises(BuildError, match="Right has no CUDA kernel"):
        emulated(options, silent, [right])


def test_a_forgotten_cuda_kernel_is_an_error(tmp_path: Path) -> None:
    cuda_op(tmp_path, "silent", registration="// OPGATE_CUDA_KERNEL({tag}, Cuda)")
    options = replace(out_of_tree(tmp_path, domain="own"), engines=("onnxruntime",), cuda="")
    with pytest.raises(BuildError, match=r"has a \.cu file and no CUDA kernel of Silent: .*OPGATE_CUDA_KERNEL\(Silent"):
        build(options, silent)


def test_an_engine_that_was_not_built_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from opgate.ops_build.building.options import BuildOptions; "
        "from opgate.ops_build.verification.sources import engines_of; from pathlib import Path; "
        f"print([engine.name for engine in engines_of(BuildOptions(output=Path({str(tmp_path)!r}), prefix='none'))]); "
        "print({'torch', 'tensorflow', 'onnxruntime'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT)
    assert done.stdout == "['onnxruntime', 'torch', 'tensorrt', 'tensorflow', 'litert']\nset()\n", done.stderr
