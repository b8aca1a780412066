"""The Typer application: the commands and their shared settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from tf_dist import __version__
from tf_dist.cli import output
from tf_dist.cli.command_table import ABOUT, EXAMPLES, EXIT_CODES, OPTIONS, named


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The program with the command that ``arguments`` name, or with all commands. Imports only their modules."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=ABOUT,
        epilog=EXIT_CODES,
    )
    app.callback()(_settings)
    for command in named(arguments):
        module, _, attribute = command.code.partition(":")
        loaded = import_module(f"tf_dist.cli.commands.{module}")
        code = getattr(loaded, attribute)
        if isinstance(code, typer.Typer):
            for part in code.registered_commands:
                part.epilog = _examples(f"{command.name} {part.name or getattr(part.callback, '__name__', '')}")
            app.add_typer(code, name=command.name, rich_help_panel=command.panel, epilog=_examples(command.name))
        else:
            settings = loaded.PASS_THROUGH if command.name == "argo-launch" else None
            app.command(
                command.name,
                rich_help_panel=command.panel,
                context_settings=settings,
                epilog=_examples(command.name),
            )(code)
    return app


def _examples(name: str) -> str | None:
    """The examples at the end of the help of a command or of a group of commands."""
    found = [line for one, lines in EXAMPLES.items() if f"{one} ".startswith(f"{name} ") for line in lines]
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in found)]) if found else None


def _version(asked: bool) -> None:
    if asked:
        output.line(f"tf-dist {__version__}")
        raise typer.Exit


def _settings(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=OPTIONS["--version"])
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help=OPTIONS["--plain"])] = False,
    debug: Annotated[bool, typer.Option("--debug", help=OPTIONS["--debug"])] = False,
) -> None:
    output.configure(plain=plain)
    if debug:
        os.environ["TF_DIST_DEBUG"] = "1"
