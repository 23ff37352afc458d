"""The command `opgate doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opgate.doctor.findings import Finding
    from opgate.service.settings import Settings


def doctor(
    repository: Annotated[
        Path | None, typer.Argument(help="A folder of models.", show_default="./model_repository")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of findings in JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that loading a library or a model may take.")] = 120,
) -> None:
    """Try everything that `opgate serve` would load, before anything is served, and say how to mend what fails.

    Each library and each model is loaded in a process of its own. Exits with 1 if something can't be served, with 2 if
    a setting is wrong.
    """
    from pydantic import ValidationError

    from opgate.service.settings import Settings

    try:
        settings = Settings() if repository is None else Settings(model_repository=repository)
    except ValidationError as error:
        for problem in error.errors():
            name = Settings.variable(".".join(map(str, problem["loc"])))
            typer.echo(f"opgate: {name}: {problem['msg'].removeprefix('Value error, ')}", err=True)
        raise typer.Exit(2) from None
    found: list[Finding] = []
    for finding in _findings(settings, timeout, quiet=as_json):
        found.append(finding)
        if not as_json:
            _print(finding)
    errors, warnings = (sum(finding.kind == kind for finding in found) for kind in ("error", "warning"))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        typer.echo(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    if errors or (strict and warnings):
        raise typer.Exit(1)


def _findings(settings: Settings, seconds: float, *, quiet: bool) -> Iterator[Finding]:
    """Yields what is wrong, and says on a terminal what is tried."""
    from opgate.doctor.environment import check_environment
    from opgate.doctor.libraries import check_trusted
    from opgate.doctor.models import check_model, check_repositories
    from opgate.service.repository.paths import model_names

    yield from check_environment()
    _say("the op libraries", quiet)
    yield from check_trusted(settings, seconds)
    stored = [one for one in settings.repositories() if "://" in one]
    for address in stored:
        _say(f"{address} is in an object store: copy it to a folder to have it looked at", quiet)
    folders = [Path(one) for one in settings.repositories() if "://" not in one]
    broken = list(check_repositories(folders))
    yield from broken
    refused = {finding.where for finding in broken if finding.is_error}
    for folder in (folder for folder in folders if f"repository {folder}" not in refused):
        for name in model_names(folder):
            _say(f"model {name}", quiet)
            yield from _each_once(check_model(folder, name, settings, seconds))


def _each_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    yield from dict.fromkeys(findings)


def _say(what: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(f"looking at {what}", err=True)


def _print(finding: Finding) -> None:
    kind = typer.style(finding.kind, fg={"error": "red", "warning": "yellow", "note": "cyan"}[finding.kind])
    typer.echo(f"{kind}: {finding.where}: {finding.what}\n  mend: {finding.mend}")
