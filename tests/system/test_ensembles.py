"""Ensembles whose inputs are optional and whose outputs are asked for one by one, over both protocols."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.service.onnx_models import batching, save, value, write_config
from tests.system.clients import CLIENTS, connect
from tests.system.running import running

STEPS = """ensemble_scheduling { step [
  { model_name: "scale" model_version: -1 input_map { key: "x" value: "x" } input_map { key: "by" value: "first" }
    output_map { key: "y" value: "y" } },
  { model_name: "scale" model_version: -1 input_map { key: "x" value: "y" } input_map { key: "by" value: "second" }
    output_map { key: "y" value: "z" } },
  { model_name: "scale" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "side" } } ] }"""


def scale(folder, name, config):
    """Saves a model that computes y = x * by. `by` is 2 if it is missing."""
    default = helper.make_tensor("by", TensorProto.FLOAT, [1, 1], [2.0])
    node = helper.make_node("Mul", ["x", "by"], ["y"])
    inputs = [value("x", "FP32", ("batch", 2)), value("by", "FP32", ("batch", 1))]
    save(folder, name, [node], inputs, [value("y", "FP32", ("batch", 2))], initializers=[default], config=config)


def tensors(*parts):
    return " ".join(
        f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {size} ]{" optional: true" if optional else ""} }} ]'
        for kind, name, size, optional in parts
    )


OPTIONAL = tensors(("input", "x", 2, False), ("input", "by", 1, True), ("output", "y", 2, False))
WHOLE = tensors(
    ("input", "x", 2, False),
    ("input", "first", 1, True),
    ("input", "second", 1, True),
    ("output", "y", 2, False),
    ("output", "z", 2, False),
    ("output", "side", 2, False),
)


THROUGH = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "note" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "y" data_type: TYPE_FP32 dims: [ 2 ] },
         { name: "note" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "small" model_version: -1 input_map { key: "x" value: "x" }
  output_map { key: "y" value: "y" } } ] }"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    scale(folder, "scale", batching(OPTIONAL))
    write_config(folder, "chain", f'platform: "ensemble" max_batch_size: 8 {WHOLE} {STEPS}')
    outer = """ensemble_scheduling { step [ { model_name: "chain" model_version: -1 input_map { key: "x" value: "x" }
      input_map { key: "first" value: "by" } output_map { key: "z" value: "y" } } ] }"""
    write_config(folder, "outer", f'platform: "ensemble" max_batch_size: 8 {OPTIONAL} {outer}')
    scale(folder, "small", batching(OPTIONAL, max_batch_size=3))
    write_config(folder, "through", f'platform: "ensemble" max_batch_size: 8 {THROUGH}')
    return folder


@pytest.fixture(scope="module")
def server(models):
    with running(models) as started:
        yield started


def infer(client, protocol, model, outputs=(), **inputs):
    sent = []
    for name, rows in inputs.items():
        array = np.array(rows, np.float32)
        sent.append(CLIENTS[protocol].InferInput(name, list(array.shape), "FP32"))
        sent[-1].set_data_from_numpy(array)
    wanted = [CLIENTS[protocol].InferRequestedOutput(name) for name in outputs]
    result = client.infer(model, sent, outputs=wanted or None)
    return {name: array.tolist() for name in ("y", "z", "side") if (array := result.as_numpy(name)) is not None}


def test_inputs_may_be_missing(client, protocol):
    x = [[1, 10], [2, 20]]
    assert infer(client, protocol, "chain", x=x) == {
        "y": [[2, 20], [4, 40]],
        "z": [[4, 40], [8, 80]],
        "side": [[2, 20], [4, 40]],
    }
    assert infer(client, protocol, "chain", x=x, first=[[3], [5]])["z"] == [[6, 60], [20, 200]]
    assert infer(client, protocol, "chain", x=x, second=[[3], [5]])["z"] == [[6, 60], [20, 200]]
    assert infer(client, protocol, "chain", x=x, first=[[3], [5]], second=[[0], [1]])["z"] == [[0, 0], [10, 100]]


def test_of_an_ensemble_in_an_ensemble(client, protocol):
    assert infer(client, protocol, "outer", x=[[1, 2]]) == {"y": [[4, 8]]}
    assert infer(client, protocol, "outer", x=[[1, 2]], by=[[5]]) == {"y": [[10, 20]]}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("outputs", [["x", "y", "note"], ["note"], ["x"], []])
def test_inputs_that_are_handed_through_a_step_with_smaller_batches(client, protocol, binary, outputs):
    """The step takes 3 of the 8 rows at a time."""
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    note = np.array([[f"é{i}"] for i in range(8)], object)
    sent = [CLIENTS[protocol].InferInput("x", [8, 2], "FP32"), CLIENTS[protocol].InferInput("note", [8, 1], "BYTES")]
    how = {"binary_data": binary} if protocol == "http" else {}
    sent[0].set_data_from_numpy(x, **how)
    sent[1].set_data_from_numpy(note, **how)
    wanted = [CLIENTS[protocol].InferRequestedOutput(name, **how) for name in outputs]
    result = client.infer("through", sent, outputs=wanted or None)
    expected = {"x": x, "y": 2 * x, "note": np.vectorize(str.encode, otypes=[object])(note)}
    for name, array in expected.items():
        found = result.as_numpy(name)
        assert (found is None) == (bool(outputs) and name not in outputs)
        assert found is None or found.tolist() == array.tolist() or found.tolist() == note.tolist()


def test_others_may_not_be_missing(client, protocol):
    with pytest.raises(InferenceServerException, match="input 'x' of model 'chain' is missing"):
        infer(client, protocol, "chain", first=[[3]])


@pytest.mark.parametrize(("outputs", "runs"), [(["y"], 1), (["z"], 2), (["side"], 1), (["side", "y"], 2), ([], 3)])
def test_only_the_steps_run_that_the_outputs_need(client, protocol, server, outputs, runs):
    before = requests(server)
    found = infer(client, protocol, "chain", outputs, x=[[1, 10]])
    assert sorted(found) == sorted(outputs or ["y", "z", "side"])
    assert requests(server) - before == runs


def requests(server):
    with connect(server, "http") as client:
        statistics = client.get_inference_statistics("scale")["model_stats"][0]["inference_stats"]
    return statistics["success"]["count"]


def test_a_step_needs_what_the_ensemble_does_not(models, tmp_path):
    scale(tmp_path, "scale", batching(OPTIONAL))
    for name, parts, inputs in (
        ("wrong", [("input", "x", 2, True), ("input", "by", 1, False)], 'input_map { key: "by" value: "by" }'),
        ("sizeless", [("input", "x", 2, True)], ""),
    ):
        steps = f"""ensemble_scheduling {{ step [ {{ model_name: "scale" model_version: -1
          input_map {{ key: "x" value: "x" }} {inputs} output_map {{ key: "y" value: "y" }} }} ] }}"""
        stated = tensors(*parts, ("output", "y", 2, False))
        write_config(tmp_path, name, f'platform: "ensemble" max_batch_size: 8 {stated} {steps}')
    with running(tmp_path) as server, connect(server, "http") as client:
        reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
    assert "input 'x' of step 'scale' must be optional, because the ensemble's input 'x' is" in reasons["wrong"]
    assert "step 'scale': all its inputs are optional inputs of the ensemble" in reasons["sizeless"]
