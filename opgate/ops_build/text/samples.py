"""Small tokenizers of each kind, and texts in every script, for the tests of the ops that read a tokenizer.json."""

# ruff: noqa: RUF001
from __future__ import annotations

import functools
import json
import random
import struct
import unicodedata
from typing import Any

SENTENCES = [
    "Hello, world! It's 12,345.67 o'clock — isn't it?",
    "The quick brown fox jumps over the lazy dog; they'll've SEEN it.",
    "  Two  spaces,\ttabs\r\nand lines.\n\n   ",
    "Größe, naïve café, Ångström, İstanbul, ǅungla, ﬁne ﬂow, ½ cup",
    "cafe\u0301 a\u0308\u0316 \u1e9b\u0323 \u0344 \u0958",
    "Мы говорим по-русски. Το γρήγορο ΣΊΣΥΦΟΣ.",
    "今日は世界。漢字とカタカナ、ｶﾞｷﾞ １２３",
    "한국어 각 \u1100\u1161\u11a8 ᄒ",
    "مرحبا بالعالم ١٢٣ שלום नमस्ते ไทย தமிழ்",
    "😀👩‍👩‍👧 🇫🇷 e\ufe0f \u200b\u200d\ufeff\u00a0\u3000",
    "a\x00b\x07c\x7f\x85 \ufffd",
    "[CLS] [MASK] <s> </s> <|endoftext|> [unk] <mask>!",
    "x" * 120,
    "",
    " ",
    "don'T 'S 'ſ we'LL #hash_tag user@example.com https://example.com/a?b=c&d=e",
]


def texts(count: int, seed: int = 0) -> list[str]:
    """Sentences, sentences with characters of every script put in, and characters alone."""
    rng = random.Random(seed)
    known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    marks = [c for c in known if unicodedata.category(c).startswith("M")]
    found = list(SENTENCES[:count])
    while len(found) < count:
        kind = rng.random()
        if kind < 0.4:
            letters = list(rng.choice(SENTENCES))
            for _ in range(rng.randint(1, 5)):
                letters.insert(rng.randint(0, len(letters)), rng.choice([rng.choice(known), rng.choice(" \n'\u00a0")]))
        elif kind < 0.7:
            first = rng.randrange(0x80, 0x3000)
            near = [chr(c) for c in range(first, first + 60) if unicodedata.category(chr(c)) != "Cn"]
            letters = [rng.choice([*near, rng.choice(marks), " "]) for _ in range(rng.randint(1, 25))]
        else:
            letters = [rng.choice([rng.choice(known), rng.choice("aAbB '.!\r\n12")]) for _ in range(rng.randint(1, 25))]
        found.append("".join(letters))
    return found


def precompiled_map(texts: dict[str, str]) -> bytes:
    """A map of a Precompiled normalizer: what takes the place of each text. The trie is a double array of Darts whose
    node i lies at 512 i."""
    nodes: dict[bytes, int] = {b"": 512}
    units, written = {0: 512 << 10}, b""
    for key, to in texts.items():
        for i, byte in enumerate(key.encode()):
            prefix = key.encode()[: i + 1]
            node = nodes[prefix[:-1]] ^ byte
            next_node = nodes.setdefault(prefix, 512 * (len(nodes) + 1))
            ends = units.get(node, 0) & 256 or 256 * (prefix == key.encode())
            units[node] = (node ^ next_node) << 10 | byte | ends
        units[nodes[key.encode()]] = 1 << 31 | len(written)
        written += to.encode() + b"\0"
    array = [units.get(i, 0) for i in range(512 * (len(nodes) + 1))]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + written


CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@functools.cache
def tokenizers() -> dict[str, str]:
    """The text of a tokenizer.json for each kind of model: those of BERT, GPT-2, RoBERTa, Llama, Qwen, CLIP, T5 and
    others, trained on few texts. Raises ImportError without Hugging Face's package `tokenizers`."""
    try:
        import tokenizers as hf
    except ImportError as error:
        raise ImportError("the samples need Hugging Face's package: pip install tokenizers") from error
    kinds = {"bert": _bert(hf, True), "bert with case": _bert(hf, False), "words": _words(hf), "unigram": _unigram(hf)}
    kinds |= {"xlm-r": _xlm_r(hf), "llama": _llama(hf), "clip": _clip(hf), **_byte_level(hf)}
    return {name: tokenizer.to_str() for name, tokenizer in kinds.items()}


def _train(hf: Any, tokenizer: Any, trainer: str, **options: Any) -> None:
    # The vocabulary of a Unigram model must have room for every character.
    read = 40 if trainer == "UnigramTrainer" else 600
    options = {"vocab_size": 2000, "show_progress": False, **options}
    tokenizer.train_from_iterator(texts(read, seed=9), getattr(hf.trainers, trainer)(**options))


