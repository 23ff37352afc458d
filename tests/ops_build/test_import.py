"""`opgate import`: nodes of other projects' exports and standard subgraphs become opgate's ops, and compute the same."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgate.onnx_tools.fusions import FUSIONS, Candidate
from opgate.onnx_tools.import_model import Setting, import_model
from opgate.onnx_tools.replacement_trials import Trials, difference, medians
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array
from opgate.ops_build.op_table import read_table

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from tests.conftest import ALL  # noqa: E402
from tests.ops_build import foreign_ops as ops  # noqa: E402


@pytest.fixture(scope="module")
def setting(library: Path) -> Setting:
    """Every op takes less time than what it replaces: no timing decides whether a test passes."""
    faster = lambda before, after: (2.0, 1.0)  # noqa: E731
    return Setting(read_table(library), library, measure=faster, measure_whole=faster)


def exported(
    module: torch.nn.Module, inputs: tuple, opset: int = 17, dynamo: bool = False, **settings
) -> onnx.ModelProto:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # With autograd_inlining the exporter fails for a function with a symbolic whose forward has a loop.
        version = {} if dynamo else {"opset_version": opset, "autograd_inlining": False}
        torch.onnx.export(module.eval(), inputs, buffer, dynamo=dynamo, **version, **settings)
    return onnx.load_from_string(buffer.getvalue())


class Call(torch.nn.Module):
    """A module that applies a function to its inputs and to settings."""

    def __init__(self, function, *settings, before: tuple = ()):
        super().__init__()
        self.function, self.settings, self.before = function, settings, before

    def forward(self, *inputs):
        return self.function.apply(*self.before, *inputs, *self.settings)


def run(model: onnx.ModelProto, inputs: tuple, library: Path | None) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, feeds)


def op_types(model: onnx.ModelProto, domain: str = "opgate") -> list[str]:
    return [node.op_type for node in model.graph.node if node.domain == domain]


def inputs_of(model: onnx.ModelProto, arrays: tuple, folder: Path) -> tuple[str, ...]:
    texts = []
    for value, tensor in zip(model.graph.input, arrays, strict=True):
        np.save(folder / f"{len(texts)}.npy", tensor.numpy())
        texts.append(f"{value.name}={folder}/{len(texts)}.npy")
    return tuple(texts)


GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=GENERATOR)


def ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rotated(*shape: int) -> torch.Tensor:
    return torch.cat([uniform(*shape, 2) * 20, uniform(*shape, 2) * 8 + 2, normal(*shape, 1)], -1)


def corners(count: int) -> torch.Tensor:
    first = uniform(count, 2) * 10
    return torch.cat([first, first + uniform(count, 2) * 6 + 1], 1)


def ranks(count: int, limit: int) -> torch.Tensor:
    return torch.randint(0, limit, (count,), generator=GENERATOR, dtype=torch.int32)


POINTS = (uniform(30, 3), ends(18, 30))
QUERIES = (uniform(9, 3), ends(4, 9))
SHAPES = torch.tensor([[4, 6], [2, 3]])
ATTENTION = (normal(2, 30, 2, 8), SHAPES, torch.tensor([0, 24]), uniform(2, 5, 2, 2, 4, 2), uniform(2, 5, 2, 2, 4))
BEV_CELLS = torch.tensor([1, 1, 1, 4, 4, 9, 9, 9], dtype=torch.int32)
BEV = (
    uniform(2, 5, 3, 4), normal(2, 3, 4, 6), ranks(8, 120), ranks(8, 24), BEV_CELLS, ends(0, 3, 5), ends(3, 2, 3),
)  # fmt: skip
CONVOLUTION = (normal(2, 8, 9, 10), normal(2, 2 * 2 * 9, 5, 4) * 2, uniform(2, 2 * 9, 5, 4), normal(6, 4, 3, 3))
CONVOLUTION_SETTINGS = ([2, 3], [1, 1], [1, 1], 2, 2)

#: For each foreign op: the module, its inputs, and the ops that its export has after the import.
FOREIGN: Mapping[str, tuple[Call, tuple, list[str]]] = {
    "knnquery": (Call(ops.KNNQuery, before=(5,)), (*POINTS, *QUERIES), ["KNNQuery"]),
    "knnquery without queries": (Call(ops.KNNQuery, before=(5,)), POINTS, ["KNNQuery"]),
    "knnquery of the first versions": (
        Call(ops.FirstKNNQuery, before=(3,)),
        (POINTS[0], POINTS[1], *QUERIES),
        ["KNNQuery"],
    ),
    "grid": (Call(ops.Grid), (normal(40, 3), torch.tensor([0.5, 0.4, 0.3])), ["GridCluster"]),
    "grid with bounds": (
        Call(ops.Grid),
        (normal(40, 2), torch.tensor([0.5, 0.4]), torch.tensor([-2.0, -1.5]), torch.tensor([2.0, 3.0])),
        ["GridCluster"],
    ),
    **{f"corner pool {mode}": (Call(ops.CornerPool, mode), (normal(2, 3, 5, 7),), ["CornerPool"]) for mode in range(4)},
    "deformable convolution": (
        Call(ops.ModulatedDeformConv2d, *CONVOLUTION_SETTINGS),
        (*CONVOLUTION, normal(6)),
        ["DeformConv2d"],
    ),
    "deformable convolution without bias": (
        Call(ops.ModulatedDeformConv2dTRT, None, *CONVOLUTION_SETTINGS),
        CONVOLUTION,
        ["DeformConv2d"],
    ),
    **{
        f"rotated regions {aligned} {clockwise}": (
            Call(ops.RoIAlignRotated, 3, 2, 0.5, 2, aligned, clockwise),
            (normal(2, 4, 9, 8), torch.cat([torch.tensor([[0.0], [1.0], [0.0]]), rotated(3)], 1)),
            ["RoiAlignRotated"],
        )
        for aligned in (0, 1)
        for clockwise in (0, 1)
    },
    "rotated boxes of classes": (
        Call(ops.NMSRotated, 0.2, 0.3),
        (rotated(2, 12), uniform(2, 3, 12)),
        ["NMSRotated"],
    ),
    "no rotated box": (Call(ops.NMSRotated, 0.2, 2.0), (rotated(1, 4), uniform(1, 2, 4)), ["NMSRotated"]),
    "rotated boxes": (Call(ops.FlatNMSRotated, 0.1), (rotated(20), uniform(20)), ["NMSRotated"]),
    **{
        f"soft NMS {method} {offset}": (
            Call(ops.SoftNMS, 0.3, 0.5, 0.05, method, offset),
            (corners(15), uniform(15)),
            ["SoftNMS"],
        )
        for method in range(3)
        for offset in (0, 1)
    },
    "bev_pool_v2": (Call(ops.BevPoolV2, 3, 5), BEV, ["BevPoolV2"]),
    "bev_pool_v2 with ranks of i64": (
        Call(ops.OtherBevPoolV2, 3, 5),
        (*BEV[:2], *(tensor.long() for tensor in BEV[2:])),
        ["BevPoolV2"],
    ),
    "attention of mmcv": (Call(ops.DeformableAttention), ATTENTION, ["MultiScaleDeformableAttention"]),
    "attention with types that differ": (
        Call(ops.DeformableAttention),
        (*ATTENTION[:2], ATTENTION[2].int(), *ATTENTION[3:]),
        ["MultiScaleDeformableAttention"],
    ),
    "attention of TensorRT": (Call(ops.DeformableAttentionPlugin), ATTENTION, ["MultiScaleDeformableAttention"]),
    "attention of BEVFormer_tensorrt": (
        Call(ops.DeformableAttentionTRT),
        (ATTENTION[0], SHAPES, uniform(2, 5, 1, 4), normal(2, 5, 2, 2 * 4 * 2), normal(2, 5, 2, 2 * 4)),
        ["MultiScaleDeformableAttention"],
    ),
    "LeakyRelu of Graphcore": (Call(ops.GraphcoreLeakyRelu, 0.01), (normal(8, 8),), ["LeakyRelu"]),
}


#: Names with an opset. `make test` takes one of the two opsets for each name.
OPSETS = [(name, opset) for i, name in enumerate(FOREIGN) for opset in (11, 17) if ALL or opset == (17, 11)[i % 2]]


@pytest.mark.parametrize(("name", "opset"), OPSETS)
def test_a_foreign_node_becomes_an_op_that_computes_the_same(
    setting: Setting, library: Path, tmp_path: Path, name: str, opset: int
) -> None:
    module, inputs, expected_ops = FOREIGN[name]
    model = exported(module, inputs, opset)
    assert not op_types(model)
    imported = import_model(model, replace(setting, inputs=inputs_of(model, inputs, tmp_path)))
    assert [node.refusal for node in imported.foreign] == [""]
    assert op_types(model) == expected_ops
    assert not imported.unknown
    assert imported.ran, imported.run
    assert {opset.domain for opset in model.opset_import} == {"", "opgate"}
    outputs = module(*inputs)
    for output, tensor in zip(
        run(model, inputs, library), outputs if isinstance(outputs, tuple) else [outputs], strict=True
    ):
        assert output.shape == tensor.shape
        np.testing.assert_allclose(output, tensor.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", range(3))
@pytest.mark.parametrize("mode", range(3))
def test_a_grid_sampler_becomes_grid_sample(setting: Setting, mode: int, padding: int, align_corners: int) -> None:
    inputs = (normal(2, 3, 5, 6), 3 * uniform(2, 4, 3, 2) - 1.5)
    model = exported(Call(ops.GridSampler, mode, padding, align_corners), inputs, 17)
    imported = import_model(model, setting)
    assert [(node.op, node.refusal) for node in imported.foreign] == [("ai.onnx::GridSample", "")]
    assert imported.ran and not imported.unknown
    expected = torch.grid_sampler(*inputs, mode, padding, bool(align_corners))
    np.testing.assert_allclose(run(model, inputs, None)[0], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_grid_sampler_before_grid_sample_is_refused(setting: Setting) -> None:
    model = exported(Call(ops.GridSampler, 0, 0, 0), (normal(2, 3, 5, 6), uniform(2, 4, 3, 2)), 15)
    (node,) = import_model(model, setting).foreign
    assert node.refusal == "the model has opset 15 of ONNX, and GridSample came with opset 16"


class Gelus(torch.nn.Module):
    def forward(self, x):
        y = F.gelu(x) + 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
        return y * (0.5 * (torch.erf(y / 2**0.5) + 1)) - x


class Activations(torch.nn.Module):
    def forward(self, x):
        return F.mish(F.silu(x) + 1) + x * torch.tanh(torch.log(1 + torch.exp(x))) + x * torch.sigmoid(1.5 * x)


class Norms(torch.nn.Module):
    """Norms as models write them: with weights and without, by a root and by its inverse."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32, eps=1e-3)
        self.weight = torch.nn.Parameter(uniform(32))
        torch.nn.init.normal_(self.norm.weight)
        torch.nn.init.normal_(self.norm.bias)

    def forward(self, x):
        y = self.norm(x) + x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        z = y - y.mean(-1, keepdim=True)
        z = z / torch.sqrt((z * z).mean(-1, keepdim=True) + 1e-5)
        return z + y / torch.sqrt((y * y).mean(2, keepdim=True) + 0.5)


class HalfNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(uniform(32).half())

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes

    def forward(self, value, locations, weights):
        return ops.attention(value, self.shapes, locations, weights) * 2


SAMPLES = (normal(2, 30, 2, 8), uniform(2, 5, 2, 2, 4, 2), uniform(2, 5, 2, 2, 4))
#: For each module: its inputs, and the ops after the import.
FUSED = {
    "activations": (Activations(), (normal(3, 50),), ["Swish", "Mish", "Mish", "Swish"]),
    "Gelu": (Gelus(), (normal(3, 50),), ["Gelu"] * 3),
    "norms": (Norms(), (normal(2, 5, 32),), ["LayerNorm", "RMSNorm", "LayerNorm", "RMSNorm"]),
    "a norm in f16": (HalfNorm(), (normal(4, 32).half(),), ["RMSNorm"]),
    "attention": (Attention([(4, 6), (2, 3)]), SAMPLES, ["MultiScaleDeformableAttention"]),
    "attention of one level": (
        Attention([(5, 6)]),
        (SAMPLES[0], SAMPLES[1][:, :, :, :1], SAMPLES[2][:, :, :, :1]),
        ["MultiScaleDeformableAttention"],
    ),
}


#: Names and whether the exporter is the one with dynamo, which takes seconds. `make test` takes it for some of them.
EXPORTS = [(name, dynamo) for i, name in enumerate(FUSED) for dynamo in (True, False) if ALL or not (dynamo and i % 2)]


