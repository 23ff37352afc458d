"""The labels of a network: from its metadata, a file, or the command line."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from opgate.attach.model.report import AttachError, Report, did_you_mean

#: Where exporters write labels in the metadata.
KEYS = ("names", "character", "labels", "label", "classes", "class_names", "id2label")
#: The heads without labels, and what is said of any.
_WITHOUT = {
    "db": "db finds regions of text, which have no labels",
    "outputs": "outputs are answered as they are, without labels",
    "speech": "speech has no labels",
    "embed": "embed answers with a vector, which has no labels",
}
_SCALE = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
_FACES = ("blazeface", "scrfd")
#: The names of MIDI's 128 notes.
_NOTES = [f"{_SCALE[number % 12]}{number // 12 - 1}" for number in range(128)]


def read(
    said: str,
    metadata: Mapping[str, str],
    kind: str,
    report: Report,
    option: str = "--labels",
    beside: tuple[str, Sequence[str]] = ("", ()),
) -> list[str] | None:
    """Returns the labels, None if nobody states any. `said` is the option: metadata, a file, or a list with commas;
    `kind` the head. `option` is the option that says it, for messages. `beside` is the name of a file beside the
    network, and the labels in it.

    Raises AttachError.
    """
    if kind in _WITHOUT:
        if said:
            raise AttachError(f"{option}: {_WITHOUT[kind]}")
        return None
    if said in ("", "metadata"):
        for key in KEYS:
            labels = listed(metadata.get(key, ""))
            if labels:
                (report.said if said else report.found)("labels", len(labels), f"metadata '{key}'")
                return labels
        if not said and beside[1]:
            report.found("labels", len(beside[1]), beside[0])
            return list(beside[1])
        if said:
            raise AttachError(f"{option}: the metadata has none: it has {', '.join(metadata) or 'nothing'}")
        if kind == "notes":
            report.default("labels", "C-1 to G9", "MIDI's 128 notes")
            return list(_NOTES)
        if kind in _FACES:
            report.default("labels", "face", f"what {kind} finds")
            return ["face"]
        report.default("labels", "none", "answers have numbers; --labels FILE or a,b,c names them")
        return None
    path = Path(said)
    if path.is_file():
        labels = from_file(path)
        report.said("labels", len(labels), path.name)
        return labels
    if option != "--labels":
        raise AttachError(
            f"{option}{said}: expected metadata, or a file with one character a line, and there is no such file."
            f"{_near(path)}"
        )
    if "," not in said:
        raise AttachError(
            f"--labels: '{said}' is no file: expected one, metadata, or names with commas between them.{_near(path)}"
        )
    labels = [part.strip() for part in said.split(",")]
    report.said("labels", len(labels))
    return labels


def count_in(metadata: Mapping[str, str]) -> int:
    """Returns how many labels the metadata have, 0 without any."""
    return next((len(labels) for key in KEYS if (labels := listed(metadata.get(key, "")))), 0)


def _near(path: Path) -> str:
    """Returns the question whether metadata or another file of the folder was meant."""
    beside = {file.name for file in path.parent.iterdir() if file.is_file()} if path.parent.is_dir() else set()
    return did_you_mean(path.name, {"metadata", *beside})


def from_file(path: Path) -> list[str]:
    """Returns the labels in a file: one a line, or a list or an object of JSON. Raises AttachError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise AttachError(f"--labels: {path} is no text: expected one label a line, in UTF-8") from None
    except OSError as error:
        raise AttachError(f"{path}: {error}") from None
    if path.suffix == ".json":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AttachError(f"{path} is no JSON: {error}") from None
        labels = of_config(text) or listed(text)
        if labels is None:
            raise AttachError(f"{path}: expected a list of names, or an object of numbers and names")
        return labels
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n")


def of_config(text: str) -> list[str] | None:
    """Returns the labels in a config.json of Hugging Face, None if it has none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return of_config_object(config) if isinstance(config, dict) else None


def of_config_object(config: Mapping[str, object]) -> list[str] | None:
    """Returns the labels in what a config.json of Hugging Face has, None if it has none."""
    for key in ("id2label", "label2id"):
        if isinstance(config.get(key), dict):
            return listed(json.dumps(config[key]))
    return None


def fitted(
    labels: Sequence[str] | None, classes: int, kind: str, blank: int, report: Report, *, counted: bool = False
) -> list[str] | None:
    """Returns a label for each class. A list for CTC may lack the blank and the space. `counted` says that --post may
    say how many of the head's channels are classes. Raises AttachError."""
    if labels is None:
        return None
    found = list(labels)
    if kind == "ctc" and len(found) in (classes - 1, classes - 2):
        added = ["the blank"]
        if len(found) == classes - 2:
            found.append(" ")
            added.append("a space at the end")
        found.insert(blank, "")
        report.default("characters", f"{len(labels)}, and {' and '.join(added)}", f"the output has {classes} classes")
    if classes and len(found) != classes:
        hint = f"; if only {len(found)} channels are classes, say classes:{len(found)} behind {kind}" if counted else ""
        wanted = f"{classes - 2} to {classes}" if kind == "ctc" else f"{classes}"
        raise AttachError(
            f"--labels: expected {wanted} labels, one for each class of the output, got {len(found)}{hint}"
        )
    broken = [label for label in found if "\n" in label or "\r" in label]
    if broken:
        raise AttachError(f"--labels: a label with a line break: {broken[0]!r}")
    return found


def listed(text: str) -> list[str] | None:
    """Reads a list of names in the forms that exporters write: JSON, Python's, lines or commas. None if it is none."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            return _numbered(value)
        if isinstance(value, (list, tuple)):
            return [str(entry) for entry in value]
    if "\n" in text:
        return text.split("\n")
    return [part.strip() for part in text.split(",")] if "," in text else None


def _numbered(value: Mapping[object, object]) -> list[str] | None:
    """Returns the names of {0: name, ...} in the order of their numbers, also of {name: number}."""
    if value and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value.values()):
        value = {number: name for name, number in value.items()}
    try:
        numbers = {int(str(key)): str(name) for key, name in value.items()}
    except ValueError:
        return None
    return [numbers.get(number, str(number)) for number in range(max(numbers, default=-1) + 1)]
