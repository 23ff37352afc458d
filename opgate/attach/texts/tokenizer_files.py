"""Reads the files of a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from opgate.attach.model.report import AttachError
from opgate.ops_build.text.vocabulary_files import from_byte_pairs, from_word_pieces


def read(path: Path, *, cased: bool = False) -> str:
    """Returns the tokenizer.json in a file, that of a vocab.txt of BERT, whose texts become lower case unless `cased`,
    or that of a vocab.json of GPT-2 with the merges.txt beside it. Raises AttachError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise AttachError(f"--pre: {path} is no text: expected a tokenizer.json or a vocab.txt{_hint(path)}") from None
    if path.suffix == ".json":
        try:
            value = json.loads(text)
        except ValueError as error:
            raise AttachError(f"--pre: {path} is no JSON: {error}") from None
        merges = path.with_name("merges.txt")
        if isinstance(value, dict) and "model" not in value and merges.is_file():
            return _made(from_byte_pairs, path, text, merges.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or "model" not in value:
            raise AttachError(f"--pre: {path}: expected a tokenizer.json with 'model', got {str(value)[:60]}")
        if cased:
            raise AttachError("--pre: cased goes with a vocab.txt: a tokenizer.json says itself what it does")
        return text
    return _made(from_word_pieces, path, text, lowercase=not cased)


def _made(make: Callable[..., str], path: Path, *texts: str, **more: bool) -> str:
    try:
        return make(*texts, **more)
    except ValueError as error:
        raise AttachError(f"--pre: {path}: {error}") from None


def _hint(path: Path) -> str:
    if path.suffix == ".model":
        return (
            ". A model of SentencePiece becomes a tokenizer.json by transformers' AutoTokenizer.from_pretrained(...), "
            "use_fast=True, and its backend_tokenizer.save('tokenizer.json')"
        )
    return ""


def most(path: Path, tokenizer: str, usual: int) -> int:
    """Returns how many tokens a text has at most: what the tokenizer truncates to, what lies beside it, or `usual`."""
    truncation = json.loads(tokenizer).get("truncation") or {}
    if isinstance(truncation.get("max_length"), int):
        return int(truncation["max_length"])
    try:
        stated = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8")).get("model_max_length")
    except (OSError, ValueError, AttributeError):
        return usual
    return int(stated) if isinstance(stated, int) and 1 <= stated <= 1 << 20 else usual
