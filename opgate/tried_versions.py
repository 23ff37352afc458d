"""The versions of engines that opgate's libraries were tried with. docs/versions.md has what came of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

#: The first and the last minor version by package.
TRIED: Mapping[str, tuple[str, str]] = {
    "onnxruntime": ("1.17", "1.32"),
    "onnxruntime-gpu": ("1.17", "1.32"),
    "torch": ("2.10", "2.15"),
    "jax": ("0.6", "0.12"),
    "openvino": ("2025.0", "2026.4"),
    "ai-edge-litert": ("1.1", "2.3"),
}


def untried(package: str, found: str | None = None) -> str:
    """Returns what to say of a version of an engine that is outside what was tried, "" for one that isn't or that is
    not installed. `found` is the version, that of the installed package if it is None."""
    if found is None:
        try:
            found = version(package)
        except PackageNotFoundError:
            return ""
    first, last = TRIED[package]
    number = _minor(found)
    if _minor(first) <= number <= _minor(last):
        return ""
    age = "older" if number < _minor(first) else "newer"
    return f"{package} {found} is {age} than what the op libraries were tried with: {first} to {last}"


def _minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
