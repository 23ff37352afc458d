"""`opgate package`: the wheel of somebody's ops installs, loads and serves elsewhere."""

import csv
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import BuildError, out_of_tree
from opgate.ops_build.packaging.package import package
from opgate.ops_build.scaffold import new_op
from tests import PROJECT


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
    path = run(
        installed, ["-c", "import their_ops; print(their_ops.op_library(), their_ops.__version__)"]
    ).stdout.split()
    assert path[1] == "1.2"
    session = ort.SessionOptions()
    session.register_custom_ops_library(path[0])
    run_once = ort.InferenceSession(model().SerializeToString(), session, providers=["CPUExecutionProvider"])
    assert run_once.run(None, {"x": np.array([[1, -2]], np.float32)})[0].tolist() == [[3, -6]]
    missing = run(installed, ["-c", "import their_ops; their_ops.op_library('tensorrt')"])
    assert "their_ops has no library for tensorrt" in missing.stderr


def test_the_functions_of_torch_are_there(installed, built):
    pytest.importorskip("torch")
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")
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
