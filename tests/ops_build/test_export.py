"""Exports a small module for each op from PyTorch to ONNX with both exporters, and runs it in ONNX Runtime."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from opgate.ops_build.building.build import Build
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference, tolerance
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op, read_table, snake_case
from tests.conftest import ALL
from tests.skips import need

torch = pytest.importorskip("torch")
need("onnxscript")

from opgate.ops_build.adapters.torch.onnx_export import register_symbolics, translation_table  # noqa: E402
from opgate.ops_build.adapters.torch.registration import load  # noqa: E402
from opgate.ops_build.op_functions import functions_of  # noqa: E402


class Call(torch.nn.Module):
    """A module that calls one op. It passes None for each input that the case leaves out."""

    def __init__(self, op: Op, case: Case) -> None:
        super().__init__()
        self._call = getattr(getattr(torch.ops, op.domain), snake_case(op.name))
        self._present = [case.inputs.get(tensor.name) is not None for tensor in op.inputs]
        self._attributes = dict(case.attributes)

    def forward(self, *tensors):
        remaining = list(tensors)
        inputs = [remaining.pop(0) if present else None for present in self._present]
        return self._call(*inputs, **self._attributes)


def choice(op: Op) -> dict[str, str]:
    """Returns the choice of types with f32, or the op's first choice if it has no f32."""
    choices = list(op.type_choices())
    return next((types for types in choices if set(types.values()) <= {"f32"}), choices[0])


def trials(op: Op) -> Iterator[Case]:
    """Yields a case with the fewest inputs and one with the most. `make test-all` takes one for each combination of
    present inputs."""
    cases: dict[tuple[str, ...], Case] = {}
    for case in folder_of(op, [SOURCE / "ops"]).cases(numpy_types(choice(op))):
        if case.error is None:
            cases.setdefault(tuple(sorted(case.inputs)), case)
    patterns = sorted(cases, key=len)
    for pattern in patterns if ALL else dict.fromkeys((patterns[0], patterns[-1])):
        yield cases[pattern]


@pytest.fixture(scope="module")
def ops(built: Build) -> list[Op]:
    if reason := built.left_out.get("torch"):
        pytest.skip(f"torch was left out: {reason}")
    load(built.libraries["torch"])
    return [op for op in read_table(built.libraries["torch"]) if "str" not in op.tensor_types]  # torch has no texts


def tensors(op: Op, case: Case) -> tuple[Any, ...]:
    return tuple(
        torch.from_numpy(np.array(case.inputs[t.name])) for t in op.inputs if case.inputs.get(t.name) is not None
    )


def run(model: onnx.ModelProto, library: Path, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, feeds)


def check(op: Op, case: Case, types: Mapping[str, str], outputs: list[np.ndarray]) -> None:
    expected = run_reference(op, folder_of(op, [SOURCE / "ops"]).reference, case)
    returned = next(function for _, function in functions_of(op)).outputs
    for tensor, output in zip(returned, outputs, strict=True):
        bounds = tolerance(case, tensor.name, types.get(tensor.type, tensor.type))
        assert difference(output, expected[tensor.name], bounds) is None, (op.name, case.name, tensor.name)


def nodes_of(model: onnx.ModelProto) -> list[tuple[str, str]]:
    return [(node.domain, node.op_type) for node in model.graph.node]


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
def test_every_op_is_exported_and_runs(ops: list[Op], library: Path, tmp_path: Path, dynamo: bool) -> None:
    table = translation_table(ops)
    register_symbolics(ops)
    # That exporter takes more than a second for a module.
    for op in ops if ALL or not dynamo else ops[::12]:
        for case in trials(op):
            inputs = tensors(op, case)
            file = tmp_path / f"{op.name}.onnx"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                settings = {"custom_translation_table": table} if dynamo else {"opset_version": 17}
                module = Call(op, case).eval()
                torch.onnx.export(module, inputs, file, dynamo=dynamo, **settings)
            model = onnx.load(file)
            assert nodes_of(model) == [(op.domain, op.name)], (op.name, case.name)
            check(op, case, choice(op), run(model, library, inputs))


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
def test_a_function_that_returns_the_required_outputs_is_exported(
    ops: list[Op], library: Path, tmp_path: Path, dynamo: bool
) -> None:
    class Module(torch.nn.Module):
        def forward(self, x):
            return torch.ops.opgate.rms_norm_required(x)

    table, inputs = translation_table(ops), (torch.randn(3, 4),)
    register_symbolics(ops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"custom_translation_table": table} if dynamo else {"opset_version": 17}
        torch.onnx.export(Module().eval(), inputs, tmp_path / "m.onnx", dynamo=dynamo, **settings)
    model = onnx.load(tmp_path / "m.onnx")
    assert nodes_of(model) == [("opgate", "RMSNorm")] and len(model.graph.node[0].output) == 1
    (output,) = run(model, library, inputs)
    np.testing.assert_array_equal(output, Module()(*inputs).numpy())


def test_sizes_left_open_stay_open(ops: list[Op], library: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, xyz, offset):
            index, distance = torch.ops.opgate.knn_query(xyz, offset, nsample=4)
            return index, torch.ops.opgate.leaky_relu(distance - 0.5, alpha=0.25)

    inputs = (torch.rand(10, 3), torch.tensor([10], dtype=torch.int32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Module().eval(),
            inputs,
            dynamo=True,
            custom_translation_table=translation_table(ops),
            dynamic_shapes=({0: "n"}, None),
        )
    model = program.model_proto
    assert [d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == ["n", 4]
    xyz = torch.rand(25, 3)
    outputs = run(model, library, (xyz, torch.tensor([25], dtype=torch.int32)))
    expected = Module()(xyz, torch.tensor([25], dtype=torch.int32))
    for output, tensor in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, tensor.numpy(), rtol=1e-6)


def test_an_attribute_that_the_graph_computes_is_refused_by_name(ops: list[Op]) -> None:
    class Module(torch.nn.Module):
        def forward(self, xyz, offset):
            return torch.ops.opgate.knn_query(xyz, offset, nsample=xyz.shape[0])

    inputs = (torch.rand(10, 3), torch.tensor([10], dtype=torch.int32))
    with warnings.catch_warnings(), pytest.raises(Exception, match=r"knn_query|nsample"):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Module().eval(),
            inputs,
            dynamo=True,
            custom_translation_table=translation_table(ops),
            dynamic_shapes=({0: "n"}, None),
        )


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a\nb", "c"], r"DrawBoundingBoxes: attribute 'names': expected elements without line feeds, got 'a\\nb'"),
        ([""], r"DrawBoundingBoxes: attribute 'names': expected another list than \[''\]"),
    ],
)
def test_a_list_of_strings_that_no_node_can_have_is_refused(
    ops: list[Op], names: list[str], message: str, dynamo: bool
) -> None:
    class Module(torch.nn.Module):
        def forward(self, image, boxes):
            return torch.ops.opgate.draw_bounding_boxes(image, boxes, names=names)

    table = translation_table(ops)
    register_symbolics(ops)
    inputs = (torch.zeros(9, 9, 3, dtype=torch.uint8), torch.zeros(1, 4))
    with warnings.catch_warnings(), pytest.raises(Exception) as refused:
        warnings.simplefilter("ignore")
        settings = {"custom_translation_table": table} if dynamo else {"opset_version": 17}
        torch.onnx.export(Module().eval(), inputs, io.BytesIO(), dynamo=dynamo, **settings)
    messages, error = [], refused.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    assert re.search(message, "\n".join(messages))
