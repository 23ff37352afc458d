"""Tokenize with Hugging Face's package `tokenizers`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from opgate.ops_build.case import Array

STRATEGIES = {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}


def reference(
    text: Array, pair: Array | None, *, tokenizer: str, max_length: int, add_special_tokens: bool
) -> tuple[Array, ...]:
    """ids, mask and types i64 [n, s], offsets i32 [n, s, 2], special i64 [n, s] and length i32 [n] of n texts. Raises
    ImportError without the package."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("the reference of Tokenize needs Hugging Face's package: pip install tokenizers") from error
    stated = json.loads(tokenizer)
    truncation: dict[str, Any] = stated.get("truncation") or {}
    padding: dict[str, Any] = stated.get("padding") or {}
    hf = Tokenizer.from_str(tokenizer)
    hf.enable_truncation(
        min(max_length, truncation.get("max_length", max_length)),
        strategy=STRATEGIES[truncation.get("strategy", "LongestFirst")],
        direction=truncation.get("direction", "Right").lower(),
    )
    hf.no_padding()
    pairs = [None] * len(text) if pair is None else list(pair)
    rows = [hf.encode(a, b, add_special_tokens=add_special_tokens) for a, b in zip(text, pairs, strict=True)]

    strategy = padding.get("strategy")
    width = max([len(row.ids) for row in rows] + [strategy["Fixed"] if isinstance(strategy, dict) else 0])
    multiple = padding.get("pad_to_multiple_of") or 1
    width = min(-(-min(width, max_length) // multiple) * multiple, max_length) if rows else 0
    for row in rows:
        row.pad(
            width,
            direction=padding.get("direction", "Right").lower(),
            pad_id=padding.get("pad_id", 0),
            pad_type_id=padding.get("pad_type_id", 0),
        )
    length = np.array([sum(row.attention_mask) for row in rows], np.int32)

    def table(name: str) -> Array:
        return np.array([getattr(row, name) for row in rows], np.int64).reshape(len(rows), width)

    offsets = np.array([row.offsets for row in rows], np.int32).reshape(len(rows), width, 2)
    return table("ids"), table("attention_mask"), table("type_ids"), offsets, table("special_tokens_mask"), length
