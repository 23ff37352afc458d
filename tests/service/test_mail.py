"""The connection of a model in Python: both ends in one process, and an end that breaks its rules."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opgate.service.isolation import channel
from opgate.service.isolation.conversation import Conversation
from opgate.service.isolation.mail import MOST_BYTES, WINDOW, Mail, NoRoomError
from opgate.service.isolation.memory import SharedMemory

SIZE = 1 << 20


class Ends:
    """The gateway's end and the worker's."""

    def __init__(self) -> None:
        self.messages = SharedMemory.create("messages", channel.SIZE)
        self.tensors = SharedMemory.create("tensors", SIZE)
        self.to_worker, self.to_gateway = os.pipe(), os.pipe()
        os.set_blocking(self.to_worker[1], False)
        self.gateway = Mail(self.messages, self.tensors, self.to_worker[1], self.to_gateway[0], worker=False)
        self.worker = Mail(self.messages, self.tensors, self.to_gateway[1], self.to_worker[0], worker=True)

    def close(self) -> None:
        """Closes the pipes."""
        for file in (*self.to_worker, *self.to_gateway):
            os.close(file)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def array(value: float, count: int = 1000) -> np.ndarray[Any, Any]:
    return np.full(count, value, np.float32)


def test_messages_go_in_both_directions_with_their_tensors(ends: Ends) -> None:
    for sender, taker in ((ends.gateway, ends.worker), (ends.worker, ends.gateway)):
        strings = np.array(["ä", b"\xff", ""], np.object_)
        assert sender.send(["one", {"k": 1}], ["x", "s"], [array(3), strings])
        assert sender.send(["two"])
        message, tensors = taker.receive()
        assert message == ["one", {"k": 1}] and [name for name, _ in tensors] == ["x", "s"]
        np.testing.assert_array_equal(tensors[0][1], array(3))
        assert tensors[1][1].tolist() == ["ä", b"\xff", ""]
        assert taker.receive() == (["two"], [])


def test_what_was_taken_is_nobodys_later(ends: Ends) -> None:
    """The tensors of a message are copies: those of the next ones lie where they lay."""
    ends.gateway.send(["one"], ["x"], [array(1)])
    _, ((_, first),) = ends.worker.receive()
    ends.gateway.send(["two"], ["x"], [array(2)])
    assert (first == 1).all()
    _, ((_, second),) = ends.worker.receive()
    assert (second == 2).all() and (first == 1).all()


def test_many_are_under_way_and_their_room_is_used_again(ends: Ends) -> None:
    """Ten at once have room. Over time they take no more memory than that."""
    waiting = 0
    for number in range(500):
        assert ends.gateway.send([number], ["x"], [array(number, 2000)])
        waiting += 1
        if waiting == 10:
            for _ in range(7):
                (taken,), ((_, x),) = ends.worker.receive()
                assert (x == taken).all()
                waiting -= 1
    for _ in range(waiting):
        ends.worker.receive()
    used = os.fstat(ends.tensors.file).st_blocks * 512
    assert used <= 12 * 8192 + 4096


def test_a_side_without_room_waits_or_says_so(ends: Ends) -> None:
    large = array(1, SIZE // 2 // 4 - 1000)
    assert ends.gateway.send(["one"], ["x"], [large])
    assert not ends.gateway.send(["two"], ["x"], [large])
    sent: list[bool] = []
    ends.worker.send(["one"], ["x"], [large])
    thread = threading.Thread(target=lambda: sent.append(ends.worker.send(["two"], ["x"], [large])))
    thread.start()
    thread.join(0.1)
    assert not sent
    assert ends.gateway.receive()[0] == ["one"] and ends.worker.receive()[0] == ["one"]
    thread.join(10)
    assert sent == [True] and ends.gateway.receive()[0] == ["two"]
    assert ends.gateway.send(["two"], ["x"], [large])
    for message, tensors in ((["x" * MOST_BYTES], []), (["x"], [array(0, SIZE)])):
        with pytest.raises(NoRoomError, match="have room"):
            ends.worker.send(message, ["x"] * len(tensors), tensors)


def test_a_pipe_that_nobody_reads_holds_up_nobody(ends: Ends) -> None:
    count = 0
    while ends.gateway.send([count]):
        count += 1
    assert count > 1000
    assert [ends.worker.receive()[0][0] for _ in range(count)] == list(range(count))


RECORD = struct.Struct("<QQQ")
HALF = SIZE // 2


@pytest.mark.parametrize(
    "record",
    [
        RECORD.pack(0, 0, 10),  # the gateway's own half
        RECORD.pack(SIZE, 0, 10),
        RECORD.pack(HALF, 0, HALF + 1),
        RECORD.pack(HALF, HALF, 1),
        RECORD.pack(HALF, 1 << 63, 1 << 63),
        RECORD.pack((1 << 64) - 1, 0, 1),
        RECORD.pack(HALF, 0, MOST_BYTES + 1),
        b"x" * 7,
    ],
)
def test_records_that_name_no_message(ends: Ends, record: bytes) -> None:
    os.write(ends.to_gateway[1], record)
    with pytest.raises(ValueError, match=r"message|record"):
        ends.gateway.receive()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'["x", 3]',
        b"[" * 5000,
        b'["x", [["y", "<f4", [3], 0, 8]]]',
        b'["x", [["y", "<f4", [100], 0, 400]]]',
        b'["x", [["y", "<f4", [-1], 0, 4]]]',
        b'["x", [["y", "M8[s]", [1], 0, 8]]]',
        b'["x", [["y", "<f4", [1], -64, 4]]]',
        b'["x", [["y", "|O", [1000000000], 0, 64]]]',
        json.dumps(["x", [["y", "<f4", [16], 0, 64]] * 2]).encode(),
        b'["x", [7]]',
    ],
)
def test_blocks_that_are_no_message(ends: Ends, content: bytes) -> None:
    """A block has 64 bytes of tensors here."""
    ends.tensors.memory[HALF : HALF + 64] = bytes(64)
    ends.tensors.memory[HALF + 64 : HALF + 64 + len(content)] = content
    os.write(ends.to_gateway[1], RECORD.pack(HALF, 64, len(content)))
    with pytest.raises(ValueError):
        ends.gateway.receive()


def test_counts_that_a_worker_makes_up_free_nothing_too_early(ends: Ends) -> None:
    """It may only say that it has taken what was sent: what it says else does harm to itself alone."""
    ends.gateway.send(["one"], ["x"], [array(1)])
    struct.pack_into("<Q", ends.messages.memory, channel.COUNTS, 1 << 60)
    struct.pack_into("<Q", ends.messages.memory, channel.COUNTS + 8, 1 << 60)
    assert ends.gateway.taken_by_peer() <= 1
    for number in range(50):
        assert ends.gateway.send([number], ["x"], [array(2)])


# Conversations


def answering(ends: Ends) -> threading.Thread:
    """Plays a gateway that answers each call with two responses, the second when the first has been read."""

    def work() -> None:
        with pytest.raises((EOFError, OSError, ValueError)):
            while True:
                (kind, id, *_), tensors = ends.gateway.receive()
                if kind == "call":
                    ends.gateway.send(["result", id, False, None, {}], *zip(*tensors, strict=True))
                elif kind == "more":
                    ends.gateway.send(["result", id, True, None, {"last": id}])
                elif kind == "end":
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_threads_and_loops_ask_at_once(ends: Ends) -> None:
    talk = Conversation(ends.worker)
    gateway = answering(ends)
    found: list[float] = []

    def ask(value: float) -> None:
        question = talk.ask("call", [], [("x", array(value))])
        first, last = question.next(), question.next()
        assert not first.last and last.last and last.parameters == {"last": question.id}
        found.append(float(first.tensors[0][1][0]))

    async def ask_on_loop(value: float) -> None:
        question = talk.ask("call", [], [("x", array(value))])
        found.append(float((await question.next_on_loop()).tensors[0][1][0]))
        assert (await question.next_on_loop()).last

    async def several() -> None:
        await asyncio.gather(*[ask_on_loop(100 + i) for i in range(20)])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    threads += [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == sorted([*range(20), *[100 + i for i in range(20)] * 2])
    talk.say(["end", 0])
    gateway.join(10)


def test_a_sender_waits_for_its_client(ends: Ends) -> None:
    talk = Conversation(ends.worker)
    ends.gateway.send(["execute", [[7]]])
    assert talk.task()[0][0] == "execute"
    sent: list[int] = []

    def send() -> None:
        for i in range(WINDOW + 3):
            talk.respond(7, True, False, (), {}, [])
            sent.append(i)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(WINDOW):
        ends.gateway.receive()
    thread.join(0.1)
    assert len(sent) == WINDOW
    for _ in range(3):
        ends.gateway.send(["taken", 7])
    thread.join(10)
    assert len(sent) == WINDOW + 3


def test_a_request_that_nobody_wants(ends: Ends) -> None:
    talk = Conversation(ends.worker)
    ends.gateway.send(["execute", [[7], [8]]])
    talk.task()
    assert not talk.cancelled(7)
    ends.gateway.send(["cancel", 7])
    ends.gateway.send(["cancel", 99])
    assert talk.cancelled(7) and not talk.cancelled(8)
    talk.forget(7)
    assert not talk.cancelled(7)


def test_those_who_wait_learn_that_the_gateway_has_gone(ends: Ends) -> None:
    talk = Conversation(ends.worker)
    question = talk.ask("call", [], [])
    found: list[Any] = []

    def wait(what: Any) -> None:
        try:
            found.append(what())
        except EOFError:
            found.append(EOFError)

    threads = [threading.Thread(target=wait, args=(what,)) for what in (question.next, talk.task)]
    for thread in threads:
        thread.start()
    os.dup2(os.open("/dev/null", os.O_RDONLY), ends.to_worker[1])  # closes the writing end
    for thread in threads:
        thread.join(10)
    assert EOFError in found and len(found) == 2
