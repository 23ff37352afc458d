"""Sends a million tiny requests, ten thousand pictures and a thousand tensors of 32 MB while models are reloaded
and unloaded, workers are killed, and clients leave or dawdle. Checks every answer, and watches the memory.

    python benchmarks/soak.py [--tiny 1000000] [--pictures 10000] [--large 1000] [--output FILE]

`make soak` runs it. It needs `opgate build`. The report has what was answered, what killed batches cost, and the memory
of the gateway over time, as a table and a picture. It exits with 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.memory import picture
from benchmarks.serve_overhead import machine
from opgate import folders
from tests.system.soaking import Report, soak

#: The load comes in so many parts, with a rest after each.
_PARTS = 10


def text_of(report: Report, image: str) -> str:
    """Returns the report."""
    first, last = report.rests[0], report.rests[-1]
    shared, least = (choose(kind for _, _, kind, _ in report.memory) for choose in (max, min))
    rows = [f"| {kind} | {count:,} | {report.died[kind]} |" for kind, count in sorted(report.answers.items())]
    lines = [
        "# Under load while workers die",
        "",
        f"Machine: {machine()}",
        "",
        f"{report.seconds:.0f} s with {report.kills} kills of workers (SIGKILL, SIGSEGV, SIGSTOP), {report.reloads} "
        f"reloads of models, {report.unloads} unloads and {report.left} clients that left. "
        f"{len(report.wrong)} answers were wrong, missing or swapped. A kill costs the requests of the batch that "
        "runs.",
        "",
        "| requests | answered | failed with a killed worker |",
        "|---|---|---|",
        *rows,
        "",
        f"The load comes in {_PARTS} equal parts. After each the gateway rests for five seconds. Then it has so many "
        "megabytes of its own: " + ", ".join(f"{own:.1f}" for own in report.rests) + ".",
        "",
        f"From the end of the first tenth to the end of the last that is {100 * (last / first - 1):+.1f}%. It shares "
        f"{shared:.0f} MB with its workers at most, and at least {least:.0f}. The steps of the plot are tensors of "
        "32 MB that wait for a stopped worker.",
        "",
        f"![memory]({image})",
        "",
        "Made by `python benchmarks/soak.py`.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs it, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", type=int, default=1_000_000)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    library = folders.builds() / "ops" / "libopgate_onnxruntime.so"
    with tempfile.TemporaryDirectory() as folder:
        report = soak(
            Path(folder),
            library,
            arguments.tiny,
            arguments.pictures,
            arguments.large,
            _PARTS,
            lambda line: print(f"\r{line}", end="", file=sys.stderr, flush=True),
        )
    print(file=sys.stderr)
    name = "soak.svg"
    text = text_of(report, name)
    if arguments.output:
        arguments.output.write_text(text)
        points = [(round(seconds), own) for seconds, own, _, _ in report.memory]
        arguments.output.with_name(name).write_text(picture("the gateway's own memory over seconds", points))
    print(text)
    for line in report.wrong[:20]:
        print(line, file=sys.stderr)
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
