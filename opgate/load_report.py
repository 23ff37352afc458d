"""What `opgate load` prints: a table while it runs, a summary with a histogram, and JSON."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from opgate.load_latencies import Latencies, duration
from opgate.load_run import Measured, Plan, Run
from opgate.load_search import Found, Step, bound_by_generator

_PERCENTILES = (50, 90, 99, 99.9)
_BAR = 50
#: Seconds between two drawings of the table, and between two lines where there is no terminal.
_DRAW = 1.0
_TELL = 5.0


class Progress:
    """Shows on stderr how a run goes: a table in a terminal, otherwise a line now and then."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._shown = perf_counter()
        self._answers = 0

    def watch(self, run: Run) -> None:
        """Shows the state of the run if it is time to."""
        now = perf_counter()
        if now < self._shown + (_DRAW if self._live else _TELL):
            return
        measured = run.measured
        answers = measured.latencies.count
        rate = (answers - self._answers) / (now - self._shown)
        self._shown, self._answers = now, answers
        if self._live:
            self._live.update(_table(run, rate), refresh=True)
        elif run.elapsed > 0:
            worst = duration(measured.latencies.percentile(99))
            typer.echo(
                f"{run.elapsed:.0f} s: {rate:,.0f} requests/s, p99 {worst}, {measured.failed:,} failed", err=True
            )

    def close(self) -> None:
        """Removes the table."""
        if self._live:
            self._live.stop()


def _table(run: Run, rate: float) -> Table:
    latencies = run.measured.latencies
    cells = {
        "elapsed": f"{run.elapsed:.0f} s" if run.elapsed > 0 else "warm-up",
        "requests/s": f"{rate:,.0f}",
        "in flight": f"{run.in_flight:,}",
        **{f"p{percent}": duration(latencies.percentile(percent)) for percent in (50, 90, 99)},
        "max": duration(latencies.percentile(100)),
        "errors": f"{run.measured.failed:,}",
    }
    table = Table()
    for name in cells:
        table.add_column(name, justify="right", min_width=9)
    table.add_row(*cells.values())
    return table


def loop_text(plan: Plan) -> str:
    """Returns how a run sends, in words."""
    if plan.rate:
        return f"open loop, {plan.rate:,g} requests/s"
    return f"closed loop, {plan.concurrency} request{'s' if plan.concurrency > 1 else ''} under way"


def summary(measured: Measured, rows: int) -> str:
    """Returns what was measured as text: the rate, percentiles, a histogram, the errors."""
    latencies = measured.latencies
    good = f"{latencies.count:,} good answers in {measured.seconds:.3g} s, {measured.failed:,} requests failed"
    lines = [f"answers     {good}"]
    each_second = f"{measured.rate:,.1f}" if measured.rate < 100 else f"{measured.rate:,.0f}"
    lines.append(f"requests/s  {each_second}" + (f", rows/s {measured.rate * rows:,.0f}" if rows > 1 else ""))
    if latencies.count:
        percentiles = [f"p{percent:g} {duration(latencies.percentile(percent))}" for percent in _PERCENTILES]
        lines.append(
            f"latency     {', '.join(percentiles)}, max {duration(latencies.most)}, mean {duration(latencies.mean)}"
        )
    lines.append(f"generator   {_generator(measured)}")
    if bound_by_generator(measured):
        lines.append("The load generator was the bottleneck: the server may do better than this.")
    if latencies.count:
        lines += ["", *histogram(latencies)]
    if measured.errors:
        lines += ["", "errors", *(f"{count:>9,}  {text}" for text, count in measured.errors.most_common())]
    return "\n".join(lines)


def _generator(measured: Measured) -> str:
    text = f"used {measured.busy:.0%} of a core"
    if not measured.lateness.count:
        return text
    late = (duration(measured.lateness.percentile(percent)) for percent in (50, 99))
    return "{}, half of the requests were sent at most {} late, 99% at most {}".format(text, *late)


def histogram(latencies: Latencies) -> list[str]:
    """Returns a line for each bar: where it begins, its count, and the bar."""
    bars = latencies.bars()
    most = max(count for _, count in bars)
    return [
        "latency from   answers",
        *(
            f"{duration(begin):>12} {count:>9,}  {'#' * math.ceil(_BAR * count / most)}".rstrip()
            for begin, count in bars
        ),
    ]


def step_line(step: Step) -> str:
    """Returns a line about a step of a search."""
    measured = step.measured
    late = duration(measured.lateness.percentile(99))
    verdict = f"misses: {step.miss}" if step.miss else "keeps it"
    if step.by_generator:
        verdict += " (by the load generator)"
    return (
        f"{step.rate:>10,.1f}/s {measured.latencies.count:>9,} answers  "
        f"p99 {duration(measured.latencies.percentile(99)):>8}  sent {late:>8} late (p99)  {verdict}"
    )


def search_summary(found: Found) -> str:
    """Returns the result of a search as text."""
    last = found.steps[-1] if found.steps else None
    if found.interrupted and found.good is None:
        return "The search was interrupted before any rate kept the aim."
    if found.good is None:
        assert last is not None
        text = f"Even the lowest rate, {last.rate:,.1f} requests/s, misses {found.slo}: {last.miss}."
    else:
        text = f"The highest rate with {found.slo} and without errors is {found.good:,.1f} requests/s."
        if found.bad is not None:
            text += f" The lowest that missed is {found.bad:,.1f}."
        if found.interrupted:
            text = f"The search was interrupted. So far: {text}"
    if found.by_generator:
        text += " The load generator was the bottleneck: the server may do better than this."
    return text


def as_json(measured: Measured) -> dict[str, Any]:
    """Returns what was measured for JSON. Times are milliseconds, except `seconds`."""
    plan = measured.plan
    loop: dict[str, Any] = {"loop": "open", "rate": plan.rate} if plan.rate else {"loop": "closed"}
    if not plan.rate:
        loop["concurrency"] = plan.concurrency
    return {
        **loop,
        "seconds": measured.seconds,
        "requests_per_second": measured.rate,
        "answers": measured.latencies.count,
        "failed": measured.failed,
        "unanswered": measured.unanswered,
        "latency_ms": _milliseconds(measured.latencies),
        "lateness_ms": _milliseconds(measured.lateness) if plan.rate else None,
        "generator_busy": measured.busy,
        "generator_bound": bound_by_generator(measured),
        "histogram": [[begin * 1e3, count] for begin, count in measured.latencies.bars()],
        "errors": dict(measured.errors.most_common()),
    }


def _milliseconds(latencies: Latencies) -> dict[str, float] | None:
    if not latencies.count:
        return None
    percentiles = {f"p{percent:g}": latencies.percentile(percent) for percent in _PERCENTILES}
    values = {"mean": latencies.mean, "min": latencies.least, **percentiles, "max": latencies.most}
    return {name: seconds * 1e3 for name, seconds in values.items()}


def search_as_json(found: Found) -> dict[str, Any]:
    """Returns the result of a search for JSON."""
    return {
        "slo": {"percentile": found.slo.percent, "ms": found.slo.seconds * 1e3},
        "rate": found.good,
        "lowest_missed": found.bad,
        "generator_bound": found.by_generator,
        "interrupted": found.interrupted,
        "steps": [
            {"rate": step.rate, "miss": step.miss, "generator_bound": step.by_generator, **as_json(step.measured)}
            for step in found.steps
        ],
    }
