"""`opgate package`: the wheel of somebody's ops installs, loads and serves elsewhere."""

import csv
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate import cpu
from opgate.engine_range import refusal, within
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildError, for_machine, out_of_tree
from opgate.ops_build.packaging.package import package
from opgate.ops_build.packaging.provenance import record
from opgate.ops_build.scaffold import new_op
from opgate.ops_build.verification.verify import Cell
from opgate.service.repository.op_libraries import entries, trusted_folders
from opgate.service.settings import Settings
from tests import PROJECT
from tests.conftest import ALL
from tests.skips import need


@pytest.fixture(scope="module")
def options(tmp_path_factory, library):
    folder = tmp_path_factory.mktemp("package") / "their_ops"
    new_op(folder / "scale_it", None, library)
    options = replace(out_of_tree(folder), engines=("onnxruntime", "torch"), cuda="")
    build(options, lambda line: None)
    return options


@pytest.fixture(scope="module")
def installed(options, tmp_path_factory):
    """The folder that pip has installed the wheel to."""
    site = tmp_path_factory.mktemp("site")
    wheel = package(options, "1.2", site / "dist")
    assert wheel.name.startswith("their_ops-1.2-py3-none-manylinux_")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    return site


def run(installed, code, **environment):
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), str(PROJECT)])} | environment
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, env=variables, cwd=installed)


def model():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    node = helper.make_node("ScaleIt", ["x"], ["y"], domain="their_ops", factor=3.0)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("their_ops", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=10)


def test_every_file_is_recorded_with_its_hash(options, tmp_path):
    with zipfile.ZipFile(package(options, "1.2", tmp_path)) as archive:
        rows = {
            row[0]: row[1:] for row in csv.reader(archive.read("their_ops-1.2.dist-info/RECORD").decode().splitlines())
        }
        assert rows.keys() == set(archive.namelist())
        for name, (_, size) in rows.items():
            assert name.endswith("RECORD") or int(size) == len(archive.read(name))
        (entry, *_) = json.loads(archive.read("their_ops/lib/manifest.json"))["libraries"]
        assert hashlib.sha256(archive.read(f"their_ops/lib/{entry['file']}")).hexdigest() == entry["sha256"]
        assert "their_ops/ops/scale_it/README.md" in rows and not any(name.endswith(".cpp") for name in rows)


def test_the_installed_library_runs_in_onnxruntime(installed):
    check_in_onnxruntime(installed, "1.2")
    missing = run(installed, ["-c", "import their_ops; their_ops.op_library('tensorrt')"])
    assert "their_ops has no library for tensorrt" in missing.stderr


def check_in_onnxruntime(installed, version):
    path, stated = run(
        installed, ["-c", "import their_ops; print(their_ops.op_library(), their_ops.__version__)"]
    ).stdout.split()
    assert stated == version
    session = ort.SessionOptions()
    session.register_custom_ops_library(path)
    run_once = ort.InferenceSession(model().SerializeToString(), session, providers=["CPUExecutionProvider"])
    assert run_once.run(None, {"x": np.array([[1, -2]], np.float32)})[0].tolist() == [[3, -6]]


def test_the_functions_of_torch_are_there(installed, built):
    pytest.importorskip("torch")
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")
    check_in_torch(installed)


def check_in_torch(installed):
    code = (
        "import torch, their_ops.torch as t; print(t.scale_it(torch.ones(2), factor=4.0).tolist(), t.ScaleIt.__name__)"
    )
    done = run(installed, ["-c", code])
    assert done.stdout == "[4.0, 4.0] ScaleIt\n", done.stderr


def test_the_gateway_serves_with_the_installed_package(installed, tmp_path):
    folder = run(installed, ["-m", "their_ops"]).stdout.strip()
    (tmp_path / "scaled" / "1").mkdir(parents=True)
    onnx.save(model(), tmp_path / "scaled" / "1" / "model.onnx")
    done = run(installed, ["-m", "opgate", "doctor", str(tmp_path)], OPGATE_OPS_PATH=folder)
    assert done.stdout.endswith("0 errors, 0 warnings\n"), done.stdout + done.stderr


def test_an_op_that_runs_in_python_is_in_the_library(library, tmp_path):
    new_op(tmp_path / "plain_ops" / "twice", None, library, python=True)
    file = tmp_path / "plain_ops" / "twice" / "op.py"
    file.write_text(file.read_text().replace("twice.formula()\n", ""))
    options = replace(out_of_tree(tmp_path / "plain_ops"), engines=("onnxruntime",), cuda="")
    build(options, lambda line: None)
    wheel = package(options, "1.0", tmp_path / "dist")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*command, str(wheel)], check=True)
    file.unlink()  # the wheel needs it no more
    code = (
        "import plain_ops, opgate.numpy, numpy\n"
        "print(opgate.numpy.load(plain_ops.op_library()).twice(numpy.ones(2, 'f4'), factor=3.0).tolist())"
    )
    done = run(tmp_path / "site", ["-c", code])
    assert done.stdout == "[3.0, 3.0]\n", done.stderr


