from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.detokenize_stream.reference import reference
from opgate.ops_build.ops.tokenize.reference import reference as tokenize
from opgate.ops_build.text.samples import texts, tokenizers

ROOM = 66


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    of = tokenizers()
    some = np.array(texts(30, seed=1), object)
    nothing = np.zeros((len(some), ROOM), np.int64)
    for name, text in of.items():
        ids = tokenize(some, None, tokenizer=text, max_length=24, add_special_tokens=True)[0]
        first, second = ids[:, :5], ids[:, 5:8]
        begun = reference(first, nothing, None, tokenizer=text, skip_special_tokens=True)[1]
        yield Case(f"{name}, the first ids", {"ids": first, "state": nothing}, {"tokenizer": text})
        yield Case(f"{name}, the next ids", {"ids": second, "state": begun}, {"tokenizer": text})
        yield Case(f"{name}, one id", {"ids": ids[:, 5:6], "state": begun}, {"tokenizer": text})
        ends = np.arange(len(some), dtype=np.int32)[:, None] % 2
        yield Case(f"{name}, the last ids", {"ids": second, "state": begun, "end": ends}, {"tokenizer": text})
        both = {"tokenizer": text, "skip_special_tokens": False}
        yield Case(f"{name}, all tokens", {"ids": ids, "state": nothing}, both)
    odd = np.array([[-1, 5, 1 << 40, 10**9, 7], [2, 3, 4, 0, 1]])
    yield Case("ids of no token", {"ids": odd, "state": nothing[:2]}, {"tokenizer": of["bert"]})
    no_rows = {"ids": odd[:0], "state": nothing[:0]}
    yield Case("no rows", no_rows, {"tokenizer": of["gpt2"]})
    yield Case("no ids", {"ids": odd[:, :0], "state": nothing[:2]}, {"tokenizer": of["gpt2"]})

    def refused(name: str, error: str, ids: list[list[int]], *states: list[int]) -> Case:
        inputs: dict[str, Array] = {"ids": np.array(ids), "state": np.array(states, np.int64)}
        return Case(name, inputs, {"tokenizer": of["bert"]}, error=error)

    yield refused("a state of no size", "input 'state': expected rows of 2 numbers or more, got 1", [[5]], [0])
    wrong = r"input 'state': row 1: expected how many ids are held, 0..2, and of how many the text has been given"
    yield refused("more ids than the state has", wrong, [[5], [5]], [1, 1, 7, 0], [3, 0, 5, 5])
    yield refused("more given than held", wrong, [[5], [5]], [0, 0, 0, 0], [1, 2, 5, 5])
    full = "input 'ids': row 0: the state has room for 1 ids, and 2 make no whole character yet or came at once"
    yield refused("a state that is too small", full, [[7, 8]], [0, 0, 0])


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 rows, each with one more id."""
    ids = np.random.default_rng(0).integers(300, 2000, (64, 1))
    return Case("64 rows", {"ids": ids, "state": np.zeros((64, ROOM), np.int64)}, {"tokenizer": tokenizers()["gpt2"]})
