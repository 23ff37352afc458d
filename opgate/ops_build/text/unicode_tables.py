"""Writes unicode_tables.inc: what Hugging Face's `tokenizers` knows of each code point.

The package is built from crates that know different versions of Unicode, so every table is read from its behaviour:

    python -m opgate.ops_build.text.unicode_tables > opgate/ops_build/text/unicode_tables.inc
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

from opgate.ops_build.text.samples import precompiled_map

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
OVERLAY, BELOW = "\u0334", "\u0316"  # combining classes 1 and 220


def matches(pattern: str) -> set[int]:
    """The code points that a class of a regular expression has in `tokenizers`."""
    splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    around = "\x00" if pattern != r"[^\x00]" else " "
    return {c for c in CODE_POINTS if c and len(splitter.pre_tokenize_str(around + chr(c) + around)) == 3}


def splits(splitter: pre_tokenizers.PreTokenizer) -> set[int]:
    """The code points at which a pre-tokenizer splits."""
    return {c for c in CODE_POINTS if len(splitter.pre_tokenize_str("x" + chr(c) + "x")) > 1}


def removed(normalizer: normalizers.Normalizer) -> set[int]:
    return {c for c in CODE_POINTS if normalizer.normalize_str(chr(c)) == ""}


def bert(*, clean_text: bool = False, strip_accents: bool = False) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=clean_text, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=False
    )


class Graphemes:
    """Finds out where `tokenizers` sees the borders of graphemes. A Precompiled normalizer shows them: it puts Z in
    place of a grapheme of at most five bytes if it knows the first character, and of that character alone in a longer
    one."""

    MARK, OTHER_MARK, ZWJ, VIRAMA = "\u0301", "\u0300", "\u200d", "\u094d"

    def __init__(self, known: str) -> None:
        self.known = known
        self.normalizer = normalizers.Precompiled(precompiled_map({known: "Z"}))

    def drops(self, text: str, behind: str) -> bool:
        """Whether `behind` belongs to the grapheme of the known character before it."""
        return not self.normalizer.normalize_str(text).endswith(behind)

    @classmethod
    def joins_before(cls) -> set[int]:
        """Extend, SpacingMark and ZWJ."""
        a = cls("a")
        return {c for c in CODE_POINTS if chr(c) != "a" and a.drops("a" + chr(c), chr(c))}

    @classmethod
    def breaks(cls) -> set[int]:
        """Control: the marks behind are a grapheme without it."""
        mark = cls(cls.MARK)
        return {c for c in CODE_POINTS if mark.drops(chr(c) + cls.MARK + cls.OTHER_MARK, cls.OTHER_MARK)}

    @classmethod
    def prepended(cls) -> set[int]:
        places = [
            c for c in CODE_POINTS if unicodedata.category(chr(c)) in ("Cf", "Lo", "Mn", "Mc", "Cn") and c < 0x20000
        ]
        return {c for c in places if c and cls(chr(c)).drops(chr(c) + "a", "a")}

    @classmethod
    def joined(cls, before: str, after: str, known: str) -> set[int]:
        """The code points that join `known` to what stands before it: before + c + after + known."""
        last = cls(known)
        return {
            c
            for c in CODE_POINTS
            if last.normalizer.normalize_str(before + chr(c) + after + known + cls.MARK).endswith(cls.MARK)
        }


def flags() -> list[tuple[str, Callable[[], set[int]]]]:
    """The names of the flags, in the order of their bits, and the code points that have each."""
    return [
        ("kSpace", lambda: splits(pre_tokenizers.WhitespaceSplit())),
        ("kNumeric", lambda: splits(pre_tokenizers.Digits(individual_digits=True))),
        ("kPunctuation", lambda: splits(pre_tokenizers.Punctuation())),
        ("kControl", lambda: removed(bert(clean_text=True))),
        ("kNonspacing", lambda: removed(bert(strip_accents=True))),
        ("kCombining", lambda: removed(normalizers.StripAccents())),
        ("kWord", lambda: set(CODE_POINTS) - splits(pre_tokenizers.Whitespace())),
        ("kNumber", lambda: matches(r"\p{N}")),
        ("kUpper", lambda: matches(r"[\p{Lu}\p{Lt}]")),
        ("kLower", lambda: matches(r"\p{Ll}")),
        ("kOtherLetter", lambda: matches(r"[\p{Lm}\p{Lo}]")),
        ("kMark", lambda: matches(r"\p{M}")),
        ("kJoinsBefore", Graphemes.joins_before),
        ("kBreaks", Graphemes.breaks),
        ("kPrepended", Graphemes.prepended),
        ("kPictographic", lambda: Graphemes.joined("", Graphemes.ZWJ, "\u00a9")),
        ("kExtends", lambda: Graphemes.joined("\u00a9", Graphemes.ZWJ, "\u00a9")),
        ("kConsonant", lambda: Graphemes.joined("", Graphemes.VIRAMA, "\u0915")),
        ("kLinker", lambda: Graphemes.joined("\u0915", "", "\u0915")),
        ("kConjunct", lambda: Graphemes.joined("\u0915", Graphemes.VIRAMA, "\u0915")),
    ]


def scripts() -> dict[int, int]:
    """A number for each code point: equal where UnicodeScripts sees one script, 0 where it sees any."""
    splitter, of = pre_tokenizers.UnicodeScripts(), dict.fromkeys(CODE_POINTS, 0)
    first: list[str] = []  # a character of each script
    known = [c for c in CODE_POINTS if splitter.pre_tokenize_str(chr(c))]
    for run, _ in splitter.pre_tokenize_str("".join(map(chr, known))):
        script = next((i for i, c in enumerate(first) if len(splitter.pre_tokenize_str(c + run[0])) == 1), len(first))
        if script == len(first):
            first.append(run[0])
        of.update((ord(c), script + 1) for c in run)
    return of


def changed(normalizer: normalizers.Normalizer) -> dict[int, str]:
    return {c: to for c in CODE_POINTS if (to := normalizer.normalize_str(chr(c))) != chr(c)}


def combining_classes() -> dict[int, int]:
    """The canonical combining classes other than 0. Python knows a newer Unicode: `tokenizers` knows the marks that it
    moves."""
    nfd, classes = normalizers.NFD().normalize_str, {}
    for c in CODE_POINTS:
        value = unicodedata.combining(chr(c))
        mark = chr(c)
        if value > 1 and nfd("a" + mark + OVERLAY) == "a" + OVERLAY + mark:
            classes[c] = value
        if value == 1 and nfd("a" + BELOW + mark) == "a" + mark + BELOW:
            classes[c] = value
    return classes


def compositions(canonical: dict[int, str]) -> dict[tuple[int, int], int]:
    """Pairs of code points and the one that they compose to, without those of Hangul."""
    nfc, pairs = normalizers.NFC().normalize_str, {}
    for c, parts in canonical.items():
        if 0xAC00 <= c < 0xD7A4 or len(parts) < 2 or nfc(parts) != chr(c):
            continue
        first = nfc(parts[:-1])
        if len(first) == 1:
            pairs[ord(first), ord(parts[-1])] = c
    return pairs


def numbers(values: Iterable[int]) -> str:
    lines, line = [], ""
    for value in values:
        text = f"{value},"
        if len(line) + len(text) > 120:
            lines.append(line)
            line = ""
        line += text
    return "\n".join([*lines, line])


def table(kind: str, name: str, values: Iterable[int]) -> None:
    print(f"constexpr {kind} {name}[] = {{\n{numbers(values)}}};")


def runs(of: dict[int, int]) -> Iterable[int]:
    """first, value for each run of code points with equal values."""
    before = -1
    for c in range(0x110000):
        value = of.get(c, 0)
        if value != before:
            yield from (c, value)
            before = value


def mapping(of: dict[int, str]) -> Iterable[int]:
    """The code point, the number of code points that it becomes, and those."""
    for c, to in sorted(of.items()):
        yield from (c, len(to), *map(ord, to))


def main() -> None:
    print(f"// Written by unicode_tables.py with tokenizers {__version__}.")
    of: dict[int, int] = {}
    for bit, (_, members) in enumerate(flags()):
        for c in sorted(members()):
            of[c] = of.get(c, 0) | 1 << bit
    hangul = range(0xAC00, 0xD7A4)
    canonical = changed(normalizers.NFD())
    compatible = {c: to for c, to in changed(normalizers.NFKD()).items() if canonical.get(c) != to}
    table("std::uint32_t", "kFlagRuns", runs(of))
    table("std::uint32_t", "kScriptRuns", runs(scripts()))
    table("std::uint32_t", "kClassRuns", runs(combining_classes()))
    table("std::uint32_t", "kCanonical", mapping({c: to for c, to in canonical.items() if c not in hangul}))
    table("std::uint32_t", "kCompatible", mapping(compatible))
    pairs = compositions(canonical)
    table("std::uint32_t", "kCompositions", (v for (a, b), c in sorted(pairs.items()) for v in (a, b, c)))
    table("std::uint32_t", "kLowercase", mapping(changed(normalizers.Lowercase())))


if __name__ == "__main__":
    main()
