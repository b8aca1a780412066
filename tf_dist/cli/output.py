"""Output: the only module that writes to standard output and standard error.

Results go to standard output, and messages about them to standard error. On a terminal, the output has colours.
Elsewhere, with NO_COLOR, or with --plain, it is plain text that scripts can cut.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from tf_dist.client.connection import Connection


_state = {"plain": False}


def configure(*, plain: bool) -> None:
    """Configure the output of the whole run. Characters that a stream cannot encode are escaped, and do not fail.

    If a stream is closed at the start (``>&-``), Python sets it to None. Losing the result of a command is an error. If
    standard error is also closed, only the exit code reports it.
    """
    _state["plain"] = _state["plain"] or plain
    if not isinstance(sys.stdout, _StandardOutput):
        sys.stdout = cast(TextIO, _StandardOutput(sys.stdout or _devnull("r")))
    sys.stderr = sys.stderr or _devnull("w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _devnull(mode: str) -> TextIO:
    return cast(TextIO, open(os.devnull, mode))


def rich_wanted(stream: Any = None) -> bool:
    """Whether the stream is a terminal that shows colours, and plain text is not requested."""
    if _state["plain"] or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool((stream or sys.stdout).isatty())


def console(*, error: bool = False) -> Console:
    """A rich console on standard output (or error)."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, soft_wrap=True)


class OutputClosed(Exception):
    """Standard output is closed. ``reason`` is "" if its reader has ended (``| head``)."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.reason = "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)


class _StandardOutput:
    """Standard output that raises ``OutputClosed`` for each failure, including writes of help texts and libraries."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """See ``TextIO``."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputClosed(error) from error

    def flush(self) -> None:
        """See ``TextIO``."""
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputClosed(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write(text: str) -> None:
    """Write a part of the result. Raises OutputClosed."""
    sys.stdout.write(text)


def _safe(text: str) -> str:
    """The text without characters that change a terminal: texts of a cluster may contain them."""
    if text.replace("\n", "").isprintable():
        return text
    from tf_dist.core.diagnostics.display_text import without_controls

    return without_controls(text)


def line(text: str = "") -> None:
    """Write one line of the result."""
    write(f"{_safe(text)}\n")


def flush() -> None:
    """Flush the result, for readers of a pipe. Raises OutputClosed."""
    sys.stdout.flush()


def note(text: str, style: str = "") -> None:
    """Write one line about the progress."""
    text = _safe(text)
    sys.stderr.write(f"{styled(text, style, sys.stderr) if style else text}\n")
    sys.stderr.flush()


_ANSI = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "bold": "1",
    "dim": "2",
}


def styled(text: str, style: str, stream: Any = None) -> str:
    """The text in a colour, if colours are wanted."""
    codes = ";".join(_ANSI[word] for word in style.split() if word in _ANSI)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and rich_wanted(stream) else text


def failure(message: str, hint: str = "") -> None:
    """Write an error and its hint to standard error."""
    first, *rest = (message or "it failed without a message").split("\n")
    note(f"{styled('error:', 'red bold', sys.stderr)} {first}")
    for text in rest:
        note(f"  {text}")
    _hint(hint)


def warning(message: str, hint: str = "") -> None:
    """Write a warning to standard error."""
    note(f"{styled('warning:', 'yellow bold', sys.stderr)} {message}")
    _hint(hint)


def _hint(text: str) -> None:
    if text:
        note(f"  {styled('hint:', 'cyan', sys.stderr)} {text}")


_BREAKS = re.compile(r"[\r\n\t]+")
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def _one_line(cell: str) -> str:
    """A text of a cluster without line breaks and colours, which would garble other cells."""
    return cell if cell.isprintable() else _COLOURS.sub("", _safe(_BREAKS.sub(" ", cell)))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], styles: Mapping[str, str] | None = None) -> None:
    """Write a table with titles. ``styles``: the colour of a cell by its text."""
    listed = [list(titles), *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in listed) for column in range(len(titles))]
    for number, row in enumerate(listed):
        cells = [
            _cell(text, width, "bold" if number == 0 else (styles or {}).get(text, ""))
            for text, width in zip(row, widths, strict=True)
        ]
        line("  ".join(cells).rstrip())


def _cell(text: str, width: int, style: str) -> str:
    shown = styled(text, style) if style and text else text
    return shown + " " * (width - len(text))


# The largest depth that is written, as in job files. The encoders for JSON and YAML are recursive.
_MAX_DEPTH: Final = 100
# The parts of a deep path that a warning shows.
_SHOWN_PARTS: Final = 8


def data(form: str, objects: Any) -> None:
    """Write JSON or YAML for programs. A list becomes several YAML documents."""
    import json

    from tf_dist.core.model.fieldpath import cut_deep_values, format_field_path

    objects, cut = cut_deep_values(objects, _MAX_DEPTH)
    if cut:
        place = format_field_path(cut[0][:_SHOWN_PARTS])
        warning(
            f"{place}: values that are nested more than {_MAX_DEPTH} deep are left out",
            "kubectl get -o json shows the whole object",
        )
    text = json.dumps(objects, indent=2, default=str)
    if form == "json":
        line(text)
    else:
        from tf_dist.client.yaml_files import to_yaml

        write(to_yaml(json.loads(text)))


def write_files(files: Mapping[str, str], folder: Path, hint: str) -> None:
    """Write files into a folder, and print their paths. Raises TFDistError with the hint on failure."""
    from tf_dist.errors import TFDistError

    for name, text in files.items():
        place = folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TFDistError(f"cannot write {place}: {error.strerror}", hint=hint) from error
        line(str(place))


def watched() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def announce_target(connection: Connection, namespace: str) -> None:
    """On a terminal, print which cluster a command is about to change."""
    if connection.place is not None and watched():
        note(f"cluster: {connection.name}, namespace {namespace}", "dim")


STATE_STYLES = {
    "Running": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Terminated": "red",
    "Aborted": "red",
    "Restarting": "yellow",
    "Waiting": "yellow",
    "Pending": "yellow",
    "Suspended": "dim",
    "Gone": "dim",
    "Stopped": "dim",
}
"""The colour of each state."""
