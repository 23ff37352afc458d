from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 3) -> Array:
        return (rng.standard_normal(shape) * scale).astype(dtype)

    activations = ("softmax", "sigmoid", "none")
    for n, c, k in [
        (1, 1, 1),
        (3, 7, 5),
        (2, 5, 5),
        (2, 3, 8),
        (1, 33, 4),
        (4, 1000, 5),
        (2, 513, 512),
        (1, 5000, 100),
    ]:
        for activation in activations:
            yield Case(
                f"{n} x {c}, best {k}, {activation}", {"logits": normal(n, c)}, {"k": k, "activation": activation}
            )
    yield Case("the default of k", {"logits": normal(2, 100)})
    # More classes than a part of a row on the CPU, so that parts are merged; a last part of one class.
    for c, k in [(131_073, 3), (70_000, 9000)]:
        yield Case(f"{c} classes, best {k}", {"logits": normal(1, c)}, {"k": k})
    # On a GPU several blocks compute a long row, and choose among what each has found.
    yield Case("200,000 classes, best 2000", {"logits": normal(2, 200_000)}, {"k": 2000})
    parts = normal(3, 50_000)
    parts[0, 8192:20_000] = -np.inf
    parts[1, 9000] = np.nan
    parts[2, 30_000:30_009] = np.inf
    for activation in activations:
        yield Case(f"NaN and infinity among many, {activation}", {"logits": parts}, {"k": 12, "activation": activation})
    yield Case("many rows", {"logits": normal(700, 9)}, {"k": 2})
    for n, c, k in [(0, 5, 3), (3, 0, 2), (2, 5, 0), (0, 0, 0)]:
        yield Case(f"empty: {n} x {c}, best {k}", {"logits": normal(n, c)}, {"k": k})
    rising = np.linspace(-5, 5, 2000).astype(dtype)
    yield Case("rising: nearly every block has a better class", {"logits": np.stack([rising, rising[::-1]])}, {"k": 7})
    yield Case("all equal", {"logits": np.full((2, 1300), 1.5, dtype)}, {"k": 6})
    yield Case("ties of few values", {"logits": rng.integers(0, 4, (3, 2000)).astype(dtype)}, {"k": 900})
    zeros = np.zeros((1, 600), dtype)
    zeros[0, ::2] = -0.0
    yield Case("zeros of both signs", {"logits": zeros}, {"k": 9, "activation": "none"})
    odd = normal(7, 40)
    odd[0, 3] = np.nan
    odd[1] = np.nan
    odd[2, :37] = np.nan
    odd[3, [5, 9]] = np.inf
    odd[4] = -np.inf
    odd[5, 4:] = -np.inf
    odd[6, 7], odd[6, 8] = -np.nan, np.inf
    for activation in activations:
        yield Case(f"NaN and infinity, {activation}", {"logits": odd}, {"k": 12, "activation": activation})
    late = np.full((1, 1500), -np.inf, dtype)
    late[0, 1200:] = -2000 if dtype != np.dtype(np.float16) else -900
    yield Case("blocks of -infinity before others", {"logits": late}, {"k": 3})
    yield Case("blocks of -infinity after others", {"logits": late[:, ::-1].copy()}, {"k": 3})
    for size in (200.0, 30_000.0):
        yield Case(f"logits of about {size:g}", {"logits": normal(2, 1200, scale=size / 3)}, {"k": 4})
        yield Case(f"logits near {size:g}", {"logits": (normal(2, 1200) + dtype.type(size)).astype(dtype)}, {"k": 4})
    yield Case("k -1", {"logits": normal(2, 3)}, {"k": -1}, error="-1")
    yield Case("another activation", {"logits": normal(2, 3)}, {"activation": "tanh"}, error="attribute 'activation'")
    yield Case("one axis", {"logits": normal(3)}, error="input 'logits'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """A million classes, the best 100."""
    logits = np.random.default_rng(1).standard_normal((4, 1_000_000), np.float32).astype(types["T"])
    return Case("4 x 1M, best 100", {"logits": logits}, {"k": 100})