@pytest.mark.parametrize(("name", "dynamo"), EXPORTS)
def test_a_subgraph_becomes_an_op_that_computes_the_same(
    setting: Setting, library: Path, name: str, dynamo: bool
) -> None:
    module, inputs, expected_ops = FUSED[name]
    model = exported(module, inputs, 16, dynamo)
    plain = run(model, inputs, None)
    imported = import_model(model, setting)
    if dynamo and name == "norms":  # this exporter writes torch's LayerNorm as one operator of ONNX
        expected_ops = expected_ops[1:]
    assert sorted(op_types(model)) == sorted(expected_ops)
    assert all(outcome.kept and outcome.difference < 5e-3 for outcome in imported.fusions)
    assert imported.ran, imported.run
    tolerance = 5e-3 if inputs[0].dtype == torch.float16 else 2e-5
    for output, expected in zip(run(model, inputs, library), plain, strict=True):
        np.testing.assert_allclose(output, expected, rtol=tolerance, atol=tolerance)
    onnx.checker.check_model(model, full_check=True)
    assert "GridSample" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_operator_gelu_of_onnx_becomes_the_op(setting: Setting, library: Path, approximate: str) -> None:
    x = normal(3, 50)
    model = standard([helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)], [3, 50], opset=20)
    imported = import_model(model, setting)
    assert op_types(model) == ["Gelu"] and imported.ran
    expected = F.gelu(x, approximate=approximate)
    np.testing.assert_allclose(run(model, (x,), library)[0], expected.numpy(), rtol=2e-5, atol=2e-5)


