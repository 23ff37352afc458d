"""DetokenizeStream with `decode` of Hugging Face's package `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgate.ops_build.case import Array


def reference(
    ids: Array, state: Array, end: Array | None, *, tokenizer: str, skip_special_tokens: bool
) -> tuple[Array, Array]:
    """The texts, str [n], that ids i64 [n, s] add, and the next state i64 [n, k]. Raises ImportError without the
    package."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("the reference needs Hugging Face's package: pip install tokenizers") from error
    hf = Tokenizer.from_str(tokenizer)
    special = {token.content for token in hf.get_added_tokens_decoder().values() if token.special}

    def decode(row: list[int]) -> str:
        text: str = hf.decode(row, skip_special_tokens=skip_special_tokens) if row else ""
        return text

    def counts(id: int) -> bool:
        token = hf.id_to_token(id) if 0 <= id < 1 << 32 else None
        return token is not None and not (skip_special_tokens and token in special)

    texts, states = [], np.zeros_like(state)
    for row in range(len(ids)):
        held = state[row, 2 : 2 + state[row, 0]].tolist()
        last = end is not None and bool(end[row, 0])
        text, held, given = step(decode, held, int(state[row, 1]), [i for i in ids[row].tolist() if counts(i)], last)
        texts.append(text)
        states[row, : 2 + len(held)] = [len(held), given, *held]
    return np.array(texts, object), states


def step(
    decode: Callable[[list[int]], str], held: list[int], given: int, more: list[int], end: bool
) -> tuple[str, list[int], int]:
    """The text that more ids add, the ids to hold, and of how many of them the text has been given."""
    before = decode(held[:given])
    if not before and not decode(held).endswith("\ufffd"):
        before, given = decode(held), len(held)
    all_ids = held + more
    text = decode(all_ids)

    def ready() -> bool:
        longer = len(text.encode()) > len(before.encode())
        return end or (longer and not text.endswith("\ufffd"))

    if ready() and not text.startswith(before):
        all_ids, given, before = all_ids[given:], 0, ""
        text = decode(all_ids)
    if not ready():
        return "", all_ids, given
    new = text[len(before) :]
    held = [] if end else all_ids[given:]
    return new, held, len(held)
