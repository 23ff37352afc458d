"""The sequences that `opgate load` sends: requests with one id, each after the answer to the one before."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

#: How many requests a sequence has, if nobody says it.
USUAL_LENGTH = 10
#: The first id. All have 16 digits, so that requests of all ids are equally long.
_FIRST_ID = 10**15


def length_of(asked: int | None, serves_sequences: bool) -> int:
    """Returns how many requests a sequence has, 0 for single requests. `asked` is None if nobody says it."""
    if asked is not None:
        return asked
    return USUAL_LENGTH if serves_sequences else 0


@dataclass(slots=True)
class Turn:
    """The place of a request in its sequence: `index` of `length`."""

    id: int
    index: int
    length: int

    @property
    def start(self) -> bool:
        """Whether it is the first request of its sequence."""
        return self.index == 0

    @property
    def end(self) -> bool:
        """Whether it is the last request of its sequence."""
        return self.index == self.length - 1


class Sequences:
    """Sequences of so many requests. There are as many at once as requests are under way."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._next_id = _FIRST_ID + random.randrange(10**15)  # a server may still know those of another run
        self._idle: deque[Turn] = deque()
        self._last: deque[Turn] = deque()

    def take(self) -> Turn:
        """Returns the turn of the next request: of the sequence that waits longest, or of a new one."""
        for waiting in (self._last, self._idle):
            if waiting:
                return waiting.popleft()
        self._next_id += 1
        return Turn(self._next_id, 0, self.length)

    def end(self) -> int:
        """Makes the next request of each sequence that waits its last one. Returns how many are new among these."""
        count = len(self._idle)
        while self._idle:
            turn = self._idle.popleft()
            self._last.append(Turn(turn.id, turn.index, turn.index + 1))
        return count

    def answered(self, turn: Turn, error: str | None) -> None:
        """Lets a sequence go on after an answer. One with an error ends."""
        if error is None and not turn.end:
            self._idle.append(Turn(turn.id, turn.index + 1, turn.length))
