"""Detokenize with Hugging Face's package `tokenizers`."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(ids: Array, length: Array | None, *, tokenizer: str, skip_special_tokens: bool) -> Array:
    """The texts, str [n], of ids i64 [n, s], of which length[i] count. Raises ImportError without the package."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("the reference of Detokenize needs Hugging Face's package: pip install tokenizers") from error
    hf = Tokenizer.from_str(tokenizer)
    counts = [ids.shape[1]] * len(ids) if length is None else length.tolist()
    rows = [[i for i in row[:count].tolist() if 0 <= i < 1 << 32] for row, count in zip(ids, counts, strict=True)]
    return np.array([hf.decode(row, skip_special_tokens=skip_special_tokens) for row in rows], object)
