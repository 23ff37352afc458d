"""The configs of the model repository agree with the ONNX files and with each other, by Triton's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))


def _config(model: str) -> Any:
    return text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), ModelConfig())


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]


def _element_type(value: onnx.ValueInfoProto) -> str:
    names = {
        onnx.TensorProto.FLOAT: "TYPE_FP32",
        onnx.TensorProto.INT32: "TYPE_INT32",
        onnx.TensorProto.UINT8: "TYPE_UINT8",
    }
    return names[value.type.tensor_type.elem_type]


def _expected(io: Any, *, batching: bool) -> list[int]:
    dims = io.reshape.shape if io.HasField("reshape") else io.dims
    return [-1, *dims] if batching else list(dims)


def _agree(a: list[int], b: list[int]) -> bool:
    return len(a) == len(b) and all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_config_has_the_folder_s_name_and_its_label_files(model: str) -> None:
    config = _config(model)
    assert config.name == model
    for output in config.output:
        if output.label_filename:
            labels = (REPOSITORY / model / output.label_filename).read_text().split()
            assert len(set(labels)) == len(labels) > 1
            assert not model.startswith("digit_") or labels == [str(digit) for digit in range(10)]


@pytest.mark.parametrize("model", [m for m in MODELS if not _config(m).HasField("ensemble_scheduling")])
def test_config_states_the_graph_s_tensors(model: str) -> None:
    config, graph = _config(model), onnx.load(REPOSITORY / model / "1" / "model.onnx").graph
    batching = config.max_batch_size > 0
    inputs, outputs = {v.name: v for v in graph.input}, {v.name: v for v in graph.output}
    assert set(inputs) == {io.name for io in config.input} | {
        name for b in config.batch_input for name in b.target_name
    }
    for io in config.input:
        assert _element_type(inputs[io.name]) == DataType.Name(io.data_type)
        expected = [-1] if io.allow_ragged_batch else _expected(io, batching=batching)
        assert _agree(_dims(inputs[io.name]), expected)
    for io in config.output:
        assert _element_type(outputs[io.name]) == DataType.Name(io.data_type)
        assert _dims(outputs[io.name]) == _expected(io, batching=batching)


@pytest.mark.parametrize("model", [m for m in MODELS if _config(m).HasField("ensemble_scheduling")])
def test_ensemble_s_tensors_fit_its_steps(model: str) -> None:
    ensemble = _config(model)
    tensors: dict[str, tuple[int, list[int], list[int]]] = {}

    def meet(name: str, data_type: int, dims: list[int], *, batching: bool) -> None:
        full = [-1, *dims] if batching else dims
        other_type, other_dims, other_full = tensors.setdefault(name, (data_type, dims, full))
        assert data_type == other_type, name
        assert _agree(dims, other_dims) or _agree(full, other_full), name

    for io in [*ensemble.input, *ensemble.output]:
        meet(io.name, io.data_type, _expected(io, batching=False), batching=ensemble.max_batch_size > 0)
    for step in ensemble.ensemble_scheduling.step:
        config = _config(step.model_name)
        assert config.max_batch_size == 0 or config.max_batch_size >= ensemble.max_batch_size
        assert set(step.input_map) == {io.name for io in config.input}
        assert set(step.output_map) <= {io.name for io in config.output}
        for ios, mapping in ((config.input, step.input_map), (config.output, step.output_map)):
            for io in ios:
                if io.name in mapping:
                    meet(mapping[io.name], io.data_type, list(io.dims), batching=config.max_batch_size > 0)
