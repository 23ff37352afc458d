"""How a process ended: its exit status and the lines that it wrote before."""

from __future__ import annotations

import re
import signal

#: Lines that say more about an end than the last ones: those of the guard (op_call/guard.h) and of the sanitizers.
TELLING = re.compile(
    r": the kernel |^(SUMMARY|(READ|WRITE) of size)|: runtime error: |^emulation: |^terminate called|^\s*what\(\):"
)


def how_ended(code: int) -> str:
    """Returns a text for the exit status of a process that should not have ended."""
    if code >= 0:
        return f"the process ended with exit status {code}"
    try:
        return f"the process died of {signal.Signals(-code).name}"
    except ValueError:
        return f"the process died of signal {-code}"


def last_words(messages: str) -> str:
    """Returns the lines that say the most about the end of a process, else the last lines."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    return " / ".join([line for line in lines if TELLING.search(line)][:5] or lines[-3:])
