"""Finding headers and compilers, building in and out of tree, the manifest, and the errors of each."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import opgate.ops_build.building.toolchain as cuda_toolchain
from opgate.folders import locked
from opgate.ops_build.adapters.onnxruntime import toolchain
from opgate.ops_build.adapters.onnxruntime.toolchain import HEADER, HeadersNotFound, find_onnxruntime_headers
from opgate.ops_build.adapters.tensorrt import toolchain as tensorrt_toolchain
from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.manifest import newer_sources, sha256, why_not_built
from opgate.ops_build.building.options import SOURCE, BuildError, BuildOptions, out_of_tree
from opgate.ops_build.building.progress import CompilerProgress
from opgate.ops_build.building.toolchain import Cuda, LeftOut, find_cuda
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.op_table import read_table, snake_case
from opgate.service.repository.op_libraries import trust
from tests import PROJECT
from tests.conftest import ALL, FIXTURE_OPS, OPTIONS, silent, thorough
from tests.ops_build.conftest import op_of_ones_own, symbols

TWICE = """
OPGATE_OP(Twice, "Twice(x: f32[n]) -> (y: f32[n])", "2 x.");
struct TwiceCpu {
  opgate::Status operator()(opgate::Context&, const opgate::Inputs& in, const opgate::Attributes&,
                            opgate::Outputs& out) const {
    for (std::int64_t i = 0; i < in.size("n"); ++i) out["y"].data<float>()[i] = 2 * in["x"].data<float>()[i];
    return {};
  }
};
OPGATE_CPU_KERNEL(Twice, TwiceCpu)
"""


def fake_header(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / HEADER).write_text("")
    return folder


@pytest.fixture
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPGATE_ONNXRUNTIME_INCLUDE", raising=False)
    monkeypatch.setattr(toolchain, "_system_folders", lambda: iter(()))


def test_headers_come_first_from_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_header(tmp_path / "include" / "onnxruntime")
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_INCLUDE", str(folder.parent))
    assert find_onnxruntime_headers(tmp_path / "cache", silent).include == folder
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_INCLUDE", str(tmp_path / "nowhere"))
    with pytest.raises(HeadersNotFound, match=r"OPGATE_ONNXRUNTIME_INCLUDE is .*nowhere: no onnxruntime_c_api.h there"):
        find_onnxruntime_headers(tmp_path / "cache", silent)


def test_headers_come_from_the_system_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system: None
) -> None:
    cached = fake_header(tmp_path / "cache" / "debian" / "usr")
    assert find_onnxruntime_headers(tmp_path / "cache", silent).include == cached
    system = fake_header(tmp_path / "usr")
    monkeypatch.setattr(toolchain, "_system_folders", lambda: iter([system]))
    assert find_onnxruntime_headers(tmp_path / "cache", silent).origin == "the system"


def test_headers_come_last_from_the_release_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system: None
) -> None:
    fake_header(tmp_path / "onnxruntime-linux-x64" / "include")
    with tarfile.open(tmp_path / "release.tgz", "w:gz") as archive:
        archive.add(tmp_path / "onnxruntime-linux-x64", "onnxruntime-linux-x64")
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_ARCHIVE", (tmp_path / "release.tgz").as_uri())
    monkeypatch.setattr(toolchain.shutil, "which", lambda tool: None)
    headers = find_onnxruntime_headers(tmp_path / "cache", silent)
    assert headers.origin == "the release archive"
    assert (headers.include / HEADER).is_file()


def test_headers_that_another_process_downloads_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system: None
) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor() as pool:
        with locked(cache):
            partial = fake_header(cache / ".partial-1" / "debian")
            found = pool.submit(find_onnxruntime_headers, cache, silent)
            with pytest.raises(TimeoutError):
                found.result(timeout=0.5)
            partial.rename(cache / "debian")
        assert found.result(timeout=60).include == cache / "debian"


def test_missing_headers_are_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system: None
) -> None:
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_ARCHIVE", (tmp_path / "none.tgz").as_uri())
    monkeypatch.setattr(toolchain.shutil, "which", lambda tool: None)
    with pytest.raises(
        HeadersNotFound, match=r"(?s)there is no apt-get.*none\.tgz.*libonnxruntime-dev.*OPGATE_ONNXRUNTIME_INCLUDE"
    ):
        find_onnxruntime_headers(tmp_path / "cache", silent)


def test_the_manifest_lists_what_was_built(library: Path) -> None:
    manifest = json.loads((library.parent / "manifest.json").read_text())
    assert manifest["format"] == 1
    entry = next(entry for entry in manifest["libraries"] if entry["file"] == library.name)
    assert entry["file"] == library.name
    assert entry["sha256"] == sha256(library)
    assert entry["domain"] == "opgate"
    assert entry["devices"] == ["cpu"]
    assert entry["api_version"] == 17 and entry["engine_versions"] == ">=1.17"
    ops = {op["name"]: op for op in entry["ops"]}
    assert ops["Mish"]["signature"] == "<T: f16|bf16|f32|f64> Mish(x: T[...]) -> (y: T[...])"
    assert ops["Mish"]["dtypes"] == ["f16", "bf16", "f32", "f64"]
    assert ops["Mish"]["since_version"] == 1


def test_a_second_build_rebuilds_nothing(library: Path) -> None:
    before = library.stat().st_ino
    lines: list[str] = []
    build(OPTIONS, lines.append)
    assert library.stat().st_ino == before
    assert not any("Building" in line for line in lines)


@thorough("an op compiles twice")
def test_a_build_goes_on_where_another_generator_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "ops" / "sum_all"
    shutil.copytree(FIXTURE_OPS / "sum_all", source)
    options = replace(out_of_tree(source.parent, domain="own"), engines=("onnxruntime",), cuda="")
    which = shutil.which
    with monkeypatch.context() as without_ninja:
        without_ninja.setattr(
            "opgate.ops_build.building.build.shutil.which", lambda tool: None if tool == "ninja" else which(tool)
        )
        build(options, silent)
    build(options, silent)
    moved = tmp_path / "moved"
    source.parent.rename(moved)
    options = replace(options, output=moved / "build", ops=(moved,))
    assert build(options, silent).libraries["onnxruntime"].is_file()


def test_a_forgotten_registration_is_found(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="holds no op: does each kernel end with OPGATE_CPU_KERNEL"):
        build(op_of_ones_own(tmp_path, "forgotten", ""), silent)


ADAPTERS = [f"adapters/{name}" for name in sorted({one.parent.name for one in (SOURCE / "adapters").glob("*/*.cpp")})]


@pytest.mark.parametrize("folder", ["signature", "op_call", *ADAPTERS])
def test_no_source_is_forgotten(folder: str) -> None:
    """The sources of the core and of an adapter are named in the one that includes them, or in a CMakeLists.txt."""
    joined = SOURCE / (f"{folder}/adapter.cpp" if folder in ADAPTERS else "op_call/sources.cpp")
    lists = [SOURCE / "CMakeLists.txt", SOURCE / "gpu_check" / "CMakeLists.txt", SOURCE / folder / "CMakeLists.txt"]
    text = "".join(file.read_text() for file in [joined, *lists] if file.exists())
    sources = [f"{folder}/{file.name}" for file in (SOURCE / folder).glob("*.cpp") if file != joined]
    assert sources and not [source for source in sources if source not in text]


def test_the_table_of_a_rebuilt_library_is_read_anew(library: Path, fixture_library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lib.so"
    shutil.copy(library, copy)
    first = [op.name for op in read_table(copy)]
    shutil.copy(fixture_library, copy)
    assert first != [op.name for op in read_table(copy)] == [op.name for op in read_table(fixture_library)]


def test_an_archive_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_system: None
) -> None:
    include = fake_header(tmp_path / "onnxruntime" / "include")
    (include / "big.h").write_bytes(os.urandom(100_000))
    with tarfile.open(tmp_path / "whole.tgz", "w:gz") as archive:
        archive.add(include.parent, "onnxruntime")
    (tmp_path / "half.tgz").write_bytes((tmp_path / "whole.tgz").read_bytes()[:60_000])
    monkeypatch.setattr(toolchain.shutil, "which", lambda tool: None)
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_ARCHIVE", (tmp_path / "half.tgz").as_uri())
    for _ in range(2):
        with pytest.raises(HeadersNotFound):
            find_onnxruntime_headers(tmp_path / "cache", silent)
    monkeypatch.setenv("OPGATE_ONNXRUNTIME_ARCHIVE", (tmp_path / "whole.tgz").as_uri())
    assert find_onnxruntime_headers(tmp_path / "cache", silent).origin == "the release archive"


def test_out_of_tree_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is no folder"):
        out_of_tree(tmp_path / "nothing")
    with pytest.raises(BuildError, match="holds no op"):
        out_of_tree(tmp_path)
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "op.cpp").write_text("")
    with pytest.raises(BuildError, match="the domain 'opgate' is taken"):
        out_of_tree(tmp_path, domain="opgate")
    assert out_of_tree(tmp_path, domain="mine").output == tmp_path / "build"


def test_folders_share_the_core_and_the_adapter(tmp_path: Path) -> None:
    options = op_of_ones_own(tmp_path, "twice", TWICE)
    build(options, silent)
    objects = {path.name for path in (options.output / "cmake").rglob("*.o")}
    assert "configured.cpp.o" in objects and not objects & {"adapter.cpp.o", "sources.cpp.o", "run.cpp.o"}
    lines: list[str] = []
    build(options, lines.append)
    assert not any("Building" in line for line in lines)


def test_a_compiler_error_is_shown(tmp_path: Path) -> None:
    options = op_of_ones_own(tmp_path, "broken", "int f() { return undeclared_name; }\n")
    with pytest.raises(BuildError, match=r"(?s)the compiler failed.*undeclared_name"):
        build(options, silent)


def test_a_function_of_a_kernel_that_is_declared_wrongly_fails_the_build(tmp_path: Path) -> None:
    """Without the check the op would run, but nobody would ever call the function."""
    source = (
        'OPGATE_OP(Wrong, "Wrong(x: f32[n]) -> (y: f32[n])", "Two mistakes.")\n'
        "using namespace opgate;\n"
        "struct WrongCpu {\n"
        "  Status prepare(Node&) { return {}; }\n"
        "  Status operator()(Context&, const Inputs&, const Attributes&, Outputs&) const { return {}; }\n"
        " private:\n"
        "  static int workspace(Workspace&, const Inputs&, const Attributes&) { return 0; }\n"
        "};\n"
        "OPGATE_CPU_KERNEL(Wrong, WrongCpu)\n"
    )
    with pytest.raises(BuildError) as error:
        build(op_of_ones_own(tmp_path, "wrong", source), silent)
    assert "expected a public function: Status prepare(const Node& node)" in str(error.value)
    assert "expected a public function: static Memory workspace(" in str(error.value)


def test_a_bad_signature_fails_the_build_with_its_column(tmp_path: Path) -> None:
    source = (
        'OPGATE_OP(Typo, "Typo(x: f32[n]) -> (y: f32[m])", "A typo.")\n'
        "namespace opgate::ops { struct TypoCpu { Status operator()(Context&, const Inputs&, const Attributes&, Outputs&) const "
        "{ return {}; } }; }\n"
        "OPGATE_CPU_KERNEL(Typo, opgate::ops::TypoCpu)\n"
    )
    with pytest.raises(BuildError, match="column 28: size 'm' is bound by no input, attribute or output"):
        build(op_of_ones_own(tmp_path, "typo", source), silent)


def test_the_build_says_what_it_left_out_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "ops" / "sum_all"
    shutil.copytree(FIXTURE_OPS / "sum_all", source)
    options = replace(out_of_tree(source.parent, domain="own"), engines=("onnxruntime", "tensorrt"), cuda="")
    lines: list[str] = []
    result = build(options, lines.append)
    assert set(result.libraries) == {"onnxruntime"}
    assert "left out cuda: it was not asked for" in lines
    assert "left out tensorrt: its plugins are CUDA kernels, and CUDA was left out" in lines
    assert json.loads((options.output / "manifest.json").read_text())["left_out"] == dict(result.left_out)
    assert why_not_built(options, "tensorrt") == f"the build left out tensorrt: {result.left_out['tensorrt']}"
    with pytest.raises(BuildError, match=r"there is nothing to build: .*; its plugins"):
        build(replace(options, engines=("tensorrt",)), silent)


def test_a_cuda_compiler_is_found_or_missed_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(release: str) -> None:
        (tmp_path / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, {release}, V1'\n")
        (tmp_path / "nvcc").chmod(0o755)

    monkeypatch.setenv("CUDACXX", str(tmp_path / "nvcc"))
    monkeypatch.setattr(cuda_toolchain, "gpus", list)
    compiler("release 13.1")
    assert find_cuda("auto") == Cuda(tmp_path / "nvcc", "13.1", "90")
    assert find_cuda("80;90").architectures == "80;90"
    assert "120" in find_cuda("all").architectures
    monkeypatch.setattr(cuda_toolchain, "gpus", lambda: [("A", "8.9"), ("B", "12.0"), ("A", "8.9")])
    assert find_cuda("auto").architectures == "120;89"
    compiler("release 11.8")
    with pytest.raises(LeftOut, match=r"is CUDA 11\.8: 12\.8 or later is needed"):
        find_cuda("auto")
    monkeypatch.delenv("CUDACXX")
    monkeypatch.setattr(cuda_toolchain.shutil, "which", lambda tool: None)
    with pytest.raises(LeftOut, match="there is no nvcc"):
        find_cuda("auto")


def test_tensorrts_headers_are_found_or_missed_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(tmp_path / "nvcc", "13.0", "90")
    monkeypatch.delenv("OPGATE_TENSORRT_INCLUDE", raising=False)
    monkeypatch.setattr(tensorrt_toolchain, "_system_folders", lambda: iter(()))
    with pytest.raises(
        LeftOut, match=r"NvInferRuntime\.h, of 10 or later, was not found\. git clone .*OPGATE_TENSORRT_INCLUDE"
    ):
        tensorrt_toolchain.find(tmp_path, cuda, silent)
    clone = tmp_path / "TensorRT" / "include"
    clone.mkdir(parents=True)
    (clone / tensorrt_toolchain.HEADER).write_text("class IPluginV2 {};")
    with pytest.raises(LeftOut, match="was not found"):
        tensorrt_toolchain.find(tmp_path, cuda, silent)
    (clone / tensorrt_toolchain.HEADER).write_text(tensorrt_toolchain.NEEDED)
    headers = tensorrt_toolchain.find(tmp_path, cuda, silent)
    assert headers.definitions == {"OPGATE_TENSORRT_INCLUDE": str(clone)} and headers.origin.endswith(
        f"(from {tmp_path})"
    )
    monkeypatch.setenv("OPGATE_TENSORRT_INCLUDE", str(tmp_path / "nowhere"))
    with pytest.raises(
        LeftOut, match=r"OPGATE_TENSORRT_INCLUDE is .*nowhere: no NvInferRuntime\.h of TensorRT 10 or later there"
    ):
        tensorrt_toolchain.find(tmp_path, cuda, silent)


def test_libraries_export_their_engines_entries_only(built: Build) -> None:
    table = {"opgate_table", "opgate_parse_signature", "opgate_running_op", "opgate_run", "opgate_run_message"}
    table |= {"opgate_check", "opgate_xla"}
    table |= {"__tvm_ffi_opgate_function", "__tvm_ffi_opgate_set_num_threads"}
    onnxruntime = {"RegisterCustomOps", "opgate_state_owner", "opgate_forget_owner", "opgate_op_times"}
    onnxruntime |= {"opgate_record_calls", "opgate_recorded_calls"}
    for name, entries in (
        ("onnxruntime", table | onnxruntime),
        ("onnxruntime_cuda", table | onnxruntime),
        ("tensorrt", {"getCreators", "setLoggerFinder"}),
        ("tensorflow", table),
        ("litert", table | {"tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate"}),
    ):
        if name not in built.libraries:
            continue
        assert symbols(built.libraries[name], "--defined-only") == entries
        # The CUDA runtime is linked in. The library must need no symbol of the driver or of an engine.
        needed = symbols(built.libraries[name], "--undefined-only")
        assert not [symbol for symbol in needed if symbol.startswith(("cu", "Ort", "nvinfer", "createInfer"))]


def test_an_op_without_a_kernel_is_an_error(tmp_path: Path) -> None:
    options = op_of_ones_own(tmp_path, "lost", 'OPGATE_OP(Lost, "Lost(x: f32[]) -> (y: f32[])", "No kernel.")\n')
    with pytest.raises(BuildError, match=r"states Lost and has no kernel of it: .*OPGATE_CPU_KERNEL\(Lost, Kernel\)"):
        build(options, silent)


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ('in["y"]', ""),  # an output is a name, too
        ('in["xx"]', "xx"),
        ('out.bind("m", in.size("k"))', "k"),
        ('attributes.integer("hihg")', "hihg"),
        ('/* in["z"] */ in["x"] // attributes.number("none")', ""),
        ('attributes.integer("hi" + end)', ""),
    ],
)
def test_a_name_that_the_signature_does_not_have_is_an_error(tmp_path: Path, used: str, name: str) -> None:
    source = (
        'OPGATE_OP(Lost, "Lost(x: f32[n]; "\n'
        '          "high: int=1) -> (y: f32[m])",\n'
        '          "No kernel of a name.")\n'
        "// A comment.\n"
        f"auto found = {used};\n"
        "OPGATE_CPU_KERNEL(Lost, Kernel)\n"
    )
    options = op_of_ones_own(tmp_path, "lost", source)
    (folder,) = op_folders(options.ops[0])
    assert folder.unknown_names() == ([f"{folder.path / 'lost.cpp'}:6: '{name}'"] if name else [])
    if name:
        with pytest.raises(BuildError, match=f"names that its signature doesn't have: .*lost.cpp:6: '{name}'"):
            build(options, silent)


def test_a_build_for_one_engine_leaves_the_others_alone(tmp_path: Path) -> None:
    source = tmp_path / "ops" / "sum_all"
    shutil.copytree(FIXTURE_OPS / "sum_all", source)
    options = replace(out_of_tree(source.parent, domain="own"), cuda="")
    first = build(options, silent)
    (tmp_path / "trusted.so").write_bytes(b"a library of somebody else")
    trust(tmp_path / "trusted.so", options.output)
    manifest = json.loads((options.output / "manifest.json").read_text())
    other = {"file": first.libraries["onnxruntime"].name, "engine": "onnxruntime", "domain": "other", "sha256": "1"}
    gone = {"file": "libgone.so", "engine": "onnxruntime", "domain": "other", "sha256": "2"}
    manifest["libraries"] += [other, gone, "damaged"]
    (options.output / "manifest.json").write_text(json.dumps(manifest))
    again = build(replace(options, engines=("onnxruntime",)), silent)
    assert set(again.libraries) == {"onnxruntime"}
    entries = json.loads((options.output / "manifest.json").read_text())["libraries"]
    files = [entry["file"] for entry in entries if entry.get("domain") == "own"]
    assert sorted(files) == sorted(path.name for path in first.libraries.values())
    assert [entry["file"] for entry in entries if "domain" not in entry] == ["trusted.so"]
    assert [entry for entry in entries if entry.get("domain") == "other"] == [other]
    assert all(path.is_file() for path in first.libraries.values())
    copy = options.output / "emulated" / "sum_all.cpp"
    copy.parent.mkdir(exist_ok=True)
    copy.touch()  # no source of the libraries
    assert newer_sources(options) == []
    os.utime(source / "sum_all.cpp", (2**31, 2**31))
    assert set(newer_sources(options)) == set(files)


def test_everything_compiles_without_a_warning(request: pytest.FixtureRequest) -> None:
    """Compiles for this machine's GPU, or for Hopper without one. With OPGATE_TEST_ALL (make test-all) it compiles for
    every architecture and PTX. With OPGATE_STRICT the build of all other tests is the strict one."""
    if OPTIONS.strict and not ALL:
        result = request.getfixturevalue("built")
    else:
        output = PROJECT / "build" / "strict"
        result = build(BuildOptions(output=output, strict=True, cuda="all" if ALL else "auto"), silent)
    assert "onnxruntime" in result.libraries
    if reason := result.left_out.get("cuda"):
        pytest.skip(f"no CUDA kernel was compiled: {reason}")


def test_no_adapter_and_no_core_file_knows_an_op(library: Path) -> None:
    names = {op.name for op in read_table(library)}
    names |= {snake_case(name) for name in names}
    names -= {"asinh"}  # a function of the C library, too
    sources = [
        file
        for folder in ("adapters", "signature", "op_call", "kernel_toolkit")
        for file in (SOURCE / folder).rglob("*.*")
    ]
    texts = [file.read_text() for file in sources if file.suffix in (".cpp", ".h", ".cuh", ".cu", ".py", ".txt")]
    assert len(texts) > 20
    assert not [text for text in texts if set(re.findall(r"\w+", text)) & names]


def test_how_far_a_build_is() -> None:
    now = 0.0
    terminal, file = (CompilerProgress(terminal, clock=lambda: now) for terminal in (True, False))
    assert file.line("[1/80] Building") == file.line("-- Configuring") == terminal.line("ninja: no work") == ""
    now = 20.0
    assert terminal.line("[20/80] Building") == "\r\033[Kcompiled 25 %, about 60 s left\r"
    assert file.line("[ 10%] Building") == "compiled 10 %, about 3 min left"
    assert file.line("[ 11%] Building") == ""
