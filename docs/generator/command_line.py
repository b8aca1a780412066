"""The command line: every command with its arguments and options, from the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from docs.generator.markdown import code, paragraphs, prose, table
from docs.generator.source import Undocumented
from tf_dist.argo.launcher import launcher_arguments
from tf_dist.cli.app import command_line
from tf_dist.core.pipeline.run_options import Face

LAUNCHER = "argo-launch"


def commands() -> dict[str, Any]:
    """Every command by its words (``local up``), in the order of the help."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(command_line()).commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        found |= {f"{name} {sub}": one for sub, one in below.items()} if below else {name: command}
    return found


def page() -> str:
    """All commands, those of one purpose together."""
    whole = typer.main.get_command(command_line())
    panels: dict[str, list[str]] = {}
    for words, command in commands().items():
        top = whole.commands[words.split()[0]]  # type: ignore[attr-defined]
        panels.setdefault(top.rich_help_panel, []).append(_command(words, command))
    options = _options("tf-dist", whole.params)
    parts = [f"## Before any command\n\n{options}"]
    parts += [f"## {panel}\n\n" + "\n\n".join(texts) for panel, texts in panels.items()]
    return "\n\n".join(parts)


def _command(words: str, command: Any) -> str:
    if words == LAUNCHER:
        return _launcher()
    names = [_metavar(one) for one in command.params if not one.opts[0].startswith("-")]
    usage = " ".join(("tf-dist", words, "[OPTIONS]", *names))
    text = paragraphs((command.help or "").split("\f")[0])
    if not text:
        raise Undocumented(f"tf-dist {words}: the command has no docstring")
    return f"### tf-dist {words}\n\n{text}\n\n```text\n{usage}\n```\n\n{_options(words, command.params)}"


def _options(words: str, params: Iterator[Any]) -> str:
    rows = []
    for one in params:
        if one.hidden or one.name in ("help", "install_completion", "show_completion"):
            continue
        if not one.help:
            raise Undocumented(f"tf-dist {words}: {one.opts[0]} has no help")
        option = one.opts[0].startswith("-")
        spelled = ", ".join(code(text) for text in (*one.opts, *one.secondary_opts)) if option else code(_metavar(one))
        if option and not one.is_flag and one.metavar:
            spelled += f" {code(one.metavar)}"
        often = " Can be given several times." if one.multiple or one.nargs == -1 else ""
        rows.append((spelled, _default(one), prose(one.help) + often))
    return table(("option", "default", "meaning"), rows) if rows else ""


def _metavar(one: Any) -> str:
    name = one.metavar or one.name.upper()
    return name if one.required else f"[{name}]"


def _default(one: Any) -> str:
    if one.required:
        return "required"
    value = one.default
    return "" if value in (None, "", False, (), []) or callable(value) else code(str(value))


def _launcher() -> str:
    """The launcher reads its arguments itself: a document of options, and options by themselves."""
    rows = []
    for name, row in launcher_arguments.ROWS.items():
        default = next((word for word, value in row.choices.items() if value == row.default), row.default)
        rows.append(
            (code(name), code("" if default in (None, (), False) else str(default)), prose(row.about(Face.LAUNCHER)))
        )
    usage = f"```text\ntf-dist {LAUNCHER} DOCUMENT [NAME=VALUE]... [--dry-run]\n```"
    about = paragraphs(launcher_arguments.ABOUT)
    return f"### tf-dist {LAUNCHER}\n\n{about}\n\n{usage}\n\n{table(('option', 'default', 'meaning'), rows)}"
