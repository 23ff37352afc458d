from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.tokenize.reference import reference as tokenize
from opgate.ops_build.text.samples import texts, tokenizers


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    of = tokenizers()
    some = np.array(texts(60, seed=1), object)
    rng = np.random.default_rng(0)

    def ids_of(text: str) -> tuple[Array, Array]:
        ids, *_, length = tokenize(some, None, tokenizer=text, max_length=4096, add_special_tokens=True)
        return ids, length

    for name, text in of.items():
        ids, length = ids_of(text)
        yield Case(name, {"ids": ids, "length": length}, {"tokenizer": text})
        yield Case(f"{name}, with the padding", {"ids": ids}, {"tokenizer": text})
        yield Case(f"{name}, all tokens", {"ids": ids}, {"tokenizer": text, "skip_special_tokens": False})
        yield Case(f"{name}, ids at random", {"ids": rng.integers(0, 2200, (40, 12))}, {"tokenizer": text})
    bert, words = json.loads(of["bert"]), json.loads(of["words"])
    ids = ids_of(of["bert"])[0]
    strip = {"type": "Strip", "content": "a", "start": 1, "stop": 1}
    replace = {"type": "Replace", "pattern": {"Regex": "[b-d]+"}, "content": "_"}
    kinds = {
        "none": None,
        "no cleanup": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "CTC": {"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "e", "cleanup": True},
        "a sequence": {"type": "Sequence", "decoders": [replace, {"type": "Fuse"}, strip]},
    }
    for name, decoder in kinds.items():
        # Rows with text: `tokenizers` fails where Strip finds none.
        yield Case(f"decoder {name}", {"ids": ids[:10]}, {"tokenizer": json.dumps({**bert, "decoder": decoder})})
    odd = np.array([[-1, 5, 1 << 40, 10**9, 7], [2, 3, 4, 0, 1]])
    yield Case("ids of no token", {"ids": odd}, {"tokenizer": of["bert"]})
    yield Case("no rows", {"ids": np.zeros((0, 3), np.int64)}, {"tokenizer": of["gpt2"]})
    yield Case("no ids", {"ids": np.zeros((2, 0), np.int64)}, {"tokenizer": of["gpt2"]})

    unknown = json.dumps({**words, "decoder": {"type": "Rot13"}})
    yield Case("an unknown decoder", {"ids": odd}, {"tokenizer": unknown}, error="decoder: unknown decoder 'Rot13'")
    long = {"ids": odd, "length": np.array([3, 6], np.int32)}
    yield Case(
        "a length beyond the row", long, {"tokenizer": of["bert"]}, error="input 'length': row 1: expected 0..5, got 6"
    )


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 rows of 512 tokens."""
    ids = np.random.default_rng(0).integers(300, 2000, (64, 512))
    return Case("64 x 512", {"ids": ids}, {"tokenizer": tokenizers()["gpt2"]})