def test_what_is_not_built_is_refused(options, library, tmp_path):
    new_op(tmp_path / "ops" / "scale_it", None, library)
    with pytest.raises(BuildError, match="has no library: run opgate build"):
        package(out_of_tree(tmp_path / "ops"), "1.0", tmp_path)
    with pytest.raises(BuildError, match=r"expected a version such as 1\.0"):
        package(options, "one", tmp_path)
    with pytest.raises(BuildError, match="is no name of a Python package"):
        package(replace(options, domain="their.ops"), "1.0", tmp_path)
    header = options.ops[0] / "scale_it" / "scale_it.h"
    os.utime(header)
    try:
        with pytest.raises(BuildError, match="the sources are newer than"):
            package(options, "1.0", tmp_path)
    finally:
        os.utime(header, (1, 1))
    assert not list(tmp_path.glob("*.whl"))


def test_its_manifest_says_where_it_comes_from(options, tmp_path):
    """The sources, and the engines in which every case has passed with these libraries; a later build has none yet."""

    def stated():
        with zipfile.ZipFile(package(options, "1.2", tmp_path)) as archive:
            return json.loads(archive.read("their_ops/lib/manifest.json"))["provenance"]

    done = run(tmp_path, ["-m", "opgate", "verify", "--folder", str(options.ops[0])])
    assert done.returncode == 0, done.stdout
    first = stated()
    engines = {entry["engine"]: entry for entry in first["verified"]}
    assert engines["onnxruntime"]["version"] == ort.__version__ and engines["onnxruntime"]["cases"] > 10
    assert {"torch", "jax"} <= engines.keys()
    assert len(first["sources"]) == 64
    readme = options.ops[0] / "scale_it" / "README.md"
    text = readme.read_text()
    readme.write_text(text + "more\n")
    assert stated()["sources"] != first["sources"]
    readme.write_text(text)
    assert stated() == first
    verified = options.output / "verified.json"
    verified.write_text(verified.read_text().replace(engines["torch"]["library"], "0" * 64))
    assert "torch" not in {entry["engine"] for entry in stated()["verified"]}
    record(options, [Cell("ScaleIt", "onnxruntime cpu", "f32", passed=9, failures=["it differs"])])
    assert stated()["verified"] == [] and not verified.exists()


def key_pair(folder, name):
    """Makes a pair of keys with the command that the help names. Returns the file with the private one."""
    private = folder / f"{name}.key"
    (folder / "signers").mkdir(exist_ok=True)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)], check=True)
    public = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(folder / "signers" / f"{name}.pem")]
    subprocess.run(public, check=True)
    return private


