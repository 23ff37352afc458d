"""The answers of a user's function and of a served model in one form, and how far they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from opgate.attach.model.report import AttachError

#: From which IoU on two boxes are one, and up to which part numbers differ that are the same: one minus the cosine of
#: vectors, or the difference of values.
MATCH, _APART = 0.5, 1e-3
_BOX_KEYS = ("box", "bbox", "xyxy", "bounding_box", "polygon", "quad")
_LABEL_KEYS = ("label", "class", "name", "class_name", "category", "text", "note", "word")
_SCORE_KEYS = ("score", "confidence", "conf", "probability", "prob")


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that was found: a box x1 y1 x2 y2, or none, its label, and its score, or None. A time is a box of the
    height 1."""

    box: tuple[float, ...] | None
    label: str
    score: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """An answer to one picture: things, a text, or a vector. The numbers of an `exact` one count, and not only its
    direction."""

    things: tuple[Found, ...] = ()
    text: str | None = None
    vector: tuple[float, ...] | None = None
    exact: bool = False

    @property
    def kind(self) -> str:
        """What the answer has, "" if it has nothing."""
        if self.vector is not None:
            return "a vector"
        if any(thing.box for thing in self.things):
            return "boxes"
        return "labels or a text" if self.things else ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two answers agree. `matched` things of `ours` and `theirs` are the same; `iou` is their mean IoU, None
    without boxes; `score` the largest difference of their scores; `labels` how many have the same label."""

    ours: int
    theirs: int
    matched: int
    labels: int
    iou: float | None
    score: float

    @property
    def equal(self) -> bool:
        """Whether both found the same things."""
        return self.ours == self.theirs == self.matched == self.labels


def of_server(answer: Mapping[str, Any]) -> Told:
    """Returns what /predict answered."""
    records = answer.get("predictions")
    if records is None:
        vectors = [value for value in answer["outputs"].values() if isinstance(value, list) and len(value) > 1]
        if len(vectors) == 1 and isinstance(vectors[0][0], float):
            return Told(vector=tuple(vectors[0]))
        raise AttachError("--like: the model answers with a map, which can't be compared yet")
    if records and "text" in records[0] and not any(key in records[0] for key in _BOX_KEYS):
        text = " ".join(record["text"] for record in records)  # the words of a sound
        return Told((Found(None, text, records[0].get("score") if len(records) == 1 else None),), text)
    if records and "value" in records[0]:
        return Told(vector=tuple(record["value"] for record in records), exact=True)
    return Told(tuple(_thing(record) for record in records))


def of_function(answer: Any, *, vector: bool = False) -> Told:
    """Returns what a function answered: a text or a label, a pair with a score, a dict, a list of those or of boxes, or
    a vector. `vector` says that the model answers with one: then numbers are one, however many they are. Raises
    AttachError for another form."""
    answer = _plain(answer)
    if answer is None:
        return Told()
    if vector and (numbers := _numbers(answer)) is not None:
        return Told(vector=numbers)
    if isinstance(answer, str):
        return Told((Found(None, answer, None),), answer)
    if vector and isinstance(answer, Real):
        return Told(vector=(float(answer),))
    if isinstance(answer, Mapping):
        if isinstance(answer.get("text"), str):
            return Told((_thing({**answer, "label": answer["text"]}),), answer["text"])
        return Told(tuple(_scored(answer) or [_thing(answer)]))
    if isinstance(answer, Sequence):
        if len(answer) == 2 and isinstance(answer[0], str) and isinstance(answer[1], Real):
            return Told((Found(None, answer[0], float(answer[1])),), answer[0])
        if len(answer) > 6 and all(isinstance(number, Real) for number in answer):
            return Told(vector=tuple(float(number) for number in answer))
        return Told(tuple(_thing(entry) for entry in answer))
    raise AttachError(f"--like: what is an answer of the type {type(answer).__name__}? See docs/from-a-model.md")


def _numbers(answer: Any) -> tuple[float, ...] | None:
    """Returns a list of numbers, also the only row of an array. None if it is something else."""
    while isinstance(answer, Sequence) and len(answer) == 1 and isinstance(answer[0], Sequence):
        answer = answer[0]
    if isinstance(answer, Sequence) and all(isinstance(number, Real) for number in answer):
        return tuple(float(number) for number in answer)
    return None


def _plain(value: Any) -> Any:
    """Returns arrays and numbers of NumPy as Python's."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def _scored(answer: Mapping[Any, Any]) -> list[Found]:
    """Returns the labels of {"cat": 0.9, "dog": 0.1}, the best first. Empty if it is no such dict."""
    known = (*_BOX_KEYS, *_LABEL_KEYS, *_SCORE_KEYS)
    if not answer or any(key in known or not isinstance(score, Real) for key, score in answer.items()):
        return []
    found = [Found(None, str(label), float(score)) for label, score in answer.items()]
    return sorted(found, key=lambda thing: -(thing.score or 0.0))


