"""The words of --pre of requests that are no pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opgate.attach.model.report import AttachError, did_you_mean

#: Reads what stands behind the colon of a word. Gets the word's name and the text.
Reader = Callable[[str, str], Any]


def read(text: str, with_argument: Mapping[str, Reader], alone: Mapping[str, str]) -> dict[str, Any]:
    """Returns the value of each word by its name, or by what `alone` says of a word without an argument: then the word
    itself is the value. Raises AttachError for a word that is unknown or decides twice."""
    values: dict[str, Any] = {}
    stated: dict[str, str] = {}
    for word in text.split():
        name, colon, argument = word.partition(":")
        if name not in (with_argument if colon else alone):
            expected = ", ".join((*(f"{name}:…" for name in with_argument), *alone))
            raise AttachError(
                f"--pre: what is '{word}'?{did_you_mean(word, alone, with_argument)} Expected words such as {expected}"
            )
        decides = name if colon else alone[name]
        if decides in stated:
            raise AttachError(f"--pre: '{stated[decides]}' and '{word}' both say the {decides}")
        stated[decides] = word
        values[decides] = with_argument[name](name, argument) if colon else word
    return values


def whole(least: int, most: int) -> Reader:
    """Returns what reads a whole number within bounds."""

    def number(word: str, text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise AttachError(f"--pre: expected {word}:{least} to {word}:{most}, got '{word}:{text}'")
        return int(text)

    return number


def wholes(counts: Sequence[int], example: str) -> Reader:
    """Returns what reads some whole numbers from 1 with commas between them. `example` shows them."""

    def numbers(word: str, text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if len(parts) not in counts or not all(part.isdecimal() and 0 < int(part) <= 1 << 26 for part in parts):
            raise AttachError(f"--pre: expected {word}:{example}, got '{word}:{text}'")
        return tuple(map(int, parts))

    return numbers


def number(least: float, most: float) -> Reader:
    """Returns what reads a number within bounds."""

    def value(word: str, text: str) -> float:
        try:
            read = float(text)
        except ValueError:
            read = math.nan
        if not least <= read <= most:
            raise AttachError(f"--pre: expected {word}:{least:g} to {word}:{most:g}, got '{word}:{text}'")
        return read

    return value


def one_of(*names: str) -> Reader:
    """Returns what reads one of some names."""

    def name(word: str, text: str) -> str:
        if text not in names:
            near = did_you_mean(text, names)
            raise AttachError(
                f"--pre: expected {' or '.join(f'{word}:{each}' for each in names)}, got '{word}:{text}'.{near}"
            )
        return text

    return name
