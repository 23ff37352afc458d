"""`opgate export`: what it writes computes what the module computes, is served as it is, and has the config that fits."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from click.testing import Result
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc.model_config_pb2 import ModelConfig
from typer.testing import CliRunner

from opgate.onnx_tools import repository
from opgate.ops_build.building.build import Build
from tests.skips import need

torch = pytest.importorskip("torch")
need("onnxscript")

from opgate.commands.export import export  # noqa: E402
from opgate.onnx_tools.from_torch.factory import FactoryError, named  # noqa: E402

HERE = "tests.ops_build.exported_modules"
BOTH = pytest.mark.parametrize("exporter", ["dynamo", "legacy"])


@pytest.fixture(scope="module", autouse=True)
def _torch_library(built: Build) -> None:
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(export)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner().invoke(app, [str(argument) for argument in arguments])


def good(*arguments: object) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def written(folder: Path) -> tuple[list[str], ModelConfig]:
    """Returns the names of the ops in a model, and its config."""
    model = onnx.load(folder / "1" / "model.onnx")
    config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    return [f"{node.domain}::{node.op_type}" for node in model.graph.node if node.op_type != "Constant"], config


@BOTH
def test_a_module_with_an_op_is_exported_and_served(tmp_path: Path, exporter: str) -> None:
    folder = tmp_path / "picture"
    lines = good(
        f"{HERE}:Picture", "--input", "x:f32[N,3,H,W]", "--dynamic", "N,H,W", "--to", folder, "--exporter", exporter
    )  # fmt: skip
    assert lines[0].startswith(f"exported by the exporter {exporter} of PyTorch ")
    assert lines[1] == "opgate::Mish: 1 node"
    checks = ["", " on other random inputs", " at N=4, H=16, W=16"]
    for line, where in zip(lines[2:5], checks, strict=True):
        assert line.startswith(f"with libopgate_onnxruntime.so{where}: the greatest difference is ")
        assert float(line.rsplit(" ", 1)[1]) < 1e-5
    assert lines[5].startswith("without the library: the greatest difference is ")
    assert lines[6] == f"wrote {folder / '1' / 'model.onnx'} and {folder / 'config.pbtxt'}"
    ops, config = written(folder)
    assert ops == ["::Conv", "opgate::Mish"]
    assert (config.name, config.backend, config.max_batch_size) == ("picture", "onnxruntime", 8)
    assert config.HasField("dynamic_batching")
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("x", 11, [3, -1, -1])]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.output] == [("output", 11, [4, -1, -1])]
    assert list(config.model_operations.op_library_filename) == ["libopgate_onnxruntime.so"]
    x = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ["infer", "picture", "--model-repository", tmp_path, "--input", f"x=@{tmp_path / 'x.npy'}"]
    answer = subprocess.run(
        [sys.executable, "-m", "opgate", *map(str, command)], capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    from tests.ops_build.exported_modules import Picture

    expected = Picture()(torch.from_numpy(x)[None])[0].detach().numpy()
    np.testing.assert_allclose(json.loads(answer.stdout)["outputs"]["output"], expected, atol=1e-5)


@BOTH
@pytest.mark.parametrize("op", ["Asinh", "opgate::Asinh"])
def test_an_op_of_aten_is_mapped(tmp_path: Path, exporter: str, op: str) -> None:
    mapping = f"aten::asinh={op}"
    good(f"{HERE}:Asinh", "--input", "x:f32[batch,4]", "--dynamic", "batch", "--map", mapping, "--to", tmp_path / "m",
         "--exporter", exporter, "--output", "y")  # fmt: skip
    ops, config = written(tmp_path / "m")
    assert ops[0] == (op if "::" in op else f"::{op}") and config.output[0].name == "y" and config.max_batch_size == 8
    assert len(config.model_operations.op_library_filename) == ("opgate" in op)


@BOTH
@pytest.mark.parametrize(("module", "inputs"), [("Grid", 2), ("BoundedGrid", 4)])
def test_an_op_of_a_library_is_mapped(tmp_path: Path, exporter: str, module: str, inputs: int) -> None:
    names = [
        "--input",
        "pos:f32[n,3]",
        *(part for name in ("size", "start", "end")[: inputs - 1] for part in ("--input", f"{name}:f32[3]")),
    ]
    # Random sizes of cells may be negative, which GridCluster refuses.
    factory = {"Grid": "positive_grid", "BoundedGrid": "positive_bounded_grid"}[module]
    arguments = [f"{HERE}:{factory}", *names, "--dynamic", "n", "--to", tmp_path / "m", "--exporter", exporter]
    good(*arguments, "--map", "torch_cluster::grid=opgate::GridCluster")
    ops, config = written(tmp_path / "m")
    assert ops == ["opgate::GridCluster"] and config.max_batch_size == 0
    assert [list(t.dims) for t in config.output] == [[-1]]


@BOTH
def test_an_op_that_no_one_maps_is_named(tmp_path: Path, exporter: str) -> None:
    result = run(f"{HERE}:other", "--to", tmp_path / "m", "--exporter", exporter)
    assert result.exit_code == 1
    for part in (
        "has no ONNX operator for torch_cluster::other",
        "--map torch_cluster::other=DOMAIN::OP",
        "--exporter",
    ):
        assert part in result.output, result.output


@BOTH
def test_tensors_in_dicts_are_outputs_of_their_names(tmp_path: Path, exporter: str) -> None:
    """Also those of dicts in a list, as detectors return them."""
    given = ("--input", "x:f32[N,4]", "--dynamic", "N", "--exporter", exporter)
    for factory, names in (
        ("ManyNamed", ["out", "aux", "parts_0", "parts_1", "x_1", "parts_0_1"]),
        ("Detector", ["boxes", "scores"]),
    ):
        lines = good("--to", tmp_path / factory, f"{HERE}:{factory}", *given)
        assert lines[-1] == "the gateway loads it"
        _, config = written(tmp_path / factory)
        assert [tensor.name for tensor in config.output] == names


@pytest.mark.parametrize("factory", ["knn", "knn_with_queries", "own_knn"])
def test_an_autograd_function_with_a_symbolic(tmp_path: Path, factory: str) -> None:
    lines = good(f"{HERE}:{factory}", "--to", tmp_path / "m", "--output", "idx", "--output", "dist")
    assert lines[0].startswith("exported by the exporter legacy")
    assert ("custom::knnquery became opgate::KNNQuery" in lines[1]) == (factory != "own_knn")
    ops, config = written(tmp_path / "m")
    assert ops == ["opgate::KNNQuery"]
    assert [t.name for t in config.input] == ["xyz", "offset", "new_xyz", "new_offset"][: len(config.input)]
    assert [(t.name, t.data_type) for t in config.output] == [("idx", 8), ("dist", 11)]
    result = run(f"{HERE}:{factory}", "--to", tmp_path / "other", "--exporter", "dynamo")
    assert result.exit_code == 1 and "dynamo ignores the symbolic of" in result.output
    assert not (tmp_path / "other").exists()


def test_ops_with_several_outputs_and_one_without_a_decomposition(tmp_path: Path) -> None:
    lines = good(f"{HERE}:Norms", "--input", "x:f16[N,4]", "--dynamic", "N", "--size", "N=3", "--max-batch-size", 0, "--to", tmp_path / "m", "--version", 3)  # fmt: skip
    assert "opgate::RMSNorm: 1 node" in lines and "opgate::Gelu: 1 node" in lines
    assert any(" at N=6: " in line for line in lines)
    assert lines[-3] == "without the library: not checked, Gelu has no decomposition"
    assert (tmp_path / "m" / "3" / "model.onnx").is_file()
    config = text_format.Parse((tmp_path / "m" / "config.pbtxt").read_text(), ModelConfig())
    assert config.max_batch_size == 0 and [list(t.dims) for t in config.output] == [[-1, 4]] * 2
    assert not config.HasField("dynamic_batching")


def test_an_op_of_ones_own_library(tmp_path: Path, fixture_built: Build) -> None:
    library = fixture_built.libraries["torch"]
    arguments = ["--torch-library", library, "--input", "data:u8[t]", "--input", "ends:i32[n]", "--dynamic", "t,n"]
    lines = good(f"{HERE}:numbers", *arguments, "--to", tmp_path / "m", "--max-batch-size", 0)
    assert "fixture_ops::ParseNumber: 1 node" in lines
    assert "with libfixture_ops_onnxruntime.so: the greatest difference is 0.0e+00" in lines
    assert any(line.startswith("without the library: not checked, ") for line in lines)
    ops, config = written(tmp_path / "m")
    assert ops == ["fixture_ops::ParseNumber"]
    assert list(config.model_operations.op_library_filename) == ["libfixture_ops_onnxruntime.so"]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("data", 2, [-1]), ("ends", 8, [-1])]


PICTURE = (f"{HERE}:Picture", "--input", "x:f32[1,3,4,4]")
REFUSED = [
    (["nowhere"], "expected PACKAGE.MODULE:FACTORY, got 'nowhere'"),
    (["no.such.module:f"], "there is no module no.such.module"),
    ([f"{HERE}:absent"], "has no 'absent'"),
    ([f"{HERE}:broken"], "broken() fails: RuntimeError: no weights"),
    ([f"{HERE}:number"], "expected a torch.nn.Module, or one and its example inputs, got int"),
    ([f"{HERE}:number_out"], "the module returns int: expected a tensor, or a tuple or a dict of tensors"),
    ([f"{HERE}:bad_examples"], "expected a tuple of tensors as example inputs, got list"),
    ([f"{HERE}:Picture"], "gives no example inputs: state each with --input NAME:DTYPE[SIZES]"),
    ([f"{HERE}:MADE", "--input", "x:f32[1,4,4,4]"], "the module fails on inputs of shape [1, 4, 4, 4]: RuntimeError"),
    ([f"{HERE}:Picture", "--input", "x=f32[1]"], "expected NAME:DTYPE[SIZES], such as x:f32[1,3,H,W]"),
    ([f"{HERE}:Picture", "--input", "x:f12[1]"], "with a dtype of f16, bf16, f32"),
    ([f"{HERE}:Picture", "--input", "x:f32[1,3,H,4]"], "input 'x': dim 'H' is not in --dynamic"),
    ([f"{HERE}:Picture", "--input", "x:f32[1,3,-2,4]"], "input 'x': expected a number or a name for a dim, got '-2'"),
    ([*PICTURE, "--dynamic", "Q"], "--dynamic: no input has a dim 'Q'"),
    ([*PICTURE, "--input", "x:f32[1]"], "two inputs have the same name"),
    ([*PICTURE, "--output", "a", "--output", "b"], "--output: expected 1 names, one for each output of the module, got 2"),
    ([*PICTURE, "--size", "H=4"], "--size: no input has an open dim 'H'"),
    ([*PICTURE, "--opset", "99"], "--opset 99: the exporter dynamo can write opset 18 only"),
    ([*PICTURE, "--to", ".m"], "--to: expected a folder whose name begins with no '.'"),
    ([f"{HERE}:Picture", "--input", "x:f32[1,3,²,4]"], "input 'x': expected a number or a name for a dim, got '²'"),
    ([*PICTURE, "--exporter", "other"], "--exporter: expected dynamo or legacy, got 'other'"),
    ([*PICTURE, "--map", "asinh"], "--map: expected NAMESPACE::NAME=DOMAIN::OP, such as aten::acosh=Acosh, got 'asinh'"),
    ([*PICTURE, "--map", "aten::asinh=No"], "--map aten::asinh: neither ONNX nor a library has ::No"),
    ([*PICTURE, "--max-batch-size", "4"], "with a max_batch_size the first dim of 'x' must be open, and it has the size 1"),
    ([*PICTURE, "--torch-library", __file__], "--torch-library: expected lib<domain>_torch.so"),
    ([f"{HERE}:knn", "--input", "xyz:f32[21,3]", "--input", "offset:i32[2]"], "input 'xyz': expected the shape [21, 3], the example has [20, 3]"),
    ([f"{HERE}:knn", "--input", "xyz:f32[20,3]"], "the factory gives 2 example inputs, --input states 1"),
    ([f"{HERE}:knn", "--input", "xyz:f32[20,3]", "--input", "offset:i64[2]"], "input 'offset': expected i64, the example has i32"),
    ([f"{HERE}:lonely"], "the export has mine::Double, which no library has"),
    ([f"{HERE}:random"], "output 'output' of the export differs from the module's by"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[row[1][:60] for row in REFUSED])
def test_what_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run("--to", tmp_path / "m", *arguments)
    assert result.exit_code == 1, result.output
    assert message in result.output
    assert not (tmp_path / "m").exists()


#: The exporter that takes less time.
LEGACY = (*PICTURE, "--exporter", "legacy")


def test_a_version_that_is_there_stays(tmp_path: Path) -> None:
    good(*LEGACY, "--to", tmp_path / "m")
    before = (tmp_path / "m" / "config.pbtxt").read_bytes()
    result = run(*LEGACY, "--to", tmp_path / "m")
    assert (
        result.exit_code == 1 and "is there: choose another --version, or replace it with --overwrite" in result.output
    )
    changed = before + b"instance_group { count: 2 }\n"
    (tmp_path / "m" / "config.pbtxt").write_bytes(changed)
    lines = good(*LEGACY, "--to", tmp_path / "m", "--version", 2)
    assert lines[-3:] == [
        f"{tmp_path}/m/config.pbtxt is there and stays: --overwrite replaces it",
        f"wrote {tmp_path}/m/2/model.onnx",
        "the gateway loads it",
    ]
    assert (tmp_path / "m" / "config.pbtxt").read_bytes() == changed
    good(*LEGACY, "--to", tmp_path / "m", "--overwrite")
    assert (tmp_path / "m" / "config.pbtxt").read_bytes() == before


def test_the_folder_here_and_names_with_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path / "m")
    good(*LEGACY, "--to", ".", "--output", 'a "b" \\')
    _, config = written(tmp_path / "m")
    assert config.name == "m" and config.output[0].name == 'a "b" \\'


def test_weights_that_a_file_can_not_hold_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "LARGEST", 10)
    weight = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])
    graph = helper.make_graph([helper.make_node("Neg", ["w"], ["y"])], "g", [], [y], [weight])
    for _ in range(2):
        repository.write(helper.make_model(graph), tmp_path, "")
        assert (tmp_path / "1" / "model.onnx.data").stat().st_size == 4000
    assert onnx.load(tmp_path / "1" / "model.onnx").graph.initializer[0].raw_data == weight.raw_data


def test_a_missing_import_of_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks.py").write_text("import network")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FactoryError, match="networks can't be imported: No module named 'network'"):
        named("networks:f")
