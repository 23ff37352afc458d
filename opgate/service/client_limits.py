"""How many requests a client may send in a second, over HTTP and gRPC alike."""

from __future__ import annotations

import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

_FORM = re.compile(r"(?:([\w.-]+):([^=:\s]+)=(.+)|\*):(\d+(?:\.\d+)?)")
#: What everybody is called who has no name.
OTHERS = "*"
# Addresses whose requests are counted. The one that was silent for longest is forgotten first.
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """The requests that a client may send in a second. It is known by a header with a value. The limit of `OTHERS` is
    that of each address from which requests without such a header come."""

    name: str
    header: str  # in lower case
    value: str
    rate: float


def read_limits(text: str) -> list[ClientLimit]:
    """Reads "name:header=value:rate" and "*:rate", joined by semicolons. Raises ValueError that says what is wrong."""
    limits: list[ClientLimit] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _FORM.fullmatch(part)
        if match is None:  # the part may have a secret in it
            raise ValueError("expected <name>:<header>=<value>:<requests per second>, or *:<requests per second>")
        name, header, value, rate = match.groups()
        if not float(rate):
            raise ValueError("the requests per second must be more than 0")
        if any(limit.name == (name or OTHERS) for limit in limits):
            raise ValueError(f"client '{name or OTHERS}' has two limits")
        limits.append(ClientLimit(name or OTHERS, (header or "").lower(), value or "", float(rate)))
    return limits


class _Bucket:
    """Lets so many requests through in a second, and as many at once, at least one."""

    __slots__ = ("left", "since")

    def __init__(self) -> None:
        self.left = -1.0  # nobody has asked yet
        self.since = 0.0

    def take(self, rate: float, now: float) -> float:
        """Lets a request through and returns 0, or returns the seconds until one will be let through."""
        most = max(1.0, rate)
        self.left = most if self.left < 0 else min(most, self.left + (now - self.since) * rate)
        self.since = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class ClientLimits:
    """Counts the requests of the clients of a gateway process. Only the event loop's thread uses it."""

    def __init__(self, limits: Iterable[ClientLimit]) -> None:
        self._named = [limit for limit in limits if limit.name != OTHERS]
        self._others = next((limit for limit in limits if limit.name == OTHERS), None)
        self._buckets = {limit.name: _Bucket() for limit in self._named}
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()
        self.refused: Counter[str] = Counter()  # by client

    def take(self, headers: Iterable[tuple[str, str | bytes]], peer: str) -> tuple[str, float, float]:
        """Counts a request. Returns its client, the limit, and the seconds that the client must wait: 0 if the request
        is within the limit. `peer` is the client's address."""
        limit, bucket = self._of(headers, peer)
        if limit is None:
            return OTHERS, 0.0, 0.0
        seconds = bucket.take(limit.rate, monotonic())
        if seconds:
            self.refused[limit.name] += 1
        return limit.name, limit.rate, seconds

    def _of(self, headers: Iterable[tuple[str, str | bytes]], peer: str) -> tuple[ClientLimit | None, _Bucket]:
        given = [
            (name, value if isinstance(value, bytes) else value.encode("latin-1", "replace")) for name, value in headers
        ]
        for limit in self._named:
            for name, value in given:
                if name == limit.header and hmac.compare_digest(value, limit.value.encode()):
                    return limit, self._buckets[limit.name]
        bucket = self._addresses.pop(peer, None) or _Bucket()
        self._addresses[peer] = bucket
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        return self._others, bucket
