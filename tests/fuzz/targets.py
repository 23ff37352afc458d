"""The targets in Python: each is what is drawn, and what is done with it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz import configs, over_grpc, over_http
from tests.fuzz.gateway import Fuzzed, fuzzed


def _openapi(gateway: Fuzzed) -> st.SearchStrategy[Any]:
    from tests.fuzz import openapi  # needs the extra `fuzz`

    return openapi.cases(gateway)


def _call(gateway: Fuzzed, case: Any) -> None:
    from tests.fuzz import openapi

    openapi.call(gateway, case)


#: By its name: what makes the strategy for a gateway, and what sends an example and checks the answer.
OF_GATEWAY: dict[str, tuple[Callable[[Fuzzed], st.SearchStrategy[Any]], Callable[[Fuzzed, Any], None]]] = {
    "http": (lambda _: over_http.WIRE, over_http.send),
    "infer": (lambda _: over_http.INFER, over_http.infer),
    "predict": (lambda _: over_http.predictions(), over_http.predict),
    "control": (lambda _: over_http.CONTROL, over_http.control),
    "grpc": (lambda _: over_grpc.CALLS, over_grpc.call),
    "openapi": (_openapi, _call),
}
NAMES = (*OF_GATEWAY, "config")


@contextmanager
def prepared(name: str) -> Iterator[tuple[st.SearchStrategy[Any], Callable[[Any], None], Callable[[], None]]]:
    """Prepares a target. Yields what draws an example, what checks one, and what checks that nothing remains."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "config":
            yield configs.TEXT, configs.Loader(Path(folder)).check, lambda: None
            return
        strategy, check = OF_GATEWAY[name]
        with fuzzed(Path(folder), with_files=name == "predict") as gateway:
            yield strategy(gateway), lambda example: check(gateway, example), gateway.check_rest


def run(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int, number: int | None = None
) -> None:
    """Checks so many examples: always the same, or others for each `number`. Raises what the smallest bad one raises."""
    options: dict[str, Any] = {"derandomize": True, "database": None}
    if number is not None:
        options = {"database": DirectoryBasedExampleDatabase("build/fuzz/examples")}

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), **options)
    @given(strategy)
    def examine(example: Any) -> None:
        try:
            check(example)
        except BaseException as error:
            error.add_note(f"the example: {example!r}"[:4000])
            raise

    if number is not None:
        examine = seed(number)(examine)
    examine()


def fuzz(name: str, seconds: float, number: int) -> int:
    """Checks examples until the time is over. Returns how many. Raises what a bad one raises."""
    count, end, shown = 0, time.monotonic() + seconds, time.monotonic()
    with prepared(name) as (strategy, check, check_rest):

        def counted(example: Any) -> None:
            nonlocal count
            count += 1
            check(example)

        while time.monotonic() < end:
            run(strategy, counted, 200, number)
            check_rest()
            number += 1
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{name}: {count} examples, {max(0, end - shown):.0f} s left", flush=True)
    return count
