"""The native reader of protobuf messages under the sanitizers: broken messages, and lists that are longer than their room."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "service" / "native"
SOURCES = [str(NATIVE / name) for name in ("protobuf_fields.cpp", "protobuf_module.cpp")]

# Runs in a process of its own, because the sanitizer must be loaded before Python.
PROGRAM = """
import importlib.util, random, sys
spec = importlib.util.spec_from_file_location("opgate.service.native.protobuf", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)

def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])

def field(number, kind, data):
    return varint(number << 3 | kind) + (varint(len(data)) if kind == 2 else b"") + data

rng = random.Random(3)
def some(depth=0):
    parts = []
    for _ in range(rng.randrange(5)):
        kind = rng.choice((0, 1, 2, 2, 2, 5))
        if kind == 2:
            data = some(depth + 1) if depth < 3 and rng.random() < 0.7 else rng.randbytes(rng.randrange(20))
        else:
            data = {0: varint(rng.getrandbits(rng.choice((1, 8, 64)))), 1: rng.randbytes(8), 5: rng.randbytes(4)}[kind]
        parts.append(field(rng.choice((1, 2, 3, 5, 5, 6, 7, 7, 8, 8, 8, 100)), kind, data))
    return b"".join(parts)

split, refused, read, listed = 0, 0, 0, 0
for _ in range(40_000):
    data = bytearray(some())
    for _ in range(rng.choice((0, 0, 1, 3))):
        if data:
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    data = bytes(data)
    try:
        head, raws, contents = native.split(data, rng.choice((3, 1000, 1000)), rng.choice((0, 1000, 1000)))
        split += 1
    except ValueError:
        refused += 1
        continue
    spans = [*raws, *((at, size) for _, at, size in contents)]
    assert all(0 <= at <= at + size <= len(data) for at, size in spans) and len(head) <= len(data) + 10
    for at, size in spans:
        for number, kind, itemsize in ((1, 0, 1), (2, 0, 4), (3, 0, 8), (6, 5, 4), (7, 1, 8)):
            into = memoryview(bytearray(itemsize * rng.randrange(4)))
            try:
                assert native.numbers(data, at, size, number, kind, itemsize, into, rng.choice((0, 0, 2, 9))) >= 0
                read += 1
            except ValueError:
                pass
        try:
            listed += len(native.strings(data, at, size, rng.choice((1, 2, 5, 8)), rng.randrange(3))) > 0
        except ValueError:
            pass
wrong = [("split", b"", -1), ("numbers", b"abc", 0, 4, 1, 0, 1, memoryview(bytearray(4)), 0),
         ("numbers", b"abc", -1, 2, 1, 0, 1, memoryview(bytearray(4)), 0), ("numbers", b"abc", 0, 3, 1, 0, 3, memoryview(bytearray(4)), 0),
         ("numbers", b"abc", 0, 3, 1, 5, 8, memoryview(bytearray(4)), 0), ("numbers", b"abc", 0, 3, 1, 0, 1, b"readonly", 0),
         ("numbers", b"abc", 0, 3, 1, 0, 1, memoryview(bytearray(4)), -1),
         ("strings", b"abc", 2, 2, 8, 1), ("strings", "text", 0, 0, 8, 1)]
for name, *arguments in wrong:
    try:
        getattr(native, name)(*arguments)
    except (TypeError, ValueError, BufferError):
        continue
    raise AssertionError(name)
print("done", split, refused, read, listed)
"""


def test_any_bytes_under_the_sanitizers(tmp_path):
    module = tmp_path / "protobuf.so"
    flags = [
        "-std=c++20",
        "-O1",
        "-g1",
        "-fPIC",
        "-shared",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["g++", *flags, include, *SOURCES, "-o", str(module)], check=True, timeout=300)
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    env = {
        **os.environ,
        "LD_PRELOAD": library.stdout.strip(),
        "PYTHONMALLOC": "malloc",  # the sanitizer sees only what comes from malloc
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves much
    }
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(module)], capture_output=True, text=True, timeout=300, env=env
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    word, *counts = finished.stdout.split()
    assert word == "done" and min(map(int, counts)) > 100, counts
