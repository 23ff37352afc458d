"""Tokenize and Detokenize against Hugging Face's package `tokenizers`, with texts in every script, hostile texts and
damaged files. `python -m tests.ops.test_tokenizers LIBRARY [FILE.json ...]` compares until it is stopped."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as hf

import opgate.numpy
from opgate.ops_build.case import Array
from opgate.ops_build.ops.detokenize.reference import reference as detokenize
from opgate.ops_build.ops.tokenize.reference import reference as tokenize
from opgate.ops_build.text.samples import precompiled_map, texts, tokenizers
from opgate.ops_build.text.unicode_tables import CODE_POINTS
from opgate.ops_build.text.vocabulary_files import from_byte_pairs, from_word_pieces
from tests.ops.conftest import RunOp

NAMES = ("ids", "mask", "types", "offsets", "special", "length")
REPLACED = {"a": "", "e": "xyz", "\u00e9": "e", "\u0301": "", "\u0915": "k", "\r": " ", "o\u0308": "oe", "\u00df": "ss"}


def strings(values: list[str]) -> Array:
    return np.array(values, object)


def differences(ours: list[Array], theirs: tuple[Array, ...], values: Array) -> list[str]:
    """What differs, with the first text that shows it."""
    found = []
    for name, a, b in zip(NAMES, ours, theirs, strict=True):
        if a.shape != b.shape:
            found.append(f"{name}: {a.shape}, expected {b.shape}")
        elif (a != b).any():
            row = np.argwhere((a != b).reshape(len(a), -1).any(1))[0, 0]
            found.append(f"{name} of {values[row]!r}: {a[row].tolist()}, expected {b[row].tolist()}")
    return found


def compare(run: Callable[..., list[Array]], text: str, values: Array, **attributes: Any) -> None:
    attributes = {"tokenizer": text, "max_length": 100_000, "add_special_tokens": True, **attributes}
    assert not differences(run("Tokenize", {"text": values}, attributes), tokenize(values, None, **attributes), values)


def words_split_by(pre_tokenizer: Any, normalizer: Any = None) -> str:
    """A tokenizer whose tokens are what a pre-tokenizer makes."""
    tokenizer = hf.Tokenizer(hf.models.WordLevel({"[unk]": 0}, unk_token="[unk]"))
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    text: str = tokenizer.to_str()
    return text


@pytest.mark.parametrize("name", list(tokenizers()))
def test_texts_in_every_script(run_op: RunOp, name: str) -> None:
    compare(run_op, tokenizers()[name], strings(texts(2000, seed=5)))


def parts() -> Iterator[tuple[str, str]]:
    n, p = hf.normalizers, hf.pre_tokenizers
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            splitter = p.Split(hf.Regex(r"[aeiou]+|\s"), behavior, invert=invert)
            yield f"split, {behavior}, {invert}", words_split_by(splitter)
        yield f"punctuation, {behavior}", words_split_by(p.Punctuation(behavior))
    for name in (
        "BertPreTokenizer",
        "Whitespace",
        "WhitespaceSplit",
        "UnicodeScripts",
        "Digits",
        "Metaspace",
        "ByteLevel",
    ):
        yield name, words_split_by(getattr(p, name)())
    yield "a string", words_split_by(p.Split("e", "merged_with_next"))
    yield "no string", words_split_by(p.Split("", "isolated"))
    yield "an empty match", words_split_by(p.Split(hf.Regex("(?=[aeiou])"), "isolated"))
    yield "a delimiter", words_split_by(p.CharDelimiterSplit("o"))
    yield "pieces of three", words_split_by(p.FixedLength(3))
    for scheme in ("first", "never"):
        yield f"Metaspace, {scheme}", words_split_by(p.Sequence([p.Digits(), p.Metaspace("_", scheme)]))
    for name in (
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "Strip",
        "StripAccents",
        "Nmt",
        "ByteLevel",
        "BertNormalizer",
    ):
        yield name, words_split_by(p.Sequence([p.Split("", "isolated")]), getattr(n, name)())
    yield "Prepend", words_split_by(p.Whitespace(), n.Prepend("x\u00e9"))
    yield "Replace", words_split_by(p.Whitespace(), n.Replace(hf.Regex("[a-f]+"), "--"))
    yield "Replace by nothing", words_split_by(p.Whitespace(), n.Replace("e", ""))
    yield "left", words_split_by(p.Split("", "isolated"), n.Strip(left=True, right=False))
    yield "Precompiled", words_split_by(p.Split("", "isolated"), n.Precompiled(precompiled_map(REPLACED)))


@pytest.mark.parametrize("name", [name for name, _ in parts()])
def test_each_part(run_op: RunOp, name: str) -> None:
    compare(run_op, dict(parts())[name], strings(texts(400, seed=6)))


def is_special(c: int) -> bool:
    """Whether a code point is in a block where characters change."""
    blocks = [
        (0, 0x3400),
        (0xA000, 0xAC40),
        (0xF900, 0x12000),
        (0x16000, 0x17000),
        (0x1C000, 0x20000),
        (0x2F800, 0x2FA20),
    ]
    return any(first <= c < end for first, end in blocks) or c % 97 == 0


@pytest.mark.parametrize("kind", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer"])
def test_characters_with_marks(run_op: RunOp, kind: str) -> None:
    split = hf.pre_tokenizers.Split("", "isolated")
    tokenizer = json.loads(words_split_by(split, getattr(hf.normalizers, kind)()))
    tokenizer["model"] = {"type": "BPE", "vocab": bytes_of(), "merges": [], "byte_fallback": True}
    some = [c for c in CODE_POINTS if is_special(c)]
    values = ["".join(f"{chr(c)}\u0301\u0327" for c in some[i : i + 64]) for i in range(0, len(some), 64)]
    compare(run_op, json.dumps(tokenizer), strings(values))


def bytes_of() -> dict[str, int]:
    return {f"<0x{byte:02X}>": byte for byte in range(256)}


def test_regular_expressions_as_loops(run_op: RunOp) -> None:
    rng = np.random.default_rng(0)
    some = list("'sSlLrevtTdDm \t\n\r\u00a0\u3000aA1\u0661.,!/\u01c5\u02b0\u4e00\u0301\u017f\u212a\u00df")
    values = ["".join(rng.choice(some, rng.integers(1, 14))) for _ in range(6000)]
    for name in ("gpt2", "llama 3", "qwen"):
        compare(run_op, tokenizers()[name], strings(values))
    cased = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    compare(run_op, words_split_by(hf.pre_tokenizers.Split(hf.Regex(cased), "isolated")), strings(values))


def test_known_pieces_stay_those_of_their_tokenizer(run_op: RunOp) -> None:
    """Two vocabularies whose scores differ, one after the other in the same thread, each twice."""
    values = strings(texts(300, seed=11))
    text = tokenizers()["xlm-r"]
    other = json.loads(text)
    other["model"]["vocab"] = [[piece, -float(len(piece) % 3)] for piece, _ in other["model"]["vocab"]]
    for _ in range(2):
        compare(run_op, text, values)
        compare(run_op, json.dumps(other), values)


def test_a_token_that_stands_twice_in_the_vocabulary(run_op: RunOp) -> None:
    """The ids of added tokens begin behind the list of a Unigram model."""
    vocabulary = [["<unk>", 0.0], *[["a", -1.0]] * 2, ["b", -2.0]]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    stated = {
        "version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary},
        "added_tokens": [{"id": 4, "content": "new", **added}],
    }  # fmt: skip
    compare(run_op, json.dumps(stated), strings(["a new b"]))


@pytest.mark.parametrize("name", list(tokenizers()))
def test_texts_come_back(run_op: RunOp, name: str) -> None:
    text = tokenizers()[name]
    ids, *_ = run_op("Tokenize", {"text": strings(texts(500, seed=7))}, {"tokenizer": text, "max_length": 100_000})
    for skip in (True, False):
        attributes = {"tokenizer": text, "skip_special_tokens": skip}
        (ours,) = run_op("Detokenize", {"ids": ids}, attributes)
        assert ours.tolist() == detokenize(ids, None, **attributes).tolist()


@pytest.mark.parametrize("name", list(tokenizers()))
def test_a_megabyte_without_spaces_takes_no_time(run_op: RunOp, name: str) -> None:
    """The time grows no faster than the text, but for the logarithm of a sort."""
    for word in ("a", "ab", "\u00e9", "\u4e00", "'s", " ", "\u0301", "#"):
        for size in (125_000, 1_000_000):
            value = strings([(word * size)[:size]])
            begin = time.perf_counter()
            run_op("Tokenize", {"text": value}, {"tokenizer": tokenizers()[name], "max_length": 10_000_000})
            seconds = time.perf_counter() - begin
        assert seconds < 6, f"{word!r}: {seconds:.1f} s for a million characters"


def test_bytes_that_are_no_text(library: Path) -> None:
    """Through NumPy: ONNX Runtime's Python takes no bytes."""
    damaged = [
        b"ab\xff\xfec",
        b"\xe4\xb8",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80x",
        b"\x80",
        b"\xf0\x9f\x98",
    ]
    text = tokenizers()["bert"]
    ours = list(opgate.numpy.load(library).tokenize(np.array(damaged, object), tokenizer=text))
    repaired = strings([value.decode("utf-8", "replace") for value in damaged])
    assert not differences(
        ours, tokenize(repaired, None, tokenizer=text, max_length=512, add_special_tokens=True), repaired
    )


