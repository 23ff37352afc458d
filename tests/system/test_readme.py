"""Runs the examples of the README, and of the pages that go on from it, as they are shown."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.building.build import Build
from tests.conftest import ALL
from tests.skips import need
from tests.system.running import ROOT, Server, running

PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("start", "write-an-op", "engines", "install"))]
README = "\n".join(page.read_text() for page in PAGES)
SIGNATURES = (ROOT / "docs" / "signatures.md").read_text()
#: `make test-all` builds for every engine, as the README has it. tests/ops_build does so for other ops.
ENGINE = "" if ALL else " --engine onnxruntime"


def of(library: Path) -> str:
    """Returns the option by which `opgate verify` runs only this library. `make test-all` verifies on every engine."""
    return "" if ALL else f" --library {library}"


def blocks(language: str) -> list[str]:
    """Returns the code blocks of a language, once each: the README shows some that a page shows too."""
    return list(dict.fromkeys(re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)))


def commands(beginning: str) -> list[str]:
    """Returns the shell lines that begin with `beginning`, without their comments."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(beginning)]
    assert lines, f"no page has a line that begins with {beginning!r}"
    return [line.split("  #")[0].strip() for line in lines]


def run(command: str, **options: object) -> str:
    """Runs a shell line with the opgate of this interpreter instead of the virtual environment's. Returns its stdout."""
    line = command.replace(".venv/bin/opgate", f"{shlex.quote(sys.executable)} -m opgate")
    finished = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300, cwd=ROOT, **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def gateway(library: Path) -> Iterator[Server]:
    with running(ROOT / "model_repository") as server:
        yield server


