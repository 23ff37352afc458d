"""What a run of `opgate tune` has found."""

from __future__ import annotations

from dataclasses import dataclass

from opgate.load.run import Measured
from opgate.tune.proposal import Candidate
from opgate.tune.simulation import Model


@dataclass(frozen=True, slots=True)
class Checked:
    """A rate that was measured on a real gateway, beside what the simulation says. Latencies are seconds."""

    rate: float
    measured: Measured
    simulated: dict[float, float]
    miss: str

    def error(self, percent: float) -> float:
        """Returns how far off the simulation was, as a share of what was measured."""
        measured = self.measured.latencies.percentile(percent)
        return (self.simulated[percent] - measured) / measured


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run of the command has found."""

    model: Model
    candidates: list[Candidate]
    chosen: Candidate
    checks: list[Checked]
    headroom: float

    @property
    def held(self) -> float:
        """The measured rate that kept the aim, 0 if none did."""
        return next((check.rate for check in self.checks if not check.miss), 0.0)
