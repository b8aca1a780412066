"""Log lines as they are shown: prefixed with their replica, each replica in its colour."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tf_dist.cli import output
from tf_dist.core.model import Job
from tf_dist.core.sizes import largest

_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue")
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\x1b[^\[]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


def visible(text: str) -> str:
    """What a line shows in the end: progress bars draw over themselves, and only colours may steer a terminal."""
    shown = next((part for part in reversed(text.split("\r")) if part), "")
    return _CONTROLS.sub("", shown)


class Prefixes:
    """``worker-0 | `` for every source of a job, of one width."""

    def __init__(self, job: Job) -> None:
        replicas = [str(replica) for replica in largest(job).replicas]
        self._width = max(map(len, replicas), default=0)
        self._colours = {replica: _COLOURS[number % len(_COLOURS)] for number, replica in enumerate(replicas)}

    def colour(self, source: str) -> str:
        """The colour of a source; containers have that of their replica."""
        return self._colours.get(source.partition("/")[0], "")

    def plain(self, source: str) -> str:
        """The prefix without its colour."""
        return f"{source:<{self._width}} |"

    def line(self, source: str, text: str) -> str:
        """The whole line."""
        return f"{output.painted(self.plain(source), self.colour(source))} {visible(text)}"

    def lines(self, entries: Iterable[tuple[str, str]]) -> str:
        """Several lines."""
        return "\n".join(self.line(source, text) for source, text in entries)
