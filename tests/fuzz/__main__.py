"""Fuzzes one target after the other: `python -m tests.fuzz --seconds 300 [TARGET ...]`, see README.md."""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from pathlib import Path

from tests.fuzz import native, targets

OUTPUT = Path("build/fuzz")


def fuzz(name: str, seconds: int, number: int) -> bool:
    """Fuzzes one target. Returns whether every rule held."""
    print(f"== {name}: {seconds} s", flush=True)
    if name in native.TARGETS:
        return native.fuzz(name, seconds, OUTPUT)
    try:
        count = targets.fuzz(name, seconds, number)
    except (Exception, BaseExceptionGroup):  # schemathesis raises groups
        traceback.print_exc()
        return False
    print(f"{name}: {count} examples, no rule was broken", flush=True)
    return True


def main() -> None:
    """Fuzzes the targets, and exits with 1 if one has found something."""
    known = (*native.TARGETS, *targets.NAMES)
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(known)}; all by default")
    parser.add_argument("--seconds", type=int, default=300, help="time for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="makes the targets in Python draw the same again")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(known):
        parser.error(f"unknown targets {', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
    chosen = options.targets or known
    number = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {number}", flush=True)
    try:
        native.clang()
    except FileNotFoundError as error:
        sys.exit(str(error))
    bad = [name for name in chosen if not fuzz(name, max(1, options.seconds // len(chosen)), number)]
    sys.exit(f"a rule was broken: {', '.join(bad)}" if bad else None)


if __name__ == "__main__":
    main()
