"""Reports what hostile requests cost the gateway: the longest turn of its event loop, and memory.

    python benchmarks/hostile.py [--rounds 3] [--output benchmarks/results/hostile.md]

The requests are those of tests/system/test_bounded_cost.py. While each is answered, another client asks every 10 ms
whether the gateway is alive.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.serve_overhead import machine
from tests.system.test_bounded_cost import CALLS, REQUESTS, measure, measure_call, watched

ROOT = Path(__file__).resolve().parent.parent
AIM_MS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "hostile.md")
    options = parser.parse_args()
    lines = ["# What hostile requests cost", "", f"Machine: {machine()}.", ""]
    lines += [
        f"Turn: the most CPU time of the event loop's thread in milliseconds between two turns of the loop while the "
        f"request was answered, the median and the most of {options.rounds} rounds (aim: {AIM_MS}). Stall: the most "
        "time between two turns, which also counts what other threads and processes took, median. Memory: the most "
        "that the process took for the request, median.",
        "",
        "| protocol | request | body in MB | status | turn | longest turn | stall | memory in MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds = {"HTTP": (REQUESTS, measure), "gRPC": (CALLS, measure_call)}
    names = [(protocol, name) for protocol, (requests, _) in kinds.items() for name in requests]
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {key: [] for key in names}
    facts: dict[tuple[str, str], tuple[float, int | str]] = {}
    with tempfile.TemporaryDirectory() as folder, watched(Path(folder)) as server:
        for round_ in range(options.rounds):
            for protocol, name in names:
                print(f"round {round_ + 1} of {options.rounds}: {protocol}, {name}", file=sys.stderr, flush=True)
                status, _, turn, stall, memory, size = kinds[protocol][1](server, name)
                rows[protocol, name].append((turn, stall, memory))
                facts[protocol, name] = (size, status)
    over = []
    for (protocol, name), measured in rows.items():
        turn, stall, memory = (statistics.median(column) for column in zip(*measured, strict=True))
        size, status = facts[protocol, name]
        longest = max(turn for turn, _, _ in measured)
        lines.append(
            f"| {protocol} | {name} | {size:.1f} | {status} | {turn:.1f} | {longest:.1f} | {stall:.1f} | {memory:.0f} |"
        )
        if turn > AIM_MS:
            over.append(f"{name} ({protocol})")
    lines += ["", f"Over the aim: {', '.join(over) or 'none'}.", "", "Made by `python benchmarks/hostile.py`.", ""]
    text = "\n".join(lines)
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
