"""What all gateway processes do together: the supervisor hands each operation to every one, in the same order."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opgate.service.all_processes import READS
from opgate.service.core.errors import Kind
from opgate.service.processes.child import SILENT, Child
from opgate.service.processes.messages import Outcome, error_of, packed
from opgate.service.processes.state import State, files_of
from opgate.service.telemetry.merging import add_past

# Seconds in which every process must answer what only reads.
_MOST_READ = 5.0


@dataclass(eq=False)
class _Order:
    """An operation that processes run. `number` is that of the one that has asked for it.

    A process that is `ready` has said what would come of the operation, and waits until it hears whether that is so
    everywhere.
    """

    asker: Child
    number: int
    operation: str
    arguments: tuple[Any, ...]
    waits_for: set[Child] = field(default_factory=set)
    ready: dict[Child, Outcome] = field(default_factory=dict)
    outcomes: dict[Child, Outcome] = field(default_factory=dict)
    decided: bool = False  # whether those that were ready have heard of each other
    answered: bool = False


class Orders:
    """The operations under way, and what those before have led to."""

    def __init__(self, children: Set[Child]) -> None:
        """`children` are the processes that run now."""
        self._children = children
        self._orders: dict[int, _Order] = {}
        self._numbers = itertools.count(1)
        self._state = State()
        self._folders: set[Path] = set()  # with the files that clients sent
        self._past = b""  # the counters of processes that have died

    def join(self, child: Child) -> None:
        """Lets a process do what the others have done and do now."""
        for operation, arguments in self._state.operations():
            child.send("do", 0, operation, arguments)
        child.joined = True
        for number, order in self._orders.items():
            if not order.decided:  # else it is in the state
                order.waits_for.add(child)
                child.send("do", number, order.operation, order.arguments)

    def run(self, asker: Child, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        """Lets every process run an operation, for one of them."""
        order = _Order(asker, number, operation, arguments, {child for child in self._children if child.joined})
        own = next(self._numbers)
        self._orders[own] = order
        self._folders |= files_of(operation, arguments)
        if operation in READS:
            asyncio.get_running_loop().call_later(_MOST_READ, self._end_read, own)
        data = packed(("do", own, operation, arguments))
        for child in order.waits_for:
            child.writer.write(data)
        self._answer_without(order, [child for child in order.waits_for if child.silent >= SILENT])

    def ready(self, child: Child, number: int, outcome: Outcome) -> None:
        """Takes what would come of an operation in a process, which waits for what comes of it in the others."""
        self._orders[number].ready[child] = outcome
        self._finish(number)

    def did(self, child: Child, number: int, outcome: Outcome) -> None:
        """Takes what came of an operation in a process."""
        order = self._orders.get(number)
        if order is None:
            return  # nobody waits for it any more
        order.waits_for.discard(child)
        order.ready.pop(child, None)
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
            self._orders[number].ready.pop(child, None)
            self._finish(number)

    def give_up(self, child: Child) -> None:
        """Answers those who wait for a process that is silent. What they asked for goes on."""
        for order in self._orders.values():
            if child in order.waits_for:
                self._answer_without(order, [child])

    def close(self) -> None:
        """Removes the files that clients sent."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _finish(self, number: int) -> None:
        """Answers the process that has asked, if no other still works at it."""
        order = self._orders[number]
        if order.waits_for - order.ready.keys():
            return
        if order.ready and not order.decided:
            self._decide(number, order)
        if order.waits_for:
            return
        del self._orders[number]
        # What a process counted that has died meanwhile is in the past.
        outcomes = [outcome for child, outcome in order.outcomes.items() if child in self._children]
        failed = sum(outcome.error is not None for outcome in outcomes)
        if not failed and outcomes and not order.decided:
            self._state.note(order.operation, order.arguments, outcomes[0].value)
        elif order.operation in ("register", "register_cuda") and failed < len(outcomes):
            self.run(order.asker, 0, f"un{order.operation}", order.arguments[:1])  # no process may know it alone
        self._remove_files()
        self._answer(order, outcomes)

    def _decide(self, number: int, order: _Order) -> None:
        """Lets the processes that are ready take what they have, if the same came of it in all of them."""
        order.decided = True
        outcomes = [*order.outcomes.values(), *order.ready.values()]
        error = error_of(outcomes)
        if error is None:
            self._state.note(order.operation, order.arguments, outcomes[0].value)
        if all(outcome.error is not None for outcome in outcomes):
            error = None
        for child in order.ready:
            child.send("decided", number, error)

    def _answer(self, order: _Order, outcomes: list[Outcome]) -> None:
        if order.asker in self._children and not order.answered:
            order.asker.send("done", order.number, outcomes, self._past)
        order.answered = True

    def _answer_without(self, order: _Order, silent: Iterable[Child]) -> None:
        """Answers who has asked for an operation that a process begins only when it isn't silent any more."""
        if order.operation in READS:
            return  # `_end_read` answers it
        for child in silent:
            text = (
                f"gateway process {child.place} has not answered for {SILENT} s: the {order.operation} holds in all "
                "when it answers again or another one has taken its place"
            )
            self._answer(order, [Outcome(error=(Kind.UNAVAILABLE.value, text))])

    def _end_read(self, number: int) -> None:
        """Answers the process that has asked for something that not every process tells in time."""
        order = self._orders.pop(number, None)
        if order is not None:
            places = ", ".join(str(child.place) for child in order.waits_for)
            text = f"gateway process {places} did not tell its {order.operation} in {_MOST_READ:g} s"
            self._answer(order, [Outcome(error=(Kind.UNAVAILABLE.value, text))])

    def _remove_files(self) -> None:
        """Removes the files that clients sent for models that serve no more."""
        used = self._state.files().union(*(files_of(each.operation, each.arguments) for each in self._orders.values()))
        for folder in self._folders - used:
            asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, folder, True)
        self._folders &= used
