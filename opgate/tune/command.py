"""`opgate tune`: measures a model, simulates its queue, proposes a configuration and checks it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgate.commands.infer import Inputs, Repository, Version, read_input
from opgate.load.command import Batch, Image, SequenceLength, Shape

if TYPE_CHECKING:
    from opgate.load.latencies import Slo
    from opgate.load.target_model import Input
    from opgate.service.core.spec import ModelSpec
    from opgate.service.settings import Settings
    from opgate.tune.cost import Costs
    from opgate.tune.findings import Checked, Findings
    from opgate.tune.proposal import Candidate
    from opgate.tune.simulation import Model, Overhead, Setup
    from opgate.tune.trial import Gateway

#: The check sends these shares of the rate that the simulation promises. Each lower one is sent only if the one before
#: missed the aim.
_CHECKED = (1.0, 0.85, 0.7, 0.5)
#: The load that measures what a request costs beside its run: one request after the other, and many at once.
_MANY = 16
_OVERHEAD_SECONDS = 2.0
_LEAST_LOOP = 5e-6

SloOption = Annotated[
    str, typer.Option("--slo", metavar="p99=20ms", help="What the model must keep: a percentile below a time.")
]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", min=0.01, help="Requests/s to say the number of gateways for. May be given several times."),
]
Headroom = Annotated[
    float, typer.Option(min=0, max=0.9, help="The share of what a gateway holds that is kept free for bursts.")
]
Seconds = Annotated[float, typer.Option("--duration", min=1, help="Seconds of each measured check.")]
Output = Annotated[
    Path | None, typer.Option(help="Folder for config.pbtxt, tune.json and tune.png.", show_default="./tune-MODEL")
]


def tune(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    slo: SloOption,
    rate: Rates = None,
    headroom: Headroom = 0.2,
    batch: Batch = 1,
    inputs: Inputs = None,
    image: Image = None,
    shape: Shape = None,
    sequence_length: SequenceLength = None,
    version: Version = "",
    model_repository: Repository = None,
    seconds: Seconds = 8.0,
    output: Output = None,
) -> None:
    """Find the configuration with which one gateway on this machine holds the highest rate of a model while it keeps a
    latency, and how many gateways a rate needs. Measures runs by batch size, instances and threads, simulates the queue
    of requests that arrive at random, proposes a config.pbtxt, and checks it on a real gateway. All requests are alike,
    and the load comes from this machine too. Takes a few minutes."""
    from pydantic import ValidationError

    from opgate.load.latencies import read_slo
    from opgate.load.target_model import LoadError, read_shape
    from opgate.service.core.errors import ServingError

    if image is not None and inputs:
        raise typer.BadParameter("give either --file or --input")
    try:
        aim = read_slo(slo)
        shapes = dict(read_shape(text) for text in shape or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        given = dict(read_input(text) for text in inputs or []) if image is None else image.read_bytes()
        tuner = _Tuner(model, version, model_repository, aim, output or Path(f"tune-{model}"), sequence_length)
        tuner.prepare(given, shapes, batch)
        raise typer.Exit(tuner.run(sorted(rate or []), headroom, seconds))
    except ValidationError as error:  # a variable of the gateway has a wrong value
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(2) from None
    except (LoadError, ServingError, OSError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None


class _Tuner:
    """One run of the command."""

    def __init__(
        self, name: str, version: str, repository: Path | None, slo: Slo, output: Path, sequence_length: int | None
    ) -> None:
        from opgate.cpu import usable_cores
        from opgate.load.sequences import length_of
        from opgate.load.target_model import LoadError
        from opgate.service.repository.background_loads import chosen_versions
        from opgate.service.repository.loader import load_config
        from opgate.service.repository.paths import version_numbers
        from opgate.service.settings import Settings
        from opgate.service.telemetry import logs
        from opgate.tune.configs import refuse_unfit

        logs.configure("critical", "text")
        self.settings: Settings = Settings() if repository is None else Settings(model_repository=repository)
        self.repository = self.settings.repository().resolve()
        if not self.repository.is_dir():
            raise LoadError(f"model repository {self.repository} is not a directory: name one with --model-repository")
        if not (self.repository / name).is_dir():
            names = sorted(path.name for path in self.repository.iterdir() if path.is_dir())
            raise LoadError(f"there is no model '{name}' in {self.repository}, there are {', '.join(names) or 'none'}")
        self.config = load_config(self.repository, name)
        refuse_unfit(self.config)
        found = chosen_versions(self.config, version_numbers(self.repository / name))
        if version and version not in map(str, found):
            raise LoadError(f"model '{name}' has the versions {', '.join(map(str, found))}, got '{version}'")
        self.version = int(version) if version else found[-1]
        self.slo, self.output, self.cores = slo, output, usable_cores()
        self.sequence_length = length_of(sequence_length, self.config.HasField("sequence_batching"))

    def prepare(self, given: bytes | dict[str, bytes | str], shapes: dict[str, tuple[int, ...]], rows: int) -> None:
        """Makes the inputs of a request. Raises LoadError, ServingError."""
        from opgate.load.target_model import make_inputs
        from opgate.tune.cost import opened, request_of, scheduler_of

        with opened(self.repository, self.config, self.version, self.settings, 1) as loaded:
            self.inputs: Sequence[Input] = make_inputs(loaded.spec, rows, given, shapes)
            self.rows = request_of(loaded, self.inputs, self.settings).rows
            self.spec: ModelSpec = scheduler_of(loaded).spec
            sequences = self.config.sequence_batching if self.config.HasField("sequence_batching") else None
            direct = sequences is not None and not sequences.HasField("oldest")
            self.direct = loaded.statistics.instances if direct else 0

    def run(self, rates: list[float], headroom: float, seconds: float) -> int:
        """Prints the result, writes the files and returns the exit status."""
        from opgate.load.report import rate_text
        from opgate.tune.findings import Findings
        from opgate.tune.proposal import best, compare, refined, replicas, setups

        model = self._measured()
        typer.echo(f"\nrates that keep {self.slo}, simulated:")
        tried = setups(self.spec, self.cores, self.slo, self.direct)
        candidates = compare(model, tried, self.slo, _tell_candidate)
        chosen = best(candidates)
        if not chosen.rate:
            alone = min(cost.median for cost in model.costs.by_case.values()) + model.overhead.fixed
            typer.echo(
                f"opgate: no configuration keeps {self.slo} on this machine: a run and its way take "
                f"{alone * 1e3:.3g} ms at least",
                err=True,
            )
            return 1
        refined(model, chosen, self.slo)
        found = Findings(model, candidates, chosen, self._check(model, chosen, seconds), headroom)
        held = found.held
        if held:
            typer.echo(
                f"\nOne gateway on this machine holds {rate_text(held)} requests/s with {self.slo}, measured, "
                f"with {chosen.setup}."
            )
        else:
            typer.echo(f"\nNot even {rate_text(found.checks[-1].rate)} requests/s kept {self.slo} when measured.")
        wanted = rates or [held * factor for factor in (1, 10, 100)]
        counts = {each: replicas(each, held, headroom) for each in wanted} if held else {}
        for each, count in counts.items():
            typer.echo(
                f"{rate_text(each):>10} requests/s: {count:,} gateway{'s' if count > 1 else ''}, {headroom:.0%} spare"
            )
        self._write(found, counts)
        return 0 if held else 1

    def _measured(self) -> Model:
        """Measures runs and overhead."""
        from rich.console import Console

        from opgate.service.repository.loader import inline_limit_us
        from opgate.tune.cost import measure, opened
        from opgate.tune.hand_over import hand_over
        from opgate.tune.simulation import Model

        console = Console(stderr=True)
        with console.status("measuring runs") as status:
            costs = measure(
                lambda threads: opened(self.repository, self.config, self.version, self.settings, threads),
                self.inputs,
                self.settings,
                self.cores,
                lambda case: status.update(f"measuring runs: {case}"),
            )
            status.update("measuring the hand-over to a thread")
            seconds = hand_over(self.repository, self.config, self.version, self.settings, self.inputs)
        typer.echo(f"median of a run, {self.cores} core{'s' if self.cores > 1 else ''}:")
        for (threads, busy, rows), cost in costs.by_case.items():
            per_second = busy * rows / cost.median
            typer.echo(
                f"{busy:>4} at once, {threads:>2} thread{'s' if threads > 1 else ' '}, {rows:>4} rows: "
                f"{cost.median * 1e3:8.3f} ms, {per_second:>10,.0f} rows/s"
            )
        limit = min(inline_limit_us(self.settings, waits=False) * 1e-6, seconds)
        with console.status("measuring what a request costs beside its run"):
            overhead = self._overhead(costs, limit)
        typer.echo(
            f"beside its run a request costs {overhead.loop * 1e6:.0f} us on the event loop and "
            f"{overhead.fixed * 1e6:.0f} us on its way, and its client {overhead.client * 1e6:.0f} us of CPU here"
        )
        return Model(costs, overhead, self.rows, self.cores, limit, self.settings.max_queue_size)

    def _overhead(self, costs: Costs, inline_limit: float) -> Overhead:
        from opgate.load.run import Plan
        from opgate.tune.simulation import Overhead, Setup, learnt

        plain = Setup(1, 1, None, max(1, self.spec.max_batch_size))
        run = costs.by_case[1, 1, costs.sizes[0]]
        with self._serving(plain) as gateway:
            plan = Plan(_OVERHEAD_SECONDS, concurrency=1)
            alone = asyncio.run(gateway.load(self.inputs, plan)).latencies.percentile(50)
            before = gateway.loop_seconds()
            # Without a warm-up, because its requests would not be counted.
            many = asyncio.run(gateway.load(self.inputs, Plan(_OVERHEAD_SECONDS, 0.0, concurrency=_MANY)))
            loop = (gateway.loop_seconds() - before) / max(1, many.latencies.count)
        if learnt(costs, 1, inline_limit).cheap(self.rows):
            loop -= run.cpu
        loop = max(_LEAST_LOOP, loop)
        client = many.busy * many.seconds / max(1, many.latencies.count)
        return Overhead(loop, max(0.0, alone - run.median - loop), client)

    def _serving(self, setup: Setup) -> AbstractContextManager[Gateway]:
        """Runs a gateway with a setup."""
        from opgate.tune.configs import changed
        from opgate.tune.trial import serving

        return serving(self.repository, changed(self.config, setup), self.version, self.sequence_length)

    def _check(self, model: Model, chosen: Candidate, seconds: float) -> list[Checked]:
        """Measures the promised rate, and lower ones until one keeps the aim."""
        from opgate.load.latencies import duration
        from opgate.load.report import rate_text
        from opgate.load.run import Plan
        from opgate.load.search import generator_fault, step_seconds, why_missed
        from opgate.tune.findings import Checked
        from opgate.tune.proposal import simulated

        typer.echo(f"\nchecked on a gateway with {chosen.setup}:")
        checks: list[Checked] = []
        for share in _CHECKED:
            # Each has a gateway of its own: sequences that the one before cut off would hold their places.
            with self._serving(chosen.setup) as gateway:
                # The gateway learns the costs of batches in its first requests.
                asyncio.run(gateway.load(self.inputs, Plan(2.0, 1.0, concurrency=_MANY)))
                rate = chosen.rate * share
                plan = Plan(step_seconds(seconds, rate, self.slo), 1.0, rate=rate)
                measured = asyncio.run(gateway.load(self.inputs, plan))
            expected = simulated(model, chosen.setup, rate, self.slo)
            percents = sorted({50.0, self.slo.percent})
            check = Checked(
                rate,
                measured,
                {percent: expected.percentile(percent) for percent in percents},
                why_missed(measured, self.slo),
            )
            checks.append(check)
            texts = [
                f"p{percent:g} {duration(measured.latencies.percentile(percent))}, simulated "
                f"{duration(check.simulated[percent])} ({check.error(percent):+.0%})"
                for percent in percents
            ]
            typer.echo(f"{rate_text(rate):>10}/s  {'; '.join(texts)}  {'missed' if check.miss else 'kept'}")
            if fault := generator_fault(measured, self.slo.percent):
                typer.echo(f"            {fault}")
            if not check.miss:
                break
        return checks

    def _write(self, found: Findings, counts: dict[float, int]) -> None:
        from google.protobuf import text_format

        from opgate.tune.configs import changed

        self.output.mkdir(parents=True, exist_ok=True)
        written = [self.output / "config.pbtxt", self.output / "tune.json"]
        written[0].write_text(text_format.MessageToString(changed(self.config, found.chosen.setup)))
        written[1].write_text(json.dumps(self._facts(found, counts), indent=1, allow_nan=False) + "\n")
        try:
            from opgate.tune.plot import draw
        except ImportError:
            typer.echo("no plot: it needs matplotlib, pip install 'opgate[tune]'", err=True)
        else:
            written.append(self.output / "tune.png")
            draw(written[-1], self.config.name, found, self.slo)
        typer.echo(f"wrote {', '.join(map(str, written))}")

    def _facts(self, found: Findings, counts: dict[float, int]) -> dict[str, Any]:
        """Returns everything that was found, for JSON. Times are milliseconds."""
        from opgate.load.report import measured_json

        return {
            "model": self.config.name,
            "version": self.version,
            "cores": self.cores,
            "rows": self.rows,
            **({"sequence_length": self.sequence_length} if self.sequence_length else {}),
            "slo": {"percentile": self.slo.percent, "ms": self.slo.seconds * 1e3},
            "runs": [
                {"threads": threads, "at_once": busy, "rows": rows, "ms": cost.median * 1e3, "cpu_ms": cost.cpu * 1e3}
                for (threads, busy, rows), cost in found.model.costs.by_case.items()
            ],
            "overhead_ms": {"loop": found.model.overhead.loop * 1e3, "fixed": found.model.overhead.fixed * 1e3},
            "candidates": [
                {
                    **_setup_json(each.setup),
                    "rate": each.rate,
                    "points": [[rate, _milliseconds(seconds)] for rate, seconds in each.points],
                }
                for each in found.candidates
            ],
            "chosen": {**_setup_json(found.chosen.setup), "rate": found.chosen.rate},
            "checks": [
                {
                    "rate": check.rate,
                    "miss": check.miss,
                    "measured": measured_json(check.measured),
                    "simulated_ms": {
                        f"p{percent:g}": _milliseconds(seconds) for percent, seconds in check.simulated.items()
                    },
                    "simulation_error": {
                        f"p{percent:g}": check.error(percent) if math.isfinite(check.error(percent)) else None
                        for percent in check.simulated
                    },
                }
                for check in found.checks
            ],
            "headroom": found.headroom,
            "gateways": [{"rate": rate, "count": count} for rate, count in counts.items()],
        }


def _setup_json(setup: Setup) -> dict[str, Any]:
    batching = setup.batching
    return {
        "instances": setup.instances,
        "threads": setup.threads,
        "batching": "none" if batching is None else "adaptive" if batching.adaptive else "delay",
        "delay_ms": batching.max_delay_ns / 1e6 if batching is not None else 0.0,
    }


def _milliseconds(seconds: float) -> float | None:
    """Returns None for a queue without an end, because JSON has no infinity."""
    return seconds * 1e3 if math.isfinite(seconds) else None


def _tell_candidate(candidate: Candidate) -> None:
    from opgate.load.report import rate_text

    typer.echo(f"{rate_text(candidate.rate):>10}/s  {candidate.setup}")
