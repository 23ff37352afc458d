from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    exact = (0.0, 0.0)

    def tensor(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) * 4).astype(dtype)

    def with_channels(x: Array, count: int) -> dict[str, Array]:
        scale = rng.uniform(0.01, 0.2, count).astype(np.float32)
        return {"x": x, "scale": scale, "zero_point": rng.integers(-20, 20, count).astype(np.int32)}

    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (40_001,)]:
        yield Case(f"one scale, {list(shape)}", with_channels(tensor(*shape), 1), tolerance=exact)
    for shape, axis in [((3, 5), 0), ((3, 5), 1), ((3, 5), -1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), -2), ((7,), 0),
                        ((2, 3, 0), 1), ((0, 3), 1), ((2, 3, 9001), 1), ((700, 33), 1)]:  # fmt: skip
        inputs = with_channels(tensor(*shape), shape[axis])
        yield Case(f"axis {axis} of {list(shape)}", inputs, {"axis": axis}, tolerance=exact)
    x = tensor(4, 50)
    for least, most in [(0, 255), (-8, 7), (-32768, 32767), (0, 0), (-(1 << 20), 1 << 20)]:
        inputs = {
            "x": x,
            "scale": np.array([0.01], np.float32),
            "zero_point": np.array([(least + most) // 2], np.int32),
        }
        yield Case(f"{least}..{most}", inputs, {"quant_min": least, "quant_max": most}, tolerance=exact)
    halves = np.array(
        [-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 126.5, 127.49, 127.5, 128, -128.5, -129, 1e4, -1e4]
    ).astype(dtype)
    odd = np.concatenate([halves, np.array([np.inf, -np.inf, np.nan]).astype(dtype)])
    one = {"scale": np.ones(1, np.float32), "zero_point": np.zeros(1, np.int32)}
    yield Case("halves and odd numbers", {"x": odd} | one, tolerance=exact)
    yield Case("an axis that nobody needs", {"x": odd} | one, {"axis": 9}, tolerance=exact)
    for attributes in ({"quant_min": 5, "quant_max": 4}, {"quant_max": (1 << 20) + 1}):
        yield Case(f"{attributes}", {"x": x} | one, attributes, error="attribute 'quant_max': expected")
    yield Case("a range too low", {"x": x} | one, {"quant_min": -(1 << 21)}, error="attribute 'quant_min': expected")
    two = with_channels(x, 2)
    yield Case(
        "two scales for 50 channels", two, error="input 'scale': expected 1 or 50 elements, as x has on axis 1, got 2"
    )
    yield Case(
        "no such axis", two, {"axis": 2}, error="attribute 'axis': expected an axis of x, whose rank is 2, got 2"
    )
    none = {"scale": np.zeros(0, np.float32), "zero_point": np.zeros(0, np.int32)}
    yield Case("no scale", {"x": x} | none, error="input 'scale': expected 1 element or more, got 0")
    many = {"scale": np.ones(3, np.float32), "zero_point": np.zeros(2, np.int32)}
    yield Case("unequal lengths", {"x": x} | many, error="input 'zero_point': expected")
    for value in (0.0, -1.0, np.nan, np.inf):
        wrong = one | {"scale": np.array([value], np.float32)}
        yield Case(f"scale {value}", {"x": x} | wrong, error="input 'scale': element 0 is", unseen=True)
    beyond = one | {"zero_point": np.array([128], np.int32)}
    pattern = r"input 'zero_point': element 0 is 128, expected -128\.\.127"
    yield Case("a zero point beyond the range", {"x": x} | beyond, error=pattern, unseen=True)


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements with one scale."""
    x = np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])
    return Case("16 Mi", {"x": x, "scale": np.full(1, 0.05, np.float32), "zero_point": np.zeros(1, np.int32)})