def _bert(hf: Any, lowercase: bool) -> Any:
    tokenizer = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = hf.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = hf.decoders.WordPiece()
    _train(hf, tokenizer, "WordPieceTrainer", special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = hf.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    if not lowercase:
        tokenizer.post_processor = hf.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _words(hf: Any) -> Any:
    tokenizer = hf.Tokenizer(hf.models.WordLevel(unk_token="[unk]"))
    tokenizer.normalizer = hf.normalizers.Sequence(
        [hf.normalizers.NFKD(), hf.normalizers.StripAccents(), hf.normalizers.Lowercase(), hf.normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Sequence(
        [hf.pre_tokenizers.Whitespace(), hf.pre_tokenizers.Digits(True), hf.pre_tokenizers.Punctuation("contiguous")]
    )
    _train(hf, tokenizer, "WordLevelTrainer", special_tokens=["[unk]"])
    tokenizer.add_tokens([hf.AddedToken("quick", single_word=True), hf.AddedToken("oVer", lstrip=True, rstrip=True)])
    tokenizer.add_special_tokens([hf.AddedToken("<mask>", lstrip=True)])
    return tokenizer


def _unigram(hf: Any) -> Any:
    tokenizer = hf.Tokenizer(hf.models.Unigram())
    tokenizer.normalizer = hf.normalizers.Sequence([hf.normalizers.NFKC(), hf.normalizers.Nmt()])
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    tokenizer.decoder = hf.decoders.Metaspace()
    _train(hf, tokenizer, "UnigramTrainer", special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    tokenizer.post_processor = hf.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.enable_padding(direction="left", pad_id=0, pad_token="<pad>", pad_to_multiple_of=4)
    return tokenizer


def _xlm_r(hf: Any) -> Any:
    """Unigram as SentencePiece's files state it: a map of characters, and bytes for what has no token."""
    tokenizer = hf.Tokenizer(hf.models.Unigram())
    n = hf.normalizers
    replaced = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "e\u0301": "\u00e9", "\u200b": "", "\ufb01": "fi"}
    tokenizer.normalizer = n.Sequence([n.Precompiled(precompiled_map(replaced)), n.Replace(hf.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    tokenizer.decoder = hf.decoders.Sequence([hf.decoders.ByteFallback(), hf.decoders.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    _train(hf, tokenizer, "UnigramTrainer", special_tokens=special, unk_token="<unk>")
    stated = json.loads(tokenizer.to_str())
    stated["model"]["byte_fallback"] = True
    stated["added_tokens"] = stated["added_tokens"][:4]
    tokenizer = hf.Tokenizer.from_str(json.dumps(stated))
    tokenizer.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _llama(hf: Any) -> Any:
    """BPE over characters, with bytes for those that have no token."""
    tokenizer = hf.Tokenizer(hf.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    _train(hf, tokenizer, "BpeTrainer", special_tokens=special, limit_alphabet=120)
    tokenizer.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
    )
    d = hf.decoders
    tokenizer.decoder = d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    return tokenizer


def _clip(hf: Any) -> Any:
    tokenizer = hf.Tokenizer(hf.models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    n, p = hf.normalizers, hf.pre_tokenizers
    tokenizer.normalizer = n.Sequence([n.NFC(), n.Replace(hf.Regex(r"\s+"), " "), n.Lowercase()])
    words = p.Split(hf.Regex(CLIP), "removed", invert=True)
    tokenizer.pre_tokenizer = p.Sequence([words, p.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = hf.decoders.BPEDecoder()
    special = ["<|startoftext|>", "<|endoftext|>"]
    alphabet = p.ByteLevel.alphabet()
    _train(hf, tokenizer, "BpeTrainer", special_tokens=special, end_of_word_suffix="</w>", initial_alphabet=alphabet)
    tokenizer.post_processor = hf.processors.RobertaProcessing(
        ("<|endoftext|>", 1), ("<|startoftext|>", 0), False, False
    )
    return tokenizer


def _byte_level(hf: Any) -> dict[str, Any]:
    """One vocabulary with the pre-tokenizers and post-processors of several models."""
    trained = hf.Tokenizer(hf.models.BPE())
    p, post = hf.pre_tokenizers, hf.processors
    trained.pre_tokenizer = p.ByteLevel(add_prefix_space=False)
    trained.decoder = hf.decoders.ByteLevel()
    special = ["<s>", "</s>", "<|endoftext|>"]
    _train(hf, trained, "BpeTrainer", special_tokens=special, initial_alphabet=p.ByteLevel.alphabet())

    def like(splitter: Any, processor: Any, normalizer: Any = None) -> Any:
        tokenizer = hf.Tokenizer.from_str(trained.to_str())
        tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.normalizer = splitter, processor, normalizer
        return tokenizer

    def split(pattern: str) -> Any:
        return p.Sequence(
            [p.Split(hf.Regex(pattern), "isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    falcon = [p.Punctuation("contiguous"), p.ByteLevel(), p.Digits(), p.Split(hf.Regex("[0-9][0-9][0-9]"), "isolated")]
    start = post.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 0)])
    return {
        "gpt2": like(p.ByteLevel(add_prefix_space=False), post.ByteLevel(trim_offsets=False)),
        "roberta": like(p.ByteLevel(), post.RobertaProcessing(("</s>", 1), ("<s>", 0))),
        "llama 3": like(split(CL100K), post.Sequence([post.ByteLevel(trim_offsets=True), start])),
        "qwen": like(split(CL100K.replace("{1,3}", "")), post.ByteLevel(trim_offsets=False), hf.normalizers.NFC()),
        "falcon": like(p.Sequence(falcon), post.ByteLevel(trim_offsets=True)),
    }
