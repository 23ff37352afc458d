"""The options of `opgate serve`. An option that Triton has too keeps Triton's name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Repository = Annotated[
    Path | None,
    typer.Option(
        "--model-repository", "--model-store", help="The folder of the models.", show_default="./model_repository"
    ),
]
HttpHost = Annotated[
    str | None, typer.Option("--http-host", "--http-address", help="Address of HTTP.", show_default="127.0.0.1")
]
HttpPort = Annotated[
    int | None, typer.Option("--http-port", help="Port of HTTP. 0 picks a free port.", show_default="8000")
]
GrpcHost = Annotated[
    str | None,
    typer.Option("--grpc-host", "--grpc-address", help="Address of gRPC.", show_default="the address of HTTP"),
]
GrpcPort = Annotated[
    int | None, typer.Option("--grpc-port", help="Port of gRPC. 0 picks a free port.", show_default="8001")
]
AllowHttp = Annotated[bool | None, typer.Option("--allow-http/--no-http", help="Serve HTTP.", show_default="yes")]
AllowGrpc = Annotated[bool | None, typer.Option("--allow-grpc/--no-grpc", help="Serve gRPC.", show_default="yes")]
Backend = Annotated[
    str | None, typer.Option(help="onnxruntime in this process, or triton.", show_default="onnxruntime")
]
TritonUrl = Annotated[
    str | None,
    typer.Option(help="Triton servers: HOST:PORT of gRPC, joined by commas.", show_default="127.0.0.1:8011"),
]
Strict = Annotated[
    bool | None,
    typer.Option(
        "--strict-readiness/--no-strict-readiness",
        help="Answer that the server is not ready while a model is unavailable.",
        show_default="yes",
    ),
]
Exit = Annotated[
    float | None,
    typer.Option("--exit-timeout-secs", help="Seconds to finish accepted requests after SIGTERM.", show_default="30"),
]
Queue = Annotated[int | None, typer.Option(help="Requests that may wait for one model.", show_default="1024")]
Body = Annotated[int | None, typer.Option(help="Largest request body in bytes.", show_default="256 MiB")]
RateLimit = Annotated[
    str | None,
    typer.Option(help="execution_count: instances run while their resources are free, or off.", show_default="off"),
]
RateLimitResource = Annotated[
    list[str] | None,
    typer.Option(help="Copies of a resource: name:count or name:count:device. May be given several times."),
]
Level = Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")]
Format = Annotated[str | None, typer.Option(help="json or text.", show_default="json")]
Access = Annotated[bool | None, typer.Option("--access-log/--no-access-log", help="Log requests.", show_default="no")]


def serve(
    model_repository: Repository = None,
    http_host: HttpHost = None,
    http_port: HttpPort = None,
    grpc_host: GrpcHost = None,
    grpc_port: GrpcPort = None,
    http: AllowHttp = None,
    grpc: AllowGrpc = None,
    backend: Backend = None,
    triton_url: TritonUrl = None,
    strict_readiness: Strict = None,
    shutdown_timeout: Exit = None,
    max_queue_size: Queue = None,
    max_body_bytes: Body = None,
    rate_limit: RateLimit = None,
    rate_limit_resource: RateLimitResource = None,
    log_level: Level = None,
    log_format: Format = None,
    access_log: Access = None,
) -> None:
    """Serve a model repository over HTTP and gRPC until SIGTERM. Every setting also has an OPGATE_... variable."""
    options = {name: value for name, value in locals().items() if value is not None}
    raise typer.Exit(run(**options))


def run(**options: Any) -> int:
    """Serves with these settings, which override the environment variables. Returns the exit status."""
    from pydantic import ValidationError

    from opgate.service.app import run as run_server
    from opgate.service.settings import Settings

    try:
        settings = Settings(**options)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(map(str, problem["loc"]))
            where = name if name in options else Settings.variable(name)
            typer.echo(f"opgate: {where}: {problem['msg']}, got {problem['input']!r}", err=True)
        return 2
    return run_server(settings)
