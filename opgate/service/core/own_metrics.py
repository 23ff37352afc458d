"""Metrics that models in Python have of their own, as `pb_utils.MetricFamily` makes them."""

from __future__ import annotations

import bisect
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

logger = logging.getLogger("opgate.metrics")

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
# The gateway's own names begin so.
_TAKEN = ("nv_", "opgate_", "process_", "python_")
# Numbers of all models, labels of one and characters of a text.
_MOST_NUMBERS, _MOST_LABELS, _MOST_BUCKETS, _MOST_TEXT = 10_000, 32, 100, 1000

Labels = tuple[tuple[str, str], ...]


@dataclass
class _Number:
    value: float = 0.0  # of a histogram, the sum
    buckets: Sequence[float] = ()
    counts: list[int] = field(default_factory=list)  # of each bucket, and of what is above them


@dataclass
class _Family:
    kind: str
    text: str
    numbers: dict[Labels, _Number] = field(default_factory=dict)


class OwnMetrics:
    """The numbers of all models. Instances and models that use one name with the same labels share a number.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def change(
        self,
        model: str,
        name: str,
        kind: str,
        text: str,
        labels: Mapping[str, str],
        buckets: Sequence[float],
        how: str,
        value: float,
    ) -> None:
        """Makes a number if it isn't there, and changes it: `how` is "make", "increment", "set" or "observe".

        What can't be is not done, and the log says so once for each name.
        """
        with self._lock:
            refused = self._change(name, kind, text, tuple(sorted(labels.items())), buckets, how, value)
            if not refused or (known := f"{model} {name}"[:300]) in self._told or len(self._told) > _MOST_NUMBERS:
                return
            self._told.add(known)
        logger.warning("model '%s': the metric '%s': %s", model, name[:100], refused, extra={"model": model})

    def value(self, name: str, labels: Mapping[str, str]) -> float:
        """Returns a number. Raises KeyError if there is none, or if it is a histogram."""
        with self._lock:
            family = self._families[name]
            if family.kind == HISTOGRAM:
                raise KeyError(name)
            return family.numbers[tuple(sorted(labels.items()))].value

    def _change(
        self, name: str, kind: str, text: str, labels: Labels, buckets: Sequence[float], how: str, value: float
    ) -> str:
        if not _NAME.fullmatch(name) or name.startswith(_TAKEN):
            return f"expected letters, digits and _, and no name that begins with {', '.join(_TAKEN)}"
        if kind not in (COUNTER, GAUGE, HISTOGRAM) or list(buckets) != sorted(set(buckets)):
            return "expected a kind, and buckets that rise"
        if len(labels) > _MOST_LABELS or any(not _LABEL.fullmatch(key) for key, _ in labels):
            return f"expected at most {_MOST_LABELS} labels, whose names have letters, digits and _"
        if len(buckets) > _MOST_BUCKETS or any(not _is_text(value) for value in (text, *(v for _, v in labels))):
            return f"expected at most {_MOST_BUCKETS} buckets, and texts of {_MOST_TEXT} characters of Unicode"
        family = self._families.get(name)
        if family is not None and family.kind != kind:
            return f"another one is a {family.kind}"
        number = None if family is None else family.numbers.get(labels)
        if number is None:
            size = 1 + len(buckets)
            if self._count + size > _MOST_NUMBERS:
                return f"there are {_MOST_NUMBERS} numbers of models"
            self._count += size
            family = family or self._families.setdefault(name, _Family(kind, text))
            number = family.numbers[labels] = _Number(0.0, tuple(buckets), [0] * (len(buckets) + 1))
        if how == "observe":
            number.value += value
            number.counts[bisect.bisect_left(number.buckets, value)] += 1
        elif how != "make":
            number.value = value if how == "set" else number.value + value
        return ""

    def lines(self) -> Iterator[str]:
        """Yields the metrics in the text format of Prometheus. The package would add _total to names of counters."""
        with self._lock:
            families = {name: (f.kind, f.text, list(f.numbers.items())) for name, f in self._families.items()}
        for name, (kind, text, numbers) in families.items():
            yield f"# HELP {name} {_escaped(text)}\n# TYPE {name} {kind}\n"
            for labels, number in numbers:
                own = [f'{key}="{_escaped(value, quotes=True)}"' for key, value in labels]
                if kind != HISTOGRAM:
                    yield _sample(name, own, number.value)
                    continue
                ends = [*map(floatToGoString, number.buckets), "+Inf"]
                for end, count in zip(ends, itertools.accumulate(number.counts), strict=True):
                    yield _sample(f"{name}_bucket", [*own, f'le="{end}"'], count)
                yield _sample(f"{name}_sum", own, number.value)
                yield _sample(f"{name}_count", own, sum(number.counts))


def _is_text(text: str) -> bool:
    try:
        return len(text) <= _MOST_TEXT and len(text.encode()) >= len(text)
    except UnicodeEncodeError:
        return False


def _escaped(text: str, quotes: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quotes else escaped


def _sample(name: str, labels: Sequence[str], value: float) -> str:
    write: Callable[[float], str] = floatToGoString  # the package has no types
    return f"{name}{{{','.join(labels)}}} {write(value)}\n" if labels else f"{name} {write(value)}\n"