def test_a_subgraph_stays_if_no_time_falls(setting: Setting) -> None:
    model = exported(Activations(), (normal(3, 50),))
    before = model.SerializeToString()
    imported = import_model(model, replace(setting, measure=lambda old, new: (1.0, 1.0)))
    assert [outcome.reason for outcome in imported.fusions] == ["it takes no less time"] * 4
    assert not imported.changed and model.SerializeToString() == before


def test_ops_that_slow_the_whole_down_are_taken_back(setting: Setting) -> None:
    """Each is quicker than what it replaces. Those of a kind go together."""
    for times, kept in ((((2.0, 2.1), (2.0, 1.0)), "Swish"), (((2.0, 1.0), (2.0, 1.995)), "Mish")):
        model, measured = exported(Activations(), (normal(3, 50),)), iter(times)
        imported = import_model(
            model, replace(setting, measure_whole=lambda old, new, measured=measured: next(measured))
        )
        assert set(op_types(model)) == {kept} and imported.ran and imported.changed
        reasons = {outcome.op: outcome.reason for outcome in imported.fusions}
        other = "Mish" if kept == "Swish" else "Swish"
        assert reasons == {kept: "", other: "the whole model takes no less time"}
        (first, _), (second, _) = (line.split(", results differ by ") for line in imported.whole)
        assert [first, second] == [
            f"the whole with {op}: {old * 1e3:.3g} -> {new * 1e3:.3g} ms"
            for op, (old, new) in zip(("Mish", "Swish"), times, strict=True)
        ]


def test_the_measured_times_are_medians() -> None:
    calls: list[str] = []
    before, after = medians(lambda: calls.append("before"), lambda: calls.append("after"))
    assert 0 <= after < 1 and 0 <= before < 1
    assert calls[:4] == ["before", "after", "before", "after"]


