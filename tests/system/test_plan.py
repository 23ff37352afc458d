"""`opgate plan`: models compiled for a Triton server on GPUs. TensorRT-RTX compiles them where there is no GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from tests.service.onnx_models import batching, double, identity, save, value, write_config
from tests.service.padded_models import config as config_with
from tests.service.padded_models import tokens
from tests.system.running import ROOT

MODELS = ROOT / "model_repository"


def plan(
    *models: str, repository: Path, to: Path, trtexec: Path | str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opgate", "plan", *models, "--model-repository", str(repository), "--to", str(to)]
    command += ["--trtexec", str(trtexec), *(f"--option={option}" for option in options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def config_of(folder: Path) -> ModelConfig:
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_repository(plans: Path) -> None:
    """Checks the repository that has digit_network compiled."""
    assert sorted(path.name for path in plans.iterdir()) == sorted(path.name for path in MODELS.iterdir())
    engine = (plans / "digit_network" / "1" / "model.plan").read_bytes()
    assert len(engine) > 1_000_000
    assert sorted(path.name for path in (plans / "digit_network").rglob("*")) == ["1", "config.pbtxt", "model.plan"]
    config = config_of(plans / "digit_network")
    assert (config.platform, config.backend, config.max_batch_size) == ("tensorrt_plan", "", 16)
    assert not config.HasField("model_operations") and config.HasField("dynamic_batching")
    assert [(group.kind, group.count) for group in config.instance_group] == [(ModelInstanceGroup.KIND_GPU, 1)]
    tensors = [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in (*config.input, *config.output)]
    assert tensors == [("image", DataType.TYPE_FP32, [3, 320, 320]), ("head", DataType.TYPE_FP32, [14, 2000])]
    for name in (path.name for path in MODELS.iterdir() if path.name != "digit_network"):
        assert contents(plans / name) == contents(MODELS / name)


def test_a_model_with_our_op_is_compiled(trtexec: Path, tmp_path: Path) -> None:
    for _ in range(2):  # a second time it replaces what is there
        finished = plan("digit_network", repository=MODELS, to=tmp_path / "plans", trtexec=trtexec)
        assert finished.returncode == 0, finished.stderr
        check_repository(tmp_path / "plans")


def test_an_op_that_only_the_plugins_have(trtexec: Path, tmp_path: Path) -> None:
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [16], [1.0] * 16)
    node = helper.make_node("RMSNorm", ["x", "weight"], ["y"], domain="opgate")
    shape = ["batch", 16]
    tensors = [value("x", "FP32", shape)], [value("y", "FP32", shape)]
    config = batching() + ' model_operations { op_library_filename: "libopgate_onnxruntime.so" }'
    folder = save(tmp_path / "models", "norm", [node], *tensors, config=config, initializers=[weight])
    model = onnx.load(folder / "1" / "model.onnx")
    model.opset_import.append(helper.make_opsetid("opgate", 1))
    onnx.save(model, folder / "1" / "model.onnx")
    finished = plan("norm", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 0, finished.stderr
    assert b"RMSNorm" in (tmp_path / "plans" / "norm" / "1" / "model.plan").read_bytes()


def test_a_model_of_standard_operators_is_compiled(trtexec: Path, tmp_path: Path) -> None:
    """Its config states neither shapes nor datatypes: they come from the file."""
    double(tmp_path / "models", "double", config=batching(max_batch_size=8))
    finished = plan("double", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 0, finished.stderr
    config = config_of(tmp_path / "plans" / "double")
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [("x", [4]), ("y", [4])]
    assert (tmp_path / "plans" / "double" / "1" / "model.plan").stat().st_size > 1000


def test_what_only_the_gateway_does_with_batches_is_dropped(trtexec: Path, tmp_path: Path) -> None:
    """Triton forms the batches of the compiled model, and a gateway before it refuses a config that asks for more."""
    double(tmp_path / "models", "m", config=config_with(pad_inputs="x", batch_by="x"), shape=("batch", "n"))
    shapes = tuple(f"--{which}Shapes=x:{rows}x4" for which, rows in (("min", 1), ("opt", 8), ("max", 8)))
    finished = plan("m", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec, options=shapes)
    assert finished.returncode == 0, finished.stderr
    assert not config_of(tmp_path / "plans" / "m").parameters


def test_a_model_for_gpus_keeps_its_groups(trtexec: Path, tmp_path: Path) -> None:
    """Such a model can't be opened where there is no GPU."""
    groups = "instance_group { kind: KIND_GPU count: 2 gpus: 1 } instance_group { kind: KIND_CPU }"
    accelerator = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    double(tmp_path / "models", "m", config=f"{batching(max_batch_size=8)} {groups} {accelerator}")
    finished = plan("m", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 0, finished.stderr
    (group,) = config_of(tmp_path / "plans" / "m").instance_group
    assert (group.kind, group.count, list(group.gpus)) == (ModelInstanceGroup.KIND_GPU, 2, [1])


def test_a_fixed_config_of_an_open_file(trtexec: Path, tmp_path: Path) -> None:
    """The file leaves the size open, the config states it: without a batch the engine has that size."""
    dims = 'input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 6 ] }'
    double(tmp_path / "models", "m", config=f'backend: "onnxruntime" {dims}', shape=("n",))
    finished = plan("m", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 0, finished.stderr


def test_weights_in_a_file_beside_the_model(trtexec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "digit_network"
    shutil.copytree(MODELS / "digit_network", folder)
    model = onnx.load(folder / "1" / "model.onnx")
    onnx.save(model, folder / "1" / "model.onnx", save_as_external_data=True, location="weights", size_threshold=1000)
    assert (folder / "1" / "weights").stat().st_size > 100_000
    finished = plan("digit_network", repository=tmp_path / "models", to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("to", ["models", "models/plans", "."])
def test_the_repository_is_not_written_over(tmp_path: Path, to: str) -> None:
    double(tmp_path / "models", "m", config=batching())
    finished = plan("m", repository=tmp_path / "models", to=tmp_path / to, trtexec="/bin/true")
    assert finished.returncode == 1 and "must not lie in one another" in finished.stderr
    assert (tmp_path / "models" / "m" / "1" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("my_add", ("--no-such-option",), "trtexec ended with 2"),
        ("digit_preprocess", ("--minShapes=data:1,ends:1",), "ImagePreprocess, which has no CUDA kernel"),
    ],
)
def test_a_failure_is_said_and_leaves_the_old_model(
    trtexec: Path, tmp_path: Path, name: str, options: tuple[str, ...], said: str
) -> None:
    old = tmp_path / "plans" / name
    old.mkdir(parents=True)
    (old / "here").touch()
    finished = plan(name, repository=MODELS, to=old.parent, trtexec=trtexec, options=options)
    assert finished.returncode == 1 and said in finished.stderr
    assert sorted(path.name for path in old.parent.rglob("*")) == sorted([name, "here"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipeline", "'pipeline' is an ensemble: compile the models of its steps, plain"),
        ("texts", "tensor 'x' of model 'texts' is BYTES, which TensorRT doesn't have"),
        ("plain", "input 'x' of model 'plain' has the variable shape [-1, -1]: say what sizes it may have"),
        ("masked", "'masked' has pad_masks: Triton computes no masks"),
        ("nothing", "there is no model 'nothing' in"),
    ],
)
def test_what_can_not_be_compiled_is_refused(trtexec: Path, tmp_path: Path, name: str, said: str) -> None:
    models = tmp_path / "models"
    double(models, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    identity(models, "texts", "BYTES", config=batching())
    tokens(models, "masked")
    step = 'step { model_name: "plain" model_version: -1 input_map { key: "x" value: "x" } }'
    write_config(models, "pipeline", f'platform: "ensemble" ensemble_scheduling {{ {step} }}')
    finished = plan(name, repository=models, to=tmp_path / "plans", trtexec=trtexec)
    assert finished.returncode == 1
    assert said in finished.stderr
    assert not list((tmp_path / "plans").rglob("*"))


def test_without_a_compiler_it_says_where_one_is(tmp_path: Path) -> None:
    finished = plan("my_add", repository=MODELS, to=tmp_path, trtexec="no-such-program")
    assert finished.returncode == 1
    assert "there is no program no-such-program: it comes with TensorRT" in finished.stderr
