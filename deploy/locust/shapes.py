"""How many users a load test has at a time. Pure functions: locustfile.py asks them once a second."""

from __future__ import annotations

import math

SHAPES = ("constant", "ramp", "step", "spike", "soak")


def users_at(shape: str, seconds: float, duration: float, users: int, steps: int) -> int:
    """Returns the number of users after so many seconds of a test that lasts `duration` seconds.

    It is at least 1 and at most `users`. `shape` is one of SHAPES; only "step" reads `steps`, the number of its steps.
    Raises ValueError if there is no such shape.
    """
    done = seconds / duration
    match shape:
        case "constant":
            share = 1.0
        case "ramp":
            share = done
        case "step":
            share = (math.floor(done * steps) + 1) / steps
        case "spike":
            share = 1.0 if 0.4 <= done < 0.6 else 0.1
        case "soak":
            edge = min(60.0, duration / 10)
            share = min(seconds, duration - seconds) / edge
        case _:
            raise ValueError(f"expected one of {', '.join(SHAPES)}, got {shape!r}")
    return min(users, max(1, math.ceil(users * share)))
