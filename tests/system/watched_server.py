"""Runs a gateway that measures its event loop: the most CPU time that passed between two turns of the loop.

On SIGUSR1 it logs {"message": "longest turn", "ms": ...} and begins anew. The arguments are those of `opgate serve`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

from service import app


def watch(loop):
    last = time.thread_time()
    longest = 0.0

    def turn():
        nonlocal last, longest
        now = time.thread_time()
        longest = max(longest, now - last)
        last = now
        loop.call_soon(turn)

    def tell():
        nonlocal longest
        print(json.dumps({"message": "longest turn", "ms": longest * 1e3}), file=sys.stderr, flush=True)
        longest = 0.0

    loop.add_signal_handler(signal.SIGUSR1, tell)
    loop.call_soon(turn)


async def serve_watched(*arguments):
    watch(asyncio.get_running_loop())
    return await serve(*arguments)


if __name__ == "__main__":
    serve, app.serve = app.serve, serve_watched
    from opgate.cli import main

    main()
