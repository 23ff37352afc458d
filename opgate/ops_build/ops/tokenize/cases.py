from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.text.samples import texts, tokenizers


def strings(values: list[str]) -> Array:
    return np.array(values, object)


def changed(text: str, **members: Any) -> str:
    return json.dumps({**json.loads(text), **members})


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    of = tokenizers()
    some = strings(texts(60))
    for name, text in of.items():
        yield Case(name, {"text": some}, {"tokenizer": text})
        yield Case(f"{name}, pairs", {"text": some, "pair": some[::-1].copy()}, {"tokenizer": text, "max_length": 40})
        yield Case(f"{name}, no special tokens", {"text": some}, {"tokenizer": text, "add_special_tokens": False})
    for name in ("bert", "llama 3"):
        for length in (4, 5, 12):
            pair = {"text": some, "pair": strings(texts(60, seed=2)[::-1])}
            yield Case(f"{name}, {length} tokens", {"text": some}, {"tokenizer": of[name], "max_length": length})
            yield Case(f"{name}, {length} tokens of pairs", pair, {"tokenizer": of[name], "max_length": length})
    left = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    yield Case("cut at the left", {"text": some}, {"tokenizer": changed(of["bert"], truncation=left)})
    first = {"direction": "Right", "max_length": 9, "strategy": "OnlyFirst", "stride": 0}
    pair = {"text": some, "pair": strings(["short"] * 60)}
    yield Case("only the first is cut", pair, {"tokenizer": changed(of["gpt2"], truncation=first)})
    pad = {
        "strategy": {"Fixed": 30},
        "direction": "Right",
        "pad_to_multiple_of": 8,
        "pad_id": 3,
        "pad_type_id": 1,
        "pad_token": "x",
    }
    fixed = {"tokenizer": changed(of["bert"], padding=pad)}
    yield Case("padding to 32", {"text": strings(["one", "two words"])}, fixed)
    yield Case("padding to max_length", {"text": strings(["one", "two words"])}, {**fixed, "max_length": 20})
    yield Case("no rows", {"text": strings([])}, {"tokenizer": of["bert"]})
    yield Case("an empty text", {"text": strings([""])}, {"tokenizer": of["gpt2"]})
    yield Case(
        "a long word", {"text": strings(["a" * 5000, "ab" * 3000])}, {"tokenizer": of["gpt2"], "max_length": 10_000}
    )

    def refused(name: str, error: str, text: str, **attributes: Any) -> Case:
        return Case(name, {"text": strings(["a"])}, {"tokenizer": text, **attributes}, error=error)

    yield refused("max_length 0", "attribute 'max_length'", of["bert"], max_length=0)
    yield refused("max_length below the special tokens", "at least the 2 special tokens", of["bert"], max_length=1)
    yield refused("no JSON", "attribute 'tokenizer': expected the text of a tokenizer.json", "{")
    yield refused("no model", "attribute 'tokenizer': the file: expected a member 'model'", "{}")
    yield refused(
        "an unknown normalizer", "unknown normalizer 'Rot13'", changed(of["bert"], normalizer={"type": "Rot13"})
    )
    yield refused(
        "a bad regular expression",
        "pre_tokenizer.pattern.Regex: a regular expression that can't be compiled",
        changed(
            of["bert"],
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
        ),
    )
    slow = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    yield Case(
        "a regular expression without end",
        {"text": strings(["short", "a" * 60 + "b"])},
        {"tokenizer": changed(of["bert"], pre_tokenizer=slow)},
        error="input 'text': row 1: a regular expression of the tokenizer went back too often",
    )


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 texts of BERT."""
    return Case("64 texts", {"text": strings(texts(64))}, {"tokenizer": tokenizers()["bert"], "max_length": 128})
