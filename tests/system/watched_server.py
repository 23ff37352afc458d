"""Runs a gateway that measures its event loop: the most CPU time of its thread, and the most time, between two turns.

On SIGUSR1 it logs {"message": "longest turn", "cpu_ms": ..., "ms": ...} and begins anew. The arguments are those of `opgate serve`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

from opgate.service import app


def clocks():
    return time.thread_time(), time.monotonic()


def watch(loop):
    last = clocks()
    longest = (0.0, 0.0)

    def turn():
        nonlocal last, longest
        now = clocks()
        longest = tuple(max(most, end - begin) for most, begin, end in zip(longest, last, now, strict=True))
        last = now
        loop.call_soon(turn)

    def tell():
        nonlocal longest
        cpu, wall = longest
        told = {"message": "longest turn", "cpu_ms": cpu * 1e3, "ms": wall * 1e3}
        sys.stderr.write(json.dumps(told) + "\n")  # at once: print writes the end of the line by itself, unbuffered
        longest = (0.0, 0.0)

    loop.add_signal_handler(signal.SIGUSR1, tell)
    loop.call_soon(turn)


async def serve_watched(*arguments):
    watch(asyncio.get_running_loop())
    return await serve(*arguments)


if __name__ == "__main__":
    serve, app.serve = app.serve, serve_watched
    from opgate.cli import main

    main()
