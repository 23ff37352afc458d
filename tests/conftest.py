from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.options import DEFAULT_OUTPUT, BuildOptions, out_of_tree
from opgate.ops_build.building.toolchain import gpus
from tests import skips
from tests.parts import PARTS, part_of
from tests.stages import Stages
from tests.workers import Workers


def silent(line: str) -> None:
    """Discards a line of a build's log."""


#: Whether `make test-all` runs the tests. Other runs leave out what takes minutes and rarely finds more.
ALL = bool(os.environ.get("OPGATE_TEST_ALL"))

# Compiling for one instruction set takes a third of the time. tests/ops_build/test_cpu_levels.py builds all of them.
if not ALL:
    os.environ.setdefault("OPGATE_ARCH", "native")
    # Sources that compile together take less than half the time. `make test-all` compiles one by one, as users do.
    os.environ.setdefault("OPGATE_BATCH", "28")
    if not gpus() and "OPGATE_CUDA" not in os.environ:
        # Kernels that nothing can run are compiled to PTX, and not optimized: that takes half the time.
        os.environ |= {"OPGATE_CUDA": "90-virtual", "OPGATE_CUDA_FLAGS": "-O0 -Xcicc=-O0"}
# PyTorch's compiler would compile programs to find out whether the vectors that the processor has work.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# A compiler's warning fails the tests.
os.environ.setdefault("OPGATE_STRICT", "1")
if shutil.which("ccache"):
    # The tests make many builds.
    os.environ.setdefault("CCACHE_DIR", str(DEFAULT_OUTPUT.parent / "ccache"))
    for language in ("C", "CXX", "CUDA"):
        os.environ.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")


def thorough(why: str) -> pytest.MarkDecorator:
    """Marks a test that `make test-all` alone runs."""
    return pytest.mark.skipif(not ALL, reason=f"make test-all runs it: {why}")


def examples(count: int) -> int:
    """Returns how many examples a test of a property tries: `count` in `make test-all`, a quarter of them in others."""
    return count if ALL else count // 4


#: The build that all tests share.
OPTIONS = BuildOptions()

#: The folders whose tests start servers and wait for clocks.
SERVED = ("console", "deploy", "fuzz", "models", "rpc", "service", "system")
#: The files among them whose tests build more than they serve.
BUILT = ("test_readme", "test_wheel")
#: The files whose tests share a build of emulated kernels. One of them writes faults into it.
EMULATED = ("test_cuda_emulation", "test_gpu_check", "test_onnxruntime_host", "test_tensorrt_emulation")
#: The groups of tests that start servers, those of tests/system by the first letters of their files.
SERVERS = ("servers a-l", "servers m-r", "servers s-z", "servers")
#: The groups that take longest. They begin first, so that none of them runs alone in the end.
LONG = (
    "servers m-r",
    "servers a-l",
    "servers",
    "emulation",
    "test_wheel",
    "servers s-z",
    "test_verify",
    "test_torch_adapter",
    "test_tensorflow_adapter",
    "test_tensorrt_adapter",
    "test_numpy_functions",
    "test_readme",
    "test_bare_environment",
    "test_tensorrt_host",
    "test_supervision",
    "test_build",
    # Those of the parts, in which each file of tests that start servers is a group.
    "test_gateway_processes",
    "test_model_control",
    "test_memory",
    "test_worker_trouble",
    "test_isolation",
    "test_others_data",
    "test_stack",
    "test_triton",
    "test_starting_points",
    "test_load",
    "test_triton_pool",
    "test_bounded_cost",
    "test_python_models",
)


#: The files whose tests compile the core and the adapters, as the shared build does. With several processes they wait for
#: it, and find its objects in the compiler's cache.
COMPILING = (
    "test_build",
    "test_faults",
    "test_numpy_functions",
    "test_out_of_tree",
    "test_package",
    "test_readme",
    "test_scaffold",
    "test_starting_points",
    "test_supervision",
    "test_torch_adapter",
)