@pytest.fixture
def signed(options, tmp_path):
    """The folder of libraries out of a signed wheel, with a model that uses one; tmp_path/signers has the public key."""
    wheel = package(options, "1.2", tmp_path / "dist", key_pair(tmp_path, "we"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "models" / "scaled" / "1").mkdir(parents=True)
    onnx.save(model(), tmp_path / "models" / "scaled" / "1" / "model.onnx")
    return tmp_path / "site" / "their_ops" / "lib"


def diagnosed(folder, tmp_path):
    """Returns what `opgate doctor` says, which loads what the gateway would load."""
    variables = {"OPGATE_OPS_PATH": str(folder), "OPGATE_TRUSTED_SIGNERS": str(tmp_path / "signers")}
    return run(tmp_path, ["-m", "opgate", "doctor", str(tmp_path / "models")], **variables).stdout


def test_a_signed_library_is_served(signed, tmp_path):
    assert diagnosed(signed, tmp_path).endswith("0 errors, 0 warnings\n")


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_flipped_bit_in_the_manifest(signed, tmp_path):
    text = (signed / "manifest.json").read_text()
    (signed / "manifest.json").write_text(text.replace('"since_version": 1', '"since_version": 2'))
    told = diagnosed(signed, tmp_path)
    assert "manifest.json is not what we has signed: it or manifest.json.sig has changed" in told
    assert "model scaled" in told  # it lacks its op


def test_what_was_checked_is_what_is_read(signed, tmp_path):
    """A manifest that is exchanged after the check doesn't count, and neither does one that was refused."""
    settings = Settings(ops_path=str(signed), trusted_signers=tmp_path / "signers", build_ops=tmp_path / "none")
    manifest = signed / "manifest.json"
    content = json.loads(manifest.read_text())
    assert signed in trusted_folders(settings)
    manifest.write_text(json.dumps({**content, "libraries": [{"file": "evil.so", "sha256": "0" * 64}]}))
    assert list(entries([signed])) == content["libraries"]
    assert signed not in trusted_folders(settings) and list(entries([signed])) == []
    manifest.write_text(json.dumps(content))
    assert list(entries([signed])) == [] and signed not in trusted_folders(settings)  # its bytes are others


def test_a_flipped_bit_in_the_library(signed, tmp_path):
    flip(signed / "libtheir_ops_onnxruntime.so")
    told = diagnosed(signed, tmp_path)
    assert "its SHA-256 is not the one" in told and "model scaled" in told


def test_a_flipped_bit_in_the_signature(signed, tmp_path):
    flip(signed / "manifest.json.sig")
    assert "manifest.json" in diagnosed(signed, tmp_path) and "model scaled" in diagnosed(signed, tmp_path)


def test_no_signature_and_another_signer(options, signed, tmp_path):
    (signed / "manifest.json.sig").unlink()
    assert "manifest.json.sig is missing: expected a manifest that one of we has signed" in diagnosed(signed, tmp_path)
    other = key_pair(tmp_path, "others")
    (tmp_path / "signers" / "others.pem").unlink()
    done = run(tmp_path, ["-m", "opgate", "sign", str(signed), "--key", str(other)])
    assert done.stdout.startswith("wrote "), done.stderr
    assert "which is that of none of we" in diagnosed(signed, tmp_path)
    done = run(tmp_path, ["-m", "opgate", "sign", str(signed), "--key", str(tmp_path / "we.key")])
    assert diagnosed(signed, tmp_path).endswith("0 errors, 0 warnings\n")


def test_without_signers_nothing_must_be_signed(signed, tmp_path):
    (signed / "manifest.json.sig").unlink()
    done = run(tmp_path, ["-m", "opgate", "doctor", str(tmp_path / "models")], OPGATE_OPS_PATH=str(signed))
    assert done.stdout.endswith("0 errors, 0 warnings\n")


def test_keys_that_are_none(signed, tmp_path):
    public = tmp_path / "signers" / "we.pem"
    done = run(tmp_path, ["-m", "opgate", "sign", str(signed), "--key", str(public)])
    assert done.returncode == 1 and "expected a private key in PEM without a password" in done.stderr
    rsa = ["openssl", "genpkey", "-algorithm", "rsa", "-out", str(tmp_path / "rsa.key")]
    subprocess.run(rsa, check=True, capture_output=True)
    done = run(tmp_path, ["-m", "opgate", "sign", str(signed), "--key", str(tmp_path / "rsa.key")])
    assert done.returncode == 1 and "expected a key of Ed25519, got RSAPrivateKey" in done.stderr
    public.write_text("nonsense")
    assert "we.pem: expected a public key in PEM" in diagnosed(signed, tmp_path)
    public.unlink()
    assert "expected a folder with public keys in files *.pem, found none" in diagnosed(signed, tmp_path)


def test_an_engine_out_of_range_is_refused_by_name(options, signed, tmp_path):
    """The manifest states the range. The gateway doesn't load the library, and the package doesn't hand it out."""
    manifest = signed / "manifest.json"
    stated = json.loads(manifest.read_text())
    (entry,) = (entry for entry in stated["libraries"] if entry["engine"] == "onnxruntime")
    assert entry["engine_versions"] == ">=1.17"
    entry["engine_versions"] = ">=1.17,<1.18"
    manifest.write_text(json.dumps(stated))
    refused = f"works with onnxruntime >=1.17,<1.18, and this is onnxruntime {ort.__version__}"
    signing = ["-m", "opgate", "sign", str(signed), "--key", str(tmp_path / "we.key")]
    assert run(tmp_path, signing).returncode == 0
    assert f"libtheir_ops_onnxruntime.so {refused}" in diagnosed(signed, tmp_path)
    done = run(tmp_path / "site", ["-c", "import their_ops; their_ops.op_library()"])
    assert f"RuntimeError: libtheir_ops_onnxruntime.so {refused}" in done.stderr
    done = run(tmp_path / "site", ["-c", "import their_ops; print(their_ops.op_library('torch'))"])
    assert done.returncode == 0 or "has no library for torch" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("found", "stated", "expected"),
    [
        ("1.17.3", ">=1.17", True),
        ("1.16.9", ">=1.17", False),
        ("1.32.0", ">=1.17,<1.32", False),
        ("2.10.0+cpu", ">=2.10", True),
        ("2.21.1", "==2.21.*", True),
        ("2.2.1", "==2.21.*", False),
        ("2.3.9", ">=1.1,<=2.3", True),
    ],
)
def test_ranges_of_versions(found, stated, expected):
    assert within(found, stated) is expected


