"""Drives a build of the module `connection` with the inputs of the corpus: `drive_module.py MODULE`.

test_fuzz.py runs it with a module that the sanitizers watch.
"""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections import Counter

import make_corpus

CALL, OPEN, MESSAGE, END, GONE, REFUSED = range(6)
METHODS = {make_corpus.UNARY: 0, make_corpus.STREAM: 3}
LARGE = bytes(range(256)) * 80


def load(path):
    """Loads the module from this file."""
    spec = importlib.util.spec_from_file_location("connection", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Drive:
    """One connection, which gets the bytes of an input. `way` says how its calls are answered."""

    def __init__(self, module, text, way):
        flags, cut, script, self.bytes = make_corpus.expanded(text)
        self.script, self.way, self.at = script or b"\0", way, 0
        self.module = module
        self.budget = module.Budget(4096 if flags & make_corpus.POOR else 4 << 20)
        self.connection = module.Connection(METHODS, self.budget, 1400 << 10, 2048, 24, 1 << 30)
        self.step = max(cut, len(self.bytes) // 300 + 1) if cut else len(self.bytes)
        self.streams, self.kept, self.sent = [], [], []
        self.events = Counter()

    def next(self):
        """Returns a byte that decides."""
        self.at += 1
        return self.script[self.at % len(self.script)]

    def run(self):
        """Feeds all bytes, and deletes the connection with what is under way. Returns the counts of its events."""
        for at in range(0, len(self.bytes), self.step):
            piece = self.bytes[at : at + self.step]
            try:
                events = self.connection.receive((bytes, bytearray, memoryview)[self.way % 3](piece))
            except self.module.ProtocolError:
                self.events["failure"] += 1
                self.output(1 << 20)
                break
            self.handle(events)
            self.act(self.next())
        self.connection.go_away(True)
        self.output(1 << 20)
        assert self.connection.unsent >= 0 and self.connection.calls <= 24
        del self.connection
        assert self.budget.used == 0, self.budget.used
        # Messages and what was not copied outlive the connection.
        self.events["bytes"] = sum(map(sum, self.kept)) + len(b"".join(self.sent))
        return self.events

    def handle(self, events):
        """Does what a server does with events."""
        for event in events:
            kind, stream = event[:2]
            self.events[kind] += 1
            if kind in (CALL, OPEN):
                self.streams.append(stream)
            if kind == CALL:
                assert event[2] == 0 and type(event[4]) is bytes and type(event[5]) is bool
                self.kept.append(event[4])
                self.answer(stream, event[4])
            elif kind == OPEN:
                assert event[2] == 1
                self.connection.begin(stream, [("x-first", "1")], "")
            elif kind == MESSAGE:
                self.kept.append(event[2])
                self.connection.send(stream, self.message(event[2]), event[3])
                if self.way != 2:
                    self.connection.consume(stream, len(event[2]))
            elif kind == END and self.way != 3:
                self.connection.end(stream, 0, "", [("x-last", "2")], None)

    def message(self, text):
        """Returns a message that echoes a text."""
        floats = array("f", range(3000))
        if self.way == 0:
            return text
        if self.way == 1:
            return [memoryview(text), memoryview(floats), b"", memoryview(floats)[7:90], memoryview(LARGE)[9:]]
        return [text, floats, bytearray(text), LARGE]

    def answer(self, stream, text):
        """Answers a unary call, or not."""
        connection, trailers = self.connection, [("x-last", "2"), ("x-bin", "AAAA")]
        if self.way < 2:
            connection.answer(stream, self.message(text), trailers, None, bool(self.way), "gzip" if self.way else "")
        elif self.way == 2:
            connection.begin(stream, trailers, "")
            connection.send(stream, self.message(text), False)
            connection.end(stream, 13, "100 % wrong\n\xff", trailers, None)

    def act(self, choice):
        """Does something between two pieces."""
        more = choice // 16
        stream = self.streams[more % len(self.streams)] if self.streams else 1
        if choice % 8 == 1:
            self.output(more * 64)
        elif choice % 8 == 2:
            self.handle(self.connection.sweep(more % 4, more // 4))
        elif choice % 8 == 3:
            self.connection.ping()
            self.connection.go_away(more > 12)
        elif choice % 8 == 4:
            if not self.connection.hold(stream, more * 900):
                self.connection.end(stream, 8, "over", None, None)
            self.connection.hold(stream, -300)
        elif choice % 8 == 5:
            self.mistakes(stream)
        elif choice % 8 == 6:
            return  # takes nothing
        self.output(1 << 16)
        assert self.connection.waiting(stream) <= self.connection.unsent

    def output(self, most):
        """Takes output."""
        self.sent += self.connection.output(most)

    def mistakes(self, stream):
        """Calls with what they can't take. They raise, and leave the call as it is."""
        connection, module, unsent = self.connection, self.module, self.connection.unsent
        payload = b"a payload " + bytes([self.way])
        references = sys.getrefcount(payload)
        for pairs in ([("Upper", "x")], [(":path", "x")], [("", "x")], [("x", "a\nb")], [("x", "ok"), ("y", "\0")]):
            raises(ValueError, connection.begin, stream, pairs, "")
            raises(ValueError, connection.end, stream, 0, "", pairs, None)
            raises(ValueError, connection.end, stream, 0, "", None, pairs)
            raises(ValueError, connection.answer, stream, [payload], pairs, None, False, "")
        for pairs in (5, [5], [("x",)], [("x", 5)], [["x", "y"]], [("x", "y", "z")], {"x": "y"}):
            raises(TypeError, connection.begin, stream, pairs, "")
            raises(TypeError, connection.answer, stream, [payload], None, pairs, False, "")
        gaps = (memoryview(LARGE)[::2], memoryview(LARGE)[::-1], [memoryview(array("f", range(9)))[::-3]])
        for message in (*gaps, "text", None, 5, [payload, 5], [payload, None], [payload, [payload]], (payload,)):
            raises(TypeError, connection.send, stream, message, False)
            raises(TypeError, connection.answer, stream, message, None, None, False, "")
        raises(TypeError, connection.receive, "text")
        raises(TypeError, connection.receive, None)
        raises(TypeError, connection.sweep, 1)
        raises(TypeError, connection.hold, stream, 1.5)
        raises(TypeError, connection.consume, stream, "1")
        raises(TypeError, connection.end, stream, 0, None, None, None)
        raises(TypeError, connection.output, "1")
        raises(TypeError, connection.waiting, "1")
        raises(ValueError, connection.output, -1)
        raises(ValueError, connection.begin, stream, None, "a\0b")
        raises(OverflowError, connection.begin, 1 << 40, None, "")
        raises(OverflowError, connection.output, 1 << 80)
        raises(TypeError, module.Budget, "1")
        raises(TypeError, module.Connection, [], self.budget, 1, 1, 1)
        raises(TypeError, module.Connection, {}, None, 1, 1, 1)
        connection.hold(stream, -(1 << 63))  # gives back no more than is held
        assert connection.unsent == unsent
        for none in (0, 2, -1, 1 << 30):  # streams that a client can't open, or has not opened
            connection.begin(none, None, "")
            connection.send(none, [payload, memoryview(payload)], False)
            connection.answer(none, payload, None, None, False, "")
            connection.consume(none, 1 << 20)
            assert connection.hold(none, 1 << 20) and connection.waiting(none) == 0
        del message
        assert connection.unsent == unsent and sys.getrefcount(payload) == references
        self.events["mistakes"] += 1


def raises(error, function, *arguments):
    """Checks that a call raises exactly this error."""
    try:
        function(*arguments)
    except error as raised:
        assert type(raised) is error, repr(raised)
    else:
        raise AssertionError(f"{function.__name__}{arguments} raised nothing")


def check_bytes(module):
    """Sends one message in parts of many kinds, and looks whether all bytes of it go."""
    floats = array("f", range(5000))
    parts = [
        b"",
        b"small",
        floats,
        memoryview(floats)[3:2000],
        bytearray(9),
        memoryview(LARGE)[5000:],
        array("d"),
        LARGE,
    ]
    plain = b"".join(memoryview(part).tobytes() for part in parts)
    connection = module.Connection(METHODS, module.Budget(1 << 20), 400 << 10, 2048, 24, 1 << 30)
    windows = make_corpus.settings((4, 1 << 20)) + make_corpus.window(0, 1 << 20)
    (call,) = connection.receive(make_corpus.PREFACE + windows + make_corpus.unary(1))
    connection.answer(call[1], parts, None, None, True, "gzip")
    sent = []
    while out := connection.output(1000):
        sent += out
    del connection, call, floats, parts, out
    rest, found = b"".join(sent), b""
    while rest:
        size = int.from_bytes(rest[:3], "big")
        if rest[3] == make_corpus.DATA:
            found += rest[9 : 9 + size]
        rest = rest[9 + size :]
    assert found == make_corpus.message(plain, 1)


def main():
    """Runs each input in each way."""
    module = load(sys.argv[1])
    check_bytes(module)
    events, count = Counter(), 0
    for path in sorted(make_corpus.CORPUS.iterdir()):
        for way in range(4):
            events += Drive(module, path.read_bytes(), way).run()
            count += 1
    print("ran", count, *(f"{name} {number}" for name, number in events.items()))


if __name__ == "__main__":
    main()
