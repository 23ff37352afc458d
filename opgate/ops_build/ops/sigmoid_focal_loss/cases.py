from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def inputs(*shape: int) -> dict[str, Array]:
        logits, classes = rng.standard_normal(shape) * 4, rng.integers(0, 2, shape)
        return {"x": logits.astype(dtype), "target": np.asarray(classes).astype(dtype)}

    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (20_001,)]:
        yield Case(f"normal {list(shape)}", inputs(*shape))
    for gamma in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        yield Case(f"gamma {gamma}", inputs(300), {"gamma": gamma})
    for alpha in (-1.0, 0.0, 0.5, 1.0):
        yield Case(f"alpha {alpha}", inputs(33), {"alpha": alpha})
    soft = inputs(300) | {"target": rng.uniform(0, 1, 300).astype(dtype)}
    for gamma in (1.5, 2.0):
        yield Case(f"soft targets, gamma {gamma}", soft, {"gamma": gamma})
    logits = np.array([-1000, -100, -88.5, -87, -20, -1e-3, -0.0, 0.0, 1e-3, 20, 87, 88.5, 100, 1000, np.nan] * 2)
    extremes = {"x": logits.astype(dtype), "target": np.repeat([0, 1], 15).astype(dtype)}
    for gamma in (0.0, 0.5, 2.0):
        yield Case(f"extremes, gamma {gamma}", extremes, {"gamma": gamma})
    almost = np.nextafter(np.ones(1, dtype), np.zeros(1, dtype))[0]
    edges = edge_values(dtype, 1, 20, 87, 88, 708, 709, *([1e37, -1e37, 2e38] if dtype.name != "float16" else []))
    for gamma in (0.0, 1.5, 2.0, 30.0):
        # Where a power of q underflows, infinity times it has no value.
        x = edges[~np.isinf(edges)] if gamma == 30 else edges
        targets = np.repeat(np.array([0, 0.5, almost, 1], dtype), len(x))
        yield Case(f"edge values, gamma {gamma}", {"x": np.tile(x, 4), "target": targets}, {"gamma": gamma})
    # Relative errors, where the losses are small.
    relative = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype.name], 0.0
    near = {"x": np.linspace(1, 60, 200).astype(dtype), "target": np.full(200, almost)}
    yield Case("targets just below 1", near, {"gamma": 0.0}, relative)
    if dtype == np.float64:
        small = {"x": np.linspace(60, 300, 200), "target": np.ones(200)}
        for gamma in (0.5, 1.0, 1.5, 2.0):
            yield Case(f"small losses, gamma {gamma}", small, {"gamma": gamma}, relative)
    for name, attributes in [("gamma", {"gamma": -1.0}), ("gamma", {"gamma": float("inf")}), ("alpha", {"alpha": 1.5})]:
        yield Case(f"{attributes}", soft, attributes, error=f"attribute '{name}': expected")
    yield Case("unequal shapes", soft | {"target": soft["x"][1:]}, error="input 'target': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """4 Mi elements."""
    x = np.resize(np.linspace(-8, 8, 4099), 1 << 22).astype(types["T"])
    return Case("4 Mi", {"x": x, "target": (x > 1).astype(x.dtype)})
