"""Draws what `opgate tune` has found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from opgate.load.latencies import Slo
from opgate.tune.proposal import Candidate, replicas
from opgate.tune.simulation import Model

if TYPE_CHECKING:
    from opgate.tune.findings import Checked, Findings

mpl.use("Agg")
from matplotlib import pyplot

#: Candidates with a line of their own.
_LINES = 5


def draw(file: Path, name: str, found: Findings, slo: Slo) -> None:
    """Writes a picture of three plots: the cost of runs, the latency by rate, and the gateways by latency."""
    figure, (cost, latency, gateways) = pyplot.subplots(1, 3, figsize=(17, 5.2), layout="constrained")
    figure.suptitle(f"{name}: {found.chosen.setup}")
    _cost(cost, found.model)
    _latency(latency, found.candidates, found.chosen, found.checks, slo)
    _gateways(gateways, found.chosen, slo, found.headroom, found.held or found.chosen.rate)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def _cost(axes: Any, model: Model) -> None:
    costs = model.costs
    for threads, busy in dict.fromkeys((threads, busy) for threads, busy, _ in costs.by_case):
        rates = [busy * size / costs.by_case[threads, busy, size].median for size in costs.sizes]
        label = f"{busy} at once, {threads} thread{'s' if threads > 1 else ''} each"
        axes.plot(costs.sizes, rates, marker="o", label=label)
    axes.set(xlabel="rows of a run", ylabel="rows/s", title="What runs cost", xscale="log", ylim=(0, None))
    axes.set_xticks(costs.sizes, [str(size) for size in costs.sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()


def _latency(
    axes: Any, candidates: Sequence[Candidate], chosen: Candidate, checks: Sequence[Checked], slo: Slo
) -> None:
    others = sorted((each for each in candidates if each is not chosen), key=lambda each: -each.rate)[: _LINES - 1]
    top = 3 * slo.seconds * 1e3
    for candidate in (chosen, *others):
        points = [(rate, ms * 1e3) for rate, ms in candidate.points if math.isfinite(ms)]
        axes.plot(
            *zip(*points, strict=True),
            label=str(candidate.setup),
            linewidth=2.5 if candidate is chosen else 1,
            zorder=3 if candidate is chosen else 2,
        )
    measured = [(check.rate, check.measured.latencies.percentile(slo.percent) * 1e3) for check in checks]
    axes.plot(*zip(*measured, strict=True), "kX", markersize=9, label="measured", zorder=4, clip_on=False)
    axes.axhline(slo.seconds * 1e3, color="black", linestyle="--", linewidth=1, label=str(slo))
    top = max(top, *(1.1 * ms for _, ms in measured))
    axes.set(xlabel="requests/s", ylabel=f"p{slo.percent:g} in ms", title="One gateway, simulated", ylim=(0, top))
    axes.set_xlim(0, 1.25 * chosen.rate)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")


def _gateways(axes: Any, chosen: Candidate, slo: Slo, headroom: float, held: float) -> None:
    """Draws the gateways for the rate that one holds and more. The simulated rates are scaled to that one."""
    known = [found for _, found in chosen.points if math.isfinite(found)]
    aims = np.geomspace(min(known), min(max(known), 8 * slo.seconds), 60)
    for factor in (1, 10, 100):
        rate = held * factor
        rates = [(aim * 1e3, chosen.rate_under(float(aim)) * held / chosen.rate) for aim in aims]
        points = [(ms, replicas(rate, most, headroom)) for ms, most in rates if most]
        axes.plot(*zip(*points, strict=True), drawstyle="steps-post", label=f"{rate:,.0f} requests/s")
    axes.axvline(slo.seconds * 1e3, color="black", linestyle="--", linewidth=1, label=str(slo))
    axes.set(
        xlabel=f"p{slo.percent:g} in ms",
        ylabel="gateways",
        title=f"What a shorter latency costs, {headroom:.0%} spare",
        xscale="log",
        yscale="log",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend()
