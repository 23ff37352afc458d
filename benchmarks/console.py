"""What the console costs: a gateway without it, with it, and with consoles open; an idle gateway; the page itself.

    python benchmarks/console.py [--seconds 3] [--rounds 7] [--output benchmarks/results/console.md]

Whoever watches is a process of its own. The load shares the cores with the gateway and with those who watch, so the
requests per CPU second of the gateway say more than the requests per second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gateway_processes import CONCURRENCY, measure
from benchmarks.replica import cpu_seconds
from benchmarks.serve_overhead import machine, make_models
from tests.system.running import ROOT, Server, running

WITHOUT, WITH, ONE, MANY = "--no-console", "console, nobody watches", "1 console open", "100 consoles open"
WATCHERS = {WITHOUT: 0, WITH: 0, ONE: 1, MANY: 100}
# Reads so many streams until its standard input ends.
WATCH = """
import asyncio, sys
async def watch(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /console/stream HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    while await reader.read(1 << 16):
        pass
async def main(port, count):
    tasks = [asyncio.create_task(watch(port)) for _ in range(count)]
    await asyncio.sleep(1)
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
asyncio.run(main(*map(int, sys.argv[1:])))
"""


@contextlib.contextmanager
def watchers(server: Server, count: int) -> Iterator[None]:
    """Opens consoles."""
    if not count:
        yield
        return
    command = [sys.executable, "-c", WATCH, str(server.http), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield
        process.stdin.close()


def idle(server: Server, seconds: float) -> float:
    """Returns the share of a core that a gateway takes that nobody sends requests to."""
    before, began = cpu_seconds(server.process.pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(server.process.pid) - before) / (time.perf_counter() - began)


def page_bytes(server: Server) -> int:
    """Returns the bytes of the page and of its files, compressed as they are sent."""
    total = 0
    names = ["/", *(f"/console/files/{path.name}" for path in (ROOT / "opgate/service/console/files").glob("*.??*"))]
    for name in names:
        if name.endswith((".html", ".sha256", ".txt")):
            continue
        asked = urllib.request.Request(server.url + name, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked) as answer:
            total += len(answer.read())
    return total


def first_paints(server: Server, rounds: int) -> list[float]:
    """Returns the milliseconds until a browser with an empty cache paints something, empty if there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            page = browser.new_context().new_page()
            page.goto(server.url)
            page.wait_for_timeout(500)
            script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
            found.append(float(page.evaluate(script)))
            page.context.close()
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "console.md")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WATCHERS}
    idles: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        case = make_models(Path(folder))[0]
        without = stack.enter_context(running(Path(folder), "--no-console"))
        console = stack.enter_context(running(Path(folder)))
        servers = {name: without if name == WITHOUT else console for name in WATCHERS}
        for server in (without, console):
            measure(server, case, 1)  # it learns what runs cost
        for _ in range(options.rounds):
            for name, count in WATCHERS.items():
                with watchers(servers[name], count):
                    found[name].append(measure(servers[name], case, options.seconds))
                rate, of_cpu = found[name][-1]
                print(f"{name}: {rate:,.0f}/s, {of_cpu:,.0f} per CPU second", file=sys.stderr)
        for name, count in WATCHERS.items():
            with watchers(servers[name], count):
                time.sleep(2)
                idles[name] = idle(servers[name], 20)
        size, paints = page_bytes(console), first_paints(console, options.rounds)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    lines = [
        "# What the console costs",
        "",
        f"Machine: {machine()}, of which {len(os.sched_getaffinity(0))} may be used.",
        "",
        f"Closed loop over HTTP with binary tensors of 16 bytes, {CONCURRENCY} connections, medians of "
        f"{options.rounds} alternating rounds of {options.seconds:g} s. `idle` is the share of a core that a gateway "
        "takes without requests, over 20 s.",
        "",
        "| gateway | requests/s | by the first | requests per CPU second | by the first | idle |",
        "|---|---|---|---|---|---|",
    ]
    base_rate, base_cpu = medians[WITHOUT]
    for name, (rate, of_cpu) in medians.items():
        row = (
            *(name, f"{rate:,.0f}", f"{rate / base_rate:.3f}", f"{of_cpu:,.0f}", f"{of_cpu / base_cpu:.3f}"),
            f"{100 * idles[name]:.2f}%",
        )
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", f"The page and its files have {size / 1000:.0f} kB, compressed."]
    if paints:
        lines += [
            "",
            f"First contentful paint in Chromium with an empty cache: {statistics.median(paints):.0f} ms (median).",
        ]
    lines += ["", "Made by `python benchmarks/console.py`.", ""]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