def curl_line(model: str, gateway: Server) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the line that sends a picture to a model. Returns the answer, and the one that the page shows."""
    (line,) = [line for line in commands("curl") if line.endswith(f"/predict/{model}")]
    answer = json.loads(run(line.replace("localhost:8000", f"127.0.0.1:{gateway.http}").replace("curl", "curl -s")))
    (shown,) = [block for block in blocks("json") if f'"{model}"' in block]
    shown = json.loads(re.sub(r", \.\.\.", "", shown))
    assert answer.keys() == shown.keys()
    return answer, shown


def test_a_trained_network(library: Path, tmp_path: Path) -> None:
    """The package is the installed one, in place of a download."""
    need("rapidocr_onnxruntime")
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    package = Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent
    (line,) = commands(".venv/bin/opgate attach")
    places = {"build/networks/rapidocr_onnxruntime": str(package), "build/models": str(tmp_path)}
    for shown, place in places.items():
        line = line.replace(shown, place)
    run(line, env={**os.environ, "OPGATE_OPS_LIBRARY": str(library)})
    with running(tmp_path) as server:
        answer, shown = curl_line("reader", server)
    assert [record["text"] for record in answer["predictions"]][: len(shown["predictions"])] == [
        record["text"] for record in shown["predictions"]
    ]
    for found, printed in zip(answer["predictions"], shown["predictions"], strict=False):
        assert found.keys() == printed.keys()
        np.testing.assert_allclose(found["polygon"], printed["polygon"], atol=2)


def test_the_curl_line(gateway: Server) -> None:
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    answer, shown = curl_line("digit_detector", gateway)
    assert answer["predictions"][0].keys() == shown["predictions"][0].keys()
    assert answer["predictions"][0]["label"] == shown["predictions"][0]["label"]
    np.testing.assert_allclose(answer["predictions"][0]["box"], shown["predictions"][0]["box"], atol=2)


def test_the_python_client(gateway: Server) -> None:
    (program,) = [block for block in blocks("python") if "tritonclient" in block]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program.replace("localhost:8000", f"127.0.0.1:{gateway.http}"), "README.md", "exec"), {})
    assert printed.getvalue().strip() == program.strip().splitlines()[-1].split("# ")[1]


def test_pytorch_and_its_export(built: Build) -> None:
    need("torch", "onnxscript")
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")
    programs = [block for block in blocks("python") if "opgate.torch" in block]
    assert len(programs) == 2
    for program in programs:
        finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip().splitlines()[-1] == program.strip().splitlines()[-1].split("# ")[1]


def test_numpy(built: Build) -> None:
    (program,) = [block for block in blocks("python") if "opgate.numpy" in block]
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == program.strip().splitlines()[-1].split("# ")[1]


def test_tensorflow_and_litert(built: Build) -> None:
    need("ai_edge_litert")
    for engine in ("tensorflow", "litert"):
        if reason := built.left_out.get(engine):
            pytest.skip(f"{engine} was left out: {reason}")
    programs = [block for block in blocks("python") if "opgate.tensorflow" in block]
    assert len(programs) == 2
    for program in programs:
        finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip().splitlines()[-1] == program.strip().splitlines()[-1].split("# ")[1]


def test_infer_on_the_command_line(library: Path) -> None:
    detector, added = commands(".venv/bin/opgate infer")
    assert json.loads(run(detector))["predictions"]
    assert json.loads(run(added))["outputs"] == {"y": [2.0, 4.0, 6.0, 9.0]}


def test_the_table_and_the_matrix(library: Path) -> None:
    assert "ImagePreprocess(data: u8[total]" in " ".join(
        run("COLUMNS=200 " + commands(".venv/bin/opgate ops")[0]).split()
    )
    verify = next(line for line in commands(".venv/bin/opgate verify") if "--folder" not in line)
    assert " 0 failed" in run(f"{verify}{of(library)} MyAdd LeakyRelu")


def check_cosines(library: Path) -> None:
    """Runs the op over rows of docs/signatures.md."""
    node = helper.make_node("CosineSimilarity", ["a", "b"], ["y"], domain=library.parents[1].name)
    a, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "ab")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    opsets = [helper.make_opsetid(library.parents[1].name, 1)]
    model = helper.make_model(helper.make_graph([node], "rows", [a, b], [y]), opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {"a": np.array([[1, 0], [3, 4]], "f"), "b": np.array([[1, 1], [-6, -8]], "f")}
    np.testing.assert_allclose(session.run(None, values)[0], [0.5**0.5, -1], rtol=1e-6)


def test_an_op_of_ones_own(tmp_path: Path) -> None:
    (source,) = [block for block in blocks("python") if "opgate.op(" in block]
    (header,) = re.findall(r"```cpp\n(// clamp_add/.*?)```", SIGNATURES, re.DOTALL)
    file = tmp_path / source.splitlines()[0].removeprefix("# ")
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (build,) = commands(".venv/bin/opgate build")
    run(build.replace("my_ops", str(tmp_path / "my_ops")) + ENGINE)
    library = tmp_path / "my_ops" / "build" / "libmy_ops_onnxruntime.so"

    on_both = tmp_path / "on_both" / "clamp_add"
    on_both.mkdir(parents=True)
    (on_both / header.splitlines()[0].removeprefix("// clamp_add/")).write_text(header)
    (rows,) = re.findall(r"```cpp\n(// cosine_similarity/.*?)```", SIGNATURES, re.DOTALL)
    of_rows = on_both.parent / rows.splitlines()[0].removeprefix("// ")
    of_rows.parent.mkdir()
    of_rows.write_text(rows)
    log = run(f".venv/bin/opgate build {on_both.parent}{ENGINE}")
    check_cosines(on_both.parent / "build" / "libon_both_onnxruntime.so")
    if "left out cuda" not in log:
        assert "cpu cuda" in run(f".venv/bin/opgate ops --folder {on_both.parent}")

    model = tmp_path / "models" / "clamp" / "1" / "model.onnx"
    model.parent.mkdir(parents=True)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "aby"]
    node = helper.make_node("ClampAdd", ["a", "b"], ["y"], domain="my_ops", high=5)
    graph = helper.make_graph([node], "clamp", tensors[:2], tensors[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("my_ops", 1)], ir_version=10)
    model.write_bytes(proto.SerializeToString())
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    assert session.run(None, {"a": np.array([1, 4], "f"), "b": np.array([2, 4], "f")})[0].tolist() == [3, 5]

    for block in re.findall(r"```python\n(# clamp_add/(?!op\.py).*?)```", SIGNATURES, re.DOTALL):
        (tmp_path / "my_ops" / block.splitlines()[0].removeprefix("# ")).write_text(block)
    verify = next(line for line in commands(".venv/bin/opgate verify") if "--folder" in line)
    matrix = run(verify.replace("my_ops", str(tmp_path / "my_ops")) + of(library))
    # Six for each engine that is there, and two of the gradient.
    assert re.search(r"\b(8|16|24|32) passed, 0 failed", matrix)
    decomposed = tmp_path / "clamp.onnx"
    decompose = f".venv/bin/opgate decompose {model} -o {decomposed} --folder {tmp_path / 'my_ops'}"
    run(decompose)
    session = ort.InferenceSession(str(decomposed), providers=["CPUExecutionProvider"])
    assert session.run(None, {"a": np.array([1, 4], "f"), "b": np.array([2, 4], "f")})[0].tolist() == [3, 5]

    (serve,) = commands("OPGATE_OPS_PATH")
    assert "opgate serve --model-repository models_that_use_it" in serve
    (model.parent.parent / "config.pbtxt").write_text(
        'model_operations { op_library_filename: "libmy_ops_onnxruntime.so" }\n'
    )
    with running(tmp_path / "models", env={"OPGATE_OPS_PATH": str(library.parent)}) as server:
        body = json.dumps({"inputs": [{"name": n, "datatype": "FP32", "shape": [2], "data": [1, 4]} for n in "ab"]})
        command = ["curl", "-s", "--data", body, f"{server.url}/v2/models/clamp/infer"]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answer["outputs"][0]["data"] == [2.0, 5.0]


@pytest.mark.parametrize("constant", [True, False])
def test_an_op_that_prepares(tmp_path: Path, constant: bool) -> None:
    (source,) = re.findall(r"```cpp\n(// project/.*?)```", SIGNATURES, re.DOTALL)
    file = tmp_path / "my_ops" / source.splitlines()[0].removeprefix("// ")
    file.parent.mkdir(parents=True)
    file.write_text(source)
    run(f".venv/bin/opgate build {tmp_path / 'my_ops'} --engine onnxruntime --cuda ''")
    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in "xy")
    weight_inputs = [] if constant else [helper.make_tensor_value_info("w", TensorProto.FLOAT, ["m", "k"])]
    initializers = [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight)] if constant else []
    node = helper.make_node("Project", ["x", "w"], ["y"], domain="my_ops")
    graph = helper.make_graph([node], "project", [x, *weight_inputs], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("my_ops", 1)], ir_version=10)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(tmp_path / "my_ops" / "build" / "libmy_ops_onnxruntime.so"))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for rows in (1, 3):
        feeds = {"x": np.ones((rows, 4), np.float32)} | ({} if constant else {"w": weight})
        np.testing.assert_array_equal(session.run(None, feeds)[0], [[6, 22]] * rows)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Anchors are checked in the site: tests/test_docs_site.py."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert 60 < len(PAGES[0].read_text().splitlines()) <= 100


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([\w-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
