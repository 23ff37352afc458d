"""The requests of a model that wait: the order in which they run, and how many may wait."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from itertools import count
from typing import TypeAlias

from opgate.service.core.request import Request
from opgate.service.core.spec import Batching, QueuePolicy

# The level of a request, whether its timeout is over, and the number of its arrival.
_Place: TypeAlias = tuple[int, bool, int]


class Line:
    """Requests that may share a batch, by level. In a level, those come last whose timeout is over, and otherwise the
    order is that of arrival.

    It has the methods of a deque that its users need.
    """

    __slots__ = ("_batching", "_entries", "_numbers", "_places", "_rows")

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._entries: list[tuple[_Place, Request]] = []  # in order
        self._places: dict[Request, _Place] = {}
        self._numbers = count()
        self._rows: Counter[int] = Counter()  # rows by level

    def append(self, request: Request) -> None:
        """Adds a request behind those of its level that are not late."""
        level = self._batching.level(request.options.priority)
        self._rows[level] += request.rows
        self._insert(request, (level, False, next(self._numbers)))

    def postpone(self, request: Request) -> None:
        """Moves a request whose timeout is over behind those of its level that are not late."""
        level, _, number = self._places[request]
        self._delete(request)
        self._insert(request, (level, True, number))

    def remove(self, request: Request) -> None:
        """Takes a request out."""
        _lower(self._rows, self._places[request][0], request.rows)
        self._delete(request)

    def popleft(self) -> Request:
        """Takes the first request out and returns it."""
        request = self[0]
        self.remove(request)
        return request

    def rows_before(self, level: int) -> int:
        """Returns how many rows wait in this level and in higher ones."""
        return sum([rows for other, rows in self._rows.items() if other <= level])

    @property
    def rank(self) -> tuple[int, bool, int]:
        """The level of the first request, whether it is late, and when it came. The least rank runs first."""
        (level, late, _), request = self._entries[0]
        return level, late, request.received_ns

    def __getitem__(self, index: int) -> Request:
        return self._entries[index][1]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._places

    def _insert(self, request: Request, place: _Place) -> None:
        self._places[request] = place
        self._entries.insert(self._index(place), (place, request))

    def _delete(self, request: Request) -> None:
        del self._entries[self._index(self._places.pop(request))]

    def _index(self, place: _Place) -> int:
        return bisect_left(self._entries, place, key=lambda entry: entry[0])


class Waiting:
    """The requests of a model that wait, in lines of those that may share a batch."""

    def __init__(self, batching: Batching, max_size: int) -> None:
        """No more than `max_size` requests may wait, and fewer if the policies of the config say so."""
        self.lines: dict[Hashable, deque[Request] | Line] = {}
        self.size = 0
        self.max_size = max_size
        if batching.policy.max_queue_size and not batching.priority_levels:
            self.max_size = min(max_size, batching.policy.max_queue_size)
        self._batching = batching
        # A deque is enough if the order is that of arrival, and nobody asks for rows.
        self._plain = batching.in_order and not batching.max_latency_ns
        self._of_level: Counter[int] | None = Counter() if batching.priority_levels else None

    def full_for(self, request: Request) -> int:
        """Returns how many requests wait if that leaves no place for another one, else 0."""
        if self.size >= self.max_size:
            return self.size
        if self._of_level is None:
            return 0
        level, limit = self._level(request), self.policy_of(request).max_queue_size
        return self._of_level[level] if limit and self._of_level[level] >= limit else 0

    def policy_of(self, request: Request) -> QueuePolicy:
        """Returns the policy of a request's level."""
        return self._batching.policy_of(self._level(request))

    def add(self, request: Request) -> None:
        """Adds a request to its line."""
        key = _line_of(request)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = deque() if self._plain else Line(self._batching)
        line.append(request)
        self.size += 1
        if self._of_level is not None:
            self._of_level[self._level(request)] += 1

    def remove(self, request: Request) -> bool:
        """Takes a request out. Returns whether it waited."""
        key = _line_of(request)
        line = self.lines.get(key)
        if line is None or request not in line:
            return False
        line.remove(request)
        self.size -= 1
        if self._of_level is not None:
            _lower(self._of_level, self._level(request), 1)
        if not line:
            del self.lines[key]
        return True

    def take(self, key: Hashable, requests: int) -> None:
        """Takes the first requests of a line out."""
        line = self.lines[key]
        for _ in range(requests):
            request = line.popleft()
            if self._of_level is not None:
                _lower(self._of_level, self._level(request), 1)
        self.size -= requests
        if not line:
            del self.lines[key]

    def postpone(self, request: Request) -> None:
        """Moves a request whose timeout is over behind those of its level that are not late, if it waits."""
        line = self.lines.get(_line_of(request))
        if isinstance(line, Line) and request in line:
            line.postpone(request)

    def ahead_of(self, request: Request) -> tuple[int, list[tuple[Hashable, int]]]:
        """Returns how many rows a new request has before it in its line, and for each other line the key of its
        requests and the rows that run before."""
        level = self._level(request)
        own_key = _line_of(request)
        own = 0
        others = []
        for key, line in self.lines.items():
            rows = line.rows_before(level) if isinstance(line, Line) else sum([waiting.rows for waiting in line])
            if key == own_key:
                own = rows
            else:
                others.append((line[0].key, rows))
        return own, others

    def order(self) -> deque[Hashable]:
        """Returns the keys of the lines in the order in which they get to run: by level, then the oldest first."""
        if len(self.lines) < 2:
            return deque(self.lines)
        if self._plain:
            return deque(sorted(self.lines, key=lambda key: self.lines[key][0].received_ns))
        return deque(sorted(self.lines, key=self._rank))

    def put_back(self, order: deque[Hashable], key: Hashable) -> None:
        """Puts a line that had its turn behind the others, but before those of lower levels."""
        if self._batching.in_order:
            order.append(key)
            return
        rank = self._rank(key)[:2]
        lower = (i for i, other in enumerate(order) if other in self.lines and self._rank(other)[:2] > rank)
        order.insert(next(lower, len(order)), key)

    def hold_back(self, order: deque[Hashable], key: Hashable) -> None:
        """Takes the lines of lower levels than that of a line out of `order`."""
        if self._of_level is not None:
            level = self._rank(key)[0]
            while order and (order[-1] not in self.lines or self._rank(order[-1])[0] > level):
                order.pop()

    def _rank(self, key: Hashable) -> tuple[int, bool, int]:
        line = self.lines[key]
        return line.rank if isinstance(line, Line) else (0, False, line[0].received_ns)

    def _level(self, request: Request) -> int:
        return self._batching.level(request.options.priority)


def _line_of(request: Request) -> Hashable:
    """Returns what the requests of a line have in common."""
    if request.group is None:
        return request.key, request.outputs
    return request.key, request.outputs, request.group


def _lower(counts: Counter[int], level: int, by: int) -> None:
    """Lowers the count of a level. One of nothing is not kept, because there may be very many levels."""
    counts[level] -= by
    if not counts[level]:
        del counts[level]
