"""`opgate load`: a quick load test of one model on a running server."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgate.commands.infer import Inputs, Version, read_input

if TYPE_CHECKING:
    from opgate.load.latencies import Slo
    from opgate.load.run import Client, Plan, Run
    from opgate.service.core.spec import ModelSpec

_URL = "http://127.0.0.1:8000"
#: The exit status after Ctrl-C, as shells have it.
_INTERRUPTED = 130

Url = Annotated[
    str | None, typer.Option(help="URL of the server. The tensors are Triton's binary ones.", show_default=_URL)
]
Grpc = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Load this server over gRPC instead.")]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Closed loop: so many requests are under way, and each answer sends the next one.",
        show_default="16",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        help="Open loop: so many requests a second are due at random times, whatever the answers do. Latency counts "
        "from the time at which a request was due. With --find-rate: the rate to try first.",
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(
        min=0.1, help="Seconds to measure. With --find-rate: seconds of a step.", show_default="10, with --find-rate 3"
    ),
]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds of load before the measurement begins.")]
Wait = Annotated[
    float, typer.Option(min=0, help="Seconds to wait for the last answers. A request without an answer has failed.")
]
Batch = Annotated[int, typer.Option(min=1, help="Rows of a request.")]
Image = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "--image",
        exists=True,
        dir_okay=False,
        help="A file, for a model that takes one: a picture, a sound, bytes of any kind.",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZE,...",
        help="The shape of an input that is made up, without the batch dimension: x=3,224,224. It is needed if the "
        "model's shape is variable.",
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Requests of a sequence, each of which waits for the answer to the one before. 0: no sequences.",
        show_default="10 for a model with sequence_batching, else 0",
    ),
]
FindRate = Annotated[
    bool, typer.Option("--find-rate", help="Find the highest rate of an open loop that keeps --slo without errors.")
]
SloOption = Annotated[
    str | None, typer.Option("--slo", metavar="p99=20ms", help="What --find-rate keeps: a percentile below a time.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the requests to it: `given` is a picture, or the values of some inputs by name."""

    model: str
    version: str
    url: str
    grpc: str | None
    rows: int
    given: bytes | Mapping[str, bytes | str]
    shapes: Mapping[str, tuple[int, ...]]
    sequence_length: int | None = None


