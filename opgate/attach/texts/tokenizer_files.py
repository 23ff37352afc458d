"""Reads the files of a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from opgate.attach.model.report import AttachError


def read(path: Path, *, cased: bool = False) -> str:
    """Returns the tokenizer.json in a file, or that of a vocab.txt of BERT, whose texts become lower case unless
    `cased`. Raises AttachError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise AttachError(f"--pre: {path} is no text: expected a tokenizer.json or a vocab.txt{_hint(path)}") from None
    if path.suffix == ".json":
        try:
            value = json.loads(text)
        except ValueError as error:
            raise AttachError(f"--pre: {path} is no JSON: {error}") from None
        if not isinstance(value, dict) or "model" not in value:
            raise AttachError(f"--pre: {path}: expected a tokenizer.json with 'model', got {str(value)[:60]}")
        if cased:
            raise AttachError("--pre: cased goes with a vocab.txt: a tokenizer.json says itself what it does")
        return text
    return _of_bert(path, text.removesuffix("\n").split("\n"), cased)


def _of_bert(path: Path, vocabulary: list[str], cased: bool) -> str:
    """Returns the tokenizer.json of BERT for the tokens of a vocab.txt. Raises AttachError."""
    numbers = {token.removesuffix("\r"): number for number, token in enumerate(vocabulary)}
    if missing := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in numbers]:
        raise AttachError(f"--pre: {path} has no {', '.join(missing)}: expected the vocab.txt of a BERT")
    special = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in numbers]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": numbers[token], "content": token, **flags} for token in special],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": not cased,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "BertProcessing",
                "sep": ["[SEP]", numbers["[SEP]"]],
                "cls": ["[CLS]", numbers["[CLS]"]],
            },
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": numbers,
            },
        }
    )


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
