"""Runs the pages docs/from-*.md as they are shown, each from its files to a served request."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.adapters.onnxruntime.toolchain import find_onnxruntime_headers
from opgate.ops_build.building.build import Build
from opgate.ops_build.building.toolchain import toolchain_folder
from tests.conftest import ALL, thorough
from tests.skips import need
from tests.system.running import ROOT, Server

LEAKY_RELU = ROOT / "tests" / "ops_build" / "finished_library" / "leaky_relu.cpp"


def follow(page: str, folder: Path) -> str:
    """Writes the files of a page into a folder and runs its commands there. Compares the last answer with the page's.
    Returns what the commands printed."""
    text = (ROOT / "docs" / page).read_text()
    files = dict(re.findall(r"```(?:python\n#|cpp\n//) (\S+)\n(.*?)```", text, re.DOTALL))
    for name, content in files.items():
        if "/" not in name:
            (folder / name).write_text(content)
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    server, printed = None, ""
    try:
        for line in block.splitlines():
            command = re.split(r"\s{2,}#", line)[0]
            if "opgate serve" in command:
                named = re.match(r"OPGATE_OPS_PATH=\$PWD(\S*) ", command)
                variables = {"OPGATE_OPS_PATH": f"{folder}{named[1]}"} if named else {}
                assert command.endswith("opgate serve --model-repository models")
                server = Server(folder / "models", env={**environment, **variables}, folder=folder)
                continue
            if command.startswith("curl"):
                assert server is not None
                command = command.replace("curl localhost:8000", f"curl -s 127.0.0.1:{server.http}")
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            printed += done.stdout
            if command.startswith("opgate new"):
                for name, content in files.items():
                    if "/" in name:
                        assert (folder / name).is_file()
                        (folder / name).write_text(content)
    finally:
        if server is not None:
            server.stop()
    answer, expected = json.loads(done.stdout), json.loads(shown)
    if "predictions" in answer:
        scores = [record.pop("score") for record in answer["predictions"]]
        np.testing.assert_allclose(scores, [record.pop("score") for record in expected["predictions"]], atol=1e-3)
        assert answer == expected
        return printed
    values = [output.pop("data") for output in answer["outputs"]]
    np.testing.assert_allclose(values, [output.pop("data") for output in expected["outputs"]], atol=1e-5)
    assert answer == expected
    return printed


@pytest.fixture(autouse=True)
def _needs_curl() -> None:
    if not shutil.which("curl"):
        pytest.skip("there is no curl")


def test_from_pytorch(built: Build, tmp_path: Path) -> None:
    need("torch", "onnxscript")
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")
    assert "without the library: the greatest difference" in follow("from-pytorch.md", tmp_path)


@thorough("it imports TensorFlow four times")
def test_from_tensorflow(built: Build, tmp_path: Path) -> None:
    need("tf2onnx")
    if reason := built.left_out.get("tensorflow"):
        pytest.skip(f"tensorflow was left out: {reason}")
    printed = follow("from-tensorflow.md", tmp_path)
    assert "opgate::Mish: 1 node" in printed and "compared with TensorFlow " in printed


def test_from_litert(built: Build, tmp_path: Path) -> None:
    need("tf2onnx", "ai_edge_litert")
    for engine in ("tensorflow", "litert"):
        if reason := built.left_out.get(engine):
            pytest.skip(f"{engine} was left out: {reason}")
    printed = follow("from-litert.md", tmp_path)
    assert "opgate::Mish: 1 node" in printed and "compared with LiteRT " in printed


def test_from_onnx(library: Path, tmp_path: Path) -> None:
    printed = follow("from-onnx.md", tmp_path)
    assert "now opgate::KNNQuery" in printed and "the new model: it loads and runs" in printed
    assert re.search(r"^Mish +y +(not )?kept", printed, re.MULTILINE)


def test_from_a_model(library: Path, tmp_path: Path) -> None:
    printed = follow("from-a-model.md", tmp_path)
    assert "bit for bit" in printed and "found in the file" in printed and "said by you" in printed


def test_from_a_library(library: Path, tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    headers = find_onnxruntime_headers(toolchain_folder(), lambda line: None)
    compiler = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-isystem{headers.include}"]
    subprocess.run([*compiler, LEAKY_RELU, "-o", tmp_path / "custom_ops.so"], check=True)
    printed = follow("from-a-library.md", tmp_path)
    assert "shape of Z: [2, 2]" in printed and "latency: " in printed
    saved = np.load(tmp_path / "results.npz")
    np.testing.assert_allclose(saved["Z"], [[1, 0.02], [3, 0.04]], rtol=1e-6)


def test_from_an_idea(library: Path, tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    printed = follow("from-an-idea.md", tmp_path)
    assert " 0 failed" in printed and "0 errors, 0 warnings" in printed
    assert re.search(r"my_ops::Squash +│ library", printed)
    assert "the build left out cuda: it was not asked for" in printed  # the op has a kernel for it
    if ALL:  # tests/ops_build/test_supervision.py emulates the CUDA kernel of an op too
        emulated = [sys.executable, "-m", "opgate", "verify", "--folder", "my_ops", "--emulate-cuda"]
        done = subprocess.run(emulated, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout + done.stderr
    text = (ROOT / "docs" / "from-an-idea.md").read_text()
    blocks = re.findall(r"```(?:cpp|python|sh)\n(.*?)```", text, re.DOTALL)
    assert sum(block.count("\n") for block in blocks) < 60


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("from-*.md")))
def test_every_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https://)([^)#]+)", text):
        assert (ROOT / "docs" / target).exists(), target