def test_a_vocabulary_of_word_pieces(run_op: RunOp, tmp_path: Path) -> None:
    ids = json.loads(tokenizers()["bert"])["model"]["vocab"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n")
    values = texts(300, seed=8)
    for lowercase in (True, False):
        theirs = hf.BertWordPieceTokenizer(str(path), lowercase=lowercase)
        theirs.enable_padding()
        ours = run_op(
            "Tokenize", {"text": strings(values)},
            {"tokenizer": from_word_pieces(path.read_text(), lowercase=lowercase), "max_length": 10_000},
        )  # fmt: skip
        assert ours[0].tolist() == [row.ids for row in theirs.encode_batch(values)]
    with pytest.raises(ValueError, match=r"expected a line \[CLS\]"):
        from_word_pieces("[UNK]\n[SEP]\n")


def test_a_vocabulary_of_byte_pairs(run_op: RunOp, tmp_path: Path) -> None:
    model = json.loads(tokenizers()["gpt2"])["model"]
    vocabulary, merges = (
        json.dumps(model["vocab"]),
        "#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])) + "\n",
    )
    values = texts(300, seed=8)
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    theirs = hf.ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    attributes = {"tokenizer": from_byte_pairs(vocabulary, merges), "add_special_tokens": False, "max_length": 10_000}
    ids, *_, length = run_op("Tokenize", {"text": strings(values)}, attributes)
    for row, count, value in zip(ids, length, values, strict=True):
        # ByteLevelBPETokenizer doesn't know the special tokens of the vocabulary.
        if "<" not in value:
            assert row[:count].tolist() == theirs.encode(value).ids
    with pytest.raises(ValueError, match="expected two tokens in a line, got 'a b c'"):
        from_byte_pairs("{}", "a b c\n")


def test_damaged_files_are_refused_or_used(run_op: RunOp) -> None:
    """Pieces of a file left out, doubled or turned into something else: an error names the attribute, and nothing dies."""
    rng = np.random.default_rng(1)
    small = {
        name: json.loads(text) for name, text in tokenizers().items() if name in ("bert", "llama", "falcon", "words")
    }
    for whole in small.values():
        whole["model"]["vocab"] = dict(itertools.islice(whole["model"]["vocab"].items(), 60))
        whole["model"].get("merges", [])[:] = []
    refused = used = 0
    for _ in range(400):
        text = json.dumps(damaged(small[str(rng.choice(list(small)))], rng))
        try:
            run_op("Tokenize", {"text": strings(["Hello <s> 12"])}, {"tokenizer": text})
            used += 1
        except Exception as error:
            assert "attribute 'tokenizer'" in str(error) or "input 'text': row 0" in str(error), error
            refused += 1
    assert refused > 50
    assert used > 20


def damaged(node: Any, rng: np.random.Generator) -> Any:
    """A copy with something wrong at a random place."""
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = str(rng.choice(list(node)))
        if rng.random() < 0.1:
            return {k: v for k, v in node.items() if k != key}
        return node | {key: damaged(node[key], rng)}
    if isinstance(node, list) and node and rng.random() < 0.9:
        at = int(rng.integers(len(node)))
        return [*node[:at], damaged(node[at], rng), *node[at + 1 :]]
    wrong = [None, True, -1, 1.5, 2**40, "", "x" * 50, [], {}, [node], {"type": node}, "Sequence", "\u00e9"]
    return wrong[int(rng.integers(len(wrong)))]


def main(library: Path, files: list[Path]) -> None:
    """Compares texts without end. Prints what differs."""
    from tests.ops.conftest import op_runner

    run = op_runner(library)
    kinds = {path.name: path.read_text() for path in files} or tokenizers()
    for seed in itertools.count(100):
        for name, text in kinds.items():
            values = strings(texts(2000, seed))
            attributes = {"tokenizer": text, "max_length": 100_000, "add_special_tokens": True}
            found = differences(
                run("Tokenize", {"text": values}, attributes), tokenize(values, None, **attributes), values
            )
            print(f"seed {seed}, {name}: {'; '.join(found) or 'equal'}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
