from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values, of_sums

#: Sums of some hundred products.
TOLERANCE = {"float16": (4e-3, 2e-2), "bfloat16": (3e-2, 1e-1), "float32": (1e-5, 4e-5), "float64": (1e-12, 1e-12)}

Good = tuple[str, dict[str, Array], dict[str, int]]


def conv(
    dtype: np.dtype[Any],
    *,
    n: int = 2,
    c: int = 4,
    size: tuple[int, int] = (6, 7),
    oc: int = 5,
    kernel: tuple[int, int] = (3, 3),
    groups: int = 1,
    offset_groups: int = 1,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    bias: bool = True,
    mask: bool = True,
    spread: float = 1.5,
    seed: int = 0,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Inputs and attributes with random offsets of about `spread` pixels."""
    rng = np.random.default_rng(seed)
    spans = [size[i] + 2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1 for i in range(2)]
    out = tuple(max(0, span // stride[i] + 1) for i, span in enumerate(spans))
    taps = kernel[0] * kernel[1] * offset_groups

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape)

    arrays = {
        "input": normal(n, c, *size),
        "weight": normal(oc, c // groups, *kernel) / max(1, c // groups * kernel[0] * kernel[1]) ** 0.5,
        "offset": normal(n, 2 * taps, *out) * spread,
    }
    if bias:
        arrays["bias"] = normal(oc)
    if mask:
        arrays["mask"] = rng.uniform(0, 1, (n, taps, *out))
    attributes = {
        f"{name}_{axis}": value[i]
        for name, value in (("stride", stride), ("pad", pad), ("dilation", dilation))
        for i, axis in enumerate("hw")
    }
    return {name: np.asarray(array, dtype) for name, array in arrays.items()}, attributes


def at_edges(dtype: np.dtype[Any], size: tuple[int, int]) -> Good:
    """A channel for each edge value, which is sampled there along one axis or along both. A filter of one element
    stands at pixel (0, 0), so that the offsets are the places of the samples; without pixels it stands in the
    padding."""
    values = edge_values(dtype, -1, 1, *(edge for side in size for edge in (side - 1, side)))
    between = np.full_like(values, -0.25)
    x, y = np.concatenate([values, between, values]), np.concatenate([between, values, values])
    c, (h, w) = len(x), size
    stride, pad = (8 if h else 1, 8 if w else 1), (0 if h else 1, 0 if w else 1)
    few = {"n": 1, "c": c, "oc": c, "groups": c, "offset_groups": c}
    inputs, attributes = conv(dtype, **few, size=size, kernel=(1, 1), stride=stride, pad=pad)  # type: ignore[arg-type]
    inputs["offset"][...] = np.stack([y, x], 1).reshape(1, -1, 1, 1)
    return f"places at the edges of {size}", inputs, attributes


def good(dtype: np.dtype[Any]) -> Iterator[Good]:
    """Names, inputs and attributes that the op takes."""
    for bias in (False, True):
        for mask in (False, True):
            yield f"bias {bias}, mask {mask}", *conv(dtype, bias=bias, mask=mask)
    for kernel in ((1, 1), (1, 3), (3, 2), (5, 5)):
        yield f"filters {kernel}", *conv(dtype, kernel=kernel)
    for stride, pad, dilation in [((2, 1), (1, 1), (1, 1)), ((1, 3), (0, 2), (1, 1)), ((1, 1), (3, 0), (2, 1))]:
        yield (
            f"stride {stride}, pad {pad}, dilation {dilation}",
            *conv(dtype, stride=stride, pad=pad, dilation=dilation),
        )
    yield "dilation, stride and no padding", *conv(dtype, size=(12, 9), dilation=(2, 3), stride=(2, 2), pad=(0, 0))
    for c, oc, groups, offset_groups in [
        (1, 1, 1, 1), (4, 6, 2, 1), (4, 4, 4, 1), (4, 8, 4, 2), (6, 4, 2, 3), (6, 3, 3, 2), (6, 3, 1, 6), (3, 70, 1, 1),
        (40, 33, 1, 1), (70, 2, 1, 2), (300, 2, 1, 1), (520, 2, 2, 4), (20, 24, 2, 1), (24, 26, 2, 3), (12, 130, 1, 2),
        (9, 18, 9, 3), (20, 20, 20, 1),
    ]:  # fmt: skip
        few = {"n": 1, "size": (3, 4)} if c > 50 else {}
        yield (
            f"{c} channels to {oc}, {groups} groups, {offset_groups} of offsets",
            *conv(dtype, c=c, oc=oc, groups=groups, offset_groups=offset_groups, **few),  # type: ignore[arg-type]
        )
    for n, size in [(1, (1, 1)), (3, (1, 9)), (1, (9, 11)), (1, (14, 15)), (0, (4, 4))]:
        yield f"{n} of {size}", *conv(dtype, n=n, size=size)
    yield "40 channels of a pixel", *conv(dtype, n=1, c=40, oc=9, size=(1, 1))
    yield "images that share a tile", *conv(dtype, n=3, c=10, oc=9, size=(9, 10), kernel=(2, 2))
    yield "no output channels", *conv(dtype, oc=0)
    yield "no output pixels", *conv(dtype, size=(1, 4), kernel=(3, 3), pad=(0, 0))
    yield "an empty input and padding", *conv(dtype, size=(0, 4), pad=(2, 1))
    inputs, attributes = conv(dtype)
    inputs["offset"][...] = 0
    yield "no offsets", inputs, attributes
    yield "offsets far outside", *conv(dtype, spread=1000)
    inputs, attributes = conv(dtype, n=1, kernel=(1, 1), size=(4, 4), pad=(0, 0))
    steps = np.array([-1, -0.5, 0, 0.25, 1, 3, 4, -4], dtype)
    inputs["offset"][...] = steps[np.arange(32) % 8].reshape(1, 2, 4, 4)
    yield "samples on pixels and on bounds", inputs, attributes
    for size in [(4, 4), (1, 8), (0, 4), (2, 0)]:
        yield at_edges(dtype, size)
    inputs, attributes = conv(dtype, n=1)
    inputs["offset"][0, :3, 0, 0] = [np.nan, np.inf, -np.inf]
    inputs["mask"][0, 4, 3, 3] = np.nan
    inputs["input"][0, 1, 5, 6] = np.inf
    yield "numbers that aren't finite", inputs, attributes


def refused(dtype: np.dtype[Any]) -> Iterator[tuple[str, dict[str, Array], dict[str, int], str]]:
    """Names, inputs, attributes and errors."""
    inputs, attributes = conv(dtype)
    for name, value in [("stride_h", 0), ("dilation_w", -1), ("pad_w", -1), ("stride_w", 2**40)]:
        yield f"{name} {value}", inputs, attributes | {name: value}, f"attribute '{name}': expected"
    few = {name: array[:, :, :, :-1] for name, array in inputs.items() if name in ("offset", "mask")}
    yield "a column too few", inputs | few, attributes, "input 'offset': expected 7 columns"
    yield "other channels", inputs | {"input": inputs["input"][:, :3]}, attributes, "a multiple of 4, those of 'weight'"
    other = conv(dtype, groups=2, oc=6)[0]
    yield "groups that don't divide", inputs | {"weight": other["weight"][:5]}, attributes, "a multiple of the 2 groups"
    more = {name: np.repeat(inputs[name], 3, 1) for name in ("offset", "mask")}
    yield "offsets for three groups of 4 channels", inputs | more, attributes, "a number of groups that divides"
    odd = {"offset": inputs["offset"][:, :9], "mask": inputs["mask"][:, :4]}
    yield "half the offsets", inputs | odd, attributes, "a multiple of 18 channels"
    yield "a mask too few", inputs | {"mask": inputs["mask"][:, :8]}, attributes, "input 'mask': expected"
    empty = inputs | {"weight": inputs["weight"][:, :0], "input": inputs["input"][:, :0]}
    yield "no channels", empty, attributes, "input 'weight': expected no axis of size 0"


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    for name, inputs, attributes in good(dtype):
        yield Case(name, inputs, attributes, TOLERANCE[dtype.name])
    for name, inputs, attributes, error in refused(dtype):
        yield Case(name, inputs, attributes, error=error)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """A modulated layer of a ResNet: 128 channels of 64 x 64 pixels, 3 x 3."""
    inputs, attributes = conv(types["T"], n=1, c=128, oc=128, size=(64, 64))
    return Case("128 channels of 64 x 64", inputs, attributes, of_sums(types["T"], output=2e-5))
