"""The ops under what PyTorch does to a function: forward mode, torch.func, torch.vmap, torch.autocast, torch.jit."""

from __future__ import annotations

import importlib
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import opgate  # noqa: E402
from opgate.ops_build.adapters.torch import registration  # noqa: E402
from opgate.ops_build.adapters.torch.engine import case_arguments  # noqa: E402
from opgate.ops_build.building.options import SOURCE  # noqa: E402
from opgate.ops_build.dtypes import numpy_types  # noqa: E402
from opgate.ops_build.op_folder import folder_of  # noqa: E402
from opgate.ops_build.op_table import Op, snake_case  # noqa: E402
from tests.ops_build.test_torch_adapter import (  # noqa: E402, F401
    as_tuple,
    fixture_path,
    library,
    ops,
    torch_ops,
    torch_path,
)

torch_mish = torch.nn.functional.mish


@pytest.fixture(autouse=True)
def loaded(library: registration.OpLibrary) -> None:  # noqa: F811
    """Builds and loads the library, and only then imports the module that looks for it."""
    importlib.import_module("opgate.torch")


def mish(x: Any) -> Any:
    return torch.ops.opgate.mish(x)


@pytest.fixture
def x() -> Any:
    return torch.linspace(-4, 4, 24, dtype=torch.float64).reshape(4, 6)


def calls(library: registration.OpLibrary) -> Iterator[tuple[Op, dict[str, Any]]]:  # noqa: F811
    """Yields one call of each op for each choice of types."""
    for op in library.ops:
        for types in op.type_choices():
            cases = folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types))
            case = next(
                case for case in cases if not case.error and all(len(v) for v in case.inputs.values() if v.ndim)
            )
            yield op, case_arguments(op, case, types)


# Forward mode.


def test_no_op_has_tangents_that_are_silently_zero(library: registration.OpLibrary) -> None:  # noqa: F811
    """Each op with float outputs either gives a tangent or says that it can't."""
    refused = set()
    for op, arguments in calls(library):
        for name, tensor in arguments.items():
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(tensor, torch.ones_like(tensor))
                try:
                    outputs = as_tuple(library.overload(op)(**{**arguments, name: dual}))
                except NotImplementedError as error:
                    # In forward mode, or by an input whose gradient the backward op doesn't have.
                    assert f"opgate::{snake_case(op.name)} can't be differentiated" in str(error)
                    refused.add(op.name)
                else:
                    for output in outputs:
                        assert not output.is_floating_point() or forward_ad.unpack_dual(output).tangent is not None
    assert {"LeakyRelu", "RMSNorm", "MyAdd", "KNNQuery", "MishBackward"} <= refused and "Mish" not in refused


def test_forward_mode_of_ops_with_a_gradient(torch_ops: Any, x: Any) -> None:  # noqa: F811
    x.requires_grad_()
    for function in (mish, torch_ops.squash):  # the gradient of squash takes the output
        assert torch.autograd.gradcheck(
            function, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )
    with pytest.raises(NotImplementedError, match=r"weighted can't be differentiated in forward mode: .*reverse mode"):
        torch.func.jvp(lambda x: torch_ops.weighted(x, torch.ones(6).double())[0], (x.detach(),), (x.detach(),))


def test_a_tangent_of_a_tangent_is_refused(x: Any) -> None:
    def tangent(x: Any) -> Any:
        return torch.func.jvp(mish, (x,), (torch.ones_like(x),))[1]

    with pytest.raises(NotImplementedError, match="opgate::mish_backward can't be differentiated in forward mode"):
        torch.func.jvp(tangent, (x,), (x,))
    with pytest.raises(NotImplementedError, match="opgate::mish_backward can't be differentiated"):
        torch.func.hessian(lambda x: mish(x).sum())(x)


# torch.func.


TRANSFORMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](x)[0],
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "vmap": torch.vmap,
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum())),
    "vmap of jacrev": lambda f: torch.vmap(torch.func.jacrev(f)),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.vmap(f, 1)(x).sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_agree_with_torch(name: str, x: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        transform = TRANSFORMS[name]
        torch.testing.assert_close(transform(mish)(x), transform(torch_mish)(x))


def test_transforms_of_ops_with_several_inputs(torch_ops: Any) -> None:  # noqa: F811
    def loss(x: Any, weight: Any) -> Any:
        return torch_ops.weighted(torch_ops.squash(x), weight, weight.detach() + 1, scale=0.25)[0].sum()

    x, weight = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    found = torch.func.grad(loss, argnums=(0, 1))(x, weight)
    expected = torch.autograd.grad(loss(x.requires_grad_(), weight.requires_grad_()), (x, weight))
    torch.testing.assert_close(found, expected)


def test_a_transform_inside_a_graph_of_autograd(x: Any) -> None:
    """The inner transform turns no gradient of the outer graph off."""
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for function in (mish, torch_mish):
        (value, _) = torch.func.vjp(lambda y, function=function: function(y * scale), x)
        scale.grad = None
        value.sum().backward()
        if function is mish:
            ours = scale.grad
    torch.testing.assert_close(ours, scale.grad)
    with torch.no_grad():
        torch.testing.assert_close(TRANSFORMS["grad"](mish)(x), TRANSFORMS["grad"](torch_mish)(x))


def test_a_compiled_transform(x: Any) -> None:
    gradient = TRANSFORMS["grad"](mish)
    torch.testing.assert_close(torch.compile(gradient, fullgraph=True, backend="aot_eager")(x), gradient(x))


def test_transforms_of_an_op_without_a_gradient(x: Any) -> None:
    for transform in ("grad", "vjp", "jacrev"):
        with pytest.raises(
            NotImplementedError, match=r"opgate::leaky_relu can't be differentiated: .*LeakyReluBackward"
        ):
            TRANSFORMS[transform](torch.ops.opgate.leaky_relu)(x)


# torch.vmap.


def test_an_elementwise_op_runs_once_for_a_batch(ops: Any) -> None:  # noqa: F811
    a, b = torch.randn(3, 5), torch.randn(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch warns where it calls an op once for each element
        torch.testing.assert_close(torch.vmap(torch.ops.opgate.my_add, (0, None))(a, b), 2 * a + b)
        torch.testing.assert_close(torch.vmap(torch.ops.opgate.my_add, (1, 0), 1)(a, a.t()), 3 * a)
        torch.testing.assert_close(torch.vmap(lambda a, b: ops.sum_all([a, b, a]), (0, None))(a, b), 2 * a + b)
        torch.testing.assert_close(torch.vmap(torch.vmap(mish))(a), torch_mish(a))


def test_another_op_runs_for_each_element_of_a_batch() -> None:
    x, weight = torch.randn(3, 2, 5), torch.randn(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, _ = torch.vmap(torch.ops.opgate.rms_norm)(x, weight)
    for i in range(3):
        torch.testing.assert_close(y[i], torch.ops.opgate.rms_norm(x[i], weight[i])[0])


# torch.autocast.


@pytest.mark.parametrize("device", ["cpu"])
def test_autocast_casts_to_the_widest_dtype(device: str, ops: Any) -> None:  # noqa: F811
    half, single = torch.bfloat16, torch.float32
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    norm = torch.ops.opgate.rms_norm
    with pytest.raises(ValueError, match="input 'weight': expected"):
        norm(x.to(half), weight)
    with torch.autocast(device, half):
        torch.testing.assert_close(norm(x.to(half), weight)[0], norm(x.to(half).float(), weight)[0])
        for dtypes, expected in (
            ((half, single), single), ((single, half), single), ((half, half), half), ((half, torch.float16), single)
        ):  # fmt: skip
            assert norm(x.to(dtypes[0]), weight.to(dtypes[1]))[0].dtype == expected
        assert norm(x.to(half), weight, x)[1].dtype == single  # the residual
        assert torch.ops.opgate.my_add(x.to(half), x).dtype == single
        assert ops.sum_all([x.to(half), x]).dtype == single
        with pytest.raises(ValueError, match="input 'weight': expected"):
            norm(x, weight.double())
        with pytest.raises(ValueError, match="input 'b': expected"):
            torch.ops.opgate.my_add(x, x.int())


def test_autocast_casts_to_the_dtype_that_an_op_takes() -> None:
    points = torch.rand(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        features, _, counts = torch.ops.opgate.voxelize(points.bfloat16(), torch.ones(3))
    assert features.dtype == torch.float32 and counts.dtype == torch.int32


def test_a_model_under_autocast_trains() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.weight = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            return torch.ops.opgate.my_add(opgate.torch.mish(self.linear(x)), self.weight.expand(2, 8))

    model, x = Model(), torch.randn(2, 8)
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert run(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        y = opgate.torch.mish(model.linear(x))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert model.linear.weight.grad is not None


# torch.jit.


def scripted(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is deprecated
        return torch.jit.script(module)


def test_functions_in_a_script() -> None:
    class Model(torch.nn.Module):
        def forward(self, x, weight):
            y = opgate.torch.leaky_relu(opgate.torch.mish(x), alpha=0.5)
            return opgate.torch.rms_norm(y, weight)[0]

    x, weight = torch.randn(2, 4), torch.ones(4)
    script = scripted(Model())
    assert torch.equal(script(x, weight), Model()(x, weight))
    assert "ops.opgate.mish" in script.code


def test_every_module_in_a_script(library: registration.OpLibrary, tmp_path: Any) -> None:  # noqa: F811
    tried = set()
    for op, arguments in calls(library):
        kind = getattr(opgate.torch, op.name, None)
        if kind is None or op.name in tried or len(op.inputs) > 1:
            continue
        tried.add(op.name)
        tensor = arguments.pop(op.inputs[0].name)
        module = torch.nn.Sequential(kind(**arguments))
        torch.jit.save(scripted(module), tmp_path / "module.pt")
        loaded = torch.jit.load(tmp_path / "module.pt")
        for ours, eager in zip(as_tuple(loaded(tensor)), as_tuple(module(tensor)), strict=True):
            assert torch.equal(ours, eager)
    assert {"Mish", "LeakyRelu", "ResizeNormalize"} <= tried


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: opgate.torch.RMSNorm(8, epsilon=1e-3), lambda: torch.nn.RMSNorm(8, eps=1e-3)),
        (lambda: opgate.torch.LayerNorm(8, dtype=torch.float64), lambda: torch.nn.LayerNorm(8, dtype=torch.float64)),
    ],
    ids=["RMSNorm", "LayerNorm"],
)
def test_a_module_with_parameters_learns_as_torchs_own_does(ours: Any, theirs: Any) -> None:
    torch.manual_seed(0)
    one, other = ours(), theirs()
    assert one.state_dict().keys() == other.state_dict().keys()
    for module in (one, other):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(5, 8, generator=generator, dtype=module.weight.dtype)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    for ours_value, value in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert not torch.equal(value, torch.ones_like(value))
        torch.testing.assert_close(ours_value, value)
    torch.testing.assert_close(scripted(one)(x), other(x))
    assert torch.equal(pickle.loads(pickle.dumps(one))(x), one(x))


def test_the_constructor_of_a_module_with_parameters() -> None:
    module = opgate.torch.GroupNorm(6, groups=3, dtype=torch.bfloat16)
    assert repr(module) == "GroupNorm(weight=[6], bias=[6], groups=3, epsilon=1e-05)"
    assert {value.dtype for value in module.parameters()} == {torch.bfloat16}
    x = torch.randn(2, 6, 5)
    torch.testing.assert_close(module.float()(x), torch.nn.GroupNorm(3, 6)(x))
    with pytest.raises(TypeError, match="missing a required argument: 'c'"):
        opgate.torch.RMSNorm()
    with pytest.raises(TypeError, match="unexpected keyword argument 'eps'"):
        opgate.torch.RMSNorm(4, eps=1)
    assert not hasattr(opgate.torch, "DeformConv2d") and not hasattr(opgate.torch, "KNNQuery")


def test_a_module_takes_integers_for_floats() -> None:
    module = opgate.torch.ResizeNormalize(height=2, width=2, mean=(0, 1, 0))
    assert module.attributes["mean"] == [0.0, 1.0, 0.0] and opgate.torch.LeakyRelu(alpha=1).alpha_ == 1.0
    image = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    assert torch.equal(scripted(module)(image), module(image))
    listed = torch.ops.opgate.resize_normalize(image, height=2, width=2, mean=[0, 1, 0])
    assert torch.equal(listed, module(image))


def test_a_trace_with_a_list_of_strings() -> None:
    image, boxes = torch.zeros(30, 30, 3, dtype=torch.uint8), torch.tensor([[3.0, 3, 24, 24]])
    labels = torch.tensor([1], dtype=torch.int32)

    def draw(image: Any, boxes: Any, labels: Any) -> Any:
        return torch.ops.opgate.draw_bounding_boxes(image, boxes, labels=labels, names=["a", "b"]) + 1

    traced = torch.jit.trace(draw, (image, boxes, labels))
    assert torch.equal(traced(image + 1, boxes + 2, labels), draw(image + 1, boxes + 2, labels))
