"""`opgate serve`: its options are those of the gateway's settings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from opgate.service.settings import Flag, Settings

#: The settings without which `--grpc-use-ssl` and `--grpc-use-ssl-mutual` mean nothing. Triton has these options.
_TLS = {
    "grpc_use_ssl": (
        "Serve gRPC with TLS. Its certificate and its key say that too.",
        ("grpc_tls_certificate", "grpc_tls_key"),
    ),
    "grpc_use_ssl_mutual": ("Take only clients with a certificate.", ("grpc_tls_client_ca",)),
}


def serve(**given: Any) -> None:
    """Serve a model repository over HTTP and gRPC until SIGTERM. Every setting also has an OPGATE_... variable."""
    options = {name: value for name, value in given.items() if value is not None}
    for name, (_, needed) in _TLS.items():
        missing = [Settings.option(setting) for setting in needed if setting not in options]
        if options.pop(name) and missing:
            typer.echo(f"opgate: --{name.replace('_', '-')} needs {' and '.join(missing)}", err=True)
            raise typer.Exit(2)
    raise typer.Exit(run(**options))


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kinds = {kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)}
    kind: Any = next((kind for kind in (bool, int, float, Path, str) if kind in kinds), str)
    names = flag.names
    if Settings.is_joined(name):
        kind = list[str]
    elif kind is bool and not names:
        option = name.replace("_", "-")
        names = (f"--{option}/--no-{option}",)
    default = flag.default or _shown(field.default)
    option_info = typer.Option(*names, help=flag.help, show_default=default or False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option_info]
    )


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default)


def _signature() -> inspect.Signature:
    parameters = [_parameter(name, flag) for name, flag in Settings.flags().items()]
    for name, (text, _) in _TLS.items():
        annotation = Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", help=text)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation))
    return inspect.Signature(parameters)


serve.__signature__ = _signature()  # type: ignore[attr-defined]  # typer reads it
serve.__annotations__ = {name: parameter.annotation for name, parameter in serve.__signature__.parameters.items()}  # type: ignore[attr-defined]


def run(**options: Any) -> int:
    """Serves with these settings, which override the environment variables. Returns the exit status."""
    from pydantic import ValidationError

    from opgate.service.run import run as run_server

    try:
        settings = Settings(**options)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(map(str, problem["loc"]))
            where = Settings.option(name) if name in options else Settings.variable(name)
            is_secret = not name or "restricted" in name or name == "client_limit"  # it may have one in it
            got = "" if is_secret else f", got {problem['input']!r}"
            text = problem["msg"].removeprefix("Value error, ")
            typer.echo(f"opgate: {where}: {text}{got}" if name else f"opgate: {text}", err=True)
        return 2
    return run_server(settings)
