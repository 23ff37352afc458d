"""The options of `opgate serve`. An option that Triton has too keeps Triton's name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Repository = Annotated[
    list[str] | None,
    typer.Option(
        "--model-repository",
        "--model-store",
        help="A folder of models. May be given several times.",
        show_default="./model_repository",
    ),
]
Control = Annotated[
    str | None,
    typer.Option(
        "--model-control-mode",
        help="none, poll (changed files are noticed) or explicit (clients load and unload models).",
        show_default="none",
    ),
]
Poll = Annotated[
    float | None,
    typer.Option("--repository-poll-secs", help="Seconds between two looks at the files.", show_default="15"),
]
Load = Annotated[
    list[str] | None,
    typer.Option(
        "--load-model", help="A model to load at the start in the mode explicit, * for all. May be given several times."
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
UseSsl = Annotated[bool, typer.Option("--grpc-use-ssl", help="Serve gRPC with TLS, which the two files below do too.")]
UseSslMutual = Annotated[bool, typer.Option("--grpc-use-ssl-mutual", help="Take only clients with a certificate.")]
GrpcCertificate = Annotated[Path | None, typer.Option("--grpc-server-cert", help="Certificate of gRPC, in PEM.")]
GrpcKey = Annotated[Path | None, typer.Option("--grpc-server-key", help="Its key, in PEM.")]
GrpcRoot = Annotated[
    Path | None, typer.Option("--grpc-root-cert", help="Authority of the clients of gRPC: they need a certificate.")
]
SslCertificate = Annotated[Path | None, typer.Option(help="Certificate of HTTP, in PEM.")]
SslKey = Annotated[Path | None, typer.Option(help="Its key, in PEM.")]
SslPassword = Annotated[str | None, typer.Option(help="The password of the key.", show_default=False)]
SslRoots = Annotated[Path | None, typer.Option(help="Authority of the clients of HTTP: they need a certificate.")]
SslCiphers = Annotated[str | None, typer.Option(help="Ciphers of HTTP, as OpenSSL names them.")]
HttpRestricted = Annotated[
    list[str] | None,
    typer.Option(help="GROUP,GROUP:HEADER=VALUE: these endpoints need the header. May be given several times."),
]
GrpcRestricted = Annotated[
    list[str] | None,
    typer.Option(help="The same for gRPC, where the header is triton-grpc-protocol-HEADER."),
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
Shared = Annotated[
    bool | None,
    typer.Option(
        "--shared-memory/--no-shared-memory",
        help="Let clients of this machine pass tensors in system shared memory.",
        show_default="yes",
    ),
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
Isolation = Annotated[
    str | None,
    typer.Option(
        help="process: each instance of a model has a worker process, and a crash ends only that. Or none.",
        show_default="none",
    ),
]
AllowPython = Annotated[
    bool | None,
    typer.Option(
        "--allow-python-models/--no-python-models",
        help='Serve models with backend "python", which run their model.py.',
        show_default="no",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Gateway processes that share the port, the cores and the memory.", show_default="1"),
]
IsolationMemory = Annotated[
    int | None, typer.Option(help="Bytes that a worker process may allocate. 0 is no limit.", show_default="0")
]
IsolationNetwork = Annotated[
    bool | None,
    typer.Option(
        "--isolation-network/--no-isolation-network", help="Let worker processes use networks.", show_default="yes"
    ),
]
IsolationWrites = Annotated[
    bool | None,
    typer.Option(
        "--isolation-writes/--no-isolation-writes", help="Let worker processes write files.", show_default="yes"
    ),
]
IsolationEnvironment = Annotated[
    list[str] | None,
    typer.Option(help="A variable of the environment that worker processes get; * and ? stand for others. Repeatable."),
]
RateLimit = Annotated[
    str | None,
    typer.Option(help="execution_count: instances run while their resources are free, or off.", show_default="off"),
]
RateLimitResource = Annotated[
    list[str] | None,
    typer.Option(help="Copies of a resource: name:count or name:count:device. May be given several times."),
]
Cache = Annotated[
    int | None,
    typer.Option(help="Bytes of results that are kept for models with response_cache.", show_default="64 MiB"),
]
Trace = Annotated[
    list[str] | None,
    typer.Option(
        help="level=TIMESTAMPS, rate=100, count=50, file=/tmp/t.json, mode=triton. May be given several times."
    ),
]
Level = Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")]
Format = Annotated[str | None, typer.Option(help="json or text.", show_default="json")]
Access = Annotated[bool | None, typer.Option("--access-log/--no-access-log", help="Log requests.", show_default="no")]


def serve(
    model_repository: Repository = None,
    model_control_mode: Control = None,
    repository_poll_secs: Poll = None,
    load_model: Load = None,
    http_host: HttpHost = None,
    http_port: HttpPort = None,
    grpc_host: GrpcHost = None,
    grpc_port: GrpcPort = None,
    http: AllowHttp = None,
    grpc: AllowGrpc = None,
    backend: Backend = None,
    triton_url: TritonUrl = None,
    shared_memory: Shared = None,
    strict_readiness: Strict = None,
    shutdown_timeout: Exit = None,
    max_queue_size: Queue = None,
    response_cache_byte_size: Cache = None,
    max_body_bytes: Body = None,
    grpc_use_ssl: UseSsl = False,
    grpc_use_ssl_mutual: UseSslMutual = False,
    grpc_tls_certificate: GrpcCertificate = None,
    grpc_tls_key: GrpcKey = None,
    grpc_tls_client_ca: GrpcRoot = None,
    ssl_certfile: SslCertificate = None,
    ssl_keyfile: SslKey = None,
    ssl_keyfile_password: SslPassword = None,
    ssl_ca_certs: SslRoots = None,
    ssl_ciphers: SslCiphers = None,
    http_restricted_api: HttpRestricted = None,
    grpc_restricted_protocol: GrpcRestricted = None,
    workers: Workers = None,
    isolation: Isolation = None,
    allow_python_models: AllowPython = None,
    isolation_memory_bytes: IsolationMemory = None,
    isolation_network: IsolationNetwork = None,
    isolation_writes: IsolationWrites = None,
    isolation_environment: IsolationEnvironment = None,
    rate_limit: RateLimit = None,
    rate_limit_resource: RateLimitResource = None,
    log_level: Level = None,
    log_format: Format = None,
    access_log: Access = None,
    trace_config: Trace = None,
) -> None:
    """Serve a model repository over HTTP and gRPC until SIGTERM. Every setting also has an OPGATE_... variable."""
    options = {name: value for name, value in locals().items() if value is not None}
    wants_tls, wants_mutual = options.pop("grpc_use_ssl", False), options.pop("grpc_use_ssl_mutual", False)
    if (wants_tls and not {"grpc_tls_certificate", "grpc_tls_key"} <= options.keys()) or (
        wants_mutual and "grpc_tls_client_ca" not in options
    ):
        needed = "--grpc-root-cert" if wants_mutual and "grpc_tls_key" in options else "--grpc-server-cert and -key"
        typer.echo(f"opgate: --grpc-use-ssl{'-mutual' if wants_mutual else ''} needs {needed}", err=True)
        raise typer.Exit(2)
    raise typer.Exit(run(**options))


def run(**options: Any) -> int:
    """Serves with these settings, which override the environment variables. Returns the exit status."""
    from pydantic import ValidationError

    from opgate.service.run import run as run_server
    from opgate.service.settings import OPTIONS, Settings

    try:
        settings = Settings(**options)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(map(str, problem["loc"]))
            where = OPTIONS.get(name, f"--{name.replace('_', '-')}") if name in options else Settings.variable(name)
            is_secret = not name or "restricted" in name  # it may have one in it
            got = "" if is_secret else f", got {problem['input']!r}"
            text = problem["msg"].removeprefix("Value error, ")
            typer.echo(f"opgate: {where}: {text}{got}" if name else f"opgate: {text}", err=True)
        return 2
    return run_server(settings)
