"""The generic JAX adapter, tested with cases of every op and with ops that each use a part of the grammar.

JAX is imported when a test first needs it, because that takes seconds in each process that collects the tests.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if find_spec("jax") is None:
    pytest.skip("the Python package jax is not installed", allow_module_level=True)

from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.stated_gradient import differentiable
from tests import PROJECT
from tests.conftest import ALL
from tests.ops_build.choosing import failures_on

OPS = SOURCE / "ops"
F32 = np.float32


@pytest.fixture(scope="module")
def jax() -> Any:
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def all_ops(jax: Any, library: Path) -> Any:
    from opgate.ops_build.adapters.jax.functions import JaxOps
    from opgate.ops_build.adapters.numpy.library import load

    return JaxOps(load(library))


@pytest.fixture(scope="module")
def ops(all_ops: Any) -> SimpleNamespace:
    """The functions of opgate's ops."""
    return SimpleNamespace(**all_ops.functions)


@pytest.fixture(scope="module")
def own(jax: Any, fixture_library: Path) -> SimpleNamespace:
    """The functions of the fixture ops."""
    import opgate.jax

    return opgate.jax.load(fixture_library)


# Every op.


def test_cases_of_every_op(jax: Any, library: Path, all_ops: Any) -> None:
    """Few cases of each op and dtype, or all with OPGATE_TEST_ALL."""
    from opgate.ops_build.adapters.jax.engine import JaxEngine

    failures, tried = failures_on(JaxEngine(library), all_ops.ops.values(), OPS, everything=ALL)
    assert not failures, "\n".join(failures)
    assert tried > 100


def test_ops_that_jax_cannot_have_say_why(all_ops: Any, library: Path) -> None:
    import opgate.jax

    left = all_ops.left_out
    assert left["Tokenize"] == "JAX has no strings"
    assert left["Voxelize"].startswith("only its kernel finds the size")
    assert not left.keys() & all_ops.ops.keys() and len(all_ops.ops) > 30
    if opgate.jax.left_out():
        with pytest.raises(AttributeError, match="JAX has no strings"):
            opgate.jax.tokenize  # noqa: B018


