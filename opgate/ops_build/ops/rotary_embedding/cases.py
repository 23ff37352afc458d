from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape)).astype(dtype)

    def inputs(
        batch: int, heads: int, sequence: int, size: int, rotated: int | None = None, *, flat: bool = False,
        positions: int | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """`flat` gives x three dims. With `positions` there are position_ids, and the caches have so many rows."""
        half = (size if rotated is None else rotated) // 2
        rows = (batch, sequence) if positions is None else (positions,)
        angles = rng.uniform(-4, 4, (*rows, half))
        arrays = {
            "x": normal(batch, sequence, heads * size) if flat else normal(batch, heads, sequence, size),
            "cos_cache": np.cos(angles).astype(dtype),
            "sin_cache": np.sin(angles).astype(dtype),
        }
        if positions is not None:
            arrays["position_ids"] = rng.integers(0, positions, (batch, sequence))
        return arrays

    for interleaved in (False, True):
        words = {"interleaved": interleaved}
        for shape in [(1, 1, 1, 2), (2, 3, 5, 8), (1, 2, 7, 34), (2, 1, 3, 128), (3, 8, 40, 64)]:
            yield Case(f"{shape} {words}", inputs(*shape), words)
        flat = words | {"num_heads": 3}
        yield Case(f"3 dims {words}", inputs(2, 3, 5, 8, flat=True), flat)
        yield Case(f"3 dims, positions {words}", inputs(2, 3, 5, 8, flat=True, positions=11), flat)
        yield Case(f"positions {words}", inputs(2, 3, 5, 16, positions=4), words)
        for size, rotated in [(9, 4), (16, 6), (7, 2)]:
            part = words | {"rotary_embedding_dim": rotated}
            yield Case(f"{rotated} of {size} {words}", inputs(2, 3, 5, size, rotated), part)
    # On a GPU a thread of so many computes several heads.
    yield Case("many heads", inputs(1, 31, 1064, 64))
    yield Case("num_heads beside 4 dims", inputs(2, 3, 5, 8), {"num_heads": 5})
    for shape in [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (2, 3, 5, 0)]:
        yield Case(f"{shape}", inputs(*shape))
    yield Case("no tokens, positions", inputs(0, 3, 5, 8, positions=2))
    odd = inputs(1, 1, 2, 4)
    odd["x"][0, 0, 0] = [np.inf, np.nan, 1, -np.inf]
    yield Case("not finite", odd)
    yield from refused(inputs)


def refused(inputs: Any) -> Iterator[Case]:
    good, flat, placed = inputs(2, 3, 5, 8), inputs(2, 3, 5, 8, flat=True), inputs(2, 3, 5, 8, positions=4)
    for words in ({"rotary_embedding_dim": 3}, {"rotary_embedding_dim": -2}):
        yield Case(f"{words}", good, words, error="attribute 'rotary_embedding_dim': expected an even number")
    pattern = "attribute 'rotary_embedding_dim': expected at most the head size 8, got 10"
    yield Case("more than a head", good, {"rotary_embedding_dim": 10}, error=pattern)
    yield Case("heads below 0", good, {"num_heads": -1}, error="attribute 'num_heads': expected 0 or more")
    for heads in (0, 5):
        pattern = f"attribute 'num_heads': expected a divisor of the hidden size 24.*got {heads}"
        yield Case(f"3 dims and {heads} heads", flat, {"num_heads": heads}, error=pattern)
    two = good | {"x": good["x"][0, 0]}
    yield Case("2 dims", two, error=r"input 'x': expected \[batch, heads, .*got a tensor of shape \[5, 8\]")
    odd = inputs(2, 3, 5, 7)
    yield Case("an odd head", odd, error="input 'x': expected an even head size, got 7")
    pattern = r"input '{}': expected shape \[2, 5, 4\] without position_ids, got \[2, 4, 4\]"
    for name in ("cos_cache", "sin_cache"):
        yield Case(f"a short {name}", good | {name: good[name][:, 1:]}, error=pattern.format(name))
    without = {name: placed[name] for name in ("x", "cos_cache", "sin_cache")}
    yield Case("no positions", without, error=r"expected shape \[2, 5, 4\] without position_ids, got \[4, 4\]")
    shape = placed | {"position_ids": placed["position_ids"][:, 1:]}
    yield Case(
        "positions of another shape", shape, error=r"input 'position_ids': expected shape \[2, 5\], got \[2, 4\]"
    )
    for wrong in (-1, 4):
        positions = placed["position_ids"].copy()
        positions[1, 2] = wrong
        pattern = rf"input 'position_ids': element 7 is {wrong}, expected 0\.\.3"
        yield Case(f"position {wrong}", placed | {"position_ids": positions}, error=pattern, unseen=True)


def large(types: Mapping[str, np.dtype]) -> Case:
    """4 x 32 heads, 1024 tokens, heads of 128."""
    x = np.resize(np.linspace(-2, 2, 4099), (4, 32, 1024, 128)).astype(types["T"])
    angles = np.resize(np.linspace(-4, 4, 4099), (4, 1024, 64))
    caches = {"cos_cache": np.cos(angles).astype(types["T"]), "sin_cache": np.sin(angles).astype(types["T"])}
    return Case("4 x 32 x 1024 x 128", {"x": x} | caches)
