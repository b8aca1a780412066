"""Markdown of the pieces that reference pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from docs.generator.source import Argument, Undocumented


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown of one line."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    """A bar ends a cell, but for one within code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


def code(text: str) -> str:
    """A literal."""
    return f"`{text}`" if text else ""


def type_(argument: Argument) -> str:
    """The type of an argument. A bar would end the cell of a table."""
    return code(argument.type.replace(" | ", " or "))


def prose(text: str) -> str:
    """A docstring's text: its double backquotes are one here, and what looks like a tag is none."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(
        f"`{part.strip('`')}`" if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )


def paragraphs(text: str) -> str:
    """A docstring's paragraphs."""
    return "\n\n".join(prose(" ".join(one.split())) for one in text.split("\n\n"))


def argument_table(owner: str, arguments: Iterable[Argument], texts: dict[str, str]) -> str:
    """Arguments with their type, default and meaning; Undocumented names all that have none."""
    listed = list(arguments)
    if missing := [one.name for one in listed if not texts.get(one.name)]:
        raise Undocumented(f"{owner}: the docstring says nothing about {', '.join(missing)}")
    if unknown := texts.keys() - {one.name for one in listed}:
        raise Undocumented(f"{owner}: the docstring describes {', '.join(sorted(unknown))}, which it does not take")
    rows = [
        (
            code(one.name),
            type_(one),
            "required" if one.default is None else code(one.default),
            _own(texts[one.name]),
        )
        for one in listed
    ]
    return table(("argument", "type", "default", "meaning"), rows)


def _own(text: str) -> str:
    return prose(text[:1].upper() + text[1:])