def test_gradients_against_differences(jax: Any, all_ops: Any, ops: SimpleNamespace) -> None:
    """The derivative in a random direction, of each op that has a gradient, in f64."""
    table = [*all_ops.ops.values()]
    tried = set()
    for op in table:
        types = next((one for one in op.type_choices() if one.get("T") == "f64"), None)
        # The gradient of FakeQuantize is not its derivative.
        if op.name not in differentiable(table) or op.name == "FakeQuantize" or types is None:
            continue
        cases = folder_of(op, [OPS]).cases(numpy_types(types))
        good = [case for case in cases if not case.error and 0 < total_size(case) < 3000]
        for case in good[:: -(-len(good) // 2)][:2]:
            if check_derivative(jax, ops, op, case):
                tried.add(op.name)
    assert len(tried) > 10, tried


def total_size(case: Case) -> int:
    return sum(np.size(value) for value in case.inputs.values())


def check_derivative(jax: Any, ops: SimpleNamespace, op: Op, case: Case) -> bool:
    """Returns False where the op has no derivative."""
    rng = np.random.default_rng(5)
    function = getattr(ops, snake_case(op.name))
    moved = [name for name, value in case.inputs.items() if np.asarray(value).dtype == np.float64]
    fixed = {name: value for name, value in case.inputs.items() if name not in moved}
    directions = [rng.standard_normal(np.shape(case.inputs[name])) for name in moved]

    def outputs(*values: Any) -> tuple[Any, ...]:
        found = function(**dict(zip(moved, values, strict=True)), **fixed, **case.attributes)
        return tuple(out for out in (found if isinstance(found, tuple) else (found,)) if out.dtype == np.float64)

    at = [np.asarray(case.inputs[name]) for name in moved]
    weights = [rng.standard_normal(out.shape) for out in outputs(*at)]

    def loss(*values: Any) -> Any:
        return sum((w * out).sum() for w, out in zip(weights, outputs(*values), strict=True))

    try:
        gradients = jax.grad(loss, argnums=tuple(range(len(at))))(*at)
    except NotImplementedError:  # by one of the inputs
        return False
    told = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    slopes = []
    for step in (1e-5, 2e-5):
        ends = [loss(*(a + sign * step * d for a, d in zip(at, directions, strict=True))) for sign in (1, -1)]
        slopes.append(float(ends[0] - ends[1]) / (2 * step))
    if not np.isfinite(slopes).all() or not np.isclose(*slopes, rtol=1e-3, atol=1e-6):
        return False  # there is an edge
    assert np.isclose(told, slopes[0], rtol=1e-3, atol=1e-5), (op.name, case.name, told, slopes)
    return True


# What JAX does with functions.


def test_jit_vmap_and_grad_together(jax: Any, ops: SimpleNamespace) -> None:
    x = np.linspace(-2, 2, 24, dtype=F32).reshape(2, 3, 4)
    slope = jax.jit(jax.vmap(jax.grad(lambda row: ops.mish(row).sum())))(x.reshape(6, 4))
    eps = F32(1e-2)
    about = (np.asarray(ops.mish(x + eps)) - np.asarray(ops.mish(x - eps))) / (2 * eps)
    assert np.allclose(slope, about.reshape(6, 4), atol=1e-3)
    both = jax.vmap(ops.my_add, in_axes=(0, None))(x, x[0])
    assert np.array_equal(both, np.stack([np.asarray(ops.my_add(row, x[0])) for row in x]))


def test_an_op_that_is_not_elementwise_runs_once_for_each_element_of_a_batch(jax: Any, ops: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 2, 8), F32), rng.standard_normal(8, F32)
    alone = [np.asarray(ops.rms_norm_required(row, weight)) for row in x]
    batched = jax.jit(jax.vmap(ops.rms_norm_required, in_axes=(0, None)))(x, weight)
    assert np.array_equal(batched, np.stack(alone))


def test_second_derivatives_where_the_backward_op_has_a_gradient_and_a_clear_error_elsewhere(
    jax: Any, ops: SimpleNamespace
) -> None:
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(jax.grad(ops.mish))(1.0)


def test_an_input_without_a_gradient_is_refused_only_when_it_is_asked_for(jax: Any, ops: SimpleNamespace) -> None:
    cos, sin = np.ones((4, 2), F32), np.zeros((4, 2), F32)
    x, positions = np.ones((1, 1, 2, 4), F32), np.zeros((1, 2), np.int64)

    def loss(x: Any, cos: Any) -> Any:
        return ops.rotary_embedding(x, cos, sin, positions).sum()

    assert jax.grad(loss)(x, cos).shape == x.shape
    with pytest.raises(NotImplementedError, match="by its input 'cos_cache'"):
        jax.grad(loss, argnums=1)(x, cos)


def test_shards_run_on_each_device() -> None:
    """JAX takes the number of devices of the CPU when it starts."""
    code = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np, opgate.jax
from jax.sharding import PartitionSpec as P
assert len(jax.devices()) == 2
mesh = jax.make_mesh((2,), ("rows",))
x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
rows = jax.device_put(x, jax.NamedSharding(mesh, P("rows")))
split = jax.jit(jax.shard_map(opgate.jax.mish, mesh=mesh, in_specs=P("rows"), out_specs=P("rows")))(rows)
assert len(split.sharding.device_set) == 2
assert np.array_equal(split, opgate.jax.mish(x))

# A weight is the same on all devices, and its gradient is the sum over them.
weight = np.array([0.5, 2], np.float32)
norm = lambda x, weight: opgate.jax.rms_norm_required(x, weight)
both = dict(mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
loss = lambda f: lambda x, weight: (f(x, weight) * np.arange(8, dtype=np.float32).reshape(4, 2)).sum()
found = jax.jit(jax.grad(loss(jax.shard_map(norm, **both)), (0, 1)))(rows, weight)
for got, expected in zip(found, jax.grad(loss(norm), (0, 1))(x, weight), strict=True):
    assert np.allclose(got, expected, rtol=1e-5), (got, expected)
try:
    jax.jit(jax.shard_map(opgate.jax.mish, mesh=mesh, in_specs=P("rows"), out_specs=P()))(rows)
except ValueError as error:
    assert "vary" in str(error) or "replicat" in str(error), error
else:
    raise AssertionError("JAX takes outputs that differ for one that is the same on all devices")
"""
    if not BuildOptions().library().is_file():
        pytest.skip("there are no built ops")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT, timeout=120)


# The grammar.


def test_an_optional_input_and_outputs_on_request(jax: Any, ops: SimpleNamespace) -> None:
    x = np.ones((2, 8), F32)
    assert ops.layer_norm_required(x, weight=None).shape == (2, 8)
    assert isinstance(ops.layer_norm(x), tuple)


def test_attributes_by_name_and_what_is_wrong_with_them(jax: Any, ops: SimpleNamespace) -> None:
    x = np.full(3, -1, F32)
    assert np.allclose(ops.leaky_relu(x, alpha=0.5), -0.5)
    with pytest.raises(TypeError, match="has no argument 'alfa'"):
        ops.leaky_relu(x, alfa=0.5)
    with pytest.raises(TypeError, match="attribute 'alpha': expected float"):
        ops.leaky_relu(x, alpha="much")
    with pytest.raises(TypeError, match="at most 1"):
        ops.leaky_relu(x, 0.5)


def test_shapes_and_dtypes_that_do_not_fit_are_refused_while_jax_traces(jax: Any, ops: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="input 'b': expected"):
        jax.jit(ops.my_add)(np.ones(3, F32), np.ones(4, F32))
    with pytest.raises(ValueError, match="input 'x': expected"):
        ops.mish(np.ones(3, np.int16))


def test_what_the_kernel_refuses_becomes_an_error_of_jax(jax: Any, ops: SimpleNamespace) -> None:
    points = np.zeros((4, 3), F32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="opgate::KNNQuery: input 'offset': expected the last end"):
        jax.block_until_ready(ops.knn_query(points, np.array([9], np.int32), nsample=2))


def test_wide_outputs_need_the_setting_of_jax(library: Path) -> None:
    code = f"""
import numpy as np, opgate.jax
ops = opgate.jax.load({str(library)!r})
points = np.zeros((1, 4, 3), np.float32)
try:
    ops.mish(np.ones(2, np.float64))  # JAX makes f32 of it
    found = ops.grid_cluster(np.zeros((4, 2), np.float32), np.ones(2, np.float32))
except ValueError as error:
    assert "jax_enable_x64" in str(error), error
else:
    assert all(str(out.dtype) not in ("int64", "float64") for out in (found if isinstance(found, tuple) else (found,)))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT, timeout=120)


def test_a_function_has_a_signature_and_says_what_it_does(ops: SimpleNamespace) -> None:
    assert [*inspect.signature(ops.mish).parameters] == ["x"]
    assert "Has a gradient" in ops.mish.__doc__


def test_lists_of_arrays(jax: Any, own: SimpleNamespace) -> None:
    x = np.ones((2, 3), F32)
    assert np.array_equal(own.sum_all([x, x]), 2 * x)
    for wrong in (x, [x, None], 1.0, None):
        with pytest.raises(TypeError, match="expected a list of arrays"):
            own.sum_all(wrong)


def test_attributes_that_differ_in_a_sign_and_numbers_of_numpy(jax: Any, ops: SimpleNamespace) -> None:
    x = np.full(1, -1, F32)
    signs = [bool(np.signbit(np.asarray(ops.leaky_relu(x, alpha=alpha)))[0]) for alpha in (0.0, -0.0)]
    assert signs == [True, False]
    assert ops.sliding_window(np.ones((1, 5), F32), size=np.int64(2))[0].shape == (1, 4)
    with pytest.raises(ValueError, match="expected integers of 64 bits"):
        ops.sliding_window(np.ones((1, 5), F32), size=2**70)
