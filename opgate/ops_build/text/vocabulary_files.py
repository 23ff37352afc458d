"""The text of a tokenizer.json from the older files of a vocabulary: vocab.txt, or vocab.json and merges.txt."""

from __future__ import annotations

import json
from typing import Any


def from_word_pieces(vocabulary: str, *, lowercase: bool = True) -> str:
    """The tokenizer of BERT from the text of a vocab.txt, which has a token a line. Raises ValueError without [UNK],
    [CLS] or [SEP]."""
    lines = vocabulary.split("\n")
    ids = {line.rstrip(): i for i, line in enumerate(lines if lines[-1] else lines[:-1])}
    for token in ("[UNK]", "[CLS]", "[SEP]"):
        if token not in ids:
            raise ValueError(f"a vocab.txt of word pieces: expected a line {token}")

    def piece(kind: str, name: str, type_id: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    first = [piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0)]
    second = [piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)]
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    return _file(
        special=[token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in ids],
        pad="[PAD]",
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": special,
        },
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    )


def from_byte_pairs(vocabulary: str, merges: str, *, add_prefix_space: bool = False) -> str:
    """The tokenizer of GPT-2 from the texts of a vocab.json and a merges.txt, or that of RoBERTa if the vocabulary has
    <s> and </s>. Raises ValueError if a line of the merges has not two tokens."""
    ids: dict[str, int] = json.loads(vocabulary)
    pairs = [line.split(" ") for line in merges.split("\n") if line and not line.startswith("#version")]
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"a merges.txt: expected two tokens in a line, got {' '.join(pair)!r}")
    space = {"add_prefix_space": add_prefix_space, "use_regex": True}
    processor = {"type": "ByteLevel", "trim_offsets": False, **space}
    if "<s>" in ids and "</s>" in ids:
        ends = {"sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]]}
        trim = {"trim_offsets": True, "add_prefix_space": add_prefix_space}
        processor = {"type": "RobertaProcessing", **ends, **trim}
    return _file(
        special=[token for token in ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>") if token in ids],
        pad="<pad>",
        normalizer=None,
        pre_tokenizer={"type": "ByteLevel", "trim_offsets": True, **space},
        post_processor=processor,
        decoder={"type": "ByteLevel", "trim_offsets": True, **space},
        model={
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": pairs,
        },
    )


def _file(*, special: list[str], pad: str, model: dict[str, Any], **parts: Any) -> str:
    ids = model["vocab"]

    def added(token: str) -> dict[str, Any]:
        flags = {
            "single_word": False,
            "lstrip": token == "<mask>",
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        return {"id": ids[token], "content": token, **flags}

    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": ids.get(pad, 0),
        "pad_type_id": 0,
        "pad_token": pad,
    }
    tokens = [added(token) for token in sorted(special, key=ids.__getitem__)]
    padded = padding if pad in ids else None
    whole = {"version": "1.0", "truncation": None, "padding": padded, "added_tokens": tokens, **parts, "model": model}
    return json.dumps(whole, ensure_ascii=False)