def test_ranges_that_are_none():
    for wrong in ("", "1.17", ">=1.17 or so", "~=1"):
        with pytest.raises(ValueError, match="expected a range such as"):
            within("1.17", wrong)


def test_portable_libraries_run_with_an_older_glibc(library, built, tmp_path):
    """They need nothing of the C++ library, and of the C library what version 2.28 has."""
    need("elftools")
    folder = tmp_path / "their_ops"
    new_op(folder / "scale_it", None, library)
    how = [] if ALL else ["--engine", "onnxruntime", "--engine", "torch", "--cuda", "", "--arch", "native"]
    done = run(tmp_path, ["-m", "opgate", "build", str(folder), "--portable", *how])
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path, ["-m", "opgate", "package", str(folder), "--output", str(tmp_path / "dist")])
    assert done.returncode == 0 and done.stdout.startswith("wrote ") and "it needs glibc" not in done.stdout, done
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"their_ops-0.1.0-py3-none-manylinux_2_28_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        entries = json.loads(archive.read("their_ops/lib/manifest.json"))["libraries"]
    assert {entry["glibc"] for entry in entries} == {"2.28"}
    engines = {entry["engine"] for entry in entries}
    assert "onnxruntime" in engines and ("torch" in engines) == ("torch" not in built.left_out)
    for entry in entries:
        file = tmp_path / "site" / "their_ops" / "lib" / entry["file"]
        symbols = subprocess.run(["objdump", "-T", str(file)], capture_output=True, text=True, check=True).stdout
        versions = set(re.findall(r"GLIBC_([\d.]+)", symbols))
        assert versions and max(tuple(map(int, version.split("."))) for version in versions) <= (2, 28)
        assert not re.search(r"GLIBCXX|CXXABI", symbols)
    check_in_onnxruntime(tmp_path / "site", "0.1.0")
    if "torch" in engines:
        check_in_torch(tmp_path / "site")


OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


def test_the_libraries_of_another_architecture(library, tmp_path):
    """They are cross-compiled. What the ops are is read from the library of this machine."""
    if not any(shutil.which(f"{OTHER}-linux-gnu-g++{version}") for version in ("", "-14", "-13", "-12")):
        pytest.skip(f"{OTHER}-linux-gnu-g++ is not installed")
    need("elftools")
    folder = tmp_path / "far_ops"
    new_op(folder / "scale_it", None, library)
    how = ["--engine", "onnxruntime", "--cuda", "", "--arch", "", "--machine", OTHER, "--portable"]
    refused = run(tmp_path, ["-m", "opgate", "package", str(folder), "--machine", OTHER])
    assert f"far_ops/build/{OTHER} has no library: run opgate build" in " ".join(refused.stderr.split())
    done = run(tmp_path, ["-m", "opgate", "build", str(folder), *how])
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path, ["-m", "opgate", "package", str(folder), "--machine", OTHER, "--output", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob(f"far_ops-0.1.0-py3-none-manylinux_2_28_{OTHER}.whl")
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = json.loads(archive.read("far_ops/lib/manifest.json"))["libraries"]
        data = archive.read("far_ops/lib/libfar_ops_onnxruntime.so")
    assert int.from_bytes(data[18:20], "little") == {"aarch64": 183, "x86_64": 62}[OTHER]  # e_machine of ELF
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert entry["cpu_levels"] == list(cpu.LEVELS[OTHER]) and OTHER in entry["compiler"]
    assert not (folder / "build" / "manifest.json").exists()  # what is built for this machine stays as it is
    native = json.loads((folder / "build" / OTHER / "native" / "manifest.json").read_text())["libraries"]
    assert [op["signature"] for op in entry["ops"]] == [op["signature"] for op in native[0]["ops"]]


def test_another_architecture_needs_a_compiler(options, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BuildError, match=f"{OTHER}-linux-gnu-g.. is not installed.*apt-get install g..-{OTHER.replace('_', '-')}"
    ):
        build(for_machine(options, OTHER), lambda line: None)
    with pytest.raises(BuildError, match="expected a machine of x86_64, aarch64, got 'sparc'"):
        for_machine(options, "sparc")
    assert for_machine(options, platform.machine()) == options


@pytest.mark.parametrize(
    ("version", "stated", "reason"),
    [
        ("unknown", ">=1.17", ""),
        ("2", ">=2.0", ""),
        ("1.18", "~=1.20", "expected a range such as"),
        ("1.16.3", ">=1.17", "works with onnxruntime >=1.17, and this is onnxruntime 1.16.3"),
    ],
)
def test_what_a_range_makes_of_other_versions(version, stated, reason, monkeypatch):
    monkeypatch.setattr("onnxruntime.__version__", version)
    said = refusal({"file": "lib.so", "engine": "onnxruntime", "engine_versions": stated})
    assert (reason in said) if reason else not said
