"""What all gateway processes do together: the supervisor hands each operation to every one, in the same order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from opgate.service.errors import Kind
from opgate.service.processes.child import Child
from opgate.service.processes.everywhere import READS
from opgate.service.processes.merging import add_past
from opgate.service.processes.messages import Outcome, packed
from opgate.service.processes.state import State

# Seconds in which every process must answer what only reads.
_MOST_READ = 5.0


@dataclass(eq=False)
class _Order:
    """An operation that processes run. `number` is that of the one that has asked for it."""

    asker: Child
    number: int
    operation: str
    arguments: tuple[Any, ...]
    waits_for: set[Child] = field(default_factory=set)
    outcomes: dict[Child, Outcome] = field(default_factory=dict)


class Orders:
    """The operations under way, and what those before have led to."""

    def __init__(self, children: Set[Child]) -> None:
        """`children` are the processes that run now."""
        self._children = children
        self._orders: dict[int, _Order] = {}
        self._numbers = itertools.count(1)
        self._state = State()
        self._past = b""  # the counters of processes that have died

    def join(self, child: Child) -> None:
        """Lets a process do what the others have done and do now."""
        for operation, arguments in self._state.operations():
            child.send("do", 0, operation, arguments)
        child.joined = True
        for number, order in self._orders.items():
            order.waits_for.add(child)
            child.send("do", number, order.operation, order.arguments)

    def run(self, asker: Child, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        """Lets every process run an operation, for one of them."""
        order = _Order(asker, number, operation, arguments, {child for child in self._children if child.joined})
        own = next(self._numbers)
        self._orders[own] = order
        if operation in READS:
            asyncio.get_running_loop().call_later(_MOST_READ, self._give_up, own)
        data = packed(("do", own, operation, arguments))
        for child in order.waits_for:
            child.writer.write(data)

    def did(self, child: Child, number: int, outcome: Outcome) -> None:
        """Takes what came of an operation in a process."""
        order = self._orders.get(number)
        if order is None:
            return  # nobody waits for it any more
        order.waits_for.discard(child)
        order.outcomes[child] = outcome
        if order.operation == "metrics" and outcome.error is None:
            child.metrics = outcome.value
        self._finish(number)

    def forget(self, child: Child) -> None:
        """Nobody waits any more for a process that has ended. It is no longer among the children."""
        if child.metrics:
            self._past = add_past(self._past, child.metrics)
        for number in list(self._orders):
            self._orders[number].waits_for.discard(child)
            self._finish(number)

    def _finish(self, number: int) -> None:
        """Answers the process that has asked, if no other still works at it."""
        order = self._orders[number]
        if order.waits_for:
            return
        del self._orders[number]
        # What a process counted that has died meanwhile is in the past.
        outcomes = [outcome for child, outcome in order.outcomes.items() if child in self._children]
        failed = sum(outcome.error is not None for outcome in outcomes)
        if not failed and outcomes:
            self._state.note(order.operation, order.arguments, outcomes[0].value)
        elif order.operation == "register" and failed < len(outcomes):  # no process may know it alone
            self.run(order.asker, 0, "unregister", order.arguments[:1])
        self._answer(order, outcomes)

    def _answer(self, order: _Order, outcomes: list[Outcome]) -> None:
        if order.asker in self._children:
            order.asker.send("done", order.number, outcomes, self._past)

    def _give_up(self, number: int) -> None:
        """Answers the process that has asked for something that not every process tells in time."""
        order = self._orders.pop(number, None)
        if order is not None:
            places = ", ".join(str(child.place) for child in order.waits_for)
            text = f"gateway process {places} did not tell its {order.operation} in {_MOST_READ:g} s"
            self._answer(order, [Outcome(error=(Kind.UNAVAILABLE.value, text))])
