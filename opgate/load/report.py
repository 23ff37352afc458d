"""What `opgate load` prints: a table while it runs, a summary with a histogram, and JSON."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from opgate.load.latencies import Latencies, Slo, duration
from opgate.load.run import Measured, Plan, Run
from opgate.load.search import Found, Step, generator_fault

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
        answers = measured.in_time
        rate = (answers - self._answers) / (now - self._shown)
        self._shown, self._answers = now, answers
        if self._live:
            self._live.update(_table(run, rate), refresh=True)
        elif run.elapsed >= run.plan.seconds:
            typer.echo(f"waiting for {run.in_flight:,} answers", err=True)
        else:
            worst = duration(measured.latencies.percentile(99))
            facts = f"{run.in_flight:,} in flight, p99 {worst}, {measured.failed:,} failed"
            typer.echo(f"{_phase(run)}: {rate:,.0f} requests/s, {facts}", err=True)

    def close(self) -> None:
        """Removes the table."""
        if self._live:
            self._live.stop()


def _phase(run: Run) -> str:
    if run.elapsed < 0:
        return "warm-up"
    return f"{run.elapsed:.0f} s" if run.elapsed < run.plan.seconds else "waiting"


def _table(run: Run, rate: float) -> Table:
    latencies = run.measured.latencies
    cells = {
        "elapsed": _phase(run),
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


def rate_text(rate: float) -> str:
    """Returns a rate in requests/s, with a digit after the point if it is low."""
    return f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"


def loop_text(plan: Plan) -> str:
    """Returns how a run sends, in words."""
    times = f"{plan.seconds:g} s after {plan.warm_up:g} s of warm-up"
    if plan.rate:
        return f"open loop, {rate_text(plan.rate)} requests/s, {times}"
    return f"closed loop, {plan.concurrency} request{'s' if plan.concurrency > 1 else ''} under way, {times}"


def summary(measured: Measured, rows: int) -> str:
    """Returns what was measured as text: the rate, percentiles, a histogram, the errors."""
    latencies = measured.latencies
    rows_text = f", rows/s {rate_text(measured.rate * rows)}" if rows > 1 else ""
    lines = [
        f"answers     {latencies.count:,} in {measured.seconds:.3g} s, {measured.failed:,} failed",
        f"requests/s  {rate_text(measured.rate)}{rows_text}",
    ]
    if latencies.count:
        percentiles = [f"p{percent:g} {duration(latencies.percentile(percent))}" for percent in _PERCENTILES]
        lines.append(
            f"latency     {', '.join(percentiles)}, max {duration(latencies.most)}, mean {duration(latencies.mean)}"
        )
    lines.append(f"generator   {_generator(measured)}")
    if fault := generator_fault(measured):
        lines.append(_doubt(fault))
    if not latencies.count and not measured.failed and not measured.stopped:
        lines.append("No request was answered in this time: give a longer --duration.")
    if latencies.count:
        lines += ["", *histogram(latencies)]
    if measured.errors:
        lines += ["", "errors", *(f"{count:>9,}  {text}" for text, count in measured.errors.most_common())]
    return "\n".join(lines)


def _doubt(fault: str) -> str:
    return f"{fault[0].upper()}{fault[1:]}: the server may do better than this."


def _generator(measured: Measured) -> str:
    text = f"used {measured.busy:.0%} of a core"
    if not measured.lateness.count:
        return text
    half, most = (duration(measured.lateness.percentile(percent)) for percent in (50, 99))
    return f"{text}, sent half of the requests at most {half} late and 99% at most {most}"


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


def step_line(step: Step, slo: Slo) -> str:
    """Returns a line about a step of a search."""
    measured = step.measured
    found, late = (duration(each.percentile(slo.percent)) for each in (measured.latencies, measured.lateness))
    return (
        f"{rate_text(step.rate):>8}/s {measured.latencies.count:>8,} answers {measured.failed:>5,} failed  "
        f"p{slo.percent:g} {found:>7}, sent {late:>7} late  {'missed' if step.miss else 'kept'}"
        f"{f': {step.fault}' if step.fault else ''}"
    )


def search_summary(found: Found) -> str:
    """Returns the result of a search as text."""
    if found.interrupted and found.good is None:
        return f"The search was interrupted before a rate kept {found.slo}."
    if found.good is None:
        last = found.steps[-1]
        text = f"Even the lowest rate, {rate_text(last.rate)} requests/s, misses {found.slo}: {last.miss}."
    else:
        text = f"The highest rate that keeps {found.slo} without errors is {rate_text(found.good)} requests/s."
        if found.bad is not None:
            text += f" The lowest that misses it is {rate_text(found.bad)}."
        if found.interrupted:
            text = f"The search was interrupted. So far: {text}"
    return f"{text}\n{_doubt(found.fault)}" if found.fault else text


def measured_json(measured: Measured) -> dict[str, Any]:
    """Returns what was measured for JSON. `seconds` are seconds, other times are milliseconds."""
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
        "stopped": measured.stopped,
        "latency_ms": _milliseconds(measured.latencies),
        "lateness_ms": _milliseconds(measured.lateness) if plan.rate else None,
        "generator_busy": measured.busy,
        "generator_fault": generator_fault(measured),
        "errors": dict(measured.errors.most_common()),
    }


def _milliseconds(latencies: Latencies) -> dict[str, float] | None:
    if not latencies.count:
        return None
    percentiles = {f"p{percent:g}": latencies.percentile(percent) for percent in _PERCENTILES}
    values = {"mean": latencies.mean, "min": latencies.least, **percentiles, "max": latencies.most}
    return {name: seconds * 1e3 for name, seconds in values.items()}


def search_json(found: Found) -> dict[str, Any]:
    """Returns the result of a search for JSON."""
    return {
        "slo": {"percentile": found.slo.percent, "ms": found.slo.seconds * 1e3},
        "rate": found.good,
        "lowest_missed": found.bad,
        "generator_fault": found.fault,
        "interrupted": found.interrupted,
        "steps": [
            {**measured_json(step.measured), "miss": step.miss, "generator_fault": step.fault} for step in found.steps
        ],
    }
