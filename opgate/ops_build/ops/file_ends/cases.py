from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import flat


def case(name: str, files: list[bytes], **attributes: Any) -> Case:
    data, ends = flat(files)
    return Case(name, {"data": data, "ends": ends}, {"head": 6, **attributes})


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    noise = np.random.default_rng(0).integers(0, 256, 300, np.uint8).tobytes()
    files = [
        b"",
        b"a",
        b"abcdef",
        b"abcdefghij",
        noise,
        b"  ab \t\n",
        b" \r\x0b\x0c ",
        b"\0 text \0",
        b"x" * 40 + b" " * 60,
    ]
    for strip in (False, True):
        for tail in (0, 1, 6, 20):
            yield case(f"tail {tail}, strip {strip}", files, tail=tail, strip=strip)
        yield case(f"a small block, strip {strip}", files, tail=6, block=8, strip=strip)
        yield case(f"a least length, strip {strip}", files, tail=2, least=4, strip=strip)
    yield case("only the last bytes", files, head=0, tail=5)
    yield case("every byte", [bytes(range(256))], head=256, tail=256)
    yield case("another pad", files, tail=3, pad=-7)
    yield case("no rows", [])
    yield case("many rows", [noise[:i] for i in range(200)], tail=9)
    data, ends = flat(files[:3])
    for name, wrong in (("decreasing", ends[::-1].copy()), ("too large", ends + 9)):
        inputs: dict[str, Array] = {"data": data, "ends": wrong}
        yield Case(f"ends {name}", inputs, {"head": 2}, error="input 'ends': expected offsets that don't decrease")
    refused: list[tuple[str, int, str]] = [
        ("head", -1, "expected a number from 0, got -1"),
        ("head", 0, "1 or more without a tail"),
        ("tail", (1 << 26) + 1, "attribute 'tail'"),
        ("block", 3, "at least the larger of head and tail, 6"),
        ("pad", 1 << 40, "attribute 'pad'"),
        ("least", 7, "0 to head, 6"),
    ]
    for name, value, error in refused:
        inputs = {"data": data, "ends": ends}
        yield Case(f"{name} {value}", inputs, {"head": 6, name: value}, error=error)
