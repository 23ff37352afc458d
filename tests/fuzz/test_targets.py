"""A short form of `make fuzz`: every corpus, and the same few examples of each target in Python. README.md says more."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import thorough
from tests.fuzz import make_corpus, native, targets
from tests.skips import need

EXAMPLES = {"config": 30, "openapi": 40}
#: What the inputs of a corpus must reach, apart from `files`, which is too much to compile: see test_sanitizers.py.
REACHED = {
    "json_tensors": {"ran", "read", "refused", "failed", "uneven", "escaped"},
    "protobuf": {"ran", "fine", "broken", "large", "numbers", "broken_numbers"},
    "signature": {"ran", "parsed", "refused"},
}
REACHED_BY_FILES = {
    "ran",
    "refused",
    "bad_rows",
    "DecodeImage",
    "ImagePreprocess",
    "DecodeAudio",
    "AudioPreprocess",
    "DecodePoints",
}


@pytest.mark.parametrize("name", targets.NAMES)
def test_no_rule_is_broken(library, name):
    if name == "openapi":
        need("schemathesis")
    count = 0
    with targets.prepared(name) as (strategy, check, check_rest):

        def counted(example):
            nonlocal count
            count += 1
            check(example)

        targets.run(strategy, counted, EXAMPLES.get(name, 60))
        check_rest()
    assert count >= EXAMPLES.get(name, 60) // 2


def replay(name, folder):
    """Runs a target on its corpus. Returns what it counted."""
    target = native.TARGETS[name]
    together, program = folder / "together.cpp", folder / name  # one file compiles in less time than many
    together.write_text("".join(f'#include "{source}"\n' for source in (target.source, *target.sources)))
    command = ["g++", "-std=c++20", "-O0", "-g1", "-DFUZZ_MAIN", '-DOPGATE_DOMAIN="opgate"', *native.SANITIZE]
    command += [
        f"-I{target.include}",
        f"-I{target.source.parent}",
        str(together),
        *target.libraries,
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True, timeout=600)
    inputs = sorted(target.corpus.iterdir())
    finished = subprocess.run([program, *inputs], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-6000:]
    words = finished.stdout.splitlines()[-1].split()
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert counts["ran"] == len(inputs)
    return counts


OF_THE_CORE = thorough("tests/ops_build/kernel_toolkit has the grammar")


@pytest.mark.parametrize("name", [pytest.param(n, marks=OF_THE_CORE) if n == "signature" else n for n in REACHED])
def test_the_corpus_under_the_sanitizers(tmp_path, name):
    assert set(replay(name, tmp_path)) == REACHED[name]


@thorough("it compiles for minutes")
def test_the_files_under_the_sanitizers(tmp_path):
    assert set(replay("files", tmp_path)) == REACHED_BY_FILES


def test_the_target_of_files_compiles(tmp_path):
    target = native.TARGETS["files"]
    assert all(source.is_file() for source in target.sources)
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{target.include}", str(target.source)]
    assert subprocess.run(command, timeout=300).returncode == 0


@pytest.mark.parametrize("name", ["json_tensors", "protobuf", "signature"])
def test_the_corpus_is_what_its_script_makes(name):
    folder = make_corpus.CORPUS / name
    made = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("found_")}
    assert made == make_corpus.MAKERS[name]()
