"""The command `opgate`."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

#: Where each command is: its module, and its function there if that has another name.
COMMANDS = {
    "build": "commands.ops",
    "ops": "commands.ops",
    "verify": "commands.ops",
    "watch": "commands.ops",
    "new": "commands.ops",
    "adopt": "commands.ops",
    "package": "commands.ops",
    "diff": "commands.ops",
    "sign": "commands.ops",
    "decompose": "commands.ops",
    "tensorrt": "commands.ops",
    "trust": "commands.ops",
    "serve": "commands.serve",
    "doctor": "doctor.command",
    "infer": "commands.infer",
    "export": "commands.export",
    "import": "commands.import_model:import_model",
    "attach": "attach.command",
    "inspect": "commands.inspect_model:inspect_model",
    "run": "commands.run",
    "load": "load.command",
    "plan": "commands.plan",
    "tune": "tune.command",
    "triton": "triton",
}
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # its tables cut the names of options in a window of 80 columns
}


class _Commands(typer.core.TyperGroup):
    """The commands. The module of one is imported when it is asked for, so that each costs only its own imports."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # for their names, which a typo may resemble

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command, None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        own = typer.Typer(**_STYLE)
        context = {"allow_extra_args": cmd_name == "triton"}
        own.command(cmd_name, context_settings=context)(
            getattr(import_module(f"opgate.{module}"), function or cmd_name)
        )
        return typer.main.get_command(own)


app = typer.Typer(
    help="Write a custom operator once, serve the models that use it.", no_args_is_help=True, cls=_Commands, **_STYLE
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("opgate"))
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Write a custom operator once, serve the models that use it."""


def main() -> None:
    """Runs the command."""
    app()
