"""What a model in Python says to the gateway and hears from it, from all of its threads and event loops.

No thread is there only to read. Whoever waits for something reads what comes, and hands it to those that it is for; a
thread that comes later waits until it has been handed something, or until it is its turn to read. Event loops read
when their selectors say that there is something.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opgate.service.isolation.mail import WINDOW, Mail
from opgate.service.isolation.memory import Array

Tensors = list[tuple[str, Array]]


class Answer(NamedTuple):
    """One of the answers to a question. `error` is a kind and a text, empty if there is none."""

    last: bool
    error: Sequence[str]
    parameters: Mapping[str, Any]
    tensors: Tensors


class Question:
    """A question to the gateway, and the answers that nobody has read yet."""

    def __init__(self, conversation: Conversation, id: int) -> None:
        self.id = id
        self.ended = False  # whether the last answer has been read, or nobody wants more
        self.came: deque[Answer] = deque()
        self.told: Callable[[], None] | None = None  # tells an event loop that an answer has come
        self._conversation = conversation

    def come(self, answer: Answer) -> None:
        """Takes an answer."""
        self.came.append(answer)
        if self.told is not None:
            self.told()

    def next(self) -> Answer:
        """Waits for the next answer. Raises EOFError if the gateway has gone."""
        self._conversation.wait(lambda: bool(self.came))
        return self._taken()

    async def next_on_loop(self) -> Answer:
        """Does the same without holding up the event loop."""
        conversation, loop = self._conversation, asyncio.get_running_loop()
        conversation.listen(loop)
        try:
            while not self.came:
                coming: asyncio.Future[None] = loop.create_future()

                def told(coming: asyncio.Future[None] = coming) -> None:
                    with contextlib.suppress(RuntimeError):  # the loop has been closed
                        loop.call_soon_threadsafe(lambda: None if coming.done() else coming.set_result(None))

                self.told = told
                conversation.poll()
                if not self.came:
                    await coming
                self.told = None
        except asyncio.CancelledError:
            self.drop()
            raise
        finally:
            conversation.unlisten(loop)
        return self._taken()

    def _taken(self) -> Answer:
        answer = self.came.popleft()
        if answer.last:
            self.ended = True
        else:
            self._conversation.say(["more", self.id])
        return answer

    def drop(self) -> None:
        """Lets the gateway know, when something is said next, that nobody wants more answers."""
        if not self.ended:
            self.ended = True
            self._conversation.drop(self.id)

    def cancel(self) -> None:
        """Tells the gateway at once that nobody wants more answers."""
        self.drop()
        self._conversation.say_what_is_left()


class Conversation:
    """The worker's side of the connection with the gateway."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for what another one reads
        self._reading = False
        self._gone = False
        self._ids = itertools.count(1)
        self._tasks: deque[tuple[list[Any], Tensors]] = deque()
        self._asked_ready = 0  # the number of the last question whether the model is ready, 0 if it has its answer
        self._questions: dict[int, Question] = {}
        self._untaken: dict[int, int] = {}  # responses to each request that has not had its last one, by its number
        self._cancelled: set[int] = set()
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}
        self._left: deque[int] = deque()  # questions whose answers nobody wants, from wherever an object ended
        self._readable = select.poll()
        self._readable.register(mail.wakes, select.POLLIN)

    # Saying.

    def say(self, message: Sequence[Any], tensors: Mapping[str, Array] | Tensors = ()) -> None:  # type: ignore[assignment]
        """Sends a message. Raises NoRoomError, and TypeError for a dtype that no tensor has."""
        pairs = list(tensors.items()) if isinstance(tensors, Mapping) else tensors
        if self._left:
            self.say_what_is_left()
        self._mail.send(message, [name for name, _ in pairs], [array for _, array in pairs])

    def say_what_is_left(self) -> None:
        """Tells the gateway which answers nobody wants any more."""
        while self._left:
            self._mail.send(["drop", self._left.popleft()])

    def ask(self, what: str, arguments: Sequence[Any], tensors: Tensors) -> Question:
        """Asks the gateway something. Raises as `say` does."""
        id = next(self._ids)
        question = Question(self, id)
        with self._lock:
            self._questions[id] = question
        try:
            self.say([what, id, arguments], tensors)
        except BaseException:
            with self._lock:
                del self._questions[id]
            raise
        return question

    def drop(self, id: int) -> None:
        """Gives up a question. It may be called wherever Python ends an object, so it sends nothing itself."""
        self._questions.pop(id, None)
        self._left.append(id)

    def respond(
        self, number: int, present: bool, final: bool, error: Sequence[str], parameters: Mapping[str, Any], of: Tensors
    ) -> None:
        """Sends a response to a request. Waits while the client has not taken those before it."""
        self.wait(lambda: self._untaken.get(number, 0) < WINDOW)
        with self._lock:
            self._untaken[number] = self._untaken.get(number, 0) + 1
        try:
            self.say(["response", number, present, final, list(error), dict(parameters)], of)
        except BaseException:
            with self._lock:
                self._untaken[number] -= 1
            raise

    def cancelled(self, number: int) -> bool:
        """Returns whether nobody waits for the response to a request any more."""
        self.poll()
        return number in self._cancelled

    def forget(self, number: int) -> None:
        """Forgets a request that has its last response."""
        with self._lock:
            self._untaken.pop(number, None)
            self._cancelled.discard(number)

    # Hearing.

    def task(self) -> tuple[list[Any], Tensors]:
        """Waits for what the gateway wants the model to do next. Raises EOFError if the gateway has gone."""
        self.say_what_is_left()
        self.wait(lambda: bool(self._tasks))
        return self._tasks.popleft()

    def asked_ready(self) -> int:
        """Waits until the gateway asks whether the model is ready, and returns the number of the question. Raises
        EOFError if the gateway has gone."""
        self.wait(lambda: self._asked_ready > 0)
        with self._lock:
            number, self._asked_ready = self._asked_ready, 0
        return number

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until something is so, and reads what comes meanwhile. Raises EOFError if the gateway has gone."""
        with self._lock:
            while not ready():
                if self._gone:
                    raise EOFError
                if self._reading:
                    self._waiting += 1
                    try:
                        self._changed.wait()
                    finally:
                        self._waiting -= 1
                else:
                    self._read_one()

    def poll(self) -> None:
        """Reads what has come, without waiting."""
        with self._lock:
            while not self._reading and not self._gone and self._readable.poll(0):
                self._read_one()

    def _read_one(self) -> None:
        self._reading = True
        self._lock.release()
        try:
            message, tensors = self._mail.receive()
        except (EOFError, OSError):
            message, tensors = ["gone"], []
        finally:
            self._lock.acquire()
            self._reading = False
            if self._waiting:
                self._changed.notify_all()  # they go on when this thread lets go of the lock
        self._hand_over(message, tensors)

    def _hand_over(self, message: list[Any], tensors: Tensors) -> None:
        kind = message[0]
        if kind == "result":
            _, id, last, error, parameters = message
            question = self._questions.pop(id, None) if last else self._questions.get(id)
            if question is not None:
                question.come(Answer(last, error or (), parameters, tensors))
        elif kind == "taken":
            number = message[1]
            if number in self._untaken:
                self._untaken[number] -= 1
        elif kind == "cancel":
            if message[1] in self._untaken:
                self._cancelled.add(message[1])
        elif kind == "ready":
            self._asked_ready = message[1]
        elif kind == "gone":
            self._gone = True
            for question in list(self._questions.values()):
                question.come(Answer(True, ("UNAVAILABLE", "the gateway has gone"), {}, []))
        else:
            if kind == "execute":
                self._untaken.update((envelope[0], 0) for envelope in message[1])
            self._tasks.append((message, tensors))

    # Event loops that read.

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets the running event loop read what comes, until `unlisten`."""
        count = self._loops.get(loop, 0)
        self._loops[loop] = count + 1
        if not count:
            loop.add_reader(self._mail.wakes, self.poll)

    def unlisten(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends what `listen` began."""
        self._loops[loop] -= 1
        if not self._loops[loop]:
            del self._loops[loop]
            loop.remove_reader(self._mail.wakes)