#: Files of each folder whose first tests take a moment, given a library of ops.
FEW = (
    "deploy/test_locust_parts",
    "fuzz/test_targets",
    "models/test_tutorial_models",
    "ops/test_detection_ops",
    "ops/test_norm_ops",
    "ops/test_point_ops",
    "ops_build/test_signatures",
    "ops_build/test_walk",
    "rpc/test_server",
    "service/test_config",
    "service/test_execution",
    "service/test_wire",
    "system/test_http",
    "system/test_settings",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what `make test` says."""
    parser.addoption("--part", choices=("", *PARTS), default="", help="run the tests of one part")
    parser.addoption("--few", action="store_true", help="run a few tests of each folder")
    parser.addoption("--processes", type=int, default=1, help="run the tests in so many processes")
    parser.addoption("--stages", action="store_true", help="say how many tests of each part have run")


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the dots by lines, and the loop over the tests by processes."""
    if config.getoption("--stages"):
        config.pluginmanager.register(Stages(config), "stages")
    count = config.getoption("--processes")
    if count > 1 and not config.option.collectonly:
        part = config.getoption("--part")
        config.pluginmanager.register(Workers(count, lambda item: group_of(item.path, bool(part))))
        # Most tests need the shared build. It begins while this process collects them, and their fixture waits for it.
        if "OPGATE_OPS_LIBRARY" not in os.environ:
            command = ["nice", "-n", "5", sys.executable, "-m", "tests.conftest"]
            nothing = subprocess.DEVNULL
            ahead = subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)
            config.add_cleanup(partial(_end_build, ahead))


def _end_build(process: subprocess.Popen[bytes]) -> None:
    """Ends a build: ninja ends the compilers, which have groups of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Imports no files of other parts."""
    part = config.getoption("--part")
    is_test = collection_path.suffix == ".py" and collection_path.stem.startswith("test_")
    return True if part and is_test and part_of(collection_path) != part else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that is skipped for a reason that tests/skips.py doesn't list."""
    report = yield
    skips.check(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails a file of tests that is skipped for a reason that tests/skips.py doesn't list."""
    report = yield
    skips.check(report)
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests of the longest groups first, and in a group the files that don't wait for the shared build."""
    if config.getoption("--few"):
        few = few_of(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in few])
        items[:] = few
    if config.getoption("--processes") > 1:
        for item in items:
            if item.path.stem in COMPILING and "built" not in item.fixturenames:  # type: ignore[attr-defined]
                item.fixturenames.insert(0, "built")  # type: ignore[attr-defined]
    groups = {item: group_of(item.path, bool(config.getoption("--part"))) for item in items}
    waiting = {item.path for item in items if {"built", "library"}.intersection(item.fixturenames)}  # type: ignore[attr-defined]
    places = {group: place for place, group in enumerate(LONG)}
    items.sort(key=lambda item: (places.get(groups[item], len(LONG)), item.path in waiting))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets servers go before compilers, where several processes run both at the same time."""
    if item.config.getoption("--processes") > 1:
        with contextlib.suppress(PermissionError):  # only root may go first again
            os.setpriority(os.PRIO_PROCESS, 0, 0 if group_of(item.path) in SERVERS else 10)


def few_of(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the first tests of the files in FEW."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(f"{item.path.parent.name}/{item.path.stem}", []).append(item)
    return [item for file in FEW for item in files.get(file, [])[:4]]


def group_of(file: Path, of_part: bool = False) -> str:
    """Returns the name of the tests that run in one process with the tests of a file. In a run `of_part`, whose few
    files take long, each file that starts servers is a group of its own."""
    if file.parent.name in SERVED and file.stem not in BUILT and not of_part:
        if file.parent.name != "system":
            return "servers"
        return SERVERS[(file.stem >= "test_m") + (file.stem >= "test_s")]
    return "emulation" if file.stem in EMULATED else file.stem


FIXTURE_OPS = Path(__file__).parent / "ops_build" / "fixture_ops"


@pytest.fixture(scope="session")
def built() -> Build:
    """Builds opgate's ops for every engine whose toolchain this machine has. Rebuilds nothing that is up to date."""
    return build(OPTIONS, silent)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The library of opgate's ops for ONNX Runtime. OPGATE_OPS_LIBRARY can name another build of it."""
    if other := os.environ.get("OPGATE_OPS_LIBRARY"):
        return Path(other)
    return request.getfixturevalue("built").libraries["onnxruntime"]


@pytest.fixture(scope="session")
def fixture_built(built: Build) -> Build:
    """Builds the fixture ops out of tree, in the domain fixture_ops, for every engine whose toolchain is installed. It
    finds the objects of the shared build in the compiler's cache."""
    return build(out_of_tree(FIXTURE_OPS, DEFAULT_OUTPUT.parent / "fixture_ops"), silent)


@pytest.fixture(scope="session")
def fixture_library(request: pytest.FixtureRequest) -> Path:
    """The library of the fixture ops for ONNX Runtime. OPGATE_TEST_FIXTURE_LIBRARY can name another build of it."""
    if other := os.environ.get("OPGATE_TEST_FIXTURE_LIBRARY"):
        return Path(other)
    return request.getfixturevalue("fixture_built").libraries["onnxruntime"]


if __name__ == "__main__":
    build(OPTIONS, silent)
