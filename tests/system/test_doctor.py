"""`opgate doctor`: every way in which a library or a model goes wrong is found, named, and has a mend."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from opgate import cpu, tried_versions
from opgate.doctor.environment import check_environment
from opgate.doctor.findings import mend_of
from opgate.doctor.libraries import check_trusted
from opgate.ops_build.adapters.onnxruntime.toolchain import find_onnxruntime_headers
from opgate.ops_build.building.toolchain import toolchain_folder
from opgate.service.repository.op_libraries import trust
from opgate.service.settings import Settings
from opgate.tried_versions import untried
from tests import PROJECT
from tests.conftest import thorough

#: Libraries for ONNX Runtime that fail, each in its own way: the source, and what is found.
SOURCES = {
    "crash": ("__attribute__((constructor)) static void begin() { *(volatile int*)8 = 1; }", "died of SIGSEGV"),
    "abort": ("__attribute__((constructor)) static void begin() { abort(); }", "died of SIGABRT"),
    "leave": ("__attribute__((constructor)) static void begin() { _exit(7); }", "ended with exit status 7"),
    "hang": ("__attribute__((constructor)) static void begin() { for (;;) pause(); }", "did not end within 6 seconds"),
    "symbol": ('extern "C" void of_nobody(); __attribute__((constructor)) static void begin() { of_nobody(); }', "undefined symbol: of_nobody"),
    "base": ('extern "C" void OrtGetApiBase(); void* kept = reinterpret_cast<void*>(&OrtGetApiBase);', "undefined symbol: OrtGetApiBase"),
    "chatty": ('__attribute__((constructor)) static void begin() { if (write(1, "half a line", 11)) {} }', "exports no function RegisterCustomOps"),
    "bare": ("int nothing;", "exports no function RegisterCustomOps"),
    "version": (
        '#include <onnxruntime_c_api.h>\nextern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions*, '
        "const OrtApiBase* base) { return base->GetApi(99)->CreateStatus(ORT_FAIL, \"new\"); }",
        "requested API version [99]",
    ),
    "refuses": (
        '#include <onnxruntime_c_api.h>\nextern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions*, '
        "const OrtApiBase* base) { return base->GetApi(16)->CreateStatus(ORT_FAIL, \"no licence\"); }",
        "no licence",
    ),
}  # fmt: skip
MENDS = {
    "symbol": "link it with the library that defines of_nobody",
    "base": "ORT_API_MANUAL_INIT",
    "bare": "export `extern",
    "version": "install an onnxruntime of at least 1.99",
}


def doctor(*arguments, **environment):
    command = [sys.executable, "-m", "opgate", "doctor", "--json", *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPGATE_")}
    done = subprocess.run(command, capture_output=True, text=True, env=clean | environment, cwd=PROJECT)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [finding for finding in json.loads(done.stdout) if not finding["is_note"]]


def test_an_engine_that_nobody_has_tried_is_said(monkeypatch):
    assert (
        untried("onnxruntime") == "" and untried("torch", "2.13.0+cpu") == "" and untried("onnxruntime", "1.17.3") == ""
    )
    assert untried("onnxruntime", "1.16.3").startswith("onnxruntime 1.16.3 is older than")
    assert untried("torch", "3.0.0a1").endswith("newer than what the op libraries were tried with: 2.10 to 2.15")
    monkeypatch.setitem(tried_versions.TRIED, "onnxruntime", ("1.17", "1.18"))
    found = [finding for finding in check_environment() if "newer than" in finding.what]
    assert len(found) == 1 and not found[0].is_error and "opgate verify" in found[0].mend


def put(repository, name, op="Relu", domain="", ir_version=10, opset=18, config=None):
    """Writes a model with one node, and its config. Returns the model's file."""
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", 3]) for one in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "g", [x], [y])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    file = repository / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(model.SerializeToString())
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return file


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A trusted folder with the libraries of SOURCES."""
    folder = tmp_path_factory.mktemp("broken")
    headers = find_onnxruntime_headers(toolchain_folder(), lambda line: None).include
    for name, (source, _) in SOURCES.items():
        file = folder / f"{name}.cpp"
        file.write_text(f"#include <stdlib.h>\n#include <unistd.h>\n{source}\n")
        library = folder / f"lib{name}.so"
        command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{headers}", "-o", str(library), str(file)]
        subprocess.run(command, check=True)
        trust(library, folder)
    (folder / "libtext.so").write_text("version https://git-lfs.github.com/spec/v1\n")
    trust(folder / "libtext.so", folder)
    return folder


@thorough("each of its models loads in a process of its own")
def test_the_repository_of_this_project_has_nothing_wrong(library):
    code, found = doctor(PROJECT / "model_repository", OPGATE_BUILD_OPS=str(library.parent))
    assert (code, found) == (0, [])


def test_each_library_that_fails_is_named_with_its_mend(broken, tmp_path):
    put(tmp_path, "good")
    code, found = doctor(tmp_path, "--timeout", "6", OPGATE_OPS_PATH=str(broken))
    assert code == 1
    by_name = {Path(finding["where"].removeprefix("library ")).stem[3:]: finding for finding in found}
    assert by_name.keys() == {*SOURCES, "text"}
    for name, (_, says) in SOURCES.items():
        assert says in by_name[name]["what"], by_name[name]
        assert MENDS.get(name, "") in by_name[name]["mend"], by_name[name]
        assert by_name[name]["mend"] and by_name[name]["is_error"]
    assert "git lfs pull" in by_name["text"]["mend"]


def test_a_library_for_later_processors_is_not_loaded(broken, tmp_path, monkeypatch):
    shutil.copy(broken / "libcrash.so", tmp_path)
    manifest = tmp_path / "manifest.json"
    trust(tmp_path / "libcrash.so", tmp_path)
    manifest.write_text(manifest.read_text().replace('"ops": []', '"ops": [], "flags": "-march=x86-64-v4"'))
    monkeypatch.setattr(cpu, "missing", lambda level: {"avx512f"})
    (found,) = check_trusted(Settings(ops_path=str(tmp_path), build_ops=tmp_path / "none"), 6)
    assert "was compiled with -march=x86-64-v4, and this processor lacks avx512f" in found.what


def test_what_is_wrong_with_trust_is_found(library, tmp_path):
    changed, gone, bare = tmp_path / "changed", tmp_path / "gone", tmp_path / "bare"
    for folder in (changed, gone):
        folder.mkdir()
        shutil.copy(library, folder / "libmine_onnxruntime.so")
        manifest = {
            "format": 1,
            "libraries": [
                {
                    "file": "libmine_onnxruntime.so",
                    "sha256": "0" * 64,
                    "engine": "onnxruntime",
                    "domain": "mine",
                    "ops": [],
                }
            ],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (gone / "libmine_onnxruntime.so").unlink()
    bare.mkdir()
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "manifest.json").write_text("{")
    writable = tmp_path / "writable"
    writable.mkdir()
    (writable / "manifest.json").write_text('{"format": 1, "libraries": []}')
    writable.chmod(0o777)
    repository = tmp_path / "repository"
    put(repository, "good")
    path = os.pathsep.join(map(str, (changed, gone, bare, torn, writable, tmp_path / "nowhere")))
    _, found = doctor(repository, OPGATE_OPS_PATH=path)
    what = {finding["where"].split()[-1]: finding["what"] for finding in found}
    assert "SHA-256 is not the one" in what[str(changed / "libmine_onnxruntime.so")]
    assert "it is not there" in what[str(gone / "libmine_onnxruntime.so")]
    assert "has no manifest.json" in what[str(bare)] and "has no manifest.json" in what[str(tmp_path / "nowhere")]
    assert "can't be read" in what[str(torn)]
    assert "everybody may write" in what[str(writable)]
    assert all(finding["mend"] for finding in found)


def test_two_libraries_of_one_domain_are_found(library, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        shutil.copy(library, folder)
        shutil.copy(library.parent / "manifest.json", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["libraries"] = [entry for entry in manifest["libraries"] if entry["file"] == library.name]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    repository = tmp_path / "repository"
    put(repository, "good")
    empty = tmp_path / "empty"
    code, found = doctor(repository, OPGATE_OPS_PATH=os.pathsep.join(map(str, folders)), OPGATE_BUILD_OPS=str(empty))
    assert code == 1
    assert ["its domain 'opgate' is also that of" in finding["what"] for finding in found] == [True]


MODELS = {
    "ir": ({"ir_version": 99}, "the file has IR version 99, and this ONNX Runtime reads versions up to"),
    "opset": ({"opset": 99}, "the file asks for opset 99 of ai.onnx, and this ONNX Runtime knows opsets up to"),
    "unknown": ({"op": "Foo", "domain": "bar"}, "op 'bar::Foo' (version -1) is not known to ONNX Runtime"),
    "typo": ({"op": "Mishh", "domain": "opgate"}, "Did you mean 'Mish'"),
    "syntax": ({"config": "max_batch_size 4 {\n"}, "config.pbtxt can't be parsed: 1:16"),
    "field": ({"config": 'backend: "tensorflow"\n'}, "backend 'tensorflow'"),
    "dtype": ({"config": 'max_batch_size: 4\ninput { name: "x" data_type: TYPE_INT32 dims: 3 }\n'}, "the config says TYPE_INT32, the model file has tensor(float)"),
    "missing": ({"config": 'model_operations { op_library_filename: "libnone.so" }\n'}, "op library 'libnone.so' was not found"),
    "outside": ({"config": 'model_operations { op_library_filename: "../lib.so" }\n'}, "expected a bare file name"),
    "threads": ({"config": 'max_batch_size: 4\nparameters { key: "intra_op_thread_count" value { string_value: "500" } }\n'}, "500 threads at once"),
}  # fmt: skip


def test_each_model_that_fails_is_named_with_its_mend(library, tmp_path):
    for name, (options, _) in MODELS.items():
        put(tmp_path, name, **options)
    put(tmp_path, "lfs").write_text("version https://git-lfs.github.com/spec/v1\n")
    put(tmp_path, "torn").write_bytes(put(tmp_path, "good").read_bytes()[:40])
    (tmp_path / "none").mkdir()
    (tmp_path / "good" / "02").mkdir()
    put(tmp_path, "linked").unlink()
    (tmp_path / "linked" / "1" / "model.onnx").symlink_to("/etc/hostname")
    (tmp_path / "loose.onnx").write_bytes(b"")
    code, found = doctor(tmp_path, OPGATE_BUILD_OPS=str(library.parent))
    assert code == 1
    said = {}
    for finding in found:
        said.setdefault(finding["where"].split()[1], []).append(finding["what"])
        assert finding["mend"], finding
    for name, (_, text) in MODELS.items():
        assert any(text in what for what in said.pop(name)), name
    assert "is a pointer of Git LFS" in said.pop("lfs")[0]
    assert "no ONNX model, or a part of one" in said.pop("torn")[0]
    assert "symbolic link out of the model repository" in said.pop("linked")[0]
    assert said.pop("good") == ["the folder 02 is no version, because it begins with 0"]
    assert "lies beside the models' folders" in said.pop(str(tmp_path))[0]
    assert list(said) == ["none"]
    by_level = {finding["where"].split()[1]: finding["is_error"] for finding in found}
    assert not by_level["threads"] and not by_level["good"] and by_level["none"]


def test_what_nothing_reads_is_no_error(library, tmp_path):
    put(
        tmp_path,
        "m",
        config='metric_tags { key: "a" value: "b" } parameters { key: "note" value { string_value: "x" } }',
    )
    code, found = doctor(tmp_path, OPGATE_BUILD_OPS=str(library.parent))
    assert code == 0
    assert [(finding["where"], finding["what"], finding["is_error"]) for finding in found] == [
        ("model m", "nothing here reads metric_tags of its config", False),
        ("model m", "nothing here reads parameter 'note' of its config", False),
    ]


def test_all_ops_that_nobody_has_are_listed(library, tmp_path):
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", 3]) for one in "xy")
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="bar"),
        helper.make_node("Mish", ["a"], ["b"], domain="opgate"),
        helper.make_node("NMSRotated", ["b"], ["y"], domain="mmdeploy"),
    ]
    opsets = [helper.make_opsetid(name, 1 + 17 * (not name)) for name in ("", "bar", "opgate", "mmdeploy")]
    file = put(tmp_path, "several")
    file.write_bytes(
        helper.make_model(
            helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=10
        ).SerializeToString()
    )
    _, found = doctor(tmp_path, OPGATE_BUILD_OPS=str(library.parent))
    assert "no library has these ops: bar::Foo, mmdeploy::NMSRotated" in [finding["what"] for finding in found]


def test_a_library_beside_a_model_runs_only_if_it_is_trusted(broken, tmp_path_factory, tmp_path):
    trusted = tmp_path_factory.mktemp("trusted")
    trust(broken / "libleave.so", trusted)
    put(tmp_path, "mine", config='model_operations { op_library_filename: "libleave.so" }\n')
    shutil.copy(broken / "libleave.so", tmp_path / "mine")
    _, found = doctor(tmp_path)
    (finding, *_) = [one for one in found if one["where"].startswith("library")]
    assert "is not trusted" in finding["what"] and "opgate trust" in finding["mend"]
    _, found = doctor(tmp_path, OPGATE_OPS_PATH=str(trusted), OPGATE_BUILD_OPS=str(tmp_path / "empty"))
    beside = [one for one in found if one["where"] == f"library {tmp_path}/mine/libleave.so"]
    assert [one["what"].split(":")[0] for one in beside] == ["the process that loads it ended with exit status 7"]
    model = [one["what"] for one in found if one["where"] == "model mine"]
    assert model and "the process that loads it ended with exit status 7" in model[0]


@pytest.mark.parametrize("what", ["nowhere", "of a model", "empty"])
def test_a_folder_that_is_no_repository(tmp_path, what):
    folder = tmp_path / "folder"
    if what == "of a model":
        put(tmp_path, "folder")
    elif what == "empty":
        folder.mkdir()
    code, found = doctor(folder)
    expected = {"nowhere": "is not a directory", "of a model": "is the folder of a model", "empty": "it has no model"}
    assert [expected[what] in finding["what"] for finding in found] == [True]
    assert code == (what != "empty")
    if what == "empty":  # the others are errors
        assert doctor(folder, "--strict")[0] == 1


def test_it_reads_as_text_and_names_misspelt_variables(tmp_path):
    put(tmp_path, "good")
    command = [sys.executable, "-m", "opgate", "doctor", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPGATE_MAX_BODY_BYTE": "1"})
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "warning: variable OPGATE_MAX_BODY_BYTE: no setting has this name",
        "  mend: is OPGATE_MAX_BODY_BYTES meant?",
        "note: model good: requests run one by one, and could run together: 3 random rows together give what each gives "
        "alone, largest difference 0.0e+00 of the greatest magnitude",
        "  mend: add 'max_batch_size: 8 dynamic_batching {}' to config.pbtxt, with dims that lack the first, or leave it",
        "0 errors, 1 warning",
    ]
    assert "looking at model good" in done.stderr
    bad = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPGATE_HTTP_PORT": "many"})
    assert bad.returncode == 2
    assert "OPGATE_HTTP_PORT" in bad.stderr


def test_a_library_of_a_newer_system_says_so():
    assert "built on a newer system (GLIBC_2.99)" in mend_of(
        "libm.so.6: version `GLIBC_2.99' not found (required by x)", ""
    )
    assert "has libfoo.so.3" in mend_of("libfoo.so.3: cannot open shared object file: No such file or directory", "")
    assert mend_of("something else", "otherwise") == "otherwise"
