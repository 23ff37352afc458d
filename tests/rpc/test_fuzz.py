"""The connection and its Python module under the sanitizers: the inputs of fuzz/corpus, and changes of them.

`make fuzz` looks for more.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import thorough
from tests.rpc.fuzz import make_corpus

FUZZ = Path(make_corpus.__file__).parent
SOURCES = FUZZ.parents[2] / "service" / "rpc"
FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MUTATIONS = 200


def compiled(target, *arguments):
    command = ["g++", *FLAGS, f"-I{SOURCES}", *map(str, arguments), "-o", str(target)]
    subprocess.run(command, check=True, timeout=300)
    return target


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    """The object file of the connection. Both tests need it."""
    sources = (SOURCES / "connection.cpp", SOURCES / "header_filter.cpp")
    return compiled(tmp_path_factory.mktemp("fuzz") / "connection.o", "-r", "-nostdlib", *sources)


def counts_of(command, **environment):
    """Runs a program, and returns what it counted: its last line has names and numbers."""
    finished = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert finished.returncode == 0, finished.stderr[-6000:]
    words = finished.stdout.splitlines()[-1].split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def frames_of(text):
    """An input, taken apart: the bytes before the frames, and the frames."""
    head = 3 + text[2]
    frames, rest = [], text[head:]
    while rest:
        size = 9 + int.from_bytes(rest[:3], "big")
        frames.append(rest[:size])
        rest = rest[size:]
    return text[:head], frames


def mutated(rng, text, other):
    """Returns an input with some changes: of its bytes, of its frames, or with frames of another input."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        head, frames = frames_of(text)
        at = rng.randrange(len(frames)) if frames else 0
        match rng.randrange(7):
            case 0:  # the decisions
                changed = bytearray(head)
                changed[rng.choice((0, 1, *range(3, len(head))))] = rng.randrange(256)
                head = bytes(changed)
            case 1:
                del frames[at : at + rng.choice((1, 1, 3))]
            case 2:
                frames[at:at] = frames[at : at + rng.choice((1, 1, 3))]
            case 3:
                frames[at:at] = frames_of(other)[1][:12]
            case 4:
                rng.shuffle(frames)
            case _:  # a byte, also of a frame's head
                changed = bytearray(b"".join(frames))
                if changed:
                    at = rng.randrange(len(changed))
                    changed[at : at + rng.choice((0, 1, 1, 4))] = rng.randbytes(rng.choice((0, 1, 1, 3)))
                frames = [bytes(changed)]
        text = head + b"".join(frames)
    return text


def test_the_corpus_is_what_its_script_makes():
    made = make_corpus.cases()
    assert {path.name: path.read_bytes() for path in make_corpus.CORPUS.iterdir()} == made


@thorough("the next test drives the module with the corpus under them")
def test_any_bytes_under_the_sanitizers(connection, tmp_path):
    """No memory is used wrongly or kept, the budget ends at 0, and a client gets what was sent, in valid frames."""
    run = compiled(tmp_path / "run", "-DFUZZ_MAIN", FUZZ / "fuzz_connection.cpp", connection, "-lnghttp2")
    inputs = make_corpus.cases()
    counts = counts_of([run, *sorted(make_corpus.CORPUS.iterdir())])
    assert counts.pop("ran") == len(inputs)
    assert counts and all(counts.values()), counts  # the corpus reaches all that is counted
    rng = random.Random(1)
    for i in range(MUTATIONS):
        text = mutated(rng, *(inputs[name] for name in rng.choices(sorted(inputs), k=2)))
        (tmp_path / f"{i}.input").write_bytes(text)
    assert counts_of([run, *sorted(tmp_path.glob("*.input"))])["ran"] == MUTATIONS


def test_the_module_under_the_sanitizers(connection, tmp_path):
    """Python objects that the module holds are neither used wrongly nor kept, also where a call raises."""
    module = compiled(
        tmp_path / "connection.so",
        "-shared",
        f"-I{sysconfig.get_path('include')}",
        SOURCES / "connection_module.cpp",
        connection,
        "-lnghttp2",
    )
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    counts = counts_of(
        [sys.executable, FUZZ / "drive_module.py", module],
        LD_PRELOAD=found.stdout.strip(),
        PYTHONMALLOC="malloc",  # the sanitizer sees only what comes from malloc
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter leaves much
    )
    assert counts.pop("ran") == 4 * len(make_corpus.cases())
    assert len(counts) == 9 and all(counts.values()), counts