def standard(
    nodes: list[onnx.NodeProto], shape: list, constants: Mapping[str, Array] = {}, opset: int = 17
) -> onnx.ModelProto:
    """Returns a model of f32 with the input x and the result y."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def rms_chain(axis: int = -1, weight: int = 8, keepdims: int = 1) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[axis], keepdims=keepdims),
        helper.make_node("Add", ["epsilon", "mean"], ["lifted"]),
        helper.make_node("Sqrt", ["lifted"], ["root"]),
        helper.make_node("Div", ["x", "root"], ["normal"]),
        helper.make_node("Mul", ["weight", "normal"], ["y"]),
    ]
    return standard(nodes, [8, 8], {"epsilon": np.float32(1e-6), "weight": np.ones(weight, np.float32)})


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (rms_chain(), ["RMSNorm"]),
        (rms_chain(axis=1), ["RMSNorm"]),
        (rms_chain(axis=0), []),
        (rms_chain(keepdims=0), []),
        (rms_chain(weight=1), ["RMSNorm"]),  # the factor, which is broadcast, stays
        (standard([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["s", "x"], ["y"])], [4]), ["Swish"]),
        (standard([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["s", "s"], ["y"])], [4]), []),
        (standard([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Add", ["s", "x"], ["y"])], [4]), []),
        (
            standard(
                [
                    helper.make_node("Sigmoid", ["x"], ["s"]),
                    helper.make_node("Mul", ["s", "x"], ["m"]),
                    helper.make_node("Add", ["s", "m"], ["y"]),
                ],
                [4],
            ),
            [],
        ),
    ],
)  # fmt: skip
def test_only_what_an_op_computes_is_a_candidate(setting: Setting, model: onnx.ModelProto, found: list[str]) -> None:
    imported = import_model(model, setting)
    assert [outcome.op for outcome in imported.fusions] == found
    assert op_types(model) == found


def test_a_model_whose_dims_are_open_is_tried_at_sizes(setting: Setting) -> None:
    model = standard(
        [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])], ["n", "c", None]
    )
    assert import_model(model, replace(setting, sizes={"c": 5})).fusions[0].kept
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["p"]),
        helper.make_node("Sigmoid", ["p"], ["s"]),
        helper.make_node("Mul", ["p", "s"], ["y"]),
    ]
    model = standard(nodes, ["n", "c"], {"w": np.ones(7, np.float32)})
    # At the usual size of c the model can't run, so nothing tells the shape that the trial needs.
    (outcome,) = import_model(model, setting).fusions
    assert outcome.kept or "not known" in outcome.reason
    model = standard(nodes, ["n", "c"], {"w": np.ones(7, np.float32)})
    assert import_model(model, replace(setting, sizes={"c": 7})).ran


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = opgate.Gelu (x)", "the results differ"),
        ("y = opgate.GridCluster (x, x)", "it doesn't load"),
        ("y = opgate.Missing (x)", "it doesn't load"),
        ("y = ArgMax (x)", "the results differ: expected float32"),
        ('y = opgate.Swish <alpha = 1.001> (x)', "the results differ"),
    ],
)  # fmt: skip
def test_a_candidate_that_computes_something_else_is_not_kept(setting: Setting, body: str, reason: str) -> None:
    model = standard([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])], [64])
    values = Values(model)
    swish = next(fusion for fusion in FUSIONS if fusion.op == "Swish")
    (candidate,) = swish.candidates(model.graph, values)
    trials = Trials(
        model, values, {"x": np.linspace(-4, 4, 64, dtype=np.float32)}, setting.libraries, measure=setting.measure
    )
    assert trials.outcome(candidate).kept
    wrong = Candidate("Gelu", candidate.nodes, candidate.inputs, candidate.output, body)
    outcome = trials.outcome(wrong)
    assert not outcome.kept and outcome.reason.startswith(reason)


def test_differences() -> None:
    a = np.array([1, np.nan, np.inf, 0], np.float32)
    assert difference(a, a) == 0
    assert difference(a, np.array([1, np.nan, np.inf, 0.5], np.float32)) == 0.5
    assert difference(10 * a, np.array([10, np.nan, np.inf, 1], np.float32)) == pytest.approx(0.1)
    assert not difference(a, np.array([1, 0, np.inf, 0], np.float32)) <= 1
    assert not difference(a, np.array([1, np.nan, 3, 0], np.float32)) <= 1
