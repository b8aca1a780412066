"""Arguments of Volcano's job plugins, read as Go's ``flag`` package reads them (``FlagSet.Parse``, ContinueOnError).

Volcano does not refuse a plugin with invalid arguments. It logs the error, uses the arguments before the invalid one,
and ignores those after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FlagKind(StrEnum):
    """The type of a flag's value."""

    TEXT = "text"
    BOOL = "true or false"
    INT = "a whole number"


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """The values in effect, as written. ``stopped_at``: the argument at which reading ended ("": all were
    read), with the reason (``problem``), the name of an unknown flag, and the arguments after it
    (``unread``).
    """

    values: Mapping[str, str]
    stopped_at: str = ""
    problem: str = ""
    unknown: str = ""
    unread: tuple[str, ...] = ()


_BOOLEANS: Final = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)} | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)
_FLAG: Final = re.compile(r"--?([^-=][^=]*)(?:=(.*))?", re.DOTALL)
_INT: Final = re.compile(r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO]?(_?[0-7])+|[1-9](_?[0-9])*|0)", re.ASCII)


def parse_go_bool(text: str) -> bool | None:
    """The result of ``strconv.ParseBool``; None for an error."""
    return _BOOLEANS.get(text)


def parse_go_int(text: str) -> int | None:
    """The result of ``strconv.ParseInt(text, 0, 64)``; None for an error."""
    if len(text) > 64 or not _INT.fullmatch(text):
        return None
    found = int(re.sub(r"^([+-]?)0(_?[0-7])", r"\g<1>0o\2", text), 0)  # Go's 017 is Python's 0o17
    return found if -(2**63) <= found < 2**63 else None


def parse_go_flags(arguments: Sequence[str], kinds: Mapping[str, FlagKind]) -> ParsedFlags:
    """The flags among ``arguments``: ``--port=22``, ``-port=22``, ``--port 22``; a lone boolean flag is true.

    Reading ends at ``--``, or at the first argument that is not a flag.
    """
    values: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if len(argument) < 2 or not argument.startswith("-"):
            return ParsedFlags(values, argument, "is not a flag", unread=tuple(waiting))
        if argument == "--":
            return (
                ParsedFlags(values, argument, "ends the flags", unread=tuple(waiting))
                if waiting
                else ParsedFlags(values)
            )
        match = _FLAG.fullmatch(argument)
        if match is None:
            return ParsedFlags(values, argument, "is not a flag", unread=tuple(waiting))
        name, value = match[1], match[2]
        if name not in kinds:
            return ParsedFlags(values, argument, "is not known", name, tuple(waiting))
        kind = kinds[name]
        if value is None and kind is FlagKind.BOOL:
            value = "true"
        if value is None:
            if not waiting:
                return ParsedFlags(values, argument, "needs a value")
            value = waiting.pop(0)
        if kind is FlagKind.BOOL and parse_go_bool(value) is None:
            return ParsedFlags(values, argument, f"must be {kind}, not {value[:40]!r}", unread=tuple(waiting))
        values[name] = value
        if kind is FlagKind.INT and parse_go_int(value) is None:
            return ParsedFlags(values, argument, f"must be {kind}, not {value[:40]!r}", unread=tuple(waiting))
    return ParsedFlags(values)