def load(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    url: Url = None,
    grpc: Grpc = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    duration: Duration = None,
    warm_up: WarmUp = 1.0,
    wait: Wait = 5.0,
    batch: Batch = 1,
    inputs: Inputs = None,
    image: Image = None,
    shape: Shape = None,
    sequence_length: SequenceLength = None,
    version: Version = "",
    find_rate: FindRate = False,
    slo: SloOption = None,
    json_output: Json = False,
) -> None:
    """Send load to one model of a running server, and print the rate and the latencies. The server is a gateway, Triton
    or another that speaks KServe v2. All requests are alike. Inputs that aren't given are made up. One core sends about
    20,000 requests/s over HTTP and 5,000 over gRPC. The result says whether that was the bottleneck."""
    import uvloop

    from opgate.load.latencies import read_slo
    from opgate.load.run import Plan
    from opgate.load.target_model import LoadError, read_shape

    if url is not None and grpc is not None:
        raise typer.BadParameter("give either --url or --grpc")
    if image is not None and inputs:
        raise typer.BadParameter("give either --file or --input")
    if concurrency is not None and (rate is not None or find_rate):
        raise typer.BadParameter("--concurrency is for a closed loop, --rate and --find-rate are for an open one")
    if find_rate != (slo is not None):
        raise typer.BadParameter("--find-rate and --slo go together, such as --find-rate --slo p99=20ms")
    try:
        aim = read_slo(slo) if slo is not None else None
        shapes = dict(read_shape(text) for text in shape or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    plan = Plan(duration or (3.0 if find_rate else 10.0), warm_up, wait, concurrency or 16, rate or 0.0)
    try:
        given = dict(read_input(text) for text in inputs or []) if image is None else image.read_bytes()
        target = Target(model, version, url or _URL, grpc, batch, given, shapes, sequence_length)
        status = uvloop.run(_load(target, plan, aim, json_output))
    except (LoadError, OSError) as error:
        missing = f"{error.filename}: there is no such file" if isinstance(error, FileNotFoundError) else error
        typer.echo(f"opgate: {missing}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)


async def _load(target: Target, plan: Plan, slo: Slo | None, as_json: bool) -> int:
    """Prints the result and returns the exit status. Raises LoadError, OSError."""
    from opgate.load.sequences import length_of
    from opgate.load.target_model import make_inputs

    client = _client(target)
    try:
        spec = await client.model(target.model, target.version)
        length = length_of(target.sequence_length, client.serves_sequences)
        client.prepare(make_inputs(spec, target.rows, target.given, target.shapes), length)
        await _check_first(client, spec, given=bool(target.given))
        version = target.version or spec.version
        typer.echo(
            f"{spec.name}{f' version {version}' if version else ''}, {client.wire} at {client.name}, "
            f"{target.rows} row{'s' if target.rows > 1 else ''} a request"
            + (f", sequences of {length} requests" if length else ""),
            err=as_json,
        )
        facts: dict[str, Any] = {
            "model": spec.name,
            "version": version,
            "server": client.name,
            "wire": client.wire,
            "rows": target.rows,
            **({"sequence_length": length} if length else {}),
        }
        _get_ready()
        interrupted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted.set)
        if slo is None:
            return await _run(client, plan, interrupted, facts, as_json)
        return await _search(client, plan, slo, interrupted, facts, as_json)
    finally:
        await client.close()


def _client(target: Target) -> Client:
    if target.grpc is not None:
        from opgate.load.grpc import GrpcClient

        return GrpcClient(target.grpc)
    from opgate.load.http import HttpClient

    return HttpClient(target.url)


async def _check_first(client: Client, spec: ModelSpec, given: bool) -> None:
    """Sends the first request. Raises LoadError if it is refused or an output is missing. An error that is not the
    request's fault may go away."""
    from opgate.load.target_model import LoadError, RefusedError

    try:
        error, outputs = await client.first()
    except RefusedError as refused:
        hint = "" if given else " (the inputs were made up: --input or --file gives real ones)"
        raise LoadError(f"the server refuses the request: {refused}{hint}") from None
    if error:
        typer.echo(f"opgate: the first answer is an error, the load begins anyway: {error}", err=True)
    elif missing := [name for name in spec.outputs if name not in outputs]:
        raise LoadError(f"the first answer lacks the output '{missing[0]}'")


def _get_ready() -> None:
    """Allows as many connections as an open loop may need, and makes pauses of the garbage collector short."""
    from opgate.load.run import MOST_UNDER_WAY

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_UNDER_WAY + 100
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
    gc.collect()
    gc.freeze()


async def _run(client: Client, plan: Plan, interrupted: asyncio.Event, facts: dict[str, Any], as_json: bool) -> int:
    from opgate.load.report import Progress, loop_text, measured_json, summary
    from opgate.load.run import Run

    typer.echo(loop_text(plan), err=as_json)
    progress = Progress()

    def watch(run: Run) -> None:
        if interrupted.is_set():
            run.interrupt()
        progress.watch(run)

    try:
        measured = await Run(client, plan, watch).run()
    finally:
        progress.close()
    if as_json:
        histogram = [[begin * 1e3, count] for begin, count in measured.latencies.bars()]
        typer.echo(json.dumps({**facts, **measured_json(measured), "histogram": histogram}))
    else:
        typer.echo(f"\n{summary(measured, facts['rows'])}")
    if interrupted.is_set():
        return _INTERRUPTED
    return 0 if measured.latencies.count or measured.in_time else 1


async def _search(
    client: Client, plan: Plan, slo: Slo, interrupted: asyncio.Event, facts: dict[str, Any], as_json: bool
) -> int:
    from opgate.load.report import search_json, search_summary, step_line
    from opgate.load.search import find_rate

    def watch(run: Run) -> None:
        if interrupted.is_set():
            run.interrupt()

    typer.echo(f"open loop, searching the highest rate that keeps {slo} without errors", err=as_json)
    found = await find_rate(client, slo, plan, lambda step: typer.echo(step_line(step, slo), err=as_json), watch)
    typer.echo(json.dumps({**facts, **search_json(found)}) if as_json else f"\n{search_summary(found)}")
    if interrupted.is_set():
        return _INTERRUPTED
    return 1 if found.good is None else 0
