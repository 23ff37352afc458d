"""Runs a gateway without Python's collector of cycles, except where the gateway calls it.

On SIGUSR1 it logs {"message": "cycles", "objects": ..., "left": ...}: how many objects only the collector could free
since the last time, and how many of them the gateway had left. The arguments are those of `opgate serve`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys

from opgate.service import app

collected = []


def count(phase, info):
    if phase == "stop":
        collected.append(info["collected"])


def tell():
    left = gc.collect()
    sys.stderr.write(json.dumps({"message": "cycles", "objects": sum(collected), "left": left}) + "\n")
    collected.clear()


async def serve_uncollected(*arguments):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    return await serve(*arguments)


if __name__ == "__main__":
    gc.disable()
    gc.callbacks.append(count)
    serve, app.serve = app.serve, serve_uncollected
    from opgate.cli import main

    main()