def _thing(entry: Any) -> Found:
    """Returns a thing: a dict, or a sequence of a box, a label and a score in any order, or six numbers."""
    if isinstance(entry, str):
        return Found(None, entry, None)
    if isinstance(entry, Mapping):
        if len(scored := _scored(entry)) == 1:
            return scored[0]
        if isinstance(entry.get("start"), Real) and isinstance(entry.get("end"), Real):
            entry = {"box": (entry["start"], 0, entry["end"], 1), **entry}
        box, label, score = (
            next((entry[key] for key in keys if key in entry), None) for keys in (_BOX_KEYS, _LABEL_KEYS, _SCORE_KEYS)
        )
        if box is not None or label is not None:
            return Found(None if box is None else _box(box), "" if label is None else str(label), _score(score))
    if isinstance(entry, Sequence) and 4 <= len(entry) <= 6 and all(isinstance(number, Real) for number in entry):
        score = float(entry[4]) if len(entry) > 4 else None
        label = str(int(entry[5])) if len(entry) > 5 else ""
        return Found(tuple(map(float, entry[:4])), label, score)
    if isinstance(entry, Sequence) and len(entry) >= 2 and all(isinstance(time, float) for time in entry[:2]):
        label = next((part for part in entry[2:] if isinstance(part, str)), "")
        return Found((entry[0], 0.0, entry[1], 1.0), label, None)
    if isinstance(entry, Sequence) and len(entry) in (2, 3):
        boxes = [part for part in entry if isinstance(part, Sequence) and not isinstance(part, str) and len(part) == 4]
        named = any(isinstance(part, str) for part in entry)
        scores = [float(part) for part in entry if isinstance(part, (float, int) if named else float)]
        labels = [str(part) for part in entry if isinstance(part, str if named else int)]
        nothing = sum(part is None for part in entry)
        if named and len(boxes) == 1 and len(labels) == 2:  # a score as a text
            return Found(_box(boxes[0]), labels[0], _score(labels[1]))
        if len(boxes) + len(scores) + len(labels) + nothing == len(entry) and (boxes or labels):
            return Found(_box(boxes[0]) if boxes else None, labels[0] if labels else "", scores[0] if scores else None)
    raise AttachError(
        f"--like: expected a dict with box, label and score, or (box, label, score), got {str(entry)[:100]}. A box is "
        "x1 y1 x2 y2 in pixels, and a time has start and end in seconds"
    )


def _box(value: Any) -> tuple[float, ...]:
    """Returns x1 y1 x2 y2, also of four points."""
    if isinstance(value, Sequence) and len(value) == 4:
        if all(isinstance(side, Real) for side in value):
            return tuple(map(float, value))
        if all(isinstance(point, Sequence) and len(point) == 2 for point in value) and all(
            isinstance(side, Real) for point in value for side in point
        ):
            xs, ys = ([float(point[axis]) for point in value] for axis in (0, 1))
            return min(xs), min(ys), max(xs), max(ys)
    raise AttachError(f"--like: expected a box x1 y1 x2 y2 or four points [x, y], got {str(value)[:100]}")


def _score(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise AttachError(f"--like: expected a number for a score, got {str(value)[:100]!r}") from None


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the intersection over the union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    inside = max(width, 0.0) * max(height, 0.0)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - inside
    return inside / union if union > 0 else 0.0


def agreement(ours: Told, theirs: Told) -> Agreement:
    """Compares two answers. Without boxes only the best thing of each counts. A vector agrees with nothing but a vector
    of its length."""
    if (ours.vector is None) != (theirs.vector is None):
        return Agreement(1, len(theirs.things[:1]) if theirs.vector is None else 1, 0, 0, None, 0.0)
    if ours.vector is not None and theirs.vector is not None:
        one, other = np.array(ours.vector), np.array(theirs.vector)
        apart = _apart(one, other) if ours.exact else 1 - _cosine(one, other)
        equal = int(apart < _APART)
        return Agreement(1, 1, equal, equal, None, apart)
    boxed = any(thing.box for thing in (*ours.things, *theirs.things))
    if not boxed:
        pairs = list(zip(ours.things[:1], theirs.things[:1], strict=False))
        counts = (len(ours.things[:1]), len(theirs.things[:1]))
        return _agreement(counts, [(one, other, None) for one, other in pairs])
    return _agreement((len(ours.things), len(theirs.things)), _matched(ours.things, theirs.things))


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference of two rows of numbers, as a part of the greatest magnitude."""
    if one.shape != other.shape:
        return 1.0
    greatest = float(np.abs(other).max(initial=0)) or 1.0
    difference = float(np.abs(one - other).max(initial=0)) / greatest
    return difference if np.isfinite(difference) else 1.0


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the cosine of the angle between two vectors, 0 where there is none."""
    if one.shape != other.shape:
        return 0.0
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if 0 < lengths < np.inf else 0.0


def _matched(ours: Sequence[Found], theirs: Sequence[Found]) -> list[tuple[Found, Found, float | None]]:
    """Pairs boxes, those with the largest IoU first. Equal labels come before others."""
    candidates = [
        (not _same(one, other), -iou(one.box, other.box), i, j)
        for i, one in enumerate(ours)
        for j, other in enumerate(theirs)
        if one.box and other.box and iou(one.box, other.box) >= MATCH
    ]
    pairs: list[tuple[Found, Found, float | None]] = []
    left, right = set[int](), set[int]()
    for _, negative, i, j in sorted(candidates):
        if i not in left and j not in right:
            left.add(i)
            right.add(j)
            pairs.append((ours[i], theirs[j], -negative))
    return pairs


def _same(one: Found, other: Found) -> bool:
    """Returns whether the labels are equal. A box without one agrees with any."""
    return one.label == other.label or (one.box is not None and not (one.label and other.label))


def _agreement(counts: tuple[int, int], pairs: Sequence[tuple[Found, Found, float | None]]) -> Agreement:
    overlaps = [overlap for *_, overlap in pairs if overlap is not None]
    scores = [
        abs(one.score - other.score) for one, other, _ in pairs if one.score is not None and other.score is not None
    ]
    return Agreement(
        *counts,
        len(pairs),
        sum(_same(one, other) for one, other, _ in pairs),
        sum(overlaps) / len(overlaps) if overlaps else None,
        max(scores, default=0.0),
    )
